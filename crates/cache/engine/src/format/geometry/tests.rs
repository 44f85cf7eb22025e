use proptest::prelude::*;

use super::*;

#[test]
fn plans_fit_their_devices() {
    for len in [4u64 << 20, 64 << 20, 256 << 20, 10 << 30, 4 << 40] {
        let plan = Geometry::plan(len, 512, 100 << 30, GeometryOptions::default()).expect("fits");
        assert!(plan.end() <= len);
        assert!(plan.regions_per_shard >= REGIONS_MIN);
    }
}

#[test]
fn a_cache_can_grow_to_eight_times_its_size() {
    for len in [8 << 20, (1 << 30) + 4096, 64 << 30] {
        let plan = Geometry::plan(len, 512, 1 << 40, GeometryOptions::default()).expect("fits");
        assert_eq!(plan.resized(len), Ok(plan));
        let largest = plan.resized(8 * len).expect("eight times");
        assert_eq!(largest.regions_per_shard, plan.regions_max);
        let sizes = plan.resized(9 * len).expect_err("nine times");
        let least = plan.resized(*sizes.start()).expect("the least");
        assert_eq!(least.regions_per_shard, REGIONS_MIN);
        assert_eq!(plan.resized(sizes.start() - 1), Err(sizes.clone()));
        for resized in [least, largest, plan.resized(*sizes.end()).expect("the most")] {
            assert_eq!(resized.layout, plan.layout);
            assert_eq!(resized.check(resized.device_len), Ok(()));
        }
    }
}

#[test]
fn a_layout_has_room_for_growth() {
    let plan = |len, origin| Geometry::plan(len, 512, origin, GeometryOptions::default()).expect("fits");
    let usual = plan(64 << 30, 1 << 40);
    assert_eq!(usual.regions_max, 8 * usual.regions_per_shard);
    assert_eq!(
        usual.stripes_max,
        4 << 20,
        "four times the origin, as 64 times the cache"
    );
    assert_eq!(plan(64 << 30, 1 << 30).stripes_max, 4 << 20, "64 times the cache");
    assert_eq!(
        plan(64 << 20, 1 << 40).stripes_max,
        1 << 20,
        "an origin that is large already"
    );
    assert_eq!(
        plan(1 << 30, 512 << 30).stripes_max,
        1 << 20,
        "1024 times the cache"
    );
}

#[test]
fn the_regions_of_the_shards_alternate() {
    let plan = Geometry::plan(256 << 20, 512, 1 << 30, GeometryOptions::default()).expect("fits");
    let slots = (0..plan.regions_per_shard)
        .flat_map(|region| (0..plan.shard_count).map(move |shard| plan.region_offset(shard, region)));
    let expected = (plan.data_offset()..plan.end()).step_by(plan.region_bytes as usize);
    assert!(slots.eq(expected), "none twice, and none left out");
    let location = Location::at(3 * plan.region_bytes + 512);
    assert_eq!(plan.position(2, location), plan.region_offset(2, 3) + 512);
}

fn options(shard_count: Option<u32>, region_bytes: Option<u64>, extent_bytes: u32) -> GeometryOptions {
    GeometryOptions {
        extent_bytes: Some(extent_bytes),
        region_bytes,
        shard_count,
        threads: None,
        index_memory: None,
        dictionary_bytes: None,
    }
}

