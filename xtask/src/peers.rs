//! `make peers`: flaz beside the caches of the kernel, on the virtual machine of `make vm`, with the same disks, data and
//! requests.
//!
//! The processor of this machine is emulated and 10 to 20 times slower than a real one. So the comparison counts requests
//! to the origin and sectors written to the SSD, for each request of the client. These do not depend on the processor.
//!
//! The machine is booted once for each kind of data. Its script prints a line of JSON for each measured phase, which is
//! appended to a file at once; the tables and the page are made of that file.

mod cells;
mod figures;
mod page;
mod tables;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use self::cells::{Boot, Part, boots};
use self::figures::Measured;
use crate::program::program;

type PeersError = Box<dyn std::error::Error>;

const SCRIPTS: [&str; 3] = [
    "tests/vm/peers/measure.sh",
    "tests/vm/peers/devices.sh",
    "tests/vm/peers/systems.sh",
];
/// What the script puts before its lines.
const MARK: &str = "peers: ";
/// The origin is a little larger than the largest working set: bcache needs a few sectors of it.
const ORIGIN: &str = "2112M";
const CACHE: &str = "128M";
const SPARE: &str = "64M";
const TIMEOUT_S: &str = "7200";

/// Options of the comparison.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Measure only this part, and add it to what was measured before
    #[arg(long, value_name = "PART")]
    only: Option<Part>,
    /// Make the tables and the page from what was measured before
    #[arg(long, conflicts_with = "only")]
    report: bool,
    /// File of the measurements
    #[arg(long, default_value = "target/peers/measured.jsonl")]
    measured: PathBuf,
    /// The page to write
    #[arg(long, default_value = "target/peers/peers.html")]
    page: PathBuf,
}

/// Measures, prints the tables in Markdown, and writes the page.
///
/// # Errors
/// flaz cannot be built, the machine does not start, or a system does not work on it.
pub fn run(options: &Options) -> Result<(), PeersError> {
    if !options.report {
        measure(options)?;
    }
    let text = fs::read_to_string(&options.measured)
        .map_err(|error| format!("{}: {error}: measure first", options.measured.display()))?;
    let measured = figures::read(&text)?;
    println!("{}", tables::markdown(&measured));
    write_page(&options.page, &measured)
}

fn write_page(path: &Path, measured: &[Measured]) -> Result<(), PeersError> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(path, page::html(measured)).map_err(|error| format!("{}: {error}", path.display()))?;
    eprintln!("page: {}", path.display());
    Ok(())
}

fn measure(options: &Options) -> Result<(), PeersError> {
    let program = program()?;
    if let Some(directory) = options.measured.parent() {
        fs::create_dir_all(directory)?;
    }
    let mut file = File::options()
        .create(true)
        .append(options.only.is_some())
        .truncate(options.only.is_none())
        .write(true)
        .open(&options.measured)?;
    let boots: Vec<Boot> = boots()
        .into_iter()
        .filter(|boot| options.only.is_none_or(|part| part == boot.part))
        .collect();
    for (number, boot) in boots.iter().enumerate() {
        eprintln!(
            "boot {} of {}: {}, data of which {} % is saved, {} cells",
            number + 1,
            boots.len(),
            boot.part,
            boot.saved_percent,
            boot.cells.len()
        );
        run_boot(boot, &program, &mut file)?;
    }
    Ok(())
}

fn run_boot(boot: &Boot, program: &Path, file: &mut File) -> Result<(), PeersError> {
    let variables = [
        format!("CELLS={}", boot.cells.join(" ")),
        format!("SAVED_PCT={}", boot.saved_percent),
        format!("WARM_REQUESTS={}", cells::WARM_REQUESTS),
        format!("REQUESTS={}", cells::REQUESTS),
    ];
    let mut command = Command::new("tools/vm");
    command
        .args(["run", "--timeout", TIMEOUT_S])
        .args(["--origin", ORIGIN, "--cache", CACHE, "--spare", SPARE]);
    for variable in &variables {
        command.args(["--env", variable]);
    }
    let mut machine = command
        .args(SCRIPTS)
        .arg(program)
        .stdout(Stdio::piped())
        .spawn()?;
    let console = machine.stdout.take().ok_or("the machine has no console")?;
    let mut last = String::new();
    for line in BufReader::new(console).lines() {
        let line = line?;
        match line.strip_prefix(MARK) {
            Some(measured) => writeln!(file, "{measured}")?,
            None => eprintln!("  {line}"),
        }
        last = line;
    }
    if machine.wait()?.success() {
        Ok(())
    } else {
        Err(format!("the machine: {last}").into())
    }
}
