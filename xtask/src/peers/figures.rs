//! The measured figures.

use serde_json::Value;

use super::PeersError;

/// A measured phase.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measured {
    pub system: String,
    pub mode: String,
    pub working_mib: u64,
    pub ssd_mib: u64,
    pub saved_percent: u64,
    pub phase: String,
    requests: f64,
    counts: Value,
}

/// Assumed times of the devices, in milliseconds a request: of a hard disk, and of an SSD.
const DISK_MS: f64 = 8.0;
const SSD_READ_MS: f64 = 0.1;
const SSD_WRITE_MS: f64 = 0.05;

impl Measured {
    fn count(&self, name: &str) -> f64 {
        self.counts[name].as_f64().unwrap_or(0.0)
    }

    /// Reads of the origin for each request.
    pub(super) fn origin_reads(&self) -> f64 {
        self.count("origin_reads") / self.requests
    }

    /// Writes of the origin for each request.
    pub(super) fn origin_writes(&self) -> f64 {
        self.count("origin_writes") / self.requests
    }

    /// KiB written to the SSD for each request, with the metadata of the cache.
    pub(super) fn ssd_written_kib(&self) -> f64 {
        (self.count("ssd_write_sectors") + self.count("metadata_write_sectors")) / 2.0 / self.requests
    }

    /// Seconds of the phase.
    pub(super) fn seconds(&self) -> f64 {
        self.count("elapsed_ms") / 1000.0
    }

    /// Requests per second.
    pub(super) fn requests_per_second(&self) -> f64 {
        self.requests / self.seconds()
    }

    /// MiB written to the origin, in all.
    pub(super) fn origin_written_mib(&self) -> f64 {
        self.count("origin_write_sectors") / 2048.0
    }

    /// Requests of writes to the origin, in all.
    pub(super) fn all_origin_writes(&self) -> f64 {
        self.count("origin_writes")
    }

    /// MiB that were dirty before the phase.
    pub(super) fn dirty_mib(&self) -> f64 {
        self.count("dirty_kib") / 1024.0
    }

    /// Milliseconds that the devices need for each request, one after another.
    pub(super) fn device_ms(&self) -> f64 {
        (self.origin_reads() + self.origin_writes()) * DISK_MS
            + self.count("ssd_reads") / self.requests * SSD_READ_MS
            + self.count("ssd_writes") / self.requests * SSD_WRITE_MS
    }
}

/// Reads the lines of the script. Of a phase that was measured twice, the last one counts.
///
/// # Errors
/// A line is not JSON.
pub(super) fn read(text: &str) -> Result<Vec<Measured>, PeersError> {
    let mut all: Vec<Measured> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let value: Value =
            serde_json::from_str(line).map_err(|error| format!("line {}: {error}", number + 1))?;
        if value["system"].is_null() {
            continue;
        }
        let word = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let number = |name: &str| value[name].as_u64().unwrap_or(0);
        let measured = Measured {
            system: word("system"),
            mode: word("mode"),
            working_mib: number("working_mib"),
            ssd_mib: number("ssd_mib"),
            saved_percent: number("saved_pct"),
            phase: word("phase"),
            requests: value["requests"].as_f64().unwrap_or(0.0).max(1.0),
            counts: value.clone(),
        };
        all.retain(|earlier| !earlier.is_same_phase(&measured));
        all.push(measured);
    }
    Ok(all)
}

impl Measured {
    fn is_same_phase(&self, other: &Self) -> bool {
        let key = |of: &Self| {
            (
                of.system.clone(),
                of.mode.clone(),
                of.working_mib,
                of.ssd_mib,
                of.saved_percent,
                of.phase.clone(),
            )
        };
        key(self) == key(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(system: &str, reads: u64) -> String {
        format!(
            r#"{{"system":"{system}","mode":"write-through","ssd_mib":64,"working_mib":512,"saved_pct":50,"phase":"zipf","requests":1000,"elapsed_ms":2500,"origin_reads":{reads},"origin_read_sectors":0,"origin_writes":100,"origin_write_sectors":4096,"ssd_reads":500,"ssd_read_sectors":0,"ssd_writes":20,"ssd_write_sectors":4000,"metadata_write_sectors":96}}"#
        )
    }

    #[test]
    fn figures_are_for_each_request() {
        let text = format!(
            "{{\"phase\":\"data\",\"kernel\":\"6.12\"}}\n{}\n",
            line("dmcache", 400)
        );
        let all = read(&text).unwrap();
        assert_eq!(all.len(), 1);
        let one = &all[0];
        assert_eq!((one.origin_reads(), one.origin_writes()), (0.4, 0.1));
        assert!((one.ssd_written_kib() - 2.048).abs() < 1e-9);
        assert!((one.device_ms() - (0.5 * 8.0 + 0.05 + 0.001)).abs() < 1e-9);
    }

    #[test]
    fn a_second_measurement_replaces_the_first() {
        let text = [line("dmcache", 400), line("bcache", 300), line("dmcache", 500)].join("\n");
        let all = read(&text).unwrap();
        assert_eq!(all.len(), 2);
        let of = |system: &str| {
            all.iter()
                .find(|one| one.system == system)
                .unwrap()
                .origin_reads()
        };
        assert_eq!((of("dmcache"), of("bcache")), (0.5, 0.3));
    }

    #[test]
    fn a_damaged_line_is_named() {
        let error = read("{}\nnonsense").unwrap_err().to_string();
        assert!(error.starts_with("line 2: "), "{error}");
    }
}