/// Sizes of any order of magnitude, and just below and above powers of two.
fn sizes() -> impl Strategy<Value = u64> {
    let power = 12u32..=50;
    (power, 0u64..=u64::MAX, -2i64..=2).prop_map(|(power, bits, off)| match bits % 3 {
        0 => (1u64 << power).saturating_add_signed(off * 4096),
        _ => (1u64 << power) | (bits & ((1 << power) - 1)),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Without options, every size from the smallest to the largest has a layout that uses the device.
    #[test]
    fn every_size_has_a_layout(
        len in sizes(),
        origin in sizes().prop_map(|len| len.max(1)),
        sector in prop_oneof![Just(512u32), Just(4096)],
        extent in prop_oneof![Just(32u32 << 10), Just(64 << 10), Just(256 << 10)],
        region in prop_oneof![3 => Just(None), 1 => (17u32..=28).prop_map(|power| Some(1u64 << power))],
    ) {
        let wish = options(None, region, extent);
        prop_assume!(region.is_none_or(|region| region >= u64::from(extent) * 4));
        let least = Geometry::device_len_min(sector, origin, wish);
        match Geometry::plan(len, sector, origin, wish) {
            Ok(plan) => {
                prop_assert!(len >= least);
                prop_assert!(plan.end() <= len);
                let unused = len - plan.end();
                // What is left is less than two regions of each shard and the rounding of the metadata.
                let granularity = plan.region_bytes * u64::from(plan.shard_count);
                prop_assert!(unused < 2 * granularity, "{unused} unused of {len}: {plan:?}");
                prop_assert!(plan.check(len).is_ok());
            }
            Err(error) => {
                let region_bytes = region.unwrap_or(16 << 20);
                let largest = 256 * u64::from(regions_limit(region_bytes)) * region_bytes;
                prop_assert!(len < least || len > largest, "{len} bytes, least {least}: {error}");
            }
        }
    }

    /// With the number of shards given, any size that is large enough has a layout up to 1 TiB a shard.
    #[test]
    fn given_shards_fit_from_their_smallest_size(
        shards in 1u32..=SHARDS_MAX,
        more in 0u64..1 << 36,
        origin in sizes().prop_map(|len| len.max(1)),
    ) {
        let wish = options(Some(shards), None, 64 << 10);
        let least = Geometry::device_len_min(512, origin, wish);
        let plan = Geometry::plan(least + more, 512, origin, wish);
        prop_assert!(plan.is_ok_and(|plan| plan.shard_count == shards));
        prop_assert!(Geometry::plan(least - 1, 512, origin, wish).is_err());
    }
}

#[test]
fn small_and_usual_caches_keep_their_shards() {
    for (len, shards, region_bytes) in [
        (4u64 << 20, 1, 256u64 << 10),
        (64 << 20, 1, 256 << 10),
        (256 << 20, 4, 256 << 10),
        (512 << 20, 8, 256 << 10),
        (100 << 30, 8, 16 << 20),
        (8 << 40, 8, 16 << 20),
        (10 << 40, 16, 16 << 20),
        (255 << 40, 256, 16 << 20),
    ] {
        let plan = Geometry::plan(len, 512, 100 << 30, GeometryOptions::default()).expect("fits");
        assert_eq!(
            (plan.shard_count, plan.region_bytes),
            (shards, region_bytes),
            "{len}"
        );
    }
}

#[test]
fn no_more_shards_than_threads_are_planned_unless_the_device_is_too_large_for_them() {
    for (threads, shards) in [(0, 1), (1, 1), (2, 2), (3, 4), (8, 8), (64, 8)] {
        let wish = GeometryOptions {
            threads: Some(threads),
            index_memory: None,
            ..GeometryOptions::default()
        };
        let plan = |len| {
            Geometry::plan(len, 512, 100 << 30, wish)
                .expect("fits")
                .shard_count
        };
        assert_eq!([plan(100 << 30), plan(64 << 20)], [shards, 1], "{threads}");
        assert_eq!(plan(10 << 40), 16, "a shard addresses 1 TiB");
        let space = SharedSpace {
            chunk_bytes: 16 << 20,
            chunks: 6144,
        };
        let shared = Geometry::plan_shared(space, 512, 100 << 30, wish).expect("fits");
        assert_eq!(shared.shard_count, shards, "{threads}");
    }
}

#[test]
fn a_device_that_is_too_small_is_refused() {
    let default = GeometryOptions::default();
    for len in [0, 1 << 20] {
        let error = Geometry::plan(len, 512, 1 << 30, default).expect_err("too small");
        let least = Geometry::device_len_min(512, 1 << 30, default);
        let expected = format!(
            "{len} bytes are too few: a cache of this origin needs at least {}KiB",
            least >> 10
        );
        assert!(error.to_string().contains(&expected), "{error}");
    }
}

#[test]
fn a_device_that_is_too_large_is_refused() {
    for (shards, region, part) in [
        (None, None, "expected at most 262140GiB"),
        (Some(8), None, "expected at most 65535 (use more --shards,"),
        (
            None,
            Some(128 << 10),
            "expected at most 1048576 (use a larger --region-size,",
        ),
    ] {
        let error = Geometry::plan(300 << 40, 512, 1 << 30, options(shards, region, 32 << 10));
        let error = error.expect_err("too large").to_string();
        assert!(error.contains(part), "{error}");
    }
}

fn shared(chunk_bytes: u64, chunks: u32, shard_count: Option<u32>) -> Result<Geometry, FormatError> {
    let space = SharedSpace { chunk_bytes, chunks };
    Geometry::plan_shared(space, 512, 100 << 30, options(shard_count, None, 32 << 10))
}

/// A region is a chunk, and the whole device fits behind the metadata, now and when it grows.
#[test]
fn a_volume_on_a_shared_device_has_all_its_chunks() {
    for (chunk_bytes, chunks, shard_count) in [
        (128 << 10, 8, None),
        (1 << 20, 1001, Some(4)),
        (16 << 20, 6000, None),
    ] {
        let plan = shared(chunk_bytes, chunks, shard_count).expect("fits");
        let data = u64::from(chunks) * chunk_bytes;
        assert_eq!(plan.device_len, plan.data_offset() + data);
        assert_eq!(
            (plan.region_bytes, plan.check(plan.device_len)),
            (chunk_bytes, Ok(()))
        );
        assert_eq!(plan.regions_per_shard, chunks / plan.shard_count);
        assert_eq!(plan.resized(plan.device_len), Ok(plan));
        let largest = plan.resized(plan.data_offset() + 8 * data).expect("eight times");
        assert_eq!(largest.layout, plan.layout, "the metadata has room for it");
        assert_eq!(largest.regions_per_shard, plan.regions_max);
    }
}

/// With more shards each, the last volumes would find no space.
#[test]
fn many_volumes_have_space_on_a_shared_device() {
    for (chunks, shards) in [
        (8, 1),
        (1535, 1),
        (1536, 2),
        (3071, 2),
        (3072, 4),
        (6144, 8),
        (1 << 20, 8),
    ] {
        let plan = shared(128 << 10, chunks, None).expect("fits");
        assert_eq!(plan.shard_count, shards, "{chunks} chunks");
    }
    // A shard addresses 1 TiB.
    assert_eq!(shared(256 << 20, 1 << 16, None).expect("fits").shard_count, 32);
}

#[test]
fn a_shared_device_that_does_not_fit_is_refused() {
    for (chunk_bytes, chunks, shard_count, part) in [
        (
            128 << 10,
            11,
            Some(2),
            "regions a shard is 5, expected at least 6, which needs 12 chunks",
        ),
        (
            256 << 20,
            1 << 16,
            Some(8),
            "regions a shard is 8192, expected at most",
        ),
        (128 << 10, 100, Some(0), "shards is 0"),
        (100_000, 100, None, "region size is 100000"),
    ] {
        let error = shared(chunk_bytes, chunks, shard_count)
            .expect_err("refused")
            .to_string();
        assert!(error.contains(part), "{error}");
    }
    let space = SharedSpace {
        chunk_bytes: 128 << 10,
        chunks: 100,
    };
    for (wish, part) in [
        (
            options(None, Some(1 << 20), 32 << 10),
            "as the chunks of the cache device",
        ),
        (options(None, None, 64 << 10), "at least four extents"),
    ] {
        let error = Geometry::plan_shared(space, 512, 1 << 30, wish)
            .expect_err("refused")
            .to_string();
        assert!(error.contains(part), "{error}");
    }
}

/// Of a device that became smaller, both sizes are named.
#[test]
fn a_truncated_device_is_refused_with_its_size() {
    let plan = Geometry::plan(64 << 20, 512, 1 << 30, GeometryOptions::default()).expect("fits");
    let error = plan.check(32 << 20).expect_err("truncated").to_string();
    let found = "device size is 33554432 bytes, expected at least";
    assert!(
        error.contains(found) && error.contains("a device of 67108864 bytes"),
        "{error}"
    );
}
