//! The real program is killed, or loses power, under load, while clients keep a ledger of every sector.

use std::fs::{File, OpenOptions};
use std::io::{IoSlice, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use flaz_nbd::Client;
use rustix::io::{ReadWriteFlags, pwritev2};
use rustix::process::Signal;

use crate::support::forgetful::{self, Flush, persist};
use crate::support::ledger::Violation;
use crate::support::{Blackout, Cache, CacheSpec, Forgetful, Kills, Scratch, ServeMode, Server, kills, need};

/// Number of kills in one test, in addition to those in `restart.rs`.
const KILLS: u64 = 6;
/// Number of power cuts in one test.
const POWER_CUTS: u64 = 8;
/// Number of power cuts within which a lying disk must be detected.
const POWER_CUTS_LYING: u64 = 8;

fn seed() -> u64 {
    match std::env::var("FLAZ_SEED") {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|error| panic!("FLAZ_SEED={text}: {error}")),
        Err(_) => 71,
    }
}

#[test]
fn clients_do_not_notice_kills_behind_a_retry_shim() {
    if !need::tools(kills::TOOLS) {
        return;
    }
    for mode in ServeMode::ALL {
        let scratch = Scratch::new();
        let mut kills = Kills::new(&scratch, seed(), mode);
        if let Err(Violation(text)) = kills.run(|_, kills| kills < KILLS) {
            panic!("{mode:?}, after {} kills: {text}", kills.kills);
        }
        let tally = kills.load.ledger().tally();
        assert!(tally.acknowledged > 10 * KILLS && tally.flushes > 0, "{tally:?}");
    }
}

#[test]
fn durable_writes_survive_power_cuts_under_load() {
    if !need::tools(forgetful::TOOLS) || !need::fuse() {
        return;
    }
    for mode in ServeMode::ALL {
        let scratch = Scratch::new();
        let mut blackout = Blackout::new(&scratch, seed(), mode, Flush::Honest);
        while blackout.power_cuts < POWER_CUTS {
            let outcome = blackout.until_power_cut();
            if let Err(Violation(text)) = outcome {
                panic!(
                    "{mode:?}, after {} power cuts, {} kills: {text}",
                    blackout.power_cuts, blackout.kills
                );
            }
        }
        if let Err(Violation(text)) = blackout.finish() {
            panic!("{mode:?}, after a clean stop: {text}");
        }
        let tally = blackout.load.ledger().tally();
        assert!(
            tally.acknowledged > 10 * POWER_CUTS && tally.durable > POWER_CUTS,
            "{tally:?}"
        );
        assert!(blackout.hit_blocks > 0, "the cache held nothing after any crash");
    }
}

/// The negative control: an origin that acknowledges flushes without executing them loses durable data. Nothing is
/// promised for such a device, but the ledger must detect the loss.
#[test]
fn the_ledger_detects_lying_flushes() {
    if !need::tools(forgetful::TOOLS) || !need::fuse() {
        return;
    }
    let scratch = Scratch::new();
    let mut blackout = Blackout::new(&scratch, seed(), ServeMode::WriteThrough, Flush::Lying);
    while blackout.power_cuts < POWER_CUTS_LYING {
        if let Err(Violation(text)) = blackout.until_power_cut() {
            assert!(
                text.starts_with("sector "),
                "another failure than lost data: {text}"
            );
            assert!(blackout.power_cuts > 0, "lost before any power cut: {text}");
            return;
        }
    }
    panic!("{POWER_CUTS_LYING} power cuts of an origin that ignores flushes, and nothing was missed");
}

