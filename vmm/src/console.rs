//! The serial console: a 16550. A thread writes its output to any writer, so that a stalled writer stalls no virtual
//! CPU. Any thread may supply its input.
#![expect(clippy::disallowed_types, reason = "an access has left the guest: microseconds already")]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paradisk_disk_formats::{ThreadKind, spawn};
use vm_superio::serial::NoEvents;
use vm_superio::{Serial, Trigger};

use crate::bus::{BusHandler, Flow};
use crate::error::Error;

/// Maximum number of bytes that wait for a stalled writer. Further output is lost, as on a line without flow control.
const OUTPUT: usize = 1 << 20;
/// Maximum number of bytes that wait for a guest that does not read.
const INPUT: usize = 1 << 16;

/// Registers of a 16550.
const REGISTERS: u64 = 8;

/// The guest's serial console. Clones are the same console.
#[derive(Clone)]
pub struct Console {
    port: Arc<Port>,
    output: Arc<Output>,
}

impl Console {
    /// A console that writes to `writer` and interrupts by `interrupt`.
    pub(crate) fn new(
        writer: impl Write + Send + 'static,
        interrupt: impl Fn() + Send + 'static,
    ) -> Result<Self, Error> {
        let output = Arc::new(Output::default());
        let waiting = Arc::clone(&output);
        spawn(ThreadKind::Console, "console", move || waiting.drain(writer))
            .map_err(Error::os("console's thread"))?;
        let line = Line(Arc::clone(&output));
        let serial = Serial::new(Interrupt(Box::new(interrupt)), line);
        let port = Arc::new(Port(Mutex::new(Uart { serial, input: VecDeque::new() })));
        Ok(Self { port, output })
    }

    /// The registers.
    pub(crate) fn handler(&self) -> Arc<dyn BusHandler> {
        Arc::clone(&self.port) as Arc<dyn BusHandler>
    }

    /// Type input. Returns the number of bytes accepted, which is smaller than that of `bytes` while the guest does not
    /// read.
    #[must_use = "what was not taken is to be given again"]
    pub fn push(&self, bytes: &[u8]) -> usize {
        let mut uart = lock(&self.port.0);
        let taken = bytes.len().min(INPUT - uart.input.len());
        uart.input.extend(bytes.iter().take(taken));
        uart.refill();
        taken
    }

    /// Wait until all output is written, at most for this time. False: the writer has not written everything.
    #[must_use]
    pub fn flush(&self, timeout: Duration) -> bool {
        let queue = lock(&self.output.queue);
        let wait = self.output.written.wait_timeout_while(queue, timeout, |queue| {
            !queue.closed && (queue.writing || !queue.bytes.is_empty())
        });
        !wait.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Bytes of output that were lost because the writer stalled or failed.
    #[must_use]
    pub fn lost(&self) -> u64 {
        lock(&self.output.queue).lost
    }
}

struct Port(Mutex<Uart>);

struct Uart {
    serial: Serial<Interrupt, NoEvents, Line>,
    /// Input that waits for free space in the 16550's FIFO.
    input: VecDeque<u8>,
}

impl Uart {
    fn refill(&mut self) {
        let free = self.serial.fifo_capacity().min(self.input.len());
        let next: Vec<u8> = self.input.iter().take(free).copied().collect();
        // Fails only for a full FIFO. In loopback mode nothing is accepted.
        let taken = self.serial.enqueue_raw_bytes(&next).unwrap_or_default();
        self.input.drain(..taken);
    }
}

/// Registers are bytes. A wider access accesses several.
impl BusHandler for Port {
    fn read(&self, offset: u64, data: &mut [u8]) {
        let mut uart = lock(&self.0);
        for (byte, register) in data.iter_mut().zip(offset..) {
            *byte = if register < REGISTERS { uart.serial.read(register as u8) } else { 0xff };
        }
        uart.refill();
    }

    fn write(&self, offset: u64, data: &[u8]) -> Flow {
        let mut uart = lock(&self.0);
        for (byte, register) in data.iter().zip(offset..REGISTERS) {
            // Neither the interrupt nor the line fails.
            let _ = uart.serial.write(register as u8, *byte);
        }
        uart.refill();
        Flow::Continue
    }
}

struct Interrupt(Box<dyn Fn() + Send>);

impl Trigger for Interrupt {
    type E = Infallible;

    fn trigger(&self) -> Result<(), Infallible> {
        (self.0)();
        Ok(())
    }
}

/// The 16550's end of the output. Dropping it ends the thread after all output is written.
struct Line(Arc<Output>);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut queue = lock(&self.0.queue);
        if queue.closed || queue.bytes.len() + bytes.len() > OUTPUT {
            queue.lost += bytes.len() as u64;
        } else {
            queue.bytes.extend_from_slice(bytes);
            self.0.filled.notify_one();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        lock(&self.0.queue).ended = true;
        self.0.filled.notify_one();
    }
}

#[derive(Default)]
struct Output {
    queue: Mutex<Queue>,
    filled: Condvar,
    written: Condvar,
}

#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    /// The thread has taken bytes and not yet written them.
    writing: bool,
    /// No more output will come.
    ended: bool,
    /// The writer has failed.
    closed: bool,
    lost: u64,
}

