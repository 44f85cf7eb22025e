//! How busy the processors of the machine are, and a thread.
//!
//! The kernel counts the time of all processors in `/proc/stat`. The counts are compared with those of a moment ago, at most
//! a few times a second, and only while somebody asks. Where they cannot be read, the load counts as medium.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use flaz_device::Load;

/// How old an answer may be.
const INTERVAL: Duration = Duration::from_millis(200);
/// Share of the processors' time, in percent, from which the load is high.
const HIGH_PERCENT: u64 = 85;
/// Share below which it is low.
const LOW_PERCENT: u64 = 60;

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

    /// The load since `earlier`. `None`: no time has passed.
    fn load_since(self, earlier: Self) -> Option<Load> {
        let all = self.all.saturating_sub(earlier.all);
        let busy = all.saturating_sub(self.idle.saturating_sub(earlier.idle));
        let load = match (busy * 100).checked_div(all)? {
            HIGH_PERCENT.. => Load::High,
            LOW_PERCENT.. => Load::Medium,
            _ => Load::Low,
        };
        Some(load)
    }
}

/// The latest counts, when a thread began to read them, and the load that they show.
struct Latest {
    at: Option<Instant>,
    ticks: Option<Ticks>,
    load: Load,
}

static LATEST: Mutex<Latest> = Mutex::new(Latest {
    at: None,
    ticks: None,
    load: Load::Medium,
});

/// The load of the processors of the machine.
pub(crate) fn now() -> Load {
    let latest = || LATEST.lock().unwrap_or_else(PoisonError::into_inner);
    let mut known = latest();
    if known.at.is_some_and(|at| at.elapsed() < INTERVAL) {
        return known.load;
    }
    known.at = Some(Instant::now());
    // With many processors this takes a while; other threads take the earlier answer.
    drop(known);
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let mut known = latest();
    let ticks = Ticks::parse(&stat);
    known.load = match (ticks, known.ticks) {
        (Some(ticks), Some(earlier)) => ticks.load_since(earlier).unwrap_or(known.load),
        _ => Load::default(),
    };
    known.ticks = ticks;
    known.load
}

/// For how long this thread has run, or waited for a processor: the first two numbers of `schedstat`, in nanoseconds. A kernel may have
/// been built without them; then only for how long it has run.
pub(crate) fn thread_time() -> Duration {
    let counted = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    counted
        .and_then(|text| parse_schedstat(&text))
        .unwrap_or_else(|| {
            let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            Duration::try_from(time).unwrap_or_default()
        })
}

/// `None`: they are not counted.
fn parse_schedstat(text: &str) -> Option<Duration> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse::<u64>);
    let (ran, waited) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    (ran > 0).then(|| Duration::from_nanos(ran.saturating_add(waited)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_thread_includes_waiting() {
        assert_eq!(parse_schedstat("5000 700 3\n"), Some(Duration::from_nanos(5700)));
        for unknown in ["0 0 0\n", "", "5000", "x 1 1", "5000 -1 3"] {
            assert_eq!(parse_schedstat(unknown), None, "{unknown:?}");
        }
        let before = thread_time();
        let until = Instant::now() + Duration::from_millis(20);
        while Instant::now() < until {}
        assert!(thread_time() > before);
    }

    #[test]
    fn the_counts_of_the_kernel_are_compared() {
        let stat = |user: u64, idle: u64| format!("cpu  {user} 0 10 {idle} 5 0 0 1 0 0\ncpu0 1 2 3\n");
        let ticks = |user, idle| Ticks::parse(&stat(user, idle)).expect("valid");
        let start = ticks(100, 200);
        assert_eq!(start, Ticks { idle: 205, all: 316 });
        assert_eq!(ticks(100, 200).load_since(start), None, "no time has passed");
        assert_eq!(ticks(150, 250).load_since(start), Some(Load::Low));
        assert_eq!(ticks(159, 241).load_since(start), Some(Load::Low));
        assert_eq!(ticks(160, 240).load_since(start), Some(Load::Medium));
        assert_eq!(ticks(184, 216).load_since(start), Some(Load::Medium));
        assert_eq!(ticks(190, 210).load_since(start), Some(Load::High));
        assert_eq!(
            ticks(0, 0).load_since(start),
            None,
            "counts never fall, but if they do"
        );
        for wrong in ["", "cpu", "cpu  a b", "intr 1 2", "cpu  0 0 0 0"] {
            assert_eq!(Ticks::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn asking_twice_costs_one_look() {
        let first = now();
        let looked = || LATEST.lock().expect("nobody panics").at;
        let at = looked();
        if at.is_some_and(|at| at.elapsed() < INTERVAL / 2) {
            assert_eq!(now(), first);
            assert_eq!(looked(), at);
        }
    }
}
