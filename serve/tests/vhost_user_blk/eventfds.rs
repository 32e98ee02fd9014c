//! The client can change the flags and the counter of each shared eventfd at any time, because it shares the open file
//! descriptions. No such change blocks the server.

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd};
use std::os::unix::net::UnixStream;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use vhost::VhostBackend;
use vmm_sys_util::eventfd::EventFd;

use crate::client::*;
use crate::rig::Rig;
use crate::within::within;

/// Make writes to an eventfd block: fill its counter, and clear `O_NONBLOCK`.
fn plug(event: &EventFd) {
    while event.write(u64::MAX - 1).is_err() {
        let _ = event.read();
    }
    block(event);
}

fn block(event: &EventFd) {
    let event = borrow(event);
    fcntl_setfl(event, fcntl_getfl(event).unwrap() - OFlags::NONBLOCK).unwrap();
}

#[allow(unsafe_code, reason = "what the client crate has for an eventfd is no `AsFd`")]
fn borrow<T: AsRawFd>(fd: &T) -> BorrowedFd<'_> {
    // SAFETY: open as long as it is borrowed.
    unsafe { BorrowedFd::borrow_raw(fd.as_raw_fd()) }
}

#[allow(unsafe_code, reason = "the client crate sends nothing else")]
fn disguised(fd: impl AsFd) -> EventFd {
    let copy = fd.as_fd().try_clone_to_owned().unwrap();
    // SAFETY: open, and owned by nobody else.
    unsafe { EventFd::from_raw_fd(copy.into_raw_fd()) }
}

fn add_read(guest: &mut Guest) {
    guest.add(0, 0, IN, 0, 4096);
    guest.ask(0);
    guest.publish(0);
    guest.rings[0].kick.write(1).unwrap();
}

fn still_serves(rig: &Rig) {
    let mut client = Client::connect(&rig.socket(), Guest::new(Shape::default()));
    assert_eq!(client.guest.run(0, IN, 16, 4096), 0);
}

#[test]
fn a_call_that_cannot_be_written_blocks_nothing() {
    for leave in [true, false] {
        let mut rig = Rig::new(1);
        let mut client = Client::connect(&rig.socket(), Guest::new(Shape::default()));
        assert_eq!(client.guest.run(0, IN, 0, 4096), 0);
        plug(&client.guest.rings[0].call);
        add_read(&mut client.guest);
        let client = within("completion", move || {
            while client.guest.take(0).is_empty() {
                std::thread::yield_now();
            }
            client
        });
        let client = within("message", move || {
            assert_eq!(client.frontend.get_vring_base(0).unwrap(), 2);
            client
        });
        if leave {
            drop(client);
            let rig = within("next client", move || {
                still_serves(&rig);
                rig
            });
            within("stop", move || drop(rig));
        } else {
            within("stop", move || rig.stop().unwrap());
        }
    }
}

#[test]
fn an_error_event_that_cannot_be_written_blocks_nothing() {
    let mut rig = Rig::new(1);
    let mut client = Client::connect(&rig.socket(), Guest::new(Shape::default()));
    plug(&client.guest.rings[0].err);
    client.guest.put_head(0, u16::MAX);
    client.guest.publish(0);
    let client = within("message", move || {
        client.frontend.get_features().unwrap();
        client.frontend.get_vring_base(0).unwrap();
        client
    });
    within("stop", move || rig.stop().unwrap());
    drop(client);
}

/// The counter is filled before the server is given the eventfd, which it signals at once.
#[test]
fn eventfds_that_come_full_block_nothing() {
    let mut rig = Rig::new(1);
    let mut client = Client::connect(&rig.socket(), Guest::new(Shape::default()));
    let full = EventFd::new(0).unwrap();
    full.write(u64::MAX - 1).unwrap();
    let client = within("message", move || {
        client.frontend.set_vring_call(0, &full).unwrap();
        client.frontend.set_vring_err(0, &full).unwrap();
        client.frontend.set_vring_kick(0, &full).unwrap();
        add_read(&mut client.guest);
        client.frontend.get_vring_base(0).unwrap();
        client
    });
    within("stop", move || rig.stop().unwrap());
    drop(client);
}

/// The kick is a blocking eventfd, and the client reads it itself: a server that read it, too, would block.
#[test]
fn a_kick_that_is_emptied_blocks_nothing() {
    let mut rig = Rig::new(1);
    let client = Client::connect(&rig.socket(), Guest::new(Shape::default()));
    block(&client.guest.rings[0].kick);
    let client = within("message", move || {
        for _ in 0..1000 {
            client.guest.rings[0].kick.write(1).unwrap();
            client.guest.rings[0].kick.read().unwrap();
        }
        client.frontend.get_vring_base(0).unwrap();
        client
    });
    within("stop", move || rig.stop().unwrap());
    drop(client);
}

#[test]
fn what_is_no_eventfd_is_refused() {
    let rig = Rig::new(1);
    let (reader, writer) = std::io::pipe().unwrap();
    for index in 0..3 {
        let client = Client::connect(&rig.socket(), Guest::new(Shape::default()));
        let pipe = if index == 0 { disguised(&reader) } else { disguised(&writer) };
        let refused = match index {
            0 => client.frontend.set_vring_kick(0, &pipe),
            1 => client.frontend.set_vring_call(0, &pipe),
            _ => client.frontend.set_vring_err(0, &pipe),
        };
        assert!(refused.is_err(), "{index}");
    }
    drop(writer);
    assert_eq!((&reader).read(&mut [0]).unwrap(), 0, "it was written to");
    let (socket, mut other) = UnixStream::pair().unwrap();
    for index in 0..3 {
        let client = Client::connect(&rig.socket(), Guest::new(Shape::default()));
        let refused = match index {
            0 => client.frontend.set_vring_kick(0, &disguised(&socket)),
            1 => client.frontend.set_vring_call(0, &disguised(&socket)),
            _ => client.frontend.set_vring_err(0, &disguised(&socket)),
        };
        assert!(refused.is_err(), "{index}");
    }
    drop(socket);
    assert_eq!(other.read(&mut [0]).unwrap(), 0, "it was written to, or is still open");
    still_serves(&rig);
}
