//! Progress for a user at a terminal: one bar on standard error. Silent in a pipe.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The bar. Its length is the expected total time.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    /// Start and length of the current step, in milliseconds.
    step: (u64, u64),
}

impl Progress {
    /// A bar for this expected time.
    pub fn start(total: Duration) -> Self {
        let bar = ProgressBar::with_draw_target(Some(millis(total)), ProgressDrawTarget::stderr());
        // The template is a constant of this program. If it were wrong, a bar in the default style would do.
        if let Ok(style) =
            ProgressStyle::with_template("{elapsed:>4} {bar:28.cyan/dim} {percent:>3}%  {wide_msg}")
        {
            bar.set_style(style.progress_chars("━━─"));
        }
        bar.enable_steady_tick(Duration::from_millis(250));
        Self { bar, step: (0, 0) }
    }

    /// Ends the previous step; the next one is called `name` and should take `time`.
    pub fn step(&mut self, name: impl Into<String>, time: Duration) {
        let begin = self.step.0 + self.step.1;
        self.step = (begin, millis(time));
        self.bar.set_position(begin);
        self.bar.set_message(name.into());
    }

    /// Sets the completed share of the current step, 0 to 1.
    pub fn part(&self, share: f64) {
        self.bar
            .set_position(self.step.0 + (self.step.1 as f64 * share.clamp(0.0, 1.0)) as u64);
    }

    /// Prints a message above the bar, on standard error if that is a terminal.
    pub fn note(&self, text: &str) {
        self.bar.println(text);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
