use super::*;

fn header() -> ExtentHeader {
    ExtentHeader {
        cache: 0xdead_beef,
        extent_bytes: 4096,
        sequence: Sequence(9),
        generation: Sequence(4),
        position: 1 << 20,
        flushes: 0,
        epoch: Epoch(2),
        record_count: 3,
        shard: 1,
        ring: Ring::Main,
        header_bytes: 256,
        contents_checksum: crc32c::crc32c(&[0xaa; 4096 - 256 - header_copy_bytes(3)]),
    }
}

fn some_records() -> Vec<u64> {
    [
        RecordKind::Fragment {
            stored: 4096,
            dirty: false,
        },
        RecordKind::SameFilled {
            value: 255,
            dirty: true,
        },
        RecordKind::Tombstone,
    ]
    .into_iter()
    .enumerate()
    .map(|(i, kind)| {
        Record {
            block: BlockNumber(BlockNumber::MAX.0 - i as u64),
            kind,
        }
        .pack()
    })
    .collect()
}

#[test]
fn an_extent_reads_back() {
    let mut extent = vec![0xaa; 4096];
    header().write(&some_records(), &mut extent);
    let read = ExtentHeader::parse(&extent, 512).expect("valid");
    assert_eq!(read, header());
    assert_eq!(
        records(&extent, read.record_count).collect::<Vec<_>>(),
        some_records()
    );
}

#[test]
fn an_extent_is_whole_as_it_was_written() {
    let mut extent = vec![0xaa; 4096];
    header().write(&some_records(), &mut extent);
    let header = ExtentHeader::parse(&extent, 512).expect("valid");
    assert!(header.is_whole(&extent));
    assert!(!header.is_whole(&extent[..4095]), "cut short");
    for at in [256, 2000, 4095 - header_copy_bytes(3)] {
        extent[at] ^= 1;
        assert!(!header.is_whole(&extent), "byte {at}");
        extent[at] ^= 1;
    }
    let hostile = ExtentHeader {
        record_count: u16::MAX,
        ..header
    };
    assert!(!hostile.is_whole(&extent));
}

#[test]
fn the_copy_of_the_header_reads_back() {
    let mut extent = vec![0xaa; 4096];
    header().write(&some_records(), &mut extent);
    for start in [0, 1000, 4096 - header_copy_bytes(3)] {
        let read = ExtentHeader::parse_copy(&extent[start..], 512).expect("valid");
        assert_eq!(read, (header(), some_records()));
    }
    assert!(ExtentHeader::parse_copy(&extent[4096 - header_copy_bytes(3) + 1..], 512).is_err());
    assert!(ExtentHeader::parse_copy(&extent[4096 - EXTENT_HEADER_BYTES + 1..], 512).is_err());
    assert!(ExtentHeader::parse_copy(&extent[..4095], 512).is_err());
}

#[test]
fn every_flipped_bit_of_the_header_and_of_its_copy_is_found() {
    let mut extent = vec![0; 4096];
    header().write(&some_records(), &mut extent);
    for bit in 0..256 * 8 {
        extent[bit / 8] ^= 1 << (bit % 8);
        assert!(ExtentHeader::parse(&extent, 512).is_err(), "bit {bit}");
        extent[bit / 8] ^= 1 << (bit % 8);
    }
    for bit in (4096 - header_copy_bytes(3)) * 8..4096 * 8 {
        extent[bit / 8] ^= 1 << (bit % 8);
        assert!(ExtentHeader::parse_copy(&extent, 512).is_err(), "bit {bit}");
        extent[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn a_header_has_space_for_its_records_up_to_the_most() {
    for (records, expected) in [
        (0, 128),
        (1, 128),
        (8, 128),
        (9, 256),
        (24, 256),
        (25, 512),
        (900, 512),
    ] {
        let bytes = header_bytes_for(records, 512);
        assert_eq!(bytes, expected, "{records} records");
        assert!(is_header_size(bytes, 512) && records_max(bytes) >= records.min(56));
    }
    for refused in [0, 64, 192, 1024] {
        assert!(!is_header_size(refused, 512), "{refused}");
    }
    let mut extent = vec![0; 4096];
    let large = ExtentHeader {
        header_bytes: 1024,
        ..header()
    };
    large.write(&some_records(), &mut extent);
    assert!(ExtentHeader::parse(&extent, 512).is_err());
    assert!(ExtentHeader::parse(&extent, 1024).is_ok());
}

#[test]
fn records_pack_and_unpack() {
    for packed in some_records() {
        assert_eq!(Record::unpack(packed).expect("valid").pack(), packed);
    }
    for bits in 1..=15 {
        let members = Members::from_bits(bits).expect("not none");
        for stored in [1, 4096, 8191, 8192, GROUP_STORED_MAX as u16] {
            let record = Record {
                block: BlockNumber(BlockNumber::MAX.0 - 3),
                kind: RecordKind::Group { members, stored },
            };
            assert_eq!(Record::unpack(record.pack()), Ok(record));
            let blocks: Vec<_> = record.blocks().collect();
            assert_eq!(blocks.len(), members.count());
            for (n, block) in blocks.iter().enumerate() {
                assert_eq!(members.ordinal(*block), Some(n));
            }
        }
    }
    for bad in [
        0,
        4097,
        1 << MORE_SHIFT | 1,
        1 << MEMBERS_SHIFT,
        1 << MEMBERS_SHIFT | 1 << 16 | 1,
        1 << MEMBERS_SHIFT | KIND_FRAGMENT_DIRTY << 13 | 1,
        1 << MEMBERS_SHIFT | KIND_TOMBSTONE << 13,
        1 << MEMBERS_SHIFT | 1 << MORE_SHIFT | (GROUP_STORED_MAX as u64 + 1 - 8192),
        KIND_SAME_FILLED << 13 | 256,
        KIND_TOMBSTONE << 13 | 1,
        KIND_CLEANED << 13 | 1,
        6 << 13,
        7 << 13,
    ] {
        assert!(Record::unpack(bad).is_err(), "{bad:#x}");
    }
}
