//! The two devices of a shard, each alone.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::{Device, DeviceError, DeviceOp, Env, IoBuf};
use flaz_sim::{DiskConfig, Sim, SimDisk, SimEnv};
use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, join, pending};

use super::{CACHE_ERRORS_MAX, CacheIo, OriginIo, OriginWrites};
use crate::format::geometry::{Geometry, GeometryOptions};
use crate::host_record::{HostRecord, HostRecords};
use crate::shard::simulated::Simulated;
use crate::stats::Stats;

const LEN: u64 = 8 << 20;
const SECTOR: usize = 512;

struct Parts {
    sim: Sim,
    env: SimEnv,
    disk: SimDisk,
    geometry: Geometry,
    stats: Rc<Stats>,
    shared: OriginWrites,
}

impl Parts {
    fn new() -> Self {
        let sim = Sim::new(1);
        let env = sim.env();
        let options = GeometryOptions {
            shard_count: Some(1),
            ..GeometryOptions::default()
        };
        Self {
            disk: SimDisk::new(&env, DiskConfig::fast(LEN)),
            geometry: Geometry::plan(LEN, 512, LEN, options).expect("fits"),
            env,
            sim,
            stats: Rc::default(),
            shared: OriginWrites::default(),
        }
    }

    fn cache(&self, host: Option<Rc<dyn HostRecords>>) -> CacheIo<Simulated> {
        CacheIo::new(
            Rc::new(self.disk.clone()),
            self.env.clone(),
            Rc::clone(&self.stats),
            self.shared.clone(),
            (&self.geometry, 0),
            host,
        )
    }

    fn origin(&self) -> OriginIo<Simulated> {
        OriginIo::new(
            Rc::new(self.disk.clone()),
            self.env.clone(),
            Rc::clone(&self.stats),
            self.shared.clone(),
            (&self.geometry, 0),
            None,
        )
    }
}

/// A host that answers after a while, or never.
struct Host(Option<(SimEnv, Duration)>);

impl HostRecords for Host {
    fn recall(&self) -> LocalBoxFuture<'_, Option<HostRecord>> {
        async { None }.boxed_local()
    }

    fn note(&self, _: HostRecord) -> LocalBoxFuture<'_, bool> {
        async { false }.boxed_local()
    }

    fn note_dirty(&self, _: bool, _: u64) -> LocalBoxFuture<'_, bool> {
        async { false }.boxed_local()
    }

    fn note_origin(&self, _: u64, _: crate::host_record::NotedOrigin) -> LocalBoxFuture<'_, bool> {
        async { false }.boxed_local()
    }

    fn note_stopped(&self, _: Option<crate::host_record::NotedOrigin>) -> LocalBoxFuture<'_, bool> {
        async { false }.boxed_local()
    }

    fn note_fenced(&self) -> LocalBoxFuture<'_, bool> {
        async {
            match &self.0 {
                Some((env, after)) => env.sleep(*after).await,
                None => pending().await,
            }
            true
        }
        .boxed_local()
    }
}

fn sector(byte: u8) -> IoBuf {
    let mut buf = IoBuf::new(SECTOR);
    buf.fill(byte);
    buf
}

fn failed(kind: io::ErrorKind) -> DeviceError {
    DeviceError::new(DeviceOp::Write, 0, 512, io::Error::from(kind))
}

#[test]
fn a_fenced_device_takes_only_marks_and_moved_extents() {
    let parts = Parts::new();
    let cache = parts.cache(None);
    let position = parts.geometry.region_offset(0, 0);
    parts.sim.block_on(async {
        cache.write_at(position, sector(1)).await.expect("in use");
        assert!(cache.fence() && !cache.fence(), "fenced once");
        let before = parts.disk.stats();
        let refused = [
            cache.write(position, sector(2), true).await.1,
            cache.write_at(position, sector(3)).await,
            cache.discard(position, parts.geometry.region_bytes).await,
        ];
        for result in refused {
            let error = result.expect_err("refused");
            assert!(CacheIo::<Simulated>::was_refused(&error), "{error}");
        }
        assert_eq!(parts.disk.stats(), before, "the device is not asked");
        cache
            .write_fenced(position, sector(4), true)
            .await
            .1
            .expect("a mark");
        let (read, at) = cache.read(0, 512).await.expect("reads go on");
        assert_eq!(read[at..], *sector(4));
    });
}

