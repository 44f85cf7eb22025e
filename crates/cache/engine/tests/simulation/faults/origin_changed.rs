//! The origin is written to without the cache while the cache is off: after a clean stop, after a crash.

use std::num::NonZeroU32;
use std::time::Duration;

use flaz_device::{DeviceOp, Env, IoBuf};
use flaz_engine::cache::{CacheError, Start, write_superblock};
use flaz_engine::settings::Mode;
use flaz_engine::volume::Volume;

use super::world::{BLOCK, BLOCKS, CLEARED, Found, Left, Live, MODES, STRIPE, World};

const ALL_MODES: [Mode; 3] = [Mode::WriteThrough, Mode::WriteAround, Mode::WriteBack];
/// The mount count in the superblock of an ext4 file system.
const MOUNTED: u64 = 1024 + 52;

/// Another boot with these disks; `mounted` is an offset at which the origin was written to before.
///
/// # Errors
/// The error of the cache if it does not open.
fn start(world: &World, found: &Found, mounted: Option<u64>) -> Result<Start, CacheError> {
    let next = world.boot(77, found.clone());
    if let Some(at) = mounted {
        next.origin.poke(at, b"mounted");
    }
    next.sim
        .block_on(async { next.try_open().await.map(|live| live.cache.start) })
}

/// If the origin is unchanged, the cache opens warm; if it was changed, the opening is refused.
fn is_compared(world: &World, found: &Found, at: u64) {
    let about = format!("{}, {} shards", world.mode, world.geometry.shard_count);
    let begun = start(world, found, None).unwrap_or_else(|error| panic!("{about}: {error}"));
    assert_eq!(begun, Start::Recovered, "{about}");
    let error = start(world, found, Some(at)).expect_err(&about);
    let text = error.to_string();
    assert!(
        text.contains("has been changed since the crash") && text.contains("--discard-cache"),
        "{text}"
    );
}

/// The process is killed, or the power fails and the origin loses unflushed writes. (Clear intents need not be stable on
/// the cache device: nothing is compared then.)
fn crashed(world: &World) -> [Found; 2] {
    Left::ALL.map(|left| {
        let (cache, origin) = (world.cache.moment(), world.origin.moment());
        (
            cache.cut(Left::Everything.plan().chooser()),
            origin.cut(left.plan().chooser()),
            world.host.memory(),
        )
    })
}

async fn write(live: &Live, offset: u64, bytes: &[u8]) {
    let data = vec![IoBuf::copy_of(bytes)].into();
    live.volume
        .write(offset, data, false)
        .await
        .expect("the origin is well");
}

#[test]
fn an_origin_changed_while_the_cache_was_off_is_refused() {
    for mode in MODES {
        let world = World::new(4, mode);
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..64).await;
            live.stop().await.expect("stops in order");
            world.origin.poke(1024 + 48, b"mounted");
            let error = world.try_open().await.err().expect("changed");
            let text = error.to_string();
            assert!(
                text.contains("has been changed since") && text.contains("--discard-cache"),
                "{text}"
            );
            world
                .try_open()
                .await
                .err()
                .expect("asking again changes nothing");
        });
    }
}

/// File systems (ext4, xfs) store a CRC-32C behind the changed data: a CRC-32C of the whole would stay the same.
#[test]
fn a_change_with_a_new_file_system_checksum_is_refused() {
    let superblock = |mounts: u8| {
        let mut bytes = vec![0x5a; 1020];
        bytes[52] = mounts;
        let checksum = crc32c::crc32c(&bytes);
        [&bytes[..], &checksum.to_le_bytes()].concat()
    };
    for mode in ALL_MODES {
        let world = World::new(6, mode);
        world.origin.poke(1024, &superblock(1));
        let before = crc32c::crc32c(&world.origin.peek(0, 128 << 10));
        world.sim.block_on(async {
            world.open().await.stop().await.expect("stops in order");
            let live = world.open().await;
            live.warm(300..310).await;
            live.stop().await.expect("unchanged, and stops in order");
        });
        world.origin.poke(1024, &superblock(2));
        assert_eq!(crc32c::crc32c(&world.origin.peek(0, 128 << 10)), before);
        world.sim.block_on(async {
            let error = world.try_open().await.err().expect("changed");
            assert!(error.to_string().contains("has been changed since"), "{error}");
        });
    }
}

