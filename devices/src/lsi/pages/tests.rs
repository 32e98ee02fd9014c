use super::*;
use crate::lsi::spec::config_action;

fn pages() -> Pages {
    Pages::spi(Board { chip: "LSI53C1030", board: "PARADISK", pci_id: 0x0030_1000 })
}

const NONE: Attached = Attached(0);

fn at(kind: u8, number: u8, address: u32) -> Name {
    Name { kind, extended: 0, number, address }
}

#[test]
fn pages_that_drivers_read_have_the_sizes_they_reserve() {
    for ((kind, number), len) in [
        ((3, 0), 12),
        ((3, 2), 76),
        ((4, 0), 12),
        ((4, 1), 16),
        ((1, 1), 16),
        ((1, 4), 8),
        ((0, 2), 32),
        ((9, 0), 76),
    ] {
        let page = pages().find(at(kind, number, 0), NONE).unwrap();
        assert_eq!(page.as_slice().len(), len, "page {kind}.{number}");
        assert_eq!(usize::from(page.header().length) * 4, len);
        assert_eq!(page.header().page_type & 0xf, kind, "the type is echoed");
        assert_eq!(page.header().number, number);
    }
}

#[test]
fn what_is_not_there_is_named() {
    assert_eq!(pages().find(at(3, 9, 0), NONE).unwrap_err(), ioc_status::CONFIG_INVALID_PAGE);
    assert_eq!(pages().find(at(7, 0, 0), NONE).unwrap_err(), ioc_status::CONFIG_INVALID_TYPE);
    assert_eq!(pages().find(at(4, 0, 16), NONE).unwrap_err(), ioc_status::CONFIG_INVALID_PAGE);
    assert_eq!(pages().find(at(4, 0, 0x100), NONE).unwrap_err(), ioc_status::CONFIG_INVALID_PAGE);
}

#[test]
fn negotiation_is_kept_per_target_and_within_the_port() {
    let mut pages = pages();
    let mut data = [0; 16];
    data[4..8].copy_from_slice(&0x20ff_0007u32.to_le_bytes());
    pages.write(config_action::WRITE_CURRENT, at(4, 1, 3), NONE, &data).unwrap();
    let read = |pages: &Pages, target| {
        let page = pages.find(at(4, 0, target), NONE).unwrap();
        u32::from_le_bytes(page.as_slice()[4..8].try_into().unwrap())
    };
    assert_eq!(read(&pages, 3), 0x207f_0807);
    assert_eq!(read(&pages, 4), 0);
    assert_eq!(
        pages.write(config_action::WRITE_CURRENT, at(4, 1, 3), NONE, &data[..6]),
        Err(ioc_status::CONFIG_INVALID_DATA)
    );
    assert_eq!(
        pages.write(config_action::WRITE_CURRENT, at(4, 0, 3), NONE, &data),
        Err(ioc_status::CONFIG_CANT_COMMIT)
    );
    pages.reset();
    assert_eq!(read(&pages, 3), 0);
}

#[test]
fn sas_pages_have_the_lengths_of_their_headers_and_others_are_refused() {
    let pages = Pages::sas(Board { chip: "LSISAS1068", board: "PARADISK", pci_id: 0x0054_1000 });
    let attached = Attached(0b101);
    let name = |extended, number, address| Name { kind: page_type::EXTENDED, extended, number, address };
    for (name, len) in [
        (name(0x10, 0, 0), 16 + 16 * 8),
        (name(0x10, 1, 0), 20 + 12 * 8),
        (name(0x12, 0, 0xffff), 36),
        (name(0x13, 0, 7), 36),
        (name(0x13, 1, 0), 28),
    ] {
        let page = pages.find(name, attached).unwrap();
        assert_eq!((page.as_slice().len(), page.header().length), (len, 0), "{name:?}");
        assert_eq!(page.extension(), Some(((len / 4) as u16, name.extended)));
        assert_eq!(page.as_slice()[4..7], [(len / 4) as u8, 0, name.extended]);
    }
    for (name, status) in [
        (name(0x11, 0, 0xffff), ioc_status::CONFIG_INVALID_PAGE),
        (name(0x15, 0, 0xffff), ioc_status::CONFIG_INVALID_PAGE),
        (name(0x13, 0, 8), ioc_status::CONFIG_INVALID_PAGE),
        (name(0x13, 0, 1 << 28), ioc_status::CONFIG_INVALID_PAGE),
        (name(0x12, 0, 3 << 28), ioc_status::CONFIG_INVALID_PAGE),
        (name(0x77, 0, 0), ioc_status::CONFIG_INVALID_TYPE),
        (at(3, 0, 0), ioc_status::CONFIG_INVALID_TYPE),
    ] {
        assert_eq!(pages.find(name, attached).unwrap_err(), status, "{name:?}");
    }
}
