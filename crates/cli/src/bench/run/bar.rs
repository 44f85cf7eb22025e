//! The progress bar of a campaign: current activity and remaining time. Silent in a pipe.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flaz_load::campaign::Watch;
use flaz_load::forecast::Surety;
use indicatif::{ProgressBar, ProgressStyle};

use crate::size::HumanDuration;

/// Interval at which the bar and the signal thread check for changes.
pub const LOOK: Duration = Duration::from_millis(100);
/// Resolution of the bar.
const STEPS: u64 = 1000;

/// Runs `work` with a progress bar, if standard error is a terminal.
pub fn beside<T>(watch: &Watch, work: impl FnOnce() -> T) -> T {
    if !io::stderr().is_terminal() {
        return work();
    }
    let done = AtomicBool::new(false);
    let bar = ProgressBar::new(STEPS);
    // The template is a constant of this program. If it were wrong, a bar in the default style would do.
    if let Ok(style) = ProgressStyle::with_template("{elapsed:>4} {bar:28.cyan/dim} {wide_msg}") {
        bar.set_style(style.progress_chars("━━─"));
    }
    thread::scope(|scope| {
        let beside = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                show(watch, &bar);
                thread::sleep(LOOK);
            }
        });
        let end = End(&done);
        let result = work();
        drop(end);
        // A panic of the bar must not lose the results.
        let _ = beside.join();
        bar.finish_and_clear();
        result
    })
}

/// Ends the bar's thread, also if the work panics: otherwise the scope would wait for it for ever.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn show(watch: &Watch, bar: &ProgressBar) {
    let Some(status) = watch.status() else { return };
    let (done, now) = (watch.signals.done.load(Ordering::Relaxed), Instant::now());
    let left = match status.left(done, now) {
        Some(left) => {
            let how = match left.surety {
                Surety::Known => "",
                Surety::About => "about ",
                Surety::AtLeast => "at least ",
            };
            format!("{how}{} left", HumanDuration(left.time))
        }
        None => "estimating the duration".to_owned(),
    };
    if let Some(share) = status.share(done, now) {
        bar.set_position((share * STEPS as f64) as u64);
    }
    bar.set_message(format!("{left}; {}", status.what));
    bar.tick();
}
