//! `flaz lab serve`: a device over NBD.

use std::path::PathBuf;
use std::thread;

use clap::Args;
use flaz_lab::serve::{Plan, Trace, serve};
use flaz_nbd::{NbdAddress, Shutdown};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::DeviceArgs;
use crate::commands::output;
use crate::commands::output_file::OutputFiles;
use crate::error::Failure;
use crate::size::{self, HumanBytes};

/// Allowed slowdown.
const SLOWDOWN: std::ops::RangeInclusive<f64> = 1.0..=1000.0;

/// `flaz lab serve`.
#[derive(Args, Debug)]
#[command(after_help = "\
Serves a new, empty device until SIGTERM or SIGINT. Each request takes as long as on the modelled drive. Written data is \
compressed by the codec of the drive, and the stored size, the link, the flash and its cleaning determine the time. The host must be \
faster than the device, and otherwise idle; --slowdown multiplies all times and keeps their \
proportions. The contents are in an unnamed file, which takes as much space as is written, and are lost at the end. \
A flush waits for the modelled flash, and makes nothing durable.

A device with a smaller --size has less flash and the same share of spare space.

--trace writes a row of counters each second, and one at the end: bytes written by the host and to the flash, erased blocks and \
wear, as drives report them by SMART.

Examples:
  flaz lab serve --nbd unix:/tmp/ssd.sock
  flaz lab serve --device sf1222 --size 4G --nbd unix:/tmp/ssd.sock --trace counters.csv
  nbdfuse /tmp/ssd 'nbd+unix:///?socket=/tmp/ssd.sock'   # the device as a file
  flaz bench detect /tmp/ssd --yes-destroy /tmp/ssd
  flaz bench run /tmp/ssd --tests streaming --runs 5 --yes-destroy /tmp/ssd --output ssd.json
  flaz bench claim ssd.json --claim write=275MB/s --claim read=285MB/s
  fio --name=w --ioengine=nbd '--uri=nbd+unix:///?socket=/tmp/ssd.sock' --rw=randwrite --size=1G")]
pub struct ServeArgs {
    /// The device.
    #[command(flatten)]
    device: DeviceArgs,
    /// Address for NBD clients: unix:PATH (mode 0600)
    #[arg(long, value_name = "ADDRESS")]
    nbd: NbdAddress,
    /// Size that clients see [default: that of the device]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Multiply all times by this number, from 1 to 1000
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = slowdown)]
    slowdown: f64,
    /// Directory for the contents [default: that for temporary files]
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// Write counters to this file, as CSV
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// Runs `flaz lab serve`.
///
/// # Errors
/// The description or an option is invalid, or the device cannot be served.
pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    let mut device = args.device.find()?;
    if let Some(bytes) = args.size {
        device = device
            .with_size(bytes)
            .map_err(|why| Failure::Usage(format!("--size: {why}")))?;
    }
    local(&args.nbd)?;
    let trace = args.trace.as_ref().map(|path| {
        // Nothing of value is replaced.
        drop(OutputFiles::default().take(path)?);
        Trace::create(path).map_err(Failure::system(format!("creating {}", path.display())))
    });
    let shutdown = Shutdown::new();
    stop_on_signals(shutdown.clone())?;
    let slower = match args.slowdown {
        1.0 => String::new(),
        factor => format!(", {factor} times as slow"),
    };
    let text = format!(
        "{}: {} at {}{slower}\n",
        device.title,
        HumanBytes(device.user_bytes()),
        args.nbd.uri("")
    );
    let plan = Plan {
        device,
        address: args.nbd.clone(),
        slowdown: args.slowdown,
        directory: args.directory.clone().unwrap_or_else(std::env::temp_dir),
        trace: trace.transpose()?,
    };
    let mut announced = Ok(());
    serve(plan, &shutdown, || announced = output::confirm(&text)).map_err(|error| Failure::Other {
        what: "lab serve",
        source: error.into(),
    })?;
    announced
}

/// Refuses an address that other machines can reach.
pub(super) fn local(address: &NbdAddress) -> Result<(), Failure> {
    match address {
        NbdAddress::Unix(_) => Ok(()),
        other => Err(Failure::Usage(format!(
            "--nbd: expected unix:PATH, found {other}: a device of the lab is served on this machine only"
        ))),
    }
}

/// The first signal stops cleanly; a second one ends the process at once, as by default.
pub(super) fn stop_on_signals(shutdown: Shutdown) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Failure::system("handling signals"))?;
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            let mut signals = signals.forever();
            if signals.next().is_some() {
                shutdown.stop();
            }
            if let Some(signal) = signals.next() {
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        })
        .map_err(Failure::system("starting the signal thread"))?;
    Ok(())
}

fn slowdown(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|factor| SLOWDOWN.contains(factor))
        .ok_or_else(|| {
            format!(
                "expected a number from {} to {}",
                SLOWDOWN.start(),
                SLOWDOWN.end()
            )
        })
}