#[test]
fn a_fence_is_marked_and_settled_independently() {
    let cache = Parts::new().cache(None);
    assert!(!cache.is_fenced() && !cache.is_marking() && !cache.is_settled());
    cache.fence();
    assert!(cache.is_fenced() && cache.is_marking() && !cache.is_settled());
    cache.settle();
    assert!(cache.is_marking() && cache.is_settled());
    cache.marking_ended();
    assert!(cache.is_fenced() && !cache.is_marking() && cache.is_settled());
}

#[test]
#[should_panic(expected = "a device in use is not settled")]
fn a_device_in_use_cannot_be_settled() {
    Parts::new().cache(None).settle();
}

#[test]
fn one_timeout_or_many_errors_are_a_reason_to_fence() {
    let (first, second) = (Parts::new().cache(None), Parts::new().cache(None));
    assert!(first.note_error(&failed(io::ErrorKind::TimedOut)).is_some());
    for _ in 1..CACHE_ERRORS_MAX {
        assert_eq!(second.note_error(&failed(io::ErrorKind::Other)), None);
    }
    assert!(second.note_error(&failed(io::ErrorKind::Other)).is_some());
}

/// The system may report a failed flush once, and then success although data is lost.
#[test]
fn a_failed_flush_of_one_shard_fails_the_flushes_of_all() {
    let parts = Parts::new();
    let (first, second) = (parts.cache(None), parts.cache(None));
    parts.sim.block_on(async {
        second.flush().await.expect("nothing has failed");
        parts.disk.fail_nth(DeviceOp::Flush, 1);
        assert!(first.flush().await.is_err());
        assert!(second.flush().await.is_err(), "the device reports success");
        let failures = second.flush_failures();
        second
            .flush_since(failures)
            .await
            .expect("nothing was written before");
        assert!(second.flush_since(failures - 1).await.is_err());
    });
}

#[test]
fn a_read_covers_whole_sectors_and_says_where_it_begins() {
    let parts = Parts::new();
    let cache = parts.cache(None);
    let bytes: Vec<u8> = (0..2048_u32).map(|n| (n / 7) as u8).collect();
    parts.disk.poke(parts.geometry.region_offset(0, 0), &bytes);
    parts.sim.block_on(async {
        for (offset, len) in [(0, 512), (1, 10), (510, 4), (1000, 600), (511, 1)] {
            let (buf, at) = cache.read(offset, len).await.expect("readable");
            assert!(buf.len().is_multiple_of(SECTOR));
            assert_eq!(
                buf[at..at + len as usize],
                bytes[offset as usize..][..len as usize]
            );
        }
    });
}

#[test]
#[should_panic(expected = "it lies in one region")]
fn a_read_beyond_a_region_panics() {
    let parts = Parts::new();
    let cache = parts.cache(None);
    let read = cache.read(parts.geometry.region_bytes - 1, 2);
    drop(read.now_or_never());
}

#[test]
fn a_host_that_does_not_answer_in_time_has_no_record() {
    let parts = Parts::new();
    let told = |host| {
        let cache = parts.cache(Some(Rc::new(host)));
        parts.sim.block_on(async { cache.tell_host().await })
    };
    assert!(told(Host(Some((parts.env.clone(), Duration::from_secs(9))))));
    assert!(!told(Host(Some((parts.env.clone(), Duration::from_secs(11))))));
    assert!(!told(Host(None)));
}

#[test]
fn an_unaligned_write_keeps_the_bytes_around_it() {
    let parts = Parts::new();
    let origin = parts.origin();
    let mut expected: Vec<u8> = (0..4096_u32).map(|n| (n / 5) as u8).collect();
    parts.disk.poke(0, &expected);
    parts.sim.block_on(async {
        for (offset, len) in [(3, 5), (500, 20), (512, 512), (1000, 2000), (0, 1), (4095, 1)] {
            let data = IoBuf::copy_of(&vec![0xee; len]);
            origin
                .write(offset as u64, data, false)
                .await
                .1
                .expect("it is well");
            expected[offset..offset + len].fill(0xee);
            let all = origin.read_range(0, expected.len()).await.expect("it is well");
            assert_eq!(all[..], expected[..], "{len} bytes at {offset}");
        }
        let part = origin.read_range(700, 900).await.expect("it is well");
        assert_eq!(part[..], expected[700..1600]);
    });
}

