//! Whether the processors of the machine are busy.
//!
//! The kernel counts the time of all processors in `/proc/stat`. The counts are compared with those of a moment ago, at most
//! a few times a second, and only while somebody asks. Where they cannot be read, the processors count as idle.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How old an answer may be.
const INTERVAL: Duration = Duration::from_millis(200);
/// Share of the processors' time, in percent, from which they are busy.
const BUSY_PERCENT: u64 = 85;

/// Time of all processors since boot, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    idle: u64,
    all: u64,
}

impl Ticks {
    /// From the contents of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal; guest time is part of user time.
    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let mut ticks = Self::default();
        for (n, word) in line.split_ascii_whitespace().take(8).enumerate() {
            let count: u64 = word.parse().ok()?;
            ticks.all = ticks.all.saturating_add(count);
            // A processor that waits for I/O is idle.
            ticks.idle += if n == 3 || n == 4 { count } else { 0 };
        }
        (ticks.all > 0).then_some(ticks)
    }

    /// Whether the processors were busy since `earlier`.
    fn busy_since(self, earlier: Self) -> bool {
        let all = self.all.saturating_sub(earlier.all);
        let busy = all.saturating_sub(self.idle.saturating_sub(earlier.idle));
        all > 0 && busy * 100 >= all * BUSY_PERCENT
    }
}

static LATEST: Mutex<Option<(Instant, Ticks)>> = Mutex::new(None);
static BUSY: AtomicBool = AtomicBool::new(false);

/// Whether the processors of the machine are busy.
pub(crate) fn is_busy() -> bool {
    // Another thread that reads the counts has the answer in a moment.
    if let Ok(mut latest) = LATEST.try_lock()
        && latest.is_none_or(|(at, _)| at.elapsed() >= INTERVAL)
    {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        if let Some(now) = Ticks::parse(&stat) {
            let busy = latest.is_some_and(|(_, earlier)| now.busy_since(earlier));
            BUSY.store(busy, Ordering::Relaxed);
            *latest = Some((Instant::now(), now));
        }
    }
    BUSY.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_the_kernel_are_compared() {
        let stat = |user: u64, idle: u64| format!("cpu  {user} 0 10 {idle} 5 0 0 1 0 0\ncpu0 1 2 3\n");
        let ticks = |user, idle| Ticks::parse(&stat(user, idle)).expect("valid");
        let start = ticks(100, 200);
        assert_eq!(start, Ticks { idle: 205, all: 316 });
        assert!(!ticks(100, 200).busy_since(start), "no time has passed");
        assert!(!ticks(150, 250).busy_since(start));
        assert!(ticks(190, 210).busy_since(start));
        assert!(
            !ticks(0, 0).busy_since(start),
            "counts never fall, but if they do"
        );
        for wrong in ["", "cpu", "cpu  a b", "intr 1 2", "cpu  0 0 0 0"] {
            assert_eq!(Ticks::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn asking_twice_costs_one_look() {
        let first = is_busy();
        let looked = |latest: &Option<(Instant, Ticks)>| latest.map(|(at, _)| at);
        let at = looked(&LATEST.lock().expect("nobody panics"));
        if at.is_some_and(|at| at.elapsed() < INTERVAL / 2) {
            assert_eq!(is_busy(), first);
            assert_eq!(looked(&LATEST.lock().expect("nobody panics")), at);
        }
    }
}
