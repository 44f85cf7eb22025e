//! From what the shards counted to the report of `flaz advise`, and the rule behind its recommendation.

use std::path::Path;

use flaz_codec::CodecChoice;
use flaz_control::report::{
    AdviseCodec, AdviseMeasured, AdvisePoint, AdviseRatio, AdviseReport, AdviseSize, AdviseWindow,
    REPORT_SCHEMA,
};
use flaz_engine::advise::{AUTO, CodecEstimate, Estimate, HALF_LIFE, LZ4, MULTIPLES, Observed, codecs};
use flaz_engine::shard::ORIGIN_SLOW;
use flaz_engine::stats::StatsSnapshot;

/// The capacities of the table.
const SIZES: [f64; 4] = [0.5, 1.0, 2.0, 4.0];
/// Points of the curve for each doubling of the capacity, from a quarter to four times.
const POINTS: i32 = 4;
/// Reads of sampled blocks that an estimate needs.
const SAMPLED_MIN: f64 = 2000.0;
/// Half of an interval may be so wide.
const HALF_WIDTH_MAX: f64 = 0.05;
/// Sampled blocks for the estimate of a codec.
const CODEC_SAMPLES_MIN: f64 = 64.0;
/// A larger cache is worth it if reads take at least this much less of their time, at the lower end of the interval.
const GAIN_MIN: f64 = 0.2;
/// The same of another codec, which costs no hardware.
const CODEC_GAIN_MIN: f64 = 0.05;
/// A smaller cache will do if reads take at most this much more time, at the lower end of the interval.
const LOSS_MAX: f64 = 0.05;

/// The report of a cache.
pub(crate) fn advise_report(cache: &Path, codec: CodecChoice, stats: &StatsSnapshot) -> AdviseReport {
    let observed = &stats.observed;
    let measured = measured(stats);
    let capacity = stats.holdings.capacity_bytes;
    let sizes: Vec<AdviseSize> = (SIZES.iter())
        .map(|&multiple| {
            let hit_ratio = ratio(observed.hit_ratio_at(multiple));
            AdviseSize {
                multiple,
                capacity_bytes: (capacity as f64 * multiple) as u64,
                hit_ratio,
                mean_us: measured.mean_us(hit_ratio.value, 0.0),
                origin_blocks_saved_per_s: (hit_ratio.value - measured.hit_ratio) * measured.blocks_per_s,
            }
        })
        .collect();
    let curve = (-2 * POINTS..=2 * POINTS).map(|step| {
        let multiple = (f64::from(step) / f64::from(POINTS)).exp2();
        AdvisePoint {
            multiple,
            hit_ratio: ratio(observed.hit_ratio_at(multiple)),
        }
    });
    let mut report = AdviseReport {
        schema: REPORT_SCHEMA,
        cache: cache.to_owned(),
        capacity_bytes: capacity,
        codec,
        window: window(observed),
        measured,
        enough: false,
        sizes,
        codecs: codec_estimates(codec, stats, &measured),
        curve: curve.collect(),
        recommendation: String::new(),
    };
    match lacks(&report) {
        Some(why) => report.recommendation = why,
        None => {
            report.enough = true;
            report.recommendation = recommendation(&report);
        }
    }
    report
}

fn ratio(estimate: Estimate) -> AdviseRatio {
    AdviseRatio {
        value: estimate.value,
        low: estimate.low,
        high: estimate.high,
    }
}

fn window(observed: &Observed) -> AdviseWindow {
    let full = observed.full as usize;
    AdviseWindow {
        age_s: observed.age_s,
        half_life_s: HALF_LIFE.as_secs_f64(),
        blocks: observed.reads,
        sampled_blocks: observed.sampled,
        sampled_one_in: 1 << observed.shift,
        memory_bytes: observed.memory_bytes,
        filled_to: full.checked_sub(1).map_or(0.0, |last| MULTIPLES[last]),
    }
}

fn measured(stats: &StatsSnapshot) -> AdviseMeasured {
    let observed = &stats.observed;
    AdviseMeasured {
        hit_ratio: observed.hit_ratio(),
        hit_us: stats.latencies.read_hit.summary().mean_us,
        miss_us: stats.latencies.read_miss.summary().mean_us,
        blocks_per_s: observed.reads / observed.seconds.max(1.0),
    }
}

