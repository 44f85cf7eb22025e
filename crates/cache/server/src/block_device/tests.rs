use super::*;

pub(super) fn spec(driver: DriverSpec) -> BlockDeviceSpec {
    BlockDeviceSpec {
        name: "disk".to_owned(),
        block_bytes: None,
        keep: false,
        driver,
    }
}

pub(super) fn exported(bytes: u64, origin_sector: u32) -> Exported {
    Exported {
        uuid: Uuid::from_u128(7),
        origin_identity: "file 1".to_owned(),
        bytes,
        origin_sector,
        read_only: false,
        discards_dirty: false,
        threads: 1,
        export: Export::new(bytes),
    }
}

const NBD: DriverSpec = DriverSpec::Nbd { number: None };

#[derive(Clone, Copy, Debug, PartialEq)]
struct TestDevice(u32, Stamp);

impl Stamped for TestDevice {
    fn stamp(&self) -> Stamp {
        self.1
    }

    fn path(&self) -> PathBuf {
        format!("/dev/device{}", self.0).into()
    }
}

#[test]
fn phases_go_forward_only() {
    let phases = Phases::default();
    assert_eq!(phases.enter(Phase::Serving), Phase::Starting);
    assert_eq!(phases.enter(Phase::Leaving), Phase::Serving);
    assert_eq!(phases.enter(Phase::Serving), Phase::Leaving);
    assert_eq!(phases.now(), Phase::Leaving);
}

#[test]
fn a_stamp_names_cache_and_origin() {
    let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let stamps = [
        Stamp::new(one, "disk a"),
        Stamp::new(one, "disk b"),
        Stamp::new(two, "disk a"),
    ];
    assert!(stamps[0] != stamps[1] && stamps[0] != stamps[2] && stamps[1] != stamps[2]);
    for stamp in stamps {
        assert_eq!(Stamp::from_number(stamp.number()), stamp);
        assert_eq!(stamp.to_string().parse(), Ok(stamp));
    }
    assert!(stamps[1].is_of_cache(one) && !stamps[1].is_of_cache(two));
}

#[test]
fn other_texts_are_no_stamps() {
    for text in [
        "",
        "flaz-",
        "flaz-0123456789abcde",
        "flaz-0123456789abcdef0",
        "flaz-0123456789ABCDEF",
        "flaz-+123456789abcdef",
        "nbd-0123456789abcdef",
    ] {
        assert_eq!(text.parse::<Stamp>(), Err(NotAStamp), "{text}");
    }
}

#[test]
fn the_device_of_a_cache_is_found_by_its_stamp() {
    let stamp = Stamp::new(Uuid::from_u128(1), "disk a");
    let other_cache = TestDevice(0, Stamp::new(Uuid::from_u128(2), "disk a"));
    let ours = TestDevice(1, stamp);
    let found = |devices: &[TestDevice]| of_cache("driver", devices, stamp);
    assert!(found(&[]).unwrap().is_none());
    assert!(found(&[other_cache]).unwrap().is_none());
    assert_eq!(found(&[other_cache, ours]).unwrap(), Some(ours));
    let refused = |devices: &[TestDevice], text| {
        let error = found(devices).unwrap_err().to_string();
        assert!(error.starts_with("driver: ") && error.contains(text), "{error}");
    };
    let other_origin = TestDevice(3, Stamp::new(Uuid::from_u128(1), "disk b"));
    refused(
        &[other_origin],
        "/dev/device3 was made by this cache for another origin",
    );
    refused(&[ours, other_origin], "/dev/device1 and /dev/device3");
    refused(&[ours, TestDevice(2, stamp)], "/dev/device1 and /dev/device2");
}

#[test]
fn a_logical_block_is_that_of_the_origin_or_as_asked() {
    let block = |block_bytes, sector| {
        let spec = BlockDeviceSpec {
            block_bytes,
            ..spec(NBD)
        };
        spec.logical_block(&exported(1 << 30, sector)).unwrap()
    };
    assert_eq!((block(None, 512), block(None, 4096)), (512, 4096));
    assert_eq!((block(Some(4096), 512), block(Some(512), 4096)), (4096, 512));
}