impl Output {
    /// Write output until no more will come or the writer fails.
    fn drain(&self, mut writer: impl Write) {
        loop {
            let idle = |queue: &mut Queue| queue.bytes.is_empty() && !queue.ended;
            let waited = self.filled.wait_while(lock(&self.queue), idle);
            let mut queue = waited.unwrap_or_else(PoisonError::into_inner);
            if queue.bytes.is_empty() {
                return;
            }
            let bytes = std::mem::take(&mut queue.bytes);
            queue.writing = true;
            drop(queue);
            let result = writer.write_all(&bytes).and_then(|()| writer.flush());
            let mut queue = lock(&self.queue);
            queue.writing = false;
            if result.is_err() {
                queue.closed = true;
                queue.lost += (bytes.len() + queue.bytes.len()) as u64;
                queue.bytes = Vec::new();
            }
            self.written.notify_all();
            if queue.closed {
                return;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::{self, Receiver, Sender};

    use super::*;

    const DATA: u64 = 0;
    const INTERRUPT_ENABLE: u64 = 1;
    const LINE_STATUS: u64 = 5;
    const SOON: Duration = Duration::from_secs(60);

    /// Forwards written bytes to a channel. If it has a receiver, it waits for a message before each write.
    struct Slow(Sender<Vec<u8>>, Option<Receiver<()>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if let Some(leave) = &self.1 {
                leave.recv().map_err(io::Error::other)?;
            }
            self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn read(port: &dyn BusHandler, offset: u64) -> u8 {
        let mut data = [0];
        port.read(offset, &mut data);
        data[0]
    }

    #[test]
    fn output_comes_in_order_and_flush_waits_for_it() {
        let (sender, written) = mpsc::channel();
        let console = Console::new(Slow(sender, None), || {}).unwrap();
        for byte in b"hello" {
            console.handler().write(DATA, &[*byte]);
        }
        assert!(console.flush(SOON));
        assert_eq!(written.try_iter().flatten().collect::<Vec<_>>(), b"hello");
        drop(console);
        assert!(written.recv_timeout(SOON).is_err(), "the thread ends");
    }

    #[test]
    fn a_writer_that_stalls_stalls_nobody() {
        let (sender, _written) = mpsc::channel();
        let (leave, wait) = mpsc::channel();
        let console = Console::new(Slow(sender, Some(wait)), || {}).unwrap();
        let port = console.handler();
        for _ in 0..2 * OUTPUT + 2 {
            port.write(DATA, b"x");
        }
        assert!(!console.flush(Duration::from_millis(10)));
        let lost = console.lost();
        assert!((2..=OUTPUT as u64 + 2).contains(&lost), "{lost}");
        drop(leave);
        assert!(console.flush(SOON), "the writer has failed: nothing waits");
        assert_eq!(console.lost(), 2 * OUTPUT as u64 + 2);
        port.write(DATA, b"x");
        assert_eq!(console.lost(), 2 * OUTPUT as u64 + 3);
    }

    #[test]
    fn input_waits_for_room_and_interrupts() {
        let interrupts = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&interrupts);
        let count = move || {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        let console = Console::new(io::sink(), count).unwrap();
        let port = console.handler();
        port.write(INTERRUPT_ENABLE, &[1]);
        let text: Vec<u8> = (0..INPUT + 1000).map(|at| (at % 251) as u8).collect();
        let taken = console.push(&text);
        assert!((INPUT..text.len()).contains(&taken), "{taken}");
        assert_eq!(interrupts.load(Ordering::Relaxed), 1);
        let mut read_back = Vec::new();
        while read(&*port, LINE_STATUS) & 1 != 0 {
            read_back.push(read(&*port, DATA));
        }
        assert!(read_back == text[..taken]);
        assert_eq!(console.push(b"!"), 1);
        assert_eq!(read(&*port, DATA), b'!');
    }

    #[test]
    fn a_wide_access_is_one_to_each_register() {
        const LINE_CONTROL: u64 = 3;
        const SCRATCH: u64 = 7;
        let console = Console::new(io::sink(), || {}).unwrap();
        let port = console.handler();
        port.write(LINE_CONTROL, &[0x80]);
        port.write(DATA, &[0x34, 0x12]);
        let mut divisor = [0; 2];
        port.read(DATA, &mut divisor);
        assert_eq!(divisor, [0x34, 0x12]);
        port.write(SCRATCH, &[0x5a, 0xa5]);
        let mut wide = [0; 2];
        port.read(SCRATCH, &mut wide);
        assert_eq!(wide, [0x5a, 0xff], "one is beyond the port");
    }

    #[test]
    fn input_during_loopback_comes_after_it() {
        const MODEM_CONTROL: u64 = 4;
        let console = Console::new(io::sink(), || {}).unwrap();
        let port = console.handler();
        port.write(MODEM_CONTROL, &[0x10]);
        assert_eq!(console.push(b"a"), 1);
        assert_eq!(read(&*port, LINE_STATUS) & 1, 0);
        port.write(MODEM_CONTROL, &[0]);
        assert_eq!(read(&*port, DATA), b'a');
    }
}
