//! The tables in Markdown, as they are in docs/peers.md.

use std::fmt::Write;

use super::cells::{
    BARE, DETACH_MIB, DETACH_REQUESTS_PER_SECOND, ONE_WORKING_MIB, PLAIN, SAVED_PERCENT, SAVED_PERCENTS,
    SSD_MIB, SYSTEMS, WORKING_MIB,
};
use super::figures::Measured;

/// The kernel's caches.
const PEERS: [&str; 3] = ["dmcache", "vdo", "bcache"];

pub(super) fn title(system: &str) -> &str {
    match system {
        BARE => "no cache",
        "dmcache" => "dm-cache",
        "vdo" => "dm-cache over dm-vdo",
        "flaz:none" => "flaz, no compression",
        "flaz:lz4" => "flaz, LZ4",
        "flaz:zstd:1" => "flaz, zstd:1",
        other => other,
    }
}

/// A figure of a phase.
type Figure = fn(&Measured) -> f64;

pub(super) fn find<'a>(
    measured: &'a [Measured],
    system: &str,
    mode: &str,
    working_mib: u64,
    saved_percent: u64,
    phase: &str,
) -> Option<&'a Measured> {
    measured.iter().find(|one| {
        one.system == system
            && one.mode == mode
            && one.working_mib == working_mib
            && one.saved_percent == saved_percent
            && one.phase == phase
    })
}

/// A figure of the zipf part. Without compression the data makes no difference, and one kind was measured.
pub(super) fn zipf(
    measured: &[Measured],
    system: &str,
    working_mib: u64,
    saved_percent: u64,
) -> Option<Measured> {
    let saved_percent = if PLAIN.contains(&system) {
        SAVED_PERCENT
    } else {
        saved_percent
    };
    find(
        measured,
        system,
        "write-through",
        working_mib,
        saved_percent,
        "zipf",
    )
    .cloned()
}

/// All tables.
pub(super) fn markdown(measured: &[Measured]) -> String {
    let mut text = String::new();
    for saved_percent in SAVED_PERCENTS {
        zipf_table(
            &mut text,
            measured,
            saved_percent,
            "reads of the origin",
            Measured::origin_reads,
        );
    }
    zipf_table(
        &mut text,
        measured,
        SAVED_PERCENT,
        "KiB written to the SSD",
        Measured::ssd_written_kib,
    );
    let of_devices = "milliseconds of the devices";
    zipf_table(
        &mut text,
        measured,
        SAVED_PERCENT,
        of_devices,
        Measured::device_ms,
    );
    devices_table(
        &mut text,
        measured,
        "mixed",
        "70 % reads, 30 % writes, for each request",
    );
    warm_table(&mut text, measured);
    crash_table(&mut text, measured);
    detach_table(&mut text, measured);
    slowed_table(&mut text, measured);
    devices_table(&mut text, measured, "postmark", "PostMark, for each transaction");
    devices_table(&mut text, measured, "sqlite", "SQLite, for each transaction");
    text
}

fn zipf_table(text: &mut String, measured: &[Measured], saved_percent: u64, what: &str, figure: Figure) {
    if !WORKING_MIB
        .iter()
        .any(|working| zipf(measured, "flaz:lz4", *working, saved_percent).is_some())
    {
        return;
    }
    let mut head = vec!["SSD".to_owned()];
    head.extend(SYSTEMS.iter().map(|system| title(system).to_owned()));
    head.extend(["LZ4 / better peer".to_owned(), "zstd:1 / better peer".to_owned()]);
    let title = format!("Zipf reads, data of which {saved_percent} % is saved: {what} for each request");
    begin(text, &title, &head);
    for working in WORKING_MIB {
        let value = |system: &str| zipf(measured, system, working, saved_percent).map(|one| figure(&one));
        let mut row = vec![format!("1/{}", working / SSD_MIB)];
        row.extend(SYSTEMS.iter().map(|system| number(value(system), 3)));
        let peer = better(PEERS.iter().filter_map(|peer| value(peer)));
        for system in ["flaz:lz4", "flaz:zstd:1"] {
            let ratio = value(system).zip(peer).map(|(ours, peer)| ours / peer);
            // A peer may have done nothing.
            row.push(number(ratio.filter(|ratio| ratio.is_finite()), 2));
        }
        line(text, &row);
    }
    text.push('\n');
}

