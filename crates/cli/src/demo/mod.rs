//! `flaz demo`: options and output. [`flaz_demo`] runs the measurement.

mod options;

use std::io::Write;
use std::path::PathBuf;

use flaz_demo::{DemoError, Interrupt, SignalWatch};

pub use options::DemoArgs;

use crate::commands::output_file::OutputFiles;
use crate::error::Failure;

/// Runs the demo and prints the result.
///
/// # Errors
/// Any failure; all created files are removed before this returns.
pub fn run(args: &DemoArgs) -> Result<(), Failure> {
    let (plan, outputs) = (args.plan()?, args.outputs());
    let interrupt = Interrupt::default();
    let signals = SignalWatch::start(&interrupt)?;
    // Check the output now: an error after a minute would be too late.
    let mut files = OutputFiles::default();
    let mut take = |path: &Option<PathBuf>| path.as_deref().map(|path| files.take(path)).transpose();
    let (html_file, json_file) = (take(&outputs.html)?, take(&outputs.json)?);
    let program = std::env::current_exe().map_err(DemoError::file("find", "the program itself"))?;
    let outcome = flaz_demo::measure(&plan, program, &interrupt);
    drop(signals);
    let outcome = outcome?;
    let json =
        serde_json::to_string_pretty(&outcome).map_err(|error| DemoError::Status(error.to_string()))? + "\n";
    if let Some(file) = html_file {
        file.write(flaz_demo::html(&outcome).as_bytes())?;
    }
    if let Some(file) = json_file {
        file.write(json.as_bytes())?;
    }
    let text = if outputs.json_to_stdout {
        json
    } else {
        flaz_demo::text(&outcome, crate::commands::output::in_colour())
    };
    let mut stdout = std::io::stdout().lock();
    let shown = stdout
        .write_all(text.as_bytes())
        .and_then(|()| match &outputs.html {
            Some(path) if !outputs.json_to_stdout => writeln!(stdout, "\nCharts: {}", path.display()),
            _ => Ok(()),
        });
    match shown.and_then(|()| stdout.flush()) {
        // A reader that closes the pipe early, such as `head`, is not a failure.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::output(error)),
        _ => Ok(()),
    }
}