/// A cache that was stopped by an earlier build has a CRC-32C of the same bytes.
#[test]
fn what_earlier_builds_noted_of_an_origin_is_compared() {
    let world = World::new(7, Mode::WriteThrough);
    world.sim.block_on(async {
        let mut superblock = world.open().await.stop().await.expect("stops in order");
        let crc = crc32c::crc32c(&world.origin.peek(0, 128 << 10));
        superblock.origin_fingerprint = NonZeroU32::new(crc);
        write_superblock(&world.cache, &mut superblock)
            .await
            .expect("writes");
        superblock = world.open().await.stop().await.expect("unchanged");
        superblock.origin_fingerprint = NonZeroU32::new(crc);
        write_superblock(&world.cache, &mut superblock)
            .await
            .expect("writes");
        world.origin.poke(1024 + 48, b"mounted");
        let error = world.try_open().await.err().expect("changed");
        assert!(error.to_string().contains("has been changed since"), "{error}");
    });
}

/// Mounting a partition changes nothing in the partition table.
#[test]
fn an_origin_with_a_partition_that_was_changed_is_refused() {
    for table in [gpt(MIB), mbr(MIB), extended(MIB)] {
        let world = World::new(5, Mode::WriteThrough);
        world.sim.block_on(async {
            for (at, bytes) in &table {
                world.origin.poke(*at, bytes);
            }
            let live = world.open().await;
            live.stop().await.expect("stops in order");
            let live = world.open().await;
            live.stop().await.expect("unchanged, and stops in order");
            world.origin.poke(3 * MIB + 2048, b"behind what is looked at");
            let live = world.open().await;
            live.stop().await.expect("not seen, and stops in order");
            world.origin.poke(2 * MIB + 1024 + 48, b"mounted");
            let error = world.try_open().await.err().expect("changed");
            assert!(error.to_string().contains("has been changed since"), "{error}");
        });
    }
}

/// Tables that point beyond the origin, to each other, and to themselves: the cache starts and stops anyway.
#[test]
fn hostile_partition_tables_end_and_are_harmless() {
    let mut tables = Vec::new();
    for value in [0, 1, 7, 0x7fff_ffff, 0xffff_ffff, u64::MAX / 512, u64::MAX] {
        for field in [72, 80, 84] {
            let mut table = gpt(MIB);
            table[1].1[field..field + 4].copy_from_slice(&(value as u32).to_le_bytes());
            if field == 72 {
                table[1].1[72..80].copy_from_slice(&value.to_le_bytes());
            }
            tables.push(table);
        }
        let mut table = gpt(MIB);
        for entry in table[2].1.chunks_exact_mut(128) {
            entry[0] = 1;
            entry[32..40].copy_from_slice(&value.to_le_bytes());
        }
        tables.push(table);
        let mut table = extended(MIB);
        // A chain that loops, or points outside.
        for (_, record) in &mut table {
            record[446 + 16 + 4] = 5;
            record[446 + 16 + 8..][..4].copy_from_slice(&(value as u32).to_le_bytes());
        }
        tables.push(table);
    }
    for table in tables {
        let world = World::new(6, Mode::WriteThrough);
        world.sim.block_on(async {
            for (at, bytes) in &table {
                world.origin.poke(*at, bytes);
            }
            let live = world.open().await;
            live.stop().await.expect("stops in order");
            let live = world.open().await;
            assert!(matches!(live.cache.start, Start::Warm(_)));
            live.stop().await.expect("stops in order");
        });
    }
}

