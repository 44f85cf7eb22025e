//! Tests of the pages.

use flaz_codec::CodecSpec;

use super::{html, text};
use crate::report::{
    AdviseCodec, AdviseMeasured, AdvisePoint, AdviseRatio, AdviseReport, AdviseSize, AdviseWindow,
    REPORT_SCHEMA,
};

fn ratio(multiple: f64) -> AdviseRatio {
    let value = 0.71 + 0.1 * multiple.log2();
    AdviseRatio {
        value,
        low: value - 0.02,
        high: value + 0.02,
    }
}

pub(super) fn example() -> AdviseReport {
    AdviseReport {
        schema: REPORT_SCHEMA,
        cache: "/dev/disk/by-id/nvme-<long>-name-of-a-device-that-somebody-bought-part3".into(),
        capacity_bytes: 64 << 30,
        codec: CodecSpec::LZ4.into(),
        window: AdviseWindow {
            age_s: 90_000.0,
            half_life_s: 43_200.0,
            blocks: 1.2e8,
            sampled_blocks: 250_000.0,
            sampled_one_in: 4096,
            filled_to: 2.0,
            memory_bytes: 1 << 20,
        },
        measured: AdviseMeasured {
            hit_ratio: 0.71,
            hit_us: 120.0,
            miss_us: 6300.0,
            blocks_per_s: 4000.0,
        },
        enough: true,
        sizes: [0.5, 1.0, 2.0, 4.0]
            .map(|multiple| AdviseSize {
                multiple,
                capacity_bytes: ((64_u64 << 30) as f64 * multiple) as u64,
                hit_ratio: ratio(multiple),
                mean_us: 1234.5,
                origin_blocks_saved_per_s: (ratio(multiple).value - 0.71) * 4000.0,
            })
            .into(),
        codecs: vec![AdviseCodec {
            codec: CodecSpec::LZ4.into(),
            in_use: true,
            capacity_factor: 1.0,
            capacity_factor_error: 0.0,
            ratio: 2.1,
            restore_us: 1.5,
            hit_ratio: ratio(1.0),
            mean_us: 1900.0,
        }],
        curve: (-8..=8)
            .map(|step| (f64::from(step) / 4.0).exp2())
            .map(|multiple| AdvisePoint {
                multiple,
                hit_ratio: ratio(multiple),
            })
            .collect(),
        recommendation: "Twice the capacity would raise the hit ratio from 71 % to 81 %, and reads would take at least 29 % \
                         less time: worth it."
            .to_owned(),
    }
}

#[test]
fn the_page_fits_a_terminal() {
    let report = AdviseReport {
        cache: "/dev/nvme0n1p3".into(),
        ..example()
    };
    let page = text::page(&report, false);
    for line in page.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(!page.contains('\x1b'));
    for part in [
        "1/2x",
        "4x",
        "caches above 2x of the capacity have not been full: a lower bound",
        "lz4 (in use)",
        "71.0 +- 2.0 %",
        "worth it",
        "+400",
        "*",
        "O",
    ] {
        assert!(page.contains(part), "{part}:\n{page}");
    }
    let coloured = text::page(&report, true);
    assert!(coloured.contains("\x1b[36m*\x1b[0m"), "{coloured}");
}

#[test]
fn without_reads_the_page_says_so() {
    let report = AdviseReport {
        codecs: Vec::new(),
        measured: AdviseMeasured::default(),
        window: AdviseWindow::default(),
        recommendation: "Not enough reads yet.".to_owned(),
        ..example()
    };
    let page = text::page(&report, false);
    assert!(
        page.contains("too few blocks") && page.ends_with("Not enough reads yet.\n"),
        "{page}"
    );
    assert!(
        page.contains("  no simulated cache has been full: a lower bound\n"),
        "{page}"
    );
    // Estimates without reads would be zeroes.
    let html = html::page(&report);
    for zero in ["0.00 us", "0.0 +- ", "Hits by capacity"] {
        assert!(!page.contains(zero), "{page}");
    }
    assert!(
        !html.contains("<figure") && html.contains("No simulated cache has been full."),
        "{html}"
    );
}

#[test]
fn what_needs_reads_is_unknown_without_them() {
    let mut report = AdviseReport {
        measured: AdviseMeasured::default(),
        window: AdviseWindow::default(),
        ..example()
    };
    let unknown = |ratio: &mut AdviseRatio, mean_us: &mut f64| {
        (ratio.value, ratio.low, ratio.high, *mean_us) = (0.0, 0.0, 0.0, 0.0);
    };
    for size in &mut report.sizes {
        unknown(&mut size.hit_ratio, &mut size.mean_us);
    }
    for codec in &mut report.codecs {
        unknown(&mut codec.hit_ratio, &mut codec.mean_us);
    }
    for page in [text::page(&report, false), html::page(&report)] {
        assert!(!page.contains("0.0 +- 0.0"), "{page}");
        assert!(!page.contains("0.00 us"), "{page}");
    }
}

#[test]
fn an_interval_with_unequal_halves_has_both_ends() {
    let mut report = example();
    let told = |report: &AdviseReport| text::ratio(report, report.sizes[1].hit_ratio);
    assert_eq!(told(&report), "71.0 +- 2.0 %");
    report.sizes[1].hit_ratio.high = 0.776;
    assert_eq!(told(&report), "71.0 (69.0-77.6) %");
}

#[test]
fn the_html_page_is_well_formed() {
    let page = html::page(&example());
    assert!(
        flaz_page::well_formed::elements(&page).is_ok_and(|count| count > 50),
        "{page}"
    );
    assert!(page.contains("nvme-&lt;long"), "escaped");
    assert!(
        page.contains("71.0 ± 2.0 %") && page.contains("120\u{a0}µs"),
        "{page}"
    );
}
