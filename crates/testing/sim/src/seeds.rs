//! Runs a test over many seeds, or replays one.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Runs `test` for the seeds 0 to `count` - 1; on a failure prints the command that replays it.
///
/// `FLAZ_SEED=n` (decimal or `0x` hexadecimal) in the environment runs only that seed; `FLAZ_SEEDS=n` replaces `count`,
/// for a longer search.
///
/// # Panics
/// If the test does, or if one of the variables is not a number.
pub fn check_seeds(count: u64, test: impl Fn(u64)) {
    if let Some(seed) = number_from_env("FLAZ_SEED") {
        test(seed);
        return;
    }
    for seed in 0..number_from_env("FLAZ_SEEDS").unwrap_or(count) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| test(seed))) {
            let package = std::env::var("CARGO_PKG_NAME").unwrap_or_else(|_| "PACKAGE".into());
            let name = std::thread::current().name().unwrap_or("TEST").to_owned();
            eprintln!("replay: FLAZ_SEED={seed} cargo test -p {package} -- --exact --nocapture {name}");
            resume_unwind(panic);
        }
    }
}

fn number_from_env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    Some(parsed.unwrap_or_else(|error| panic!("{name}={text} is not a number: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_is_run_and_a_failure_is_passed_on() {
        let sum = std::cell::Cell::new(0);
        check_seeds(5, |seed| sum.set(sum.get() + seed));
        assert_eq!(sum.get(), 10);
        let failed = catch_unwind(|| check_seeds(5, |seed| assert_ne!(seed, 3)));
        assert!(failed.is_err());
    }
}