fn better(peers: impl Iterator<Item = f64>) -> Option<f64> {
    peers.min_by(f64::total_cmp)
}

/// A phase of all parts but [`super::cells::Part::Zipf`].
fn one_size<'a>(measured: &'a [Measured], system: &str, mode: &str, phase: &str) -> Option<&'a Measured> {
    find(measured, system, mode, ONE_WORKING_MIB, SAVED_PERCENT, phase)
}

/// What was measured of a phase: mode, title of the system, measurement.
fn all_of<'a>(measured: &'a [Measured], phase: &'a str) -> impl Iterator<Item = [&'a str; 2]> {
    ["write-through", "write-back"].into_iter().flat_map(move |mode| {
        std::iter::once(BARE)
            .chain(SYSTEMS)
            .filter(move |system| one_size(measured, system, mode, phase).is_some())
            .map(move |system| [mode, system])
    })
}

/// A table with a row for each system of `phase`, unless it was not measured.
fn rows(
    text: &mut String,
    measured: &[Measured],
    phase: &str,
    title: &str,
    columns: &[&str],
    figures: impl Fn(&str, &str) -> Option<Vec<String>>,
) {
    let mut lines = all_of(measured, phase)
        .filter_map(|[mode, system]| {
            let mut row = vec![mode.to_owned(), self::title(system).to_owned()];
            row.extend(figures(mode, system)?);
            Some(row)
        })
        .peekable();
    if lines.peek().is_none() {
        return;
    }
    let head: Vec<String> = ["mode", "system"]
        .iter()
        .chain(columns)
        .map(|name| (*name).to_owned())
        .collect();
    begin(text, title, &head);
    for row in lines {
        line(text, &row);
    }
    text.push('\n');
}

/// What the devices do for each request.
fn devices_table(text: &mut String, measured: &[Measured], phase: &str, title: &str) {
    let columns = [
        "origin reads",
        "origin writes",
        "KiB to the SSD",
        "ms of the devices",
    ];
    rows(text, measured, phase, title, &columns, |mode, system| {
        let one = one_size(measured, system, mode, phase)?;
        Some(vec![
            number(Some(one.origin_reads()), 3),
            number(Some(one.origin_writes()), 3),
            number(Some(one.ssd_written_kib()), 2),
            number(Some(one.device_ms()), 2),
        ])
    });
}

fn warm_table(text: &mut String, measured: &[Measured]) {
    let phases = ["before", "scan", "after-scan", "after-restart", "after-kill"];
    let columns = [
        "before",
        "the scan",
        "after the scan",
        "after a clean restart",
        "after a kill",
    ];
    let title = "A scan over a warm cache, then restarts: reads of the origin for each request";
    rows(text, measured, phases[0], title, &columns, |mode, system| {
        let reads = |phase: &&str| one_size(measured, system, mode, phase).map(Measured::origin_reads);
        Some(phases.iter().map(|phase| number(reads(phase), 3)).collect())
    });
}

fn crash_table(text: &mut String, measured: &[Measured]) {
    let columns = [
        "reads of the origin for each request, before",
        "after",
        "seconds until the device is there",
        "MiB then written to the origin without a request",
    ];
    rows(
        text,
        measured,
        "after-crash",
        "A power cut",
        &columns,
        |mode, system| {
            let one = |phase| one_size(measured, system, mode, phase);
            Some(vec![
                number(one("before-crash").map(Measured::origin_reads), 3),
                number(one("after-crash").map(Measured::origin_reads), 3),
                number(one("resume").map(Measured::seconds), 1),
                number(one("resume").map(Measured::origin_written_mib), 1),
            ])
        },
    );
}

fn detach_table(text: &mut String, measured: &[Measured]) {
    let columns = [
        "MiB dirty",
        "writes of the origin",
        "seconds",
        "against the disk's time for these writes",
        "against the bare origin's time for these blocks",
    ];
    let title = "Completing the origin from a dirty cache, with an origin of 200 requests per second";
    // The bare origin wrote all blocks of the workload, in order.
    let bare = one_size(measured, BARE, "write-back", "bare-writes").map(Measured::seconds);
    rows(text, measured, "detach", title, &columns, |mode, system| {
        let one = one_size(measured, system, mode, "detach")?;
        let writes = one.all_origin_writes();
        // What dm-cache calls dirty has 32 KiB, of which most was not written.
        let share = bare
            .filter(|_| !matches!(system, "dmcache" | "vdo"))
            .map(|seconds| seconds * one.dirty_mib() / DETACH_MIB);
        let ratio = |other: f64| Some(one.seconds() / other).filter(|ratio| ratio.is_finite());
        Some(vec![
            number(Some(one.dirty_mib()), 1),
            number(Some(writes), 0),
            number(Some(one.seconds()), 1),
            number(ratio(writes / DETACH_REQUESTS_PER_SECOND), 2),
            number(share.and_then(ratio), 2),
        ])
    });
}

