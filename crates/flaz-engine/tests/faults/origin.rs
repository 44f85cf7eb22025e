//! The origin fails, goes, and comes back.

use flaz_device::{DeviceOp, Env};
use flaz_engine::settings::Mode;
use flaz_engine::volume::{IoError, Volume};

use crate::world::{BLOCK, CLEARED, Live, MODES, STRIPE, World, contents};

#[test]
fn an_origin_that_is_gone_fails_misses_and_writes_and_hits_are_served() {
    for mode in MODES {
        let world = World::new(1, mode);
        world.sim.block_on(async {
            let live = world.open().await;
            live.write(5).await;
            live.warm(0..256).await;
            live.env.sleep(CLEARED).await;
            world.origin.set_dead(true);
            for block in 0..256 {
                live.read(block).await;
            }
            for block in STRIPE..STRIPE + 8 {
                let error = live.try_read(block).await.expect_err("nobody has it");
                assert!(matches!(error, IoError::Origin(_)), "{error}");
            }
            live.try_write(7).await.expect_err("the origin is gone");
            live.volume.flush().await.expect_err("the origin is gone");
            // Whether the origin has the old or the new block 7 is not known: the copy in the cache may be wrong.
            live.try_read(7).await.expect_err("not from the cache");
            live.read(8).await;
            assert!(!live.failed(), "{mode}: the cache is well");
            world.origin.set_dead(false);
            live.check_all().await;
            for block in 0..16 {
                live.write(block).await;
            }
            live.check_all().await;
            live.volume.flush().await.expect("the origin is back");
            live.stop().await.expect("stops in order");
        });
        world.check();
    }
}

#[test]
fn each_write_of_the_origin_failed_once_leaves_old_or_new_sectors_and_always_the_same() {
    for mode in MODES {
        for nth in 1..=24 {
            let world = World::new(nth, mode);
            let (block, seen) = world.sim.block_on(async {
                let live = world.open().await;
                live.warm(0..64).await;
                world.origin.fail_nth(DeviceOp::Write, nth);
                let mut failed = None;
                for block in 0..24 {
                    if live.try_write(block).await.is_err() {
                        assert_eq!(failed.replace(block), None, "one failed");
                    }
                }
                let block = failed.expect("one failed");
                let seen = raw(&live, block).await;
                let (old, new) = (contents(block, 0), contents(block, 1));
                for at in (0..BLOCK as usize).step_by(512) {
                    let sector = at..at + 512;
                    assert!(
                        seen[sector.clone()] == old[sector.clone()] || seen[sector.clone()] == new[sector],
                        "{mode}: sector at {at} of block {block} is neither old nor new"
                    );
                }
                live.stored().await;
                assert!(raw(&live, block).await == seen, "{mode}, {nth}");
                live.volume.flush().await.expect("flushes");
                for other in (0..64).filter(|&other| other != block) {
                    live.read(other).await;
                }
                (block, seen)
            });
            let next = world.reboot(nth);
            next.sim.block_on(async {
                let live = next.open().await;
                assert!(raw(&live, block).await == seen, "{mode}, {nth}: after a crash");
            });
        }
    }
}

/// A block whatever it holds.
async fn raw(live: &Live, block: u64) -> Vec<u8> {
    live.volume
        .read(block * BLOCK, BLOCK as u32)
        .await
        .expect("reads")[0]
        .to_vec()
}

#[test]
fn each_read_of_the_origin_failed_once_fails_its_readers_alone() {
    let world = World::new(2, Mode::WriteThrough);
    world.sim.block_on(async {
        let live = world.open().await;
        for block in 0..100 {
            if block % 10 == 3 {
                world.origin.fail_nth(DeviceOp::Read, 1);
                live.try_read(block).await.expect_err("the origin failed");
                assert!(!live.is_cached(block));
            }
            live.read(block).await;
        }
        assert_eq!(live.stats().counts.origin_errors, 10);
    });
}

#[test]
fn a_start_without_a_readable_origin_is_refused() {
    let world = World::new(3, Mode::WriteThrough);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..64).await;
        live.stop().await.expect("stops in order");
        world.origin.set_dead(true);
        let error = world
            .try_open()
            .await
            .err()
            .expect("its fingerprint cannot be read");
        assert!(error.to_string().starts_with("origin:"), "{error}");
        world.origin.set_dead(false);
        let live = world.open().await;
        assert!(
            matches!(live.cache.start, flaz_engine::cache::Start::Warm(_)),
            "nothing was marked"
        );
    });
}

#[test]
fn an_origin_that_was_changed_while_the_cache_was_off_is_refused() {
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

/// A partition that was mounted changes nothing in the table.
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

/// Tables that name places beyond the origin, each other, and themselves: the cache starts and stops all the same.
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
        // A chain that comes back to itself, or leads away.
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
            assert!(matches!(live.cache.start, flaz_engine::cache::Start::Warm(_)));
            live.stop().await.expect("stops in order");
        });
    }
}

const MIB: u64 = 1 << 20;

/// What to write where.
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

/// Two partitions, the second one at two of a unit.
fn mbr(unit: u64) -> Table {
    vec![(0, boot_record(&[(0x83, unit), (0x83, 2 * unit)]))]
}

/// An extended partition with two logical ones, the second one at two of a unit.
fn extended(unit: u64) -> Table {
    vec![
        (0, boot_record(&[(0x0f, unit / 2)])),
        (unit / 2, boot_record(&[(0x83, unit / 8), (5, unit / 4)])),
        (unit * 3 / 4, boot_record(&[(0x83, unit * 5 / 4)])),
    ]
}

/// A GPT in sectors of 512 bytes, the second partition at two of a unit.
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
