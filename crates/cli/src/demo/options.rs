//! Options of `flaz demo`, and the plan made from them and the defaults.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use flaz_codec::CodecChoice;
use flaz_demo::dataset::{BYTES_MIN, DEFAULT_FOLDERS};
use flaz_demo::{DemoError, Plan};

use crate::number::whole;
use crate::size;

/// Maximum number of clients.
const CLIENTS_MAX: u32 = 64;
/// Maximum data size: 1 TiB keeps block numbers and run times reasonable.
const DATA_BYTES_MAX: u64 = 1 << 40;
/// Minimum cache size that `flaz create` accepts for any origin.
const CACHE_BYTES_MIN: u64 = 4 << 20;
const DATA_BYTES_DEFAULT: u64 = 256 << 20;
const DATA_BYTES_QUICK: u64 = 64 << 20;
const MEASURED_S_DEFAULT: f64 = 9.0;
const MEASURED_S_QUICK: f64 = 2.0;
/// Default path of the page.
const HTML_DEFAULT: &str = "flaz-demo.html";

/// `flaz demo`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Copies files to an emulated hard disk and sends the same requests over NBD to four servers in turn: no \
cache, an uncompressed cache, one with LZ4, one with the codec auto. Takes about a minute and needs no root. Your files are \
only read; everything created is removed at the end, also after Ctrl-C.

Examples:
  flaz demo
  flaz demo --data ~/Documents --codec zstd:3
  flaz demo --data random          the worst case: incompressible data
  flaz demo --json | jq '.runs[].iops'")]
pub struct DemoArgs {
    /// Directory whose files are used (may be repeated), or 'random' for random data [default: /usr/lib and /usr/share]
    #[arg(long, value_name = "DIR|random")]
    pub data: Vec<PathBuf>,
    /// Maximum amount of data on the emulated disk [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub size: Option<u64>,
    /// Size of the SSD [default: a quarter of the data]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub cache_size: Option<u64>,
    /// Codec of the compressed cache that is compared with auto
    #[arg(long, value_name = "CODEC", default_value = "lz4", help = format!("Codec of the cache that is compared with auto: {}", CodecChoice::choices()))]
    pub codec: CodecChoice,
    /// Number of clients, each with one request in flight
    #[arg(long, value_name = "N", default_value = "4", value_parser = whole(1..=CLIENTS_MAX))]
    pub clients: u32,
    /// Percentage of requests that are writes
    #[arg(long, value_name = "PERCENT", default_value = "5", value_parser = percent)]
    pub writes: f64,
    /// Zipf exponent of block popularity; 0 is uniform
    #[arg(long, value_name = "S", default_value = "0.9", value_parser = skew)]
    pub skew: f64,
    /// Measured seconds per run [default: 9]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// Seed for the requests
    #[arg(long, value_name = "N", default_value = "1", value_parser = whole(0..=u64::MAX))]
    pub seed: u64,
    /// Use a quarter of the data and 2 seconds per run: a quick check, not for results
    #[arg(long)]
    pub quick: bool,
    /// File for the HTML page with the charts
    #[arg(long, value_name = "PATH", default_value = HTML_DEFAULT)]
    pub html: PathBuf,
    /// Do not write the page
    #[arg(long, conflicts_with = "html")]
    pub no_html: bool,
    /// Print JSON instead of the table; with =PATH, print the table and write JSON to that file
    #[arg(long, value_name = "PATH", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// Working directory, with free space of about six times the data size [default: $TMPDIR, /var/tmp or /tmp]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Keep the logs and the image
    #[arg(long)]
    pub keep: bool,
}

/// Where the result is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outputs {
    /// Path of the page, if any.
    pub html: Option<PathBuf>,
    /// File for JSON.
    pub json: Option<PathBuf>,
    /// Whether JSON replaces the table.
    pub json_to_stdout: bool,
}

