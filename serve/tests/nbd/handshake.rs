//! The negotiation.

use std::io::Write;

use crate::client::*;
use crate::{MIB, Served, ram};

const UNSUP: u32 = 0x8000_0001;
const INVALID: u32 = 0x8000_0003;
const UNKNOWN: u32 = 0x8000_0006;
const TOO_BIG: u32 = 0x8000_0009;

fn two() -> Served {
    Served::disks(&[("first", ram(MIB)), ("second", ram(2 * MIB))])
}

#[test]
fn exports_are_listed_and_described() {
    let served = two();
    let mut client = Client::greeted(&served.socket());
    let listed = client.option(LIST, &[]);
    let entry = |name| [&string(name)[..], b"a disk"].concat();
    assert_eq!(listed, [(2, entry("first")), (2, entry("second")), (ACK, vec![])]);
    let query = [&string("second")[..], &[0, 2, 0, 1, 0, 2]].concat();
    let told = client.option(INFO, &query);
    let sizes = [&[0, 3][..], &1u32.to_be_bytes(), &4096u32.to_be_bytes(), &(32u32 << 20).to_be_bytes()];
    // Flush, FUA, trim, write zeroes, several connections.
    let flags = (1u16 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 8).to_be_bytes();
    assert_eq!(
        told,
        [
            (3, [&[0, 0][..], &(2 * MIB).to_be_bytes(), &flags].concat()),
            (3, b"\0\x01second".to_vec()),
            (3, b"\0\x02a disk".to_vec()),
            (3, sizes.concat()),
            (ACK, vec![]),
        ]
    );
    // NBD_OPT_INFO does not end the negotiation.
    assert_eq!(client.option(INFO, &[&string("third")[..], &[0, 0]].concat())[0].0, UNKNOWN);
    assert_eq!(client.option(ABORT, &[]), [(ACK, vec![])]);
    assert!(client.hung_up());
}

#[test]
fn the_default_is_the_first_and_each_has_its_size() {
    let served = two();
    for (name, size) in [("", MIB), ("first", MIB), ("second", 2 * MIB)] {
        assert_eq!(Client::of(&served.socket(), name, false).size, size);
    }
    // With structured replies, the server offers NBD_CMD_FLAG_DF: the data of a read in one chunk.
    assert_eq!(Client::of(&served.socket(), "", true).flags & 1 << 7, 1 << 7);
}

#[test]
fn the_old_way_in() {
    let served = two();
    let mut client = Client::greeted(&served.socket());
    client.send_option(EXPORT_NAME, b"second");
    assert_eq!(u64::from_be_bytes(client.take()), 2 * MIB);
    client.take::<2>();
    assert_eq!(client.read(MIB, 512), Ok(vec![0; 512]));

    // Without NBD_FLAG_C_NO_ZEROES, 124 zeros follow.
    let mut client = Client::greeted(&served.socket());
    client.stream = std::os::unix::net::UnixStream::connect(served.socket()).unwrap();
    client.take::<18>();
    client.stream.write_all(&1u32.to_be_bytes()).unwrap();
    client.send_option(EXPORT_NAME, b"");
    assert_eq!(u64::from_be_bytes(client.take()), MIB);
    client.take::<2>();
    assert_eq!(client.take::<124>(), [0; 124]);
    assert_eq!(client.read(0, 512), Ok(vec![0; 512]));

    let mut client = Client::greeted(&served.socket());
    client.send_option(EXPORT_NAME, b"third");
    assert!(client.hung_up());
}

#[test]
fn contexts_are_for_structured_replies_and_one_export() {
    let served = two();
    let query = |name: &str, queries: &[&str]| {
        let count = (queries.len() as u32).to_be_bytes();
        let queries = queries.iter().flat_map(|query| string(query));
        [string(name), count.to_vec(), queries.collect()].concat()
    };
    let mut client = Client::greeted(&served.socket());
    assert_eq!(client.option(LIST_CONTEXT, &query("", &[]))[0].0, INVALID);
    client.option(STRUCTURED, &[]);
    let found = |id: u32| [(4, [&id.to_be_bytes()[..], b"base:allocation"].concat()), (ACK, vec![])];
    assert_eq!(client.option(LIST_CONTEXT, &query("", &[])), found(0));
    assert_eq!(client.option(LIST_CONTEXT, &query("", &["base:"])), found(0));
    assert_eq!(client.option(LIST_CONTEXT, &query("", &["other:thing"])), [(ACK, vec![])]);
    assert_eq!(client.option(LIST_CONTEXT, &query("third", &[]))[0].0, UNKNOWN);
    assert_eq!(client.option(SET_CONTEXT, &query("", &["base:"])), [(ACK, vec![])]);
    assert_eq!(client.option(SET_CONTEXT, &query("first", &["x:y", "base:allocation"])), found(1));
    assert_eq!(client.option(SET_CONTEXT, &[1, 2, 3])[0].0, INVALID);
    assert_eq!(client.option(SET_CONTEXT, &query("first", &["base:allocation"])), found(1));
    // The context was selected for another export.
    client.option(GO, &[&string("second")[..], &[0, 0]].concat());
    client.structured = true;
    assert_eq!(client.status(0, 0, 4096), Err(22));
}

#[test]
fn options_that_make_no_sense_are_refused_and_the_talk_goes_on() {
    let served = two();
    let mut client = Client::greeted(&served.socket());
    for (option, data, expected) in [
        (99, &b"whatever"[..], UNSUP),
        (5, b"", UNSUP),
        (LIST, b"x", INVALID),
        (STRUCTURED, b"x", INVALID),
        (GO, b"", INVALID),
        (GO, b"\xff\xff\xff\xff", INVALID),
        (INFO, b"\0\0\0\0\0\x05", INVALID),
        (LIST, &[0; 100_000], TOO_BIG),
        (99, &[0; 100_000], TOO_BIG),
    ] {
        let answers = client.option(option, data);
        assert_eq!((answers.len(), answers[0].0), (1, expected), "{option}");
    }
    assert_eq!(client.option(LIST, &[]).len(), 3);
}

#[test]
fn who_does_not_speak_it_is_hung_up_on() {
    let served = two();
    let endless = b"IHAVEOPT\0\0\0\x63\0\0\0\0".repeat(1100);
    for (name, talk) in [
        ("flags", &b"\xff\xff\xff\xff"[..]),
        ("magic", b"\0\0\0\x03GET / HTTP/1.1\r\n\r\n"),
        ("length", b"\0\0\0\x03IHAVEOPT\0\0\0\x63\xff\xff\xff\xff"),
        ("name", b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\x01\0\0"),
        ("options", &[&[0, 0, 0, 3][..], &endless].concat()),
    ] {
        let mut stream = std::os::unix::net::UnixStream::connect(served.socket()).unwrap();
        let _ = stream.write_all(talk);
        stream.set_read_timeout(Some(std::time::Duration::from_secs(120))).unwrap();
        let ended = std::io::copy(&mut stream, &mut std::io::sink());
        let reset = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(ended.is_ok() || ended.as_ref().is_err_and(reset), "{name}: {ended:?}");
    }
    assert_eq!(Client::of(&served.socket(), "", false).size, MIB);
}