#[test]
fn an_origin_that_was_changed_after_a_crash_is_refused() {
    for (mode, shards) in ALL_MODES.into_iter().flat_map(|mode| [(mode, 1), (mode, 3)]) {
        let world = World::shards(10, mode, shards);
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..64).await;
            for block in (0..40).chain(STRIPE..STRIPE + 8) {
                live.write(block).await;
            }
            live.volume.flush().await.expect("flushes");
            live.cleaned().await;
            live.env.sleep(CLEARED).await;
            // Elsewhere, intents do not matter.
            for block in 3 * STRIPE..3 * STRIPE + 16 {
                live.write(block).await;
            }
        });
        for found in crashed(&world) {
            is_compared(&world, &found, MOUNTED);
        }
    }
}

/// A retry changes nothing. Continuing with an empty cache is possible, but would lose dirty blocks.
#[test]
fn an_origin_that_was_changed_after_a_crash_is_refused_again() {
    let world = World::new(11, Mode::WriteBack);
    world.sim.block_on(async {
        let live = world.open().await;
        live.write(2 * STRIPE).await;
        live.volume.flush().await.expect("flushes");
    });
    let next = world.reboot(12);
    let before = next.origin.peek(MOUNTED, 7);
    next.sim.block_on(async {
        next.origin.poke(MOUNTED, b"mounted");
        for _ in 0..3 {
            let error = next.try_open().await.err().expect("changed");
            assert!(matches!(error, CacheError::OriginChanged { .. }), "{error}");
        }
        next.origin.poke(MOUNTED, &before);
        let live = next.open().await;
        live.read(2 * STRIPE).await;
    });
}

/// The rule itself, at every event of a life: writes to stripes of the fingerprint and elsewhere, rounds of clearing, a
/// clean stop. If nothing is written without the cache, the state after every crash is accepted. If something is, it is
/// refused, unless clients were writing to these stripes.
#[test]
pub fn at_every_event_an_origin_that_was_left_alone_is_accepted() {
    for (mode, shards) in ALL_MODES.into_iter().flat_map(|mode| [(mode, 1), (mode, 2)]) {
        let world = World::shards(13, mode, shards);
        let moments = world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..64).await;
            let moments = world.watch();
            for round in 0..3 {
                for block in [0, 1, 20, STRIPE + 1, 3 * STRIPE] {
                    live.write(block + round).await;
                }
                live.volume.flush().await.expect("flushes");
                live.cleaned().await;
                live.env.sleep(CLEARED).await;
                live.write(STRIPE).await;
            }
            live.stop().await.expect("stops in order");
            world.unwatch();
            moments.take()
        });
        let (mut refused, mut open) = (0, 0);
        for moment in &moments {
            for (cache, origin) in [
                (Left::Everything, Left::Everything),
                (Left::Everything, Left::Nothing),
                (Left::Nothing, Left::Everything),
                (Left::Nothing, Left::Nothing),
            ] {
                let found = moment.cut(cache, origin);
                start(&world, &found, None).unwrap_or_else(|error| {
                    panic!(
                        "{mode}, event {}, {:?} of {} at {}: {error}",
                        moment.number, moment.stage, moment.op, moment.offset
                    )
                });
                match start(&world, &found, Some(MOUNTED)) {
                    Ok(_) => open += 1,
                    Err(CacheError::OriginChanged { .. }) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        assert!(
            refused > 100 && open > 20,
            "{mode}: {refused} refused, {open} not"
        );
    }
}

/// A partition table that clients write while they are served adds locations to compare.
#[test]
fn a_partition_created_while_served_is_compared_after_a_crash() {
    for mode in ALL_MODES {
        for table in [gpt(MIB), mbr(MIB), extended(MIB)] {
            let world = World::shards(14, mode, 2);
            let pair = 2 * MIB / BLOCK..2 * MIB / BLOCK + 8;
            world.sim.block_on(async {
                let live = world.open().await;
                for (at, bytes) in &table {
                    write(&live, *at, bytes).await;
                }
                for round in 0..3 {
                    for block in pair.clone() {
                        write(&live, block * BLOCK, &[round; BLOCK as usize]).await;
                    }
                    live.volume.flush().await.expect("flushes");
                    live.cleaned().await;
                    live.env.sleep(CLEARED).await;
                }
            });
            for found in crashed(&world) {
                is_compared(&world, &found, 2 * MIB + MOUNTED);
            }
        }
    }
}

/// A fingerprint that the host could not record must not count: the intents stay until it is recorded.
#[test]
fn a_host_that_notes_nothing_refuses_nothing() {
    for (from_the_start, mode) in [false, true]
        .into_iter()
        .flat_map(|b| ALL_MODES.map(|mode| (b, mode)))
    {
        let world = World::new(15, mode);
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..64).await;
            live.stop().await.expect("stops in order");
            world.host.broken.set(from_the_start);
            let live = world.open().await;
            world.host.broken.set(true);
            for block in 0..8 {
                live.write(block).await;
            }
            live.volume.flush().await.expect("flushes");
            live.cleaned().await;
            live.env.sleep(CLEARED).await;
        });
        world.host.broken.set(false);
        for found in crashed(&world) {
            assert_eq!(start(&world, &found, None).expect("left alone"), Start::Recovered);
            // Not detected: there is no record.
            start(&world, &found, Some(MOUNTED)).expect("not compared");
        }
        // Once recorded again, it is compared again.
        if !from_the_start {
            let [found, _] = crashed(&world);
            let next = world.boot(16, found);
            next.sim.block_on(async {
                let live = next.open().await;
                live.env.sleep(CLEARED).await;
            });
            for found in crashed(&next) {
                is_compared(&next, &found, MOUNTED);
            }
        }
    }
}