impl DemoArgs {
    /// Checks the options and fills in the defaults.
    ///
    /// # Errors
    /// [`DemoError::Usage`] for invalid combinations.
    pub fn plan(&self) -> Result<Plan, DemoError> {
        let random = self.data.iter().any(|data| data.as_os_str() == "random");
        let folders = match (&self.data[..], random) {
            ([], _) => Some(
                DEFAULT_FOLDERS
                    .map(PathBuf::from)
                    .into_iter()
                    .filter(|folder| folder.is_dir())
                    .collect(),
            ),
            ([_], true) => None,
            (_, true) => {
                let message = "--data random cannot be combined with other --data; for a directory of that \
                     name, use ./random";
                return Err(DemoError::Usage(message.into()));
            }
            (folders, false) => Some(folders.to_vec()),
        };
        let (size, measured_s) = match self.quick {
            true => (DATA_BYTES_QUICK, MEASURED_S_QUICK),
            false => (DATA_BYTES_DEFAULT, MEASURED_S_DEFAULT),
        };
        let data_bytes = self.size.unwrap_or(size);
        if !(BYTES_MIN..=DATA_BYTES_MAX).contains(&data_bytes) {
            return Err(DemoError::Usage(format!(
                "--size: expected {} to {}, found {}",
                size::HumanBytes(BYTES_MIN),
                size::HumanBytes(DATA_BYTES_MAX),
                size::HumanBytes(data_bytes)
            )));
        }
        if let Some(bytes) = self.cache_size
            && !(CACHE_BYTES_MIN..=DATA_BYTES_MAX).contains(&bytes)
        {
            return Err(DemoError::Usage(format!(
                "--cache-size: expected {} to {}, found {}",
                size::HumanBytes(CACHE_BYTES_MIN),
                size::HumanBytes(DATA_BYTES_MAX),
                size::HumanBytes(bytes)
            )));
        }
        if self.codec == CodecChoice::NONE {
            let message = "--codec none: the uncompressed run is always made; choose a codec that compresses";
            return Err(DemoError::Usage(message.into()));
        }
        Ok(Plan {
            folders,
            data_bytes,
            ssd_bytes: self.cache_size,
            codec: self.codec.to_string(),
            clients: self.clients,
            write_percent: self.writes,
            skew: self.skew,
            measured: Duration::from_secs_f64(self.seconds.unwrap_or(measured_s)),
            seed: self.seed,
            folder: self.dir.clone(),
            keep: self.keep,
        })
    }

    /// Where the result is written.
    #[must_use]
    pub fn outputs(&self) -> Outputs {
        let json_to_stdout = self.json.as_ref().is_some_and(|path| path.as_os_str() == "-");
        Outputs {
            html: (!self.no_html).then(|| self.html.clone()),
            json: self.json.clone().filter(|_| !json_to_stdout),
            json_to_stdout,
        }
    }
}

fn number(text: &str, least: f64, most: f64) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (least..=most).contains(&value) => Ok(value),
        _ => Err(format!("expected a number from {least} to {most}")),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    number(text, 0.0, 100.0)
}

fn skew(text: &str) -> Result<f64, String> {
    number(text, 0.0, 3.0)
}

fn seconds(text: &str) -> Result<f64, String> {
    number(text, 0.5, 3600.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use flaz_engine::format::geometry::{Geometry, GeometryOptions};

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        demo: DemoArgs,
    }

    fn args(words: &[&str]) -> Result<DemoArgs, String> {
        let command =
            Command::try_parse_from([&["flaz"], words].concat()).map_err(|error| error.to_string())?;
        Ok(command.demo)
    }

    fn plan(words: &[&str]) -> Result<Plan, String> {
        args(words)?.plan().map_err(|error| error.to_string())
    }

    fn outputs(words: &[&str]) -> Outputs {
        args(words).expect("fine").outputs()
    }

    #[test]
    fn defaults_match_the_help() {
        let plan = plan(&[]).expect("nothing is needed");
        assert_eq!(plan.data_bytes, 256 << 20);
        assert_eq!(plan.ssd_bytes_for(100 << 20), 25 << 20);
        assert_eq!(plan.measured, Duration::from_secs(9));
        assert_eq!(plan.codec, "lz4");
        let outputs = outputs(&[]);
        assert_eq!(outputs.html.expect("a page"), PathBuf::from("flaz-demo.html"));
        assert!(!outputs.json_to_stdout && outputs.json.is_none());
    }

    #[test]
    fn json_goes_to_standard_output_or_to_a_file() {
        assert!(outputs(&["--json"]).json_to_stdout);
        let file = outputs(&["--json=here.json"]);
        assert_eq!(
            (file.json_to_stdout, file.json),
            (false, Some("here.json".into()))
        );
    }

    #[test]
    fn data_is_directories_or_random_but_not_both() {
        assert!(plan(&["--data", "random"]).expect("fine").folders.is_none());
        let folders = plan(&["--data", "/a", "--data", "./random"])
            .expect("fine")
            .folders;
        assert_eq!(folders, Some(vec!["/a".into(), "./random".into()]));
        assert!(plan(&["--data", "/a", "--data", "random"]).is_err());
    }

    #[test]
    fn invalid_options_are_refused_with_the_expectation() {
        let small = plan(&["--cache-size", "1K"]).expect_err("too small");
        assert!(small.contains("--cache-size: expected 4.00 MiB to"), "{small}");
        let largest = Geometry::plan(CACHE_BYTES_MIN, 512, DATA_BYTES_MAX, GeometryOptions::default());
        assert!(largest.is_ok(), "{largest:?}");
        for words in [
            ["--writes", "101"],
            ["--skew", "-1"],
            ["--seconds", "0"],
            ["--clients", "0"],
            ["--size", "1M"],
            ["--codec", "none"],
            ["--skew", "NaN"],
        ] {
            assert!(plan(&words).is_err(), "{words:?}");
        }
        assert!(
            plan(&["--size", "1M"])
                .expect_err("too small")
                .contains("8.00 MiB")
        );
    }
}
