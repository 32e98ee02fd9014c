//! Doorbells. The device learns whether the client's virtual CPU waits for the reply, and the reply does not wait for the device.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use paradisk_devices::{Bar, BarKind, Coalescing, Doorbell, IoDevice, PciDevice, Sleep, Stats, Time};
use paradisk_serve::vfio_user::Server;

use crate::client::Client;

const SOON: Duration = Duration::from_secs(60);
const BELL: Doorbell = Doorbell { bar: 0, offset: 0x40, len: 4 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rung {
    Plain,
    Blocking,
}

/// A device that reports each doorbell to the test, and blocks until the test lets it continue.
struct Bell {
    rung: Sender<Rung>,
    go_on: Receiver<()>,
}

impl Bell {
    fn tell(&self, rung: Rung) {
        self.rung.send(rung).unwrap();
        let told = self.go_on.recv_timeout(SOON);
        assert_ne!(told, Err(RecvTimeoutError::Timeout), "the client waits for the device");
    }
}

impl PciDevice for Bell {
    fn config_read(&mut self, _offset: u16, data: &mut [u8]) {
        data.fill(0);
    }

    fn config_write(&mut self, _offset: u16, _data: &[u8]) {}

    fn bars(&self) -> Vec<Bar> {
        vec![Bar { index: 0, kind: BarKind::Memory32, size: 4096, address: None }]
    }

    fn bar_read(&mut self, _bar: u8, _offset: u64, data: &mut [u8], _now: Time) {
        data.fill(0);
    }

    fn bar_write(&mut self, _bar: u8, _offset: u64, _data: &[u8], _now: Time) {
        panic!("the doorbell was taken for a register");
    }

    fn doorbells(&self) -> &[Doorbell] {
        &[BELL]
    }

    fn on_blocking_doorbell(&mut self, _index: usize, _now: Time) {
        self.tell(Rung::Blocking);
    }
}

impl IoDevice for Bell {
    fn on_doorbell(&mut self, _index: usize, _now: Time) {
        self.tell(Rung::Plain);
    }

    fn completion_events(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn on_completions(&mut self, _now: Time) {}

    fn before_sleep(&mut self, _now: Time) -> Sleep {
        Sleep::Forever
    }

    fn reset(&mut self, _now: Time) {}

    fn quiesce(&mut self, _now: Time) {}

    fn set_coalescing(&mut self, _coalescing: Coalescing) {}

    fn stats(&self) -> Stats {
        Stats::default()
    }
}

#[test]
fn the_device_knows_whether_a_doorbell_blocks_and_does_not_delay_its_reply() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let (stop, stopped) = UnixStream::pair().unwrap();
    let ((rung, rings), (go_on, may)) = (channel(), channel());
    let mut server = Server::new(listener, |_, _| Ok(Box::new(Bell { rung, go_on: may }))).unwrap();
    let thread = thread::spawn(move || server.run(stopped.as_fd(), |_| {}).unwrap());
    let mut client = Client::new(&socket);
    let rings = || {
        let rung = rings.recv_timeout(SOON).unwrap();
        go_on.send(()).unwrap();
        rung
    };
    // The device blocks until `rings` is called, so this returns only if the reply does not wait for the device.
    client.write(0, BELL.offset, &[0; 4], false).unwrap();
    assert_eq!(rings(), Rung::Blocking);
    client.write(0, BELL.offset, &[0; 4], true).unwrap();
    assert_eq!(rings(), Rung::Plain);
    let bells = client.io_fds(0);
    rustix::io::write(&bells[0].1, &1u64.to_ne_bytes()).unwrap();
    assert_eq!(rings(), Rung::Plain);
    // When the client disconnects, an ioeventfd may ring once more. Then the closed channel lets the device continue.
    drop((client, go_on, stop));
    thread.join().unwrap();
}