#[test]
fn only_a_write_with_fua_is_durable_on_return() {
    for fua in [false, true] {
        let parts = Parts::new();
        let origin = parts.origin();
        parts.sim.block_on(async {
            let data = IoBuf::copy_of(&[7; 100]);
            origin.write(50, data, fua).await.1.expect("it is well");
        });
        assert_eq!(parts.disk.peek(50, 100), [7; 100]);
        assert_eq!(parts.disk.peek_durable(50, 100) == [7; 100], fua);
    }
}

#[test]
fn dirty_blocks_of_zeroes_are_written_as_zeroes() {
    let parts = Parts::new();
    let origin = parts.origin();
    parts.disk.poke(0, &[1; 8192]);
    parts.sim.block_on(async {
        origin.write_clean(0, 4096, None).await.expect("it is well");
        let data = IoBuf::copy_of(&[2; 4096]);
        origin
            .write_clean(4096, 4096, Some(data))
            .await
            .expect("it is well");
    });
    assert_eq!(parts.disk.peek(0, 4096), [0; 4096]);
    assert_eq!(parts.disk.peek(4096, 4096), [2; 4096]);
    assert_eq!(parts.disk.stats().write_zeroes, 1);
    assert_eq!(parts.stats.counters.origin_write_bytes.get(), 8192);
}

/// The failed flush may have lost what the other one covers.
#[test]
fn a_flush_that_another_one_fails_beside_fails_too() {
    let parts = Parts::new();
    let origin = parts.origin();
    parts.sim.block_on(async {
        let failures = origin.flush_failures();
        let other = async {
            let failing = async {
                parts.env.sleep(Duration::from_millis(50)).await;
                Err::<(), _>(DeviceError::new(
                    DeviceOp::Flush,
                    0,
                    0,
                    io::Error::other("a test"),
                ))
            };
            parts.shared.flushes().run(failing).await
        };
        let (ours, theirs) = join(origin.flush_since(failures), other).await;
        assert!(ours.is_err() && theirs.is_err());
        let failures = origin.flush_failures();
        origin
            .flush_since(failures)
            .await
            .expect("nothing was written since");
    });
}

/// A client that repeats an impossible write must not fail the flushes of others for ever.
#[test]
fn after_a_failed_fua_write_writes_are_flushed_separately() {
    let parts = Parts::new();
    let origin = parts.origin();
    parts.sim.block_on(async {
        parts.disk.fail_nth(DeviceOp::Write, 1);
        parts.disk.fail_nth(DeviceOp::Write, 2);
        assert!(origin.write(0, sector(1), true).await.1.is_err());
        let failures = origin.flush_failures();
        parts.disk.fail_nth(DeviceOp::Write, 1);
        assert!(origin.write(0, sector(1), true).await.1.is_err());
        assert_eq!(
            origin.flush_failures(),
            failures,
            "it no longer counts as a flush"
        );
        origin.write(0, sector(2), true).await.1.expect("it is well");
    });
    assert_eq!(parts.disk.peek_durable(0, SECTOR), *sector(2));
}

#[test]
fn a_failure_that_no_client_caused_is_told_once() {
    let parts = Parts::new();
    let origin = parts.origin();
    origin.leave_untold(failed(io::ErrorKind::Other));
    assert!(parts.shared.flushes().take_untold().is_some());
    assert!(parts.shared.flushes().take_untold().is_none());
}

#[test]
fn the_end_of_the_origin_is_read_whole() {
    let parts = Parts::new();
    let origin = parts.origin();
    parts.disk.poke(LEN - 10, &[9; 10]);
    parts.sim.block_on(async {
        let end = origin.read_range(LEN - 10, 10).await.expect("it is well");
        assert_eq!(end[..], [9; 10]);
        assert_eq!(origin.device().len(), LEN);
    });
}
