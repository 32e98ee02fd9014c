//! A disk that grows while a client is connected.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use vhost::vhost_user::{
    FrontendReqHandler, HandlerResult, VhostUserFrontend, VhostUserFrontendReqHandlerMut,
};
use vm_memory::Bytes;

use crate::client::*;
use crate::rig::{MIB, Rig, raw};

const END: u64 = 64 * MIB / 512;
const SOON: Duration = Duration::from_secs(60);

/// The client's end of the back-channel.
struct Told(Sender<()>);

impl VhostUserFrontendReqHandlerMut for Told {
    fn handle_config_change(&mut self) -> HandlerResult<u64> {
        let _ = self.0.send(());
        Ok(0)
    }
}

/// Pass the server a back-channel. The receiver gets an item for each configuration change that the server reports.
fn hear(client: &mut Client) -> Receiver<()> {
    let (sender, told) = mpsc::channel();
    #[expect(clippy::disallowed_types, reason = "what the vhost crate has for a handler")]
    let handler = Arc::new(std::sync::Mutex::new(Told(sender)));
    let mut handler = FrontendReqHandler::new(handler).unwrap();
    client.frontend.set_backend_request_fd(&handler.get_tx_raw_fd()).unwrap();
    // That message has no reply. The reply to a later one shows that the server has processed both.
    let _ = capacity(client);
    std::thread::spawn(move || while handler.handle_request().is_ok() {});
    told
}

fn capacity(client: &mut Client) -> u64 {
    u64::from_le_bytes(client.config(60)[..8].try_into().unwrap())
}

#[test]
fn a_client_is_told_and_finds_more() {
    let (directory, disk) = raw(64 * MIB);
    let rig = Rig::with(directory, Arc::clone(&disk), 2);
    let shape = Shape { queues: 2, ..Shape::default() };
    let mut client = Client::connect(&rig.socket(), Guest::new(shape.clone()));
    let told = hear(&mut client);
    for queue in 0..2 {
        assert_eq!(client.guest.run(queue, IN, END - 8, 4096), 0);
        assert_eq!(client.guest.run(queue, IN, END, 4096), 1, "behind the end");
    }
    disk.grow(65 * MIB).unwrap();
    rig.server.refresh();
    told.recv_timeout(SOON).unwrap();
    assert_eq!(capacity(&mut client), END + 2048);
    for queue in 0..2 {
        let sector = END + 2040 * queue as u64;
        client.guest.fill(queue, 0, 0x40 + queue as u8, 4096);
        assert_eq!(client.guest.run(queue, OUT, sector, 4096), 0);
        client.guest.fill(queue, 0, 0, 4096);
        assert_eq!(client.guest.run(queue, IN, sector, 4096), 0);
        assert_eq!(client.guest.bytes(queue, 0, 4096), [0x40 + queue as u8; 4096]);
        assert_eq!(client.guest.run(queue, IN, END + 2048, 512), 1, "behind the new end");
    }
    let at = client.guest.data(0, 0);
    client.guest.memory.write_obj((END + 2047).to_le(), at).unwrap();
    client.guest.memory.write_obj(1u64.to_le(), vm_memory::GuestAddress(at.0 + 8)).unwrap();
    assert_eq!(client.guest.run(0, WRITE_ZEROES, 0, 16), 0);
    assert!(told.try_recv().is_err(), "once");
    drop(client);
    // Without a client, and with a client that has passed no back-channel.
    disk.grow(66 * MIB).unwrap();
    rig.server.refresh();
    let mut client = Client::connect(&rig.socket(), Guest::new(shape));
    assert_eq!(capacity(&mut client), END + 2 * 2048);
    rig.server.refresh();
    assert_eq!(client.guest.run(1, IN, END + 2 * 2048 - 8, 4096), 0);
}

/// The file becomes longer through another descriptor, while requests run.
#[test]
fn a_file_that_grows_from_outside_is_noticed_when_asked_to_look() {
    let (directory, disk) = raw(64 * MIB);
    let rig = Rig::with(directory, Arc::clone(&disk), 1);
    let mut client = Client::connect(&rig.socket(), Guest::new(Shape::default()));
    let told = hear(&mut client);
    let file = std::fs::File::options().write(true).open(rig.directory.path().join("disk.raw")).unwrap();
    std::thread::scope(|scope| {
        let server = &rig.server;
        scope.spawn(|| {
            for more in 1..=20 {
                file.set_len(64 * MIB + more * 4096).unwrap();
                disk.rescan().unwrap();
                server.refresh();
            }
        });
        for round in 0..200u64 {
            assert_eq!(client.guest.run(0, OUT, round * 8, 4096), 0);
        }
    });
    for _ in 0..20 {
        told.recv_timeout(SOON).unwrap();
    }
    assert_eq!(capacity(&mut client), END + 20 * 8);
    assert_eq!(client.guest.run(0, OUT, END + 19 * 8, 4096), 0);
    assert_eq!(file.metadata().unwrap().len(), 64 * MIB + 20 * 4096);
}
