//! One client, any byte: a plain array gives the expected result of every request. (Concurrent clients are tested in
//! `model`, in sectors.)

use flaz_device::IoBuf;
use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::{Mode, Settings};
use flaz_engine::volume::{Volume, segment_lens};
use flaz_sim::{Rng, SimDisk};

use crate::whole_cache::rig::{Open, Rig, SMALLEST, SMALLEST_LEN, plain_disk, settings};

/// A little over two stripes, so that requests cross a border, and not whole blocks; more than the cache holds.
const ORIGIN_LEN: u64 = (2 << 20) + 3 * 512;
const STEPS: u64 = 1500;
const REQUEST_MAX: u64 = 150_000;
/// Granularity of the origin.
const SECTOR: u64 = 512;

/// A range that starts or ends anywhere, mostly small, often at a boundary.
fn range(rng: &mut Rng) -> (u64, u64) {
    let around = [0, 512, 4096, 1 << 20, 2 << 20, ORIGIN_LEN][rng.below(6) as usize];
    let start = match rng.below(3) {
        0 => (around + rng.below(40)).saturating_sub(20),
        1 => rng.below(ORIGIN_LEN / 4096) * 4096,
        _ => rng.below(ORIGIN_LEN),
    };
    let start = start.min(ORIGIN_LEN - 1);
    let len = match rng.below(4) {
        0 => 1 + rng.below(40),
        1 => 4096 * (1 + rng.below(9)),
        2 => 1 + rng.below(REQUEST_MAX),
        _ => 1 + rng.below(5000),
    };
    (start, len.min(ORIGIN_LEN - start))
}

/// Text, noise, or one value: data that codecs compress a little, not at all, or completely.
fn fill(rng: &mut Rng, data: &mut [u8]) {
    match rng.below(4) {
        0 => data.fill(rng.next_u64() as u8),
        1 => rng.fill(data),
        _ => {
            let word = rng.next_u64().to_le_bytes();
            for (at, byte) in data.iter_mut().enumerate() {
                *byte = word[at % 8] ^ (at / 800) as u8;
            }
        }
    }
}

async fn write(open: &Open, offset: u64, data: &[u8], fua: bool) {
    let mut rest = data;
    let segments = segment_lens(offset, data.len() as u64).map(|len| {
        let (head, tail) = rest.split_at(len);
        rest = tail;
        IoBuf::copy_of(head)
    });
    let segments = segments.collect();
    open.volume
        .write(offset, segments, fua)
        .await
        .expect("both are well");
}

/// Ranges that are reported as zeroes read as zeroes, and the report covers a prefix of the requested range.
async fn check_status(open: &Open, right: &[u8], (start, len): (u64, u64)) {
    let extents = open
        .volume
        .block_status(start, len, 8)
        .await
        .expect("both are well");
    assert!(!extents.is_empty() && extents.len() <= 8);
    let mut at = start;
    for extent in extents {
        assert!(
            extent.len > 0 && at + extent.len <= start + len,
            "{extent:?} at {at}"
        );
        let there = &right[at as usize..][..extent.len as usize];
        assert!(
            !(extent.zero || extent.hole) || there.iter().all(|byte| *byte == 0),
            "{extent:?} at {at}"
        );
        at += extent.len;
    }
}

async fn step(open: &Open, rng: &mut Rng, right: &mut [u8]) {
    let (start, len) = range(rng);
    let there = start as usize..(start + len) as usize;
    let fua = rng.below(8) == 0;
    match rng.below(12) {
        0..=4 => {
            fill(rng, &mut right[there.clone()]);
            write(open, start, &right[there], fua).await;
        }
        5..=7 => {
            assert!(
                open.read(start, len).await == right[there],
                "{len} bytes at {start}"
            );
        }
        8 => {
            open.volume
                .write_zeroes(start, len, rng.coin(), fua)
                .await
                .expect("both are well");
            right[there].fill(0);
        }
        9 => {
            open.volume.trim(start, len, fua).await.expect("both are well");
            // Whole sectors of the origin, which are then zeroes.
            let inner = start.next_multiple_of(SECTOR)..(start + len) / SECTOR * SECTOR;
            if inner.start < inner.end {
                right[inner.start as usize..inner.end as usize].fill(0);
            }
        }
        10 => open.volume.prefetch(start, len).await.expect("both are well"),
        _ => check_status(open, right, (start, len)).await,
    }
}

async fn check_all(open: &Open, right: &[u8]) {
    for start in (0..ORIGIN_LEN).step_by(100_003) {
        let len = (ORIGIN_LEN - start).min(100_003);
        assert!(
            open.read(start, len).await == right[start as usize..][..len as usize],
            "from {start}"
        );
    }
}

fn origin_of(disk: &SimDisk) -> Vec<u8> {
    disk.peek(0, ORIGIN_LEN as usize)
}

#[test]
fn requests_of_any_bytes_do_what_a_plain_array_does() {
    let modes = [
        Mode::WriteThrough,
        Mode::WriteBack,
        Mode::WriteAround,
        Mode::PassThrough,
    ];
    let mut reclaimed = 0;
    for (number, codec) in (0..).zip(["none", "lz4", "zstd", "lzo", "zlib"]) {
        for mode in modes {
            let rig = Rig::new(number, plain_disk(ORIGIN_LEN), plain_disk(SMALLEST_LEN));
            rig.create(ORIGIN_LEN, SMALLEST);
            let policy = PolicyKind::ALL[number as usize % PolicyKind::ALL.len()];
            let settings = Settings {
                mode,
                ..settings(codec, policy)
            };
            let mut rng = Rng::new(number << 8 | mode as u64);
            let mut right = vec![0; ORIGIN_LEN as usize];
            rig.sim.block_on(async {
                for _ in 0..2 {
                    let open = rig.opened(settings.clone()).await;
                    check_all(&open, &right).await;
                    for _ in 0..STEPS / 2 {
                        step(&open, &mut rng, &mut right).await;
                    }
                    check_all(&open, &right).await;
                    reclaimed += open.cache.stats().counts.regions_reclaimed;
                    if mode == Mode::WriteBack {
                        open.cache.clean_all().await.expect("both are well");
                    }
                    open.stop().await.expect("stops in order");
                    assert!(
                        origin_of(&rig.origin) == right,
                        "{codec}, {mode}: the origin is complete"
                    );
                }
            });
        }
    }
    assert!(reclaimed > 100, "only {reclaimed} regions were reclaimed");
}