fn codec_estimates(
    in_use: CodecChoice,
    stats: &StatsSnapshot,
    measured: &AdviseMeasured,
) -> Vec<AdviseCodec> {
    let samples = &stats.observed.codecs;
    if samples.count() < CODEC_SAMPLES_MIN {
        return Vec::new();
    }
    // Before a fast origin, `auto` stores what LZ4 does.
    let is_fast = measured.miss_us < ORIGIN_SLOW.as_secs_f64() * 1e6;
    let stored_by = |codec: usize| if codec == AUTO && is_fast { LZ4 } else { codec };
    let restore_us = |codec: usize| samples.decode_ns[stored_by(codec)] / samples.count() / 1000.0;
    let all = codecs();
    // Of a codec that is not among these, no time is known: hits take as long as now.
    let now = all.iter().position(|codec| *codec == in_use);
    let now_us = now.map(restore_us);
    // Blocks that are cached now were stored with the codec in use, but for a change of it. With `auto`, those that stay were
    // compressed again.
    let now = now.filter(|now| *now == AUTO).map(stored_by);
    let estimate = |(number, codec): (usize, &CodecChoice)| {
        let in_use = *codec == in_use;
        let told = match in_use {
            true => CodecEstimate {
                factor: 1.0,
                error: 0.0,
                hit_ratio: stats.observed.hit_ratio_at(1.0),
            },
            false => stats.observed.with_codec(stored_by(number), now),
        };
        let hit_ratio = ratio(told.hit_ratio);
        let slower_us = now_us.map_or(0.0, |now_us| restore_us(number) - now_us);
        AdviseCodec {
            codec: *codec,
            in_use,
            capacity_factor: told.factor,
            capacity_factor_error: told.error,
            ratio: samples.ratio(stored_by(number), in_use),
            restore_us: restore_us(number),
            hit_ratio,
            mean_us: measured.mean_us(hit_ratio.value, slower_us),
        }
    };
    all.iter().enumerate().map(estimate).collect()
}

/// Why the estimates are not good enough to act on.
fn lacks(report: &AdviseReport) -> Option<String> {
    let window = &report.window;
    if window.sampled_blocks < SAMPLED_MIN {
        return Some(format!(
            "Not enough reads yet: {:.0} of {SAMPLED_MIN:.0} reads of sampled blocks; ask again later.",
            window.sampled_blocks
        ));
    }
    let half = |size: &AdviseSize| (size.hit_ratio.high - size.hit_ratio.low) / 2.0;
    let widest = report.sizes.iter().map(half).fold(0.0, f64::max);
    (widest > HALF_WIDTH_MAX).then(|| {
        format!(
            "Not enough reads yet: the intervals are up to +-{:.1} points wide, at most +-{:.0} are needed; ask again later.",
            // Rounded up, so that it is more than the most.
            (widest * 1000.0).ceil() / 10.0,
            HALF_WIDTH_MAX * 100.0
        )
    })
}