/// If recording fails, it is unknown whether the record was written.
#[test]
fn a_host_that_notes_what_it_says_it_could_not_refuses_nothing() {
    for (first, mode) in [
        (0, Mode::WriteThrough),
        (1, Mode::WriteBack),
        (2, Mode::WriteThrough),
    ] {
        let world = World::new(18, mode);
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..64).await;
            live.stop().await.expect("stops in order");
            // From the opening, or later.
            world.host.unsure.set(first == 0);
            let live = world.open().await;
            for round in 0..3 {
                world.host.unsure.set(round >= first);
                for block in 0..8 {
                    live.write(block).await;
                }
                live.volume.flush().await.expect("flushes");
                live.cleaned().await;
                live.env.sleep(CLEARED).await;
            }
        });
        for found in crashed(&world) {
            start(&world, &found, None).expect("left alone");
        }
    }
}

/// A record may be written long after the wait for it has ended.
#[test]
fn late_notes_refuse_nothing() {
    for (seed, mode) in (20..30).flat_map(|seed| ALL_MODES.map(|mode| (seed, mode))) {
        let world = World::shards(seed, mode, 3);
        let moments = world.sim.block_on(async {
            let live = world.open().await;
            for (at, bytes) in gpt(MIB) {
                write(&live, at, &bytes).await;
            }
            let moments = world.watch();
            world.host.takes.set(Duration::from_secs(40));
            for round in 0..12 {
                let stripe = (round + seed) % 3;
                write(&live, stripe * MIB + 32768, &[round as u8; 4096]).await;
                live.volume.flush().await.expect("flushes");
                live.env.sleep(CLEARED / 4 * (1 + (round as u32 + 1) % 3)).await;
            }
            world.unwatch();
            moments.take()
        });
        for moment in &moments {
            for (cache, origin) in [
                (Left::Everything, Left::Nothing),
                (Left::Everything, Left::Everything),
            ] {
                start(&world, &moment.cut(cache, origin), None)
                    .unwrap_or_else(|error| panic!("{mode}, seed {seed}, event {}: {error}", moment.number));
            }
        }
    }
}