fn slowed_table(text: &mut String, measured: &[Measured]) {
    let title = "Zipf reads at depth 4, origin 120 ms and SSD 1 ms a request";
    let columns = ["requests per second", "against no cache"];
    rows(text, measured, "slowed", title, &columns, |mode, system| {
        let rate = |system| one_size(measured, system, mode, "slowed").map(Measured::requests_per_second);
        let gain = rate(system).zip(rate(BARE)).map(|(one, bare)| one / bare);
        Some(vec![number(rate(system), 1), number(gain, 2)])
    });
}

pub(super) fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
}

fn begin(text: &mut String, title: &str, head: &[String]) {
    // Writing to a String does not fail.
    let _ = writeln!(text, "{title}:\n");
    line(text, head);
    line(text, &vec!["---".to_owned(); head.len()]);
}

fn line(text: &mut String, cells: &[String]) {
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

#[cfg(test)]
mod tests {
    use super::super::figures::read;
    use super::*;

    #[test]
    fn ratios_are_against_the_better_peer() {
        let line = |system: &str, saved: u32, reads: u32| {
            format!(
                r#"{{"system":"{system}","mode":"write-through","ssd_mib":64,"working_mib":512,"saved_pct":{saved},"phase":"zipf","requests":100,"origin_reads":{reads}}}"#
            )
        };
        let lines = [
            line("dmcache", 50, 60),
            line("bcache", 50, 40),
            line("flaz:lz4", 2, 38),
            line("flaz:lz4", 50, 20),
        ];
        let text = markdown(&read(&lines.join("\n")).unwrap());
        assert!(
            text.contains("| 1/8 | 0.600 | - | 0.400 | - | 0.200 | - | 0.50 | - |"),
            "{text}"
        );
        assert!(
            text.contains("| 1/8 | 0.600 | - | 0.400 | - | 0.380 | - | 0.95 | - |"),
            "{text}"
        );
        assert!(!text.contains("75 % is saved"), "{text}");
    }

    #[test]
    fn a_detach_is_compared_with_the_bare_origin_for_what_was_dirty() {
        let line = |system: &str, phase: &str, ms: u32| {
            format!(
                r#"{{"system":"{system}","mode":"write-back","ssd_mib":64,"working_mib":512,"saved_pct":50,"phase":"{phase}","requests":0,"elapsed_ms":{ms},"dirty_kib":24000,"origin_writes":6000}}"#
            )
        };
        let lines = [
            line("bare", "bare-writes", 60_000),
            line("flaz:lz4", "detach", 36_000),
        ];
        let text = markdown(&read(&lines.join("\n")).unwrap());
        assert!(
            text.contains("| write-back | flaz, LZ4 | 23.4 | 6000 | 36.0 | 1.20 | 1.20 |"),
            "{text}"
        );
        assert!(!text.contains("no cache"), "{text}");
    }

    #[test]
    fn rows_are_in_the_order_of_modes_and_systems() {
        let line = |system: &str, mode: &str, ms: u32| {
            format!(
                r#"{{"system":"{system}","mode":"{mode}","ssd_mib":64,"working_mib":512,"saved_pct":50,"phase":"slowed","requests":100,"elapsed_ms":{ms}}}"#
            )
        };
        let lines = [
            line("flaz:lz4", "write-through", 1000),
            line("bare", "write-through", 4000),
        ];
        let text = markdown(&read(&lines.join("\n")).unwrap());
        let bare = text
            .find("| write-through | no cache | 25.0 | 1.00 |")
            .expect("the origin");
        let flaz = text
            .find("| write-through | flaz, LZ4 | 100.0 | 4.00 |")
            .expect("flaz");
        assert!(bare < flaz, "{text}");
    }
}
