//! An example report of a running cache, for tests.

use uuid::Uuid;

use super::*;

/// A running cache with nonzero values in all sections.
#[must_use]
pub fn example() -> StatusReport {
    let latency_us = Some(LatencyReport {
        mean: 31.5,
        p50: 25.0,
        p90: 48.0,
        p99: 130.0,
        p999: 2200.0,
        max: 13_100.0,
    });
    let read = OperationReport {
        operation: "read".to_owned(),
        count: 1_234_567,
        bytes: 5_056_786_432,
        errors: 0,
        latency_us,
        latency_counts: vec![1_000_000, 234_000, 567],
        latency_sum_s: 38.9,
    };
    let flush = OperationReport {
        operation: "flush".to_owned(),
        count: 12,
        latency_us,
        latency_counts: vec![10, 2, 0],
        latency_sum_s: 0.0004,
        ..Default::default()
    };
    StatusReport {
        schema: REPORT_SCHEMA,
        state: CacheState::Running,
        health: None,
        cache: CacheReport {
            path: "/dev/nvme0n1p3".into(),
            uuid: Uuid::from_u128(0x1234),
            format_version: 1,
            size_bytes: 100 << 30,
            data_bytes: 99 << 30,
            extent_bytes: 64 << 10,
            region_bytes: 16 << 20,
            regions: 6336,
            shards: 8,
        },
        origin: OriginReport {
            path: "/dev/sdb".into(),
            size_bytes: 2 << 40,
        },
        settings: Some(Settings {
            sequential_cutoff: 4 << 20,
            ..Settings::default()
        }),
        may_be_dirty: true,
        start_refused: None,
        live: Some(LiveReport {
            daemon: DaemonReport {
                pid: 4711,
                version: "0.1.0".to_owned(),
                uptime_s: 7620.0,
                threads: 4,
                ..Default::default()
            },
            operations: vec![
                read,
                flush,
                OperationReport {
                    operation: "trim".to_owned(),
                    ..Default::default()
                },
                OperationReport {
                    operation: "write".to_owned(),
                    errors: 3,
                    ..Default::default()
                },
            ],
            latency_bounds_s: vec![0.0001, 0.01],
            lookups: LookupReport {
                hits: 900,
                partial_hits: 50,
                misses: 50,
                hit_blocks: 3,
                miss_blocks: 1,
                ..Default::default()
            },
            admission: AdmissionReport {
                admitted_blocks: 10,
                refused_blocks: [("sequential".to_owned(), 4), ("first-touch".to_owned(), 0)].into(),
                ..Default::default()
            },
            codec: CodecReport {
                in_bytes: 4000,
                out_bytes: 1600,
                recompressed_blocks: 700,
                grouped_blocks: 480,
                divided_groups: 12,
                dictionaries: 2,
                recompress_s: 0.5,
                high_effort_s: 0.25,
                less_compressed_blocks: 7,
                ..Default::default()
            },
            space: SpaceReport {
                cached_blocks: 3_000_000,
                cached_bytes: 12_288_000_000,
                fragment_bytes: 4_915_200_000,
                used_bytes: 5_000_000_000,
                capacity_bytes: 99 << 30,
                effective_capacity_bytes: 261_000_000_000,
                probation_regions: 30,
                main_regions: 268,
                free_regions: 6038,
            },
            write_back: WriteBackReport {
                dirty_blocks: 2560,
                dirty_bytes: 10 << 20,
                dirty_device_bytes: 4 << 20,
                limit_bytes: 24 << 30,
                dirty_s: 2.5,
                clean_s: Some(0.8),
                cleaned_blocks: 100_000,
                ..Default::default()
            },
            share: None,
            shrink: None,
            traffic: TrafficReport {
                cache_read_bytes: 1_900_000_000,
                cache_written_bytes: 5_200_000_000,
                cache_written: CacheWritesReport {
                    admitted_bytes: 4_000_000_000,
                    dirty_bytes: 0,
                    reinserted_bytes: 1_000_000_000,
                    moved_dirty_bytes: 0,
                    other_bytes: 200_000_000,
                },
                cache_discarded_bytes: 0,
                origin_read_bytes: 470_000_000,
                origin_written_bytes: 409_600_000,
            },
            write_budget: None,
            queues: vec![
                QueueReport {
                    name: "admission".to_owned(),
                    queues: 8,
                    depth: 1,
                    depth_peak: 9,
                    depth_max: 1024,
                    full_count: 2,
                },
                QueueReport {
                    name: "origin-reads".to_owned(),
                    queues: 1,
                    depth_peak: 32,
                    depth_max: 256,
                    ..Default::default()
                },
            ],
            nbd: vec![NbdReport {
                address: "unix:/x".to_owned(),
                connections: 2,
                connections_max: 64,
                connections_total: 3,
            }],
            block_devices: vec![BlockDeviceReport {
                name: "/dev/flaz/disk".into(),
                device: "/dev/ublkb0".into(),
                queues: 2,
                depth: 64,
            }],
            ..Default::default()
        }),
        warnings: vec!["the origin is emulated".to_owned()],
    }
}