/// A sector torn in a power cut is readable again after it is rewritten, as the writeback worker does.
#[test]
fn an_unreadable_origin_start_is_not_compared_after_a_crash() {
    for mode in ALL_MODES {
        let world = World::new(19, mode);
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..64).await;
            live.write(3).await;
            live.volume.flush().await.expect("flushes");
        });
        let next = world.reboot(20);
        next.origin.fail_nth(DeviceOp::Read, 1);
        next.sim.block_on(async {
            let live = next.open().await;
            assert_eq!(live.cache.start, Start::Recovered);
            live.check_all().await;
        });
    }
}

/// Nothing of it is cached, and an origin that has grown is the same origin.
#[test]
fn a_partition_behind_what_is_served_is_not_compared() {
    let world = World::of_origin(21, Mode::WriteThrough, 2, BLOCKS * BLOCK + 4 * MIB);
    let behind = BLOCKS * BLOCK + 2 * MIB;
    world.sim.block_on(async {
        for (at, bytes) in mbr(behind / 2) {
            world.origin.poke(at, &bytes);
        }
        let live = world.open().await;
        live.warm(STRIPE..STRIPE + 64).await;
    });
    for found in crashed(&world) {
        for at in [None, Some(behind + MOUNTED)] {
            assert_eq!(start(&world, &found, at).expect("left alone"), Start::Recovered);
        }
        is_compared(&world, &found, MOUNTED);
    }
}

/// With a fenced cache, writes bypass it without intents: the recorded fingerprint is then old.
#[test]
fn a_fenced_cache_does_not_compare_its_origin() {
    for mode in MODES {
        let world = World::new(17, mode);
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..64).await;
            live.env.sleep(CLEARED).await;
            world.cache.set_dead(true);
            for block in 0..64 {
                // Some writes fail until the cache is fenced.
                live.try_write(block).await.ok();
            }
            live.volume.flush().await.expect("the origin is well");
            assert!(live.failed());
        });
        world.cache.set_dead(false);
        for found in crashed(&world) {
            start(&world, &found, None).expect("left alone");
        }
    }
}

const MIB: u64 = 1 << 20;

/// Offsets, and the bytes to write there.
type Table = Vec<(u64, Vec<u8>)>;

fn boot_record(entries: &[(u8, u64)]) -> Vec<u8> {
    let mut sector = vec![0; 512];
    for (entry, (kind, start)) in sector[446..].chunks_exact_mut(16).zip(entries) {
        entry[4] = *kind;
        entry[8..12].copy_from_slice(&u32::try_from(start / 512).expect("small").to_le_bytes());
        entry[12..16].copy_from_slice(&64u32.to_le_bytes());
    }
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

/// Two partitions, the second at twice `unit`.
fn mbr(unit: u64) -> Table {
    vec![(0, boot_record(&[(0x83, unit), (0x83, 2 * unit)]))]
}

/// An extended partition with two logical ones, the second at twice `unit`.
fn extended(unit: u64) -> Table {
    vec![
        (0, boot_record(&[(0x0f, unit / 2)])),
        (unit / 2, boot_record(&[(0x83, unit / 8), (5, unit / 4)])),
        (unit * 3 / 4, boot_record(&[(0x83, unit * 5 / 4)])),
    ]
}

/// A GPT in sectors of 512 bytes, the second partition at twice `unit`.
fn gpt(unit: u64) -> Table {
    let mut header = vec![0; 512];
    header[..8].copy_from_slice(b"EFI PART");
    header[72..80].copy_from_slice(&2u64.to_le_bytes());
    header[80..84].copy_from_slice(&128u32.to_le_bytes());
    header[84..88].copy_from_slice(&128u32.to_le_bytes());
    let mut entries = vec![0; 128 * 128];
    for (entry, start) in entries.chunks_exact_mut(128).zip([unit, 2 * unit]) {
        entry[..16].fill(0x5e);
        entry[32..40].copy_from_slice(&(start / 512).to_le_bytes());
    }
    vec![(0, boot_record(&[(0xee, 512)])), (512, header), (1024, entries)]
}
