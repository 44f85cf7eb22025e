//! The tables in Markdown, as they are in docs/peers.md.

use std::fmt::Write;

use super::cells::{ONE_WORKING_MIB, SAVED_PERCENT, SAVED_PERCENTS, SSD_MIB, SYSTEMS, WORKING_MIB};
use super::figures::Measured;

/// The kernel's caches.
const PEERS: [&str; 2] = ["dmcache", "bcache"];
pub(super) fn title(system: &str) -> &str {
    match system {
        "dmcache" => "dm-cache",
        "flaz:none" => "flaz, no compression",
        "flaz:lz4" => "flaz, LZ4",
        "flaz:zstd:1" => "flaz, zstd:1",
        other => other,
    }
}

/// One figure of a phase.
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
    let compresses = !PEERS.contains(&system) && system != "flaz:none";
    let saved_percent = if compresses { saved_percent } else { SAVED_PERCENT };
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
    mixed_table(&mut text, measured);
    let scan = [
        ("before-scan", "before the scan"),
        ("scan", "the scan"),
        ("after-scan", "after it"),
    ];
    phases(
        &mut text,
        measured,
        "A scan over a warm cache: reads of the origin for each request",
        &scan,
    );
    let restart = [
        ("before-restart", "before"),
        ("after-restart", "after a clean stop"),
        ("after-kill", "after a kill"),
    ];
    phases(
        &mut text,
        measured,
        "Restarts: reads of the origin for each request",
        &restart,
    );
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

fn mixed_table(text: &mut String, measured: &[Measured]) {
    let head = [
        "mode",
        "system",
        "origin reads",
        "origin writes",
        "KiB to the SSD",
        "ms of the devices",
    ];
    let find_phase =
        |system: &str, mode: &str, phase| find(measured, system, mode, ONE_WORKING_MIB, SAVED_PERCENT, phase);
    if find_phase("flaz:lz4", "write-through", "mixed").is_none() {
        return;
    }
    begin(
        text,
        "70 % reads, 30 % writes, for each request",
        &head.map(str::to_owned),
    );
    for mode in ["write-through", "write-back"] {
        for system in SYSTEMS {
            let Some(mixed) = find_phase(system, mode, "mixed") else {
                continue;
            };
            line(
                text,
                &[
                    mode.to_owned(),
                    title(system).to_owned(),
                    number(Some(mixed.origin_reads()), 3),
                    number(Some(mixed.origin_writes()), 3),
                    number(Some(mixed.ssd_written_kib()), 2),
                    number(Some(mixed.device_ms()), 2),
                ],
            );
        }
    }
    text.push('\n');
}

fn phases(text: &mut String, measured: &[Measured], title: &str, phases: &[(&str, &str)]) {
    let mut head = vec!["system".to_owned()];
    head.extend(phases.iter().map(|(_, name)| (*name).to_owned()));
    let value = |system: &str, phase: &str| {
        let one = find(
            measured,
            system,
            "write-through",
            ONE_WORKING_MIB,
            SAVED_PERCENT,
            phase,
        );
        one.map(Measured::origin_reads)
    };
    if value("flaz:lz4", phases[0].0).is_none() {
        return;
    }
    begin(text, title, &head);
    for system in SYSTEMS {
        let mut row = vec![self::title(system).to_owned()];
        row.extend(phases.iter().map(|(phase, _)| number(value(system, phase), 3)));
        line(text, &row);
    }
    text.push('\n');
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
            text.contains("| 1/8 | 0.600 | 0.400 | - | 0.200 | - | 0.50 | - |"),
            "{text}"
        );
        assert!(
            text.contains("| 1/8 | 0.600 | 0.400 | - | 0.380 | - | 0.95 | - |"),
            "{text}"
        );
        assert!(!text.contains("75 % is saved"), "{text}");
    }
}
