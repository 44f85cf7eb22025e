//! `make peers`: flaz beside the caches of the kernel, on the virtual machine of `make vm`, with the same disks, data and
//! requests.
//!
//! The processor of this machine is emulated and 10 to 20 times slower than a real one. So the comparison counts requests
//! to the origin and sectors written to the SSD, for each request of the client. These do not depend on the processor.
//!
//! The machine is booted once for each part and kind of data, and for crashes once more for each cell: its power is cut, and the
//! next boot measures what the cell before has left. Its script prints a line of JSON for each measured phase, which is
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

/// The first one is run, the others are its files.
const SCRIPTS: [&str; 6] = [
    "tests/vm/peers/measure.sh",
    "tests/vm/peers/devices.sh",
    "tests/vm/peers/systems.sh",
    "tests/vm/peers/workloads.sh",
    "tests/vm/peers/blocks.py",
    "tests/vm/peers/format_vdo.py",
];
/// What the script puts before its lines.
const MARK: &str = "peers: ";
/// What the script says when the power is to be cut.
const CUT_AT: &str = "cut the power";
const CACHE: &str = "128M";
/// The index of dm-vdo needs more than 2 GiB, the driver memory for it.
const SPARE: &str = "4G";
const MEMORY: &str = "3G";
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
    if boot.part != Part::Crash {
        return run_machine(boot, &[("CELLS", &boot.cells.join(" "))], None, program, file);
    }
    // The disks are kept from one boot to the next.
    let disks = tempfile::Builder::new()
        .prefix("flaz-peers-")
        .tempdir_in("/var/tmp")?;
    let mut before = "";
    for cell in boot.cells.iter().map(String::as_str).chain([""]) {
        let disks = Disks {
            directory: disks.path(),
            cut: !cell.is_empty(),
        };
        run_machine(
            boot,
            &[("CELLS", cell), ("RESUME", before)],
            Some(&disks),
            program,
            file,
        )?;
        before = cell;
    }
    Ok(())
}

/// Disks that outlive a boot.
struct Disks<'a> {
    directory: &'a Path,
    /// Whether the boot ends with a power cut.
    cut: bool,
}

fn run_machine(
    boot: &Boot,
    variables: &[(&str, &str)],
    disks: Option<&Disks<'_>>,
    program: &Path,
    file: &mut File,
) -> Result<(), PeersError> {
    let mut command = Command::new("tools/vm");
    command
        .args(["run", "--timeout", TIMEOUT_S, "--memory", MEMORY])
        .args(["--origin", boot.part.origin(), "--cache", CACHE, "--spare", SPARE]);
    if let Some(disks) = disks {
        command.arg("--disks").arg(disks.directory);
        if disks.cut {
            command.args(["--cut-at", CUT_AT]);
        }
    }
    let requests = boot.part.requests();
    let numbers = [
        ("SAVED_PCT", boot.saved_percent),
        ("WARM_REQUESTS", requests.warm),
        ("REQUESTS", requests.counted),
    ]
    .map(|(name, value)| (name, value.to_string()));
    let numbers = numbers.iter().map(|(name, value)| (*name, value.as_str()));
    for (name, value) in variables.iter().copied().chain(numbers) {
        command.arg("--env").arg(format!("{name}={value}"));
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