#[test]
fn a_size_that_is_no_multiple_of_the_block_is_refused() {
    let block = |block_bytes, bytes| {
        let spec = BlockDeviceSpec {
            block_bytes,
            ..spec(NBD)
        };
        spec.logical_block(&exported(bytes, 512))
            .map_err(|error| error.to_string())
    };
    let error = block(Some(4096), (1 << 30) + 512).unwrap_err();
    assert!(error.contains("use --block-size 512"), "{error}");
    let error = block(None, (1 << 30) + 7).unwrap_err();
    assert!(error.contains("--nbd"), "{error}");
    assert_eq!(block(None, (1 << 30) + 512), Ok(512));
}

#[test]
fn a_disk_that_has_grown_keeps_its_stamp() {
    let uuid = Uuid::from_u128(1);
    let of = |identity| Stamp::new(uuid, identity);
    assert_eq!(of("block:name=vdb,bytes=4096"), of("block:name=vdb,bytes=8192"));
    assert_ne!(of("block:name=vdb,bytes=4096"), of("block:name=vdc,bytes=4096"));
}

#[test]
fn a_size_in_parts_of_a_block_is_refused() {
    let name = Path::new("/dev/flaz/disk");
    assert_eq!(not_in_blocks(name, 4096, 1 << 20), None);
    assert_eq!(not_in_blocks(name, 512, (1 << 20) + 512), None);
    let why = not_in_blocks(name, 4096, (1 << 20) + 512).unwrap();
    assert!(why.contains("/dev/flaz/disk") && why.contains("1049088"), "{why}");
}

/// The size in sysfs decides, whatever the driver answers.
#[test]
fn a_device_is_up_to_date_if_it_has_the_size() {
    use std::cell::Cell;
    let name = Path::new("/dev/flaz/disk");
    let size = Cell::new(4096);
    let report = |resize: &dyn Fn() -> Result<(), String>| {
        let report = size_report(name, 8192, || Some(size.get()), resize);
        assert_eq!(report.name, "/dev/flaz/disk");
        assert_eq!(report.up_to_date, report.advice.is_none());
        report.advice
    };
    let advice = report(&|| Err("too old".to_owned())).unwrap();
    assert!(
        advice.contains("4096 bytes")
            && advice.contains("too old")
            && advice.contains("without --keep-device"),
        "{advice}"
    );
    assert!(report(&|| Ok(())).is_some(), "the kernel did nothing");
    let grow = || {
        size.set(8192);
        Ok(())
    };
    assert_eq!(report(&grow), None);
    assert_eq!(report(&|| panic!("it has the size already")), None);
}

#[test]
fn a_device_that_differs_is_not_taken_over() {
    let wanted = Shape {
        sectors: 1 << 21,
        read_only: false,
    };
    let mut volume = exported(1 << 30, 512);
    let device = Path::new("/dev/device3");
    assert!(fits("driver", device, wanted, wanted, &volume).is_ok());
    let refused = |found, volume: &Exported, text| {
        let error = fits("driver", device, found, wanted, volume)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("driver: /dev/device3 was left by") && error.contains(text),
            "{error}"
        );
    };
    let smaller = Shape {
        sectors: 2048,
        ..wanted
    };
    assert!(
        fits("driver", device, smaller, wanted, &volume).is_ok(),
        "the origin has grown"
    );
    let larger = Shape {
        sectors: 1 << 22,
        ..wanted
    };
    refused(larger, &volume, "has 4194304 sectors, expected at most 2097152");
    let read_only = Shape {
        read_only: true,
        ..wanted
    };
    refused(read_only, &volume, "is read-only, expected writable");
    volume.discards_dirty = true;
    refused(wanted, &volume, "--discard-dirty");
}
