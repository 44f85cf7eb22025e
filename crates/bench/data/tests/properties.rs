//! Properties of all generated data: it is a function of spec and offset, and verification finds every flipped byte.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;

use flaz_data::distribution::{Row, SCHEMA, Size};
use flaz_data::generator::DEDUP_STRIDE_BYTES;
use flaz_data::output;
use flaz_data::study::window::fingerprint;
use flaz_data::{DataSpec, Distribution, Family, Generator, Level, Pool, Seed};
use proptest::prelude::*;

fn distribution() -> Arc<Distribution> {
    Arc::new(Distribution {
        schema: SCHEMA.into(),
        source: "test".into(),
        measured_bytes: 0,
        duplicate_percent: 0.0,
        sizes: (9..=20)
            .map(|power| Size {
                chunk_bytes: 1 << power,
                zero_chunks: 1,
                rows: vec![
                    Row {
                        matched_percent: 20.0,
                        entropy_percent: 50.0,
                        chunks: 3,
                    },
                    Row {
                        matched_percent: 80.0,
                        entropy_percent: 70.0,
                        chunks: 2,
                    },
                ],
            })
            .collect(),
    })
}

fn specs() -> impl Strategy<Value = DataSpec> {
    let chunk = (9_u32..=18).prop_map(|power| 1_u64 << power);
    let family = (0..8_usize, 4_u32..17);
    let dedup = prop_oneof![Just(0.0), 0.0..99.0];
    (family, 0.0..=100.0, chunk, dedup, any::<(u64, u64)>()).prop_map(
        |((number, distance), percent, chunk_bytes, dedup, (campaign, run))| {
            let family = match number {
                0 => Family::Run,
                1 => Family::Copies {
                    distance_bytes: (1 << distance).min(chunk_bytes / 2),
                },
                2 => Family::Alphabet,
                3 => Family::Replay(distribution()),
                4 => Family::Iozone,
                5 => Family::Zeros,
                6 => Family::Random,
                _ => Family::RandomLevel,
            };
            DataSpec {
                family,
                level: Level::new(percent).unwrap(),
                chunk_bytes,
                dedup: Level::new(dedup).unwrap(),
                seed: Seed { campaign, run },
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn data_is_a_function_of_spec_and_offset(
        spec in specs(), offset in 0_u64..(1 << 40), len in 0_usize..200_000, cuts in prop::collection::vec(any::<u16>(), 0..6)
    ) {
        let generator = Generator::new(spec.clone()).unwrap();
        let mut whole = vec![0xaa; len];
        generator.fill(offset, &mut whole);
        // In arbitrary pieces, in another order, by another generator.
        let mut ends: Vec<usize> = cuts.iter().map(|cut| usize::from(*cut) * len / 65536).collect();
        ends.extend([0, len]);
        ends.sort_unstable();
        let again = Generator::new(spec).unwrap();
        let mut pieces = vec![0x55; len];
        for pair in ends.windows(2).rev() {
            again.fill(offset + pair[0] as u64, &mut pieces[pair[0]..pair[1]]);
        }
        prop_assert!(whole == pieces);
        prop_assert_eq!(generator.verify(offset, &whole), Ok(()));
    }

    #[test]
    fn every_flipped_byte_is_found(
        spec in specs(), offset in 0_u64..(1 << 40), len in 1_usize..100_000, place in any::<u32>(), flip in 1_u8..=255
    ) {
        let generator = Generator::new(spec.clone()).unwrap();
        let mut bytes = vec![0; len];
        generator.fill(offset, &mut bytes);
        let at = place as usize % len;
        let expected = bytes[at];
        bytes[at] ^= flip;
        let found = generator.verify(offset, &bytes).unwrap_err();
        prop_assert_eq!(found.offset, offset + at as u64);
        prop_assert_eq!(found.chunk, found.offset / spec.chunk_bytes);
        prop_assert_eq!((found.expected, found.found, found.differing), (expected, expected ^ flip, 1));
    }

    #[test]
    fn different_seeds_give_different_data(spec in specs(), other in any::<(u64, u64)>()) {
        prop_assume!((spec.seed.campaign, spec.seed.run) != other && spec.family != Family::Zeros);
        // A level of 100 % may leave only one value per chunk.
        prop_assume!(spec.level.percent() < 90.0);
        let mut other_spec = spec.clone();
        other_spec.seed = Seed { campaign: other.0, run: other.1 };
        let bytes = |spec: DataSpec| {
            let mut bytes = vec![0; 1 << 20];
            Generator::new(spec).unwrap().fill(0, &mut bytes);
            bytes
        };
        prop_assert!(bytes(spec) != bytes(other_spec));
    }
}

fn spec(family: Family, percent: f64) -> DataSpec {
    DataSpec::new(family, Level::new(percent).unwrap())
}

/// Blocks of 4 KiB that equal an earlier one.
fn repeated(seen: &mut BTreeSet<u64>, data: &[u8]) -> usize {
    data.chunks(4096)
        .filter(|block| !seen.insert(fingerprint(block)))
        .count()
}

#[test]
fn duplicates_have_the_requested_share_and_distance() {
    for percent in [0.0, 10.0, 50.0, 90.0] {
        let mut spec = spec(Family::Run, 50.0);
        spec.dedup = Level::new(percent).unwrap();
        let generator = Generator::new(spec).unwrap();
        let mut data = vec![0; 64 << 20];
        generator.fill(0, &mut data);
        let (first, rest) = data.split_at(DEDUP_STRIDE_BYTES as usize);
        let mut seen = BTreeSet::new();
        assert_eq!(repeated(&mut seen, first), 0, "nothing comes before");
        let blocks = rest.len() / 4096;
        let found = repeated(&mut seen, rest) as f64 * 100.0 / blocks as f64;
        // 15,360 blocks: a deviation of at most 0.4 points.
        assert!((found - percent).abs() < 2.0, "{percent}: {found}");
        let told = (0..data.len() as u64 / 4096)
            .filter(|chunk| generator.is_duplicate(*chunk))
            .count();
        assert!((told as f64 * 100.0 / blocks as f64 - found).abs() < 1e-9);
    }
}

#[test]
fn runs_share_no_block_unless_requested() {
    let run = |number| {
        let mut spec = spec(Family::Run, 90.0);
        spec.seed.run = number;
        let mut data = vec![0; 8 << 20];
        Generator::new(spec).unwrap().fill(0, &mut data);
        data
    };
    let mut seen = BTreeSet::new();
    assert_eq!(repeated(&mut seen, &run(0)), 0);
    assert_eq!(repeated(&mut seen, &run(1)), 0);
    assert_eq!(repeated(&mut seen, &run(1)), 2048);
}

#[test]
fn a_pool_contains_and_verifies_the_data() {
    let mut spec = spec(Family::Copies { distance_bytes: 256 }, 75.0);
    spec.chunk_bytes = 64 << 10;
    let generator = Generator::new(spec).unwrap();
    let mut data = vec![0; 5 << 20];
    generator.fill(0, &mut data);
    let threads = NonZeroUsize::new(3).unwrap();
    let (pool, speed) = Pool::fill(generator.clone(), data.len(), threads).unwrap();
    assert!(pool.data() == data);
    assert_eq!(pool.data().as_ptr().align_offset(4096), 0);
    assert_eq!((speed.bytes, speed.threads), (5 << 20, 3));
    assert!(speed.gb_per_s_thread() > 0.0);
    // Offsets beyond the pool start again at its front.
    let record = pool.record((5 << 20) * 7 + 4096, 4096);
    assert!(record == &data[4096..8192]);
    let mut read = record.to_vec();
    assert_eq!(pool.verify((5 << 20) * 7 + 4096, &read), Ok(()));
    read[100] ^= 1;
    assert_eq!(pool.verify((5 << 20) * 7 + 4096, &read).unwrap_err().offset, 4196);
    assert!(Pool::fill(generator.clone(), 0, threads).is_err());
    assert!(Pool::fill(generator.clone(), 1000, threads).is_err());
    assert!(Pool::fill(generator, 1 << 62, threads).is_err());
}

#[test]
fn output_equals_the_generated_data() {
    let mut spec = spec(Family::Alphabet, 40.0);
    spec.chunk_bytes = 16 << 10;
    let generator = Generator::new(spec).unwrap();
    // Not a multiple of any unit.
    let size = (9 << 20) + 777;
    let mut expected = vec![0; size];
    generator.fill(0, &mut expected);
    let (mut written, mut told) = (Vec::new(), 0);
    let threads = NonZeroUsize::new(2).unwrap();
    let speed = output::write(&generator, size as u64, threads, &mut written, &mut |at| {
        told = at
    })
    .unwrap();
    assert!(written == expected);
    assert_eq!((told, speed.bytes), (size as u64, size as u64));
}

#[test]
fn invalid_specs_are_refused_with_the_expectation() {
    let refused = |change: fn(&mut DataSpec)| {
        let mut spec = spec(Family::Run, 50.0);
        change(&mut spec);
        Generator::new(spec).unwrap_err().to_string()
    };
    assert!(refused(|spec| spec.chunk_bytes = 0).contains("power of two"));
    assert!(refused(|spec| spec.chunk_bytes = 5000).contains("power of two"));
    assert!(refused(|spec| spec.chunk_bytes = 32 << 20).contains("16 MiB"));
    assert!(refused(|spec| spec.dedup = Level::new(100.0).unwrap()).contains("99%"));
    assert!(refused(|spec| spec.family = Family::Copies { distance_bytes: 4096 }).contains("half a chunk"));
    assert!(refused(|spec| spec.family = Family::Copies { distance_bytes: 0 }).contains("distance"));
    assert!(
        refused(|spec| {
            spec.family = Family::Replay(distribution());
            spec.chunk_bytes = 4 << 20;
        })
        .contains("measured at")
    );
}

#[test]
fn invalid_distributions_are_refused() {
    let good = serde_json::to_value(&*distribution()).unwrap();
    assert!(Distribution::parse(good.to_string().as_bytes()).is_ok());
    let mut checks = 0;
    let mut refused = |change: fn(&mut serde_json::Value), part: &str| {
        let mut bad = good.clone();
        change(&mut bad);
        let error = Distribution::parse(bad.to_string().as_bytes()).unwrap_err();
        assert!(error.contains(part), "{error}");
        checks += 1;
    };
    refused(|value| value["schema"] = "other".into(), "flaz-distribution/1");
    refused(|value| value["sizes"] = serde_json::json!([]), "chunk sizes");
    refused(
        |value| value["sizes"][0]["rows"][0]["lz4_percent"] = 101.into(),
        "0 to 100",
    );
    refused(
        |value| value["sizes"][0]["rows"][0]["zstd_percent"] = serde_json::Value::Null,
        "null",
    );
    refused(|value| value["sizes"][0]["rows"][0]["chunks"] = (-1).into(), "-1");
    refused(
        |value| value["sizes"][0]["rows"][0]["chunks"] = u64::MAX.into(),
        "2^64",
    );
    refused(|value| value["duplicate_percent"] = 200.into(), "duplicates");
    refused(|value| value["more"] = 1.into(), "unknown field");
    refused(
        |value| {
            value["sizes"][0]["zero_chunks"] = 0.into();
            value["sizes"][0]["rows"] = serde_json::json!([]);
        },
        "no chunks",
    );
    assert_eq!(checks, 9);
    for text in ["", "{", "[]", "\u{0}"] {
        assert!(Distribution::parse(text.as_bytes()).is_err());
    }
}