/// Data acknowledged with FUA is on the medium. Some file systems, for example FUSE, do not honour the flag of a write.
#[test]
fn a_write_with_fua_is_on_the_medium_of_the_origin() {
    if !need::tools(forgetful::TOOLS) || !need::fuse() {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.sparse("origin.img", 16 << 20);
    let origin = Forgetful::start(&scratch, "origin", &image, Flush::Honest);
    let cache = Cache::create(&scratch, &origin.file(), &CacheSpec::default());
    let server = Server::start(&scratch, &cache, "");
    let mut client = Client::connect(server.socket()).expect("the server greets");
    for block in 0..3_u8 {
        let offset = u64::from(block) * ALIGNMENT as u64;
        client
            .send_write(offset, &[block + 1; ALIGNMENT], true)
            .expect("the server reads");
        let reply = client.receive().expect("the server answers");
        assert!(reply.outcome.is_ok(), "{reply:?}");
    }
    server.end_by(Signal::KILL);
    drop(origin);
    assert_eq!(medium(&image), [1, 2, 3]);
}

const ALIGNMENT: usize = 4096;

/// A test of the rig: data that was flushed or written with FUA reaches the medium, as flaz writes it; nothing else
/// does.
#[test]
fn a_forgetful_disk_loses_unflushed_writes() {
    if !need::tools(forgetful::TOOLS) || !need::fuse() {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.sparse("disk.img", 1 << 20);
    let disk = Forgetful::start(&scratch, "disk", &image, Flush::Honest);
    let file = open_direct(&disk.file());
    write(&file, 0, 1, ReadWriteFlags::empty());
    write(&file, 1, 1, ReadWriteFlags::empty());
    file.sync_data().expect("the disk flushes");
    write(&file, 2, 2, ReadWriteFlags::DSYNC);
    write(&file, 1, 2, ReadWriteFlags::empty());
    drop(file);
    let mut seen = [0; 3 * ALIGNMENT];
    let mut through = File::open(disk.file()).expect("the disk has power");
    through.read_exact(&mut seen).expect("the disk can be read");
    assert_eq!(firsts(&seen), [1, 2, 2], "what was written is read");
    drop((through, disk));
    assert_eq!(
        medium(&image),
        [1, 1, 2],
        "the second write of block 1 was not flushed"
    );

    let disk = Forgetful::start(&scratch, "disk", &image, Flush::Honest);
    write(&open_direct(&disk.file()), 1, 3, ReadWriteFlags::empty());
    persist(disk.socket());
    drop(disk);
    assert_eq!(medium(&image), [1, 3, 2], "the disk was told to persist");

    let disk = Forgetful::start(&scratch, "disk", &image, Flush::Lying);
    let file = open_direct(&disk.file());
    write(&file, 0, 4, ReadWriteFlags::DSYNC);
    file.sync_data().expect("the disk reports success");
    drop((file, disk));
    assert_eq!(medium(&image), [1, 3, 2], "it lied");
}

/// As flaz opens its devices: with direct I/O if possible.
fn open_direct(path: &Path) -> File {
    let open = |flags: rustix::fs::OFlags| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags.bits() as i32)
            .open(path)
    };
    open(rustix::fs::OFlags::DIRECT)
        .or_else(|_| open(rustix::fs::OFlags::empty()))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn write(file: &File, block: usize, byte: u8, flags: ReadWriteFlags) {
    let bytes = vec![byte; 2 * ALIGNMENT];
    let start = bytes.as_ptr().align_offset(ALIGNMENT);
    let aligned = IoSlice::new(&bytes[start..start + ALIGNMENT]);
    let written = pwritev2(file, &[aligned], (block * ALIGNMENT) as u64, flags);
    assert_eq!(written, Ok(ALIGNMENT));
}

fn medium(image: &Path) -> [u8; 3] {
    let mut bytes = [0; 3 * ALIGNMENT];
    let image = File::open(image).expect("the image exists");
    image.read_exact_at(&mut bytes, 0).expect("the image can be read");
    firsts(&bytes)
}

fn firsts(bytes: &[u8]) -> [u8; 3] {
    [0, 1, 2].map(|block| bytes[block * ALIGNMENT])
}