/// The rule: first a codec, then more, then less; a step counts only at the pessimistic end of its interval.
fn recommendation(report: &AdviseReport) -> String {
    let measured = &report.measured;
    let now = percent(measured.hit_ratio);
    let mean_us = measured.mean_us(measured.hit_ratio, 0.0);
    // By how much less time reads take, as a share.
    let gain = |us: f64| if mean_us > 0.0 { 1.0 - us / mean_us } else { 0.0 };
    let codec = (report.codecs.iter())
        .filter(|codec| !codec.in_use)
        .map(|codec| {
            let slower_us = codec.mean_us - measured.mean_us(codec.hit_ratio.value, 0.0);
            (codec, gain(measured.mean_us(codec.hit_ratio.low, slower_us)))
        })
        .max_by(|left, right| left.1.total_cmp(&right.1));
    if let Some((codec, gained)) = codec
        && gained >= CODEC_GAIN_MIN
    {
        return format!(
            "The codec {0} would raise the hit ratio from {now} to {2}, and reads would take at least {3} less time: worth \
             it. To change it: flaz set {1} codec={0}",
            codec.codec,
            report.cache.display(),
            percent(codec.hit_ratio.value),
            percent(gained)
        );
    }
    let [half, _, twice, four] = &report.sizes[..] else {
        return String::new();
    };
    for (size, name) in [(twice, "Twice"), (four, "Four times")] {
        let gained = gain(measured.mean_us(size.hit_ratio.low, 0.0));
        if gained >= GAIN_MIN {
            return format!(
                "{name} the capacity would raise the hit ratio from {now} to {}, and reads would take at least {} less time: \
                 worth it.",
                percent(size.hit_ratio.value),
                percent(gained)
            );
        }
    }
    if -gain(measured.mean_us(half.hit_ratio.low, 0.0)) <= LOSS_MAX {
        return format!(
            "Half the capacity would do: the hit ratio would be {} instead of {now}, and reads would take at most {} more \
             time.",
            percent(half.hit_ratio.value),
            percent(LOSS_MAX)
        );
    }
    format!(
        "Keep the capacity: twice as much would raise the hit ratio from {now} to {}, and reads would take {} less time; it \
         is worth it from {}.",
        percent(twice.hit_ratio.value),
        percent(gain(twice.mean_us).max(0.0)),
        percent(GAIN_MIN)
    )
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use flaz_codec::CodecSpec;
    use flaz_engine::advise::{CODECS, GROUPS};

    use super::*;

    fn size(multiple: f64, value: f64) -> AdviseSize {
        AdviseSize {
            multiple,
            capacity_bytes: 1,
            hit_ratio: AdviseRatio {
                value,
                low: value - 0.01,
                high: value + 0.01,
            },
            mean_us: 0.0,
            origin_blocks_saved_per_s: 0.0,
        }
    }

    /// A report with hit ratios of half, once, twice and four times the capacity.
    fn report(ratios: [f64; 4]) -> AdviseReport {
        let mut report = advise_report(Path::new("/c"), CodecSpec::LZ4.into(), &StatsSnapshot::default());
        report.measured = AdviseMeasured {
            hit_ratio: ratios[1],
            hit_us: 100.0,
            miss_us: 5000.0,
            blocks_per_s: 100.0,
        };
        report.sizes = SIZES
            .iter()
            .zip(ratios)
            .map(|(multiple, value)| size(*multiple, value))
            .collect();
        report.window.sampled_blocks = 1e6;
        for size in &mut report.sizes {
            size.mean_us = report.measured.mean_us(size.hit_ratio.value, 0.0);
        }
        report
    }

    #[test]
    fn nothing_is_recommended_without_reads() {
        let none = advise_report(Path::new("/c"), CodecSpec::LZ4.into(), &StatsSnapshot::default());
        assert!(!none.enough && none.recommendation.starts_with("Not enough reads yet"));
        let mut wide = report([0.5, 0.6, 0.7, 0.8]);
        assert_eq!(lacks(&wide), None);
        wide.sizes[3].hit_ratio.low = 0.5;
        assert!(lacks(&wide).is_some_and(|why| why.contains("intervals")));
        // More than the most, also by less than a tenth of a point.
        let most = HALF_WIDTH_MAX + 0.0004;
        (wide.sizes[3].hit_ratio.low, wide.sizes[3].hit_ratio.high) = (0.8 - most, 0.8 + most);
        let why = lacks(&wide).expect("too wide");
        assert!(why.contains("+-5.1 points wide, at most +-5 are"), "{why}");
    }

    #[test]
    fn the_recommendation_follows_the_rule() {
        for (ratios, start) in [
            (
                [0.4, 0.6, 0.8, 0.9],
                "Twice the capacity would raise the hit ratio from 60 % to 80 %",
            ),
            ([0.4, 0.6, 0.62, 0.9], "Four times the capacity"),
            (
                [0.6, 0.71, 0.74, 0.75],
                "Keep the capacity: twice as much would raise the hit ratio from 71 % to 74 %",
            ),
            ([0.711, 0.71, 0.72, 0.73], "Half the capacity would do"),
        ] {
            let text = recommendation(&report(ratios));
            assert!(text.starts_with(start), "{ratios:?}: {text}");
        }
        let mut slow = report([0.6, 0.71, 0.74, 0.75]);
        slow.codecs.push(AdviseCodec {
            codec: CodecSpec::ZSTD.into(),
            in_use: false,
            capacity_factor: 1.3,
            capacity_factor_error: 0.01,
            ratio: 3.0,
            restore_us: 6.0,
            hit_ratio: size(1.3, 0.76).hit_ratio,
            mean_us: slow.measured.mean_us(0.76, 5.0),
        });
        let text = recommendation(&slow);
        let expected = "The codec zstd:1 would raise the hit ratio from 71 % to 76 %";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.ends_with("flaz set /c codec=zstd:1"), "{text}");
    }

    #[test]
    fn auto_stores_what_lz4_does_before_a_fast_origin() {
        let mut stats = StatsSnapshot::default();
        let samples = &mut stats.observed.codecs;
        samples.blocks = [100.0; GROUPS];
        samples.now_bytes = [204_800.0; GROUPS];
        samples.bytes = [[150_000.0; GROUPS]; CODECS];
        samples.bytes[LZ4] = [204_800.0; GROUPS];
        samples.bytes[AUTO] = [102_400.0; GROUPS];
        for (miss_us, in_use, lz4, auto) in [
            (5000.0, CodecSpec::LZ4.into(), 1.0, 2.0),
            (5000.0, CodecChoice::Auto, 0.5, 1.0),
            (100.0, CodecSpec::LZ4.into(), 1.0, 1.0),
            (100.0, CodecChoice::Auto, 1.0, 1.0),
        ] {
            let measured = AdviseMeasured {
                miss_us,
                ..AdviseMeasured::default()
            };
            let rows = codec_estimates(in_use, &stats, &measured);
            let factors = (rows[LZ4].capacity_factor, rows[AUTO].capacity_factor);
            assert_eq!(factors, (lz4, auto), "{in_use} in use, a miss takes {miss_us} us");
        }
    }
}
