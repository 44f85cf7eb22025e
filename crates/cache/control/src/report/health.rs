//! Health of a cache in one word and short reasons, from its report. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CacheState, LiveReport, StatusReport};
use crate::size::counted;

/// Share of the dirty limit, in percent, from which writers are about to wait.
const DIRTY_LIMIT_NEAR_PERCENT: u64 = 95;

/// Whether something needs attention, and what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Health {
    /// The most urgent level of the reasons.
    pub level: HealthLevel,
    /// Why it is not healthy, most urgent first; a few words each. The warnings of the report say what to do.
    pub reasons: Vec<String>,
}

/// How urgent.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum HealthLevel {
    /// Nothing to do.
    #[default]
    Healthy,
    /// The cache works; something should be looked at.
    Warning,
    /// The cache is not working, its next start will be refused, or data is at risk.
    Failed,
}

impl HealthLevel {
    /// Its name, as in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Warning => "warning",
            Self::Failed => "failed",
        }
    }
}

impl Health {
    /// The health of the cache of a report.
    #[must_use]
    pub fn of(report: &StatusReport) -> Self {
        let mut health = Self::default();
        if let Some(live) = &report.live {
            health.failures(report.state, live);
        } else if report.state == CacheState::Degraded {
            health.add(HealthLevel::Failed, BYPASSED);
        }
        if let Some(why) = &report.start_refused {
            health.add(HealthLevel::Failed, why);
        }
        match report.state {
            CacheState::Starting => health.add(HealthLevel::Warning, "the cache is starting"),
            CacheState::Stopping => health.add(HealthLevel::Warning, "the cache is stopping"),
            CacheState::Unclean => health.add(HealthLevel::Warning, "the last daemon did not stop cleanly"),
            CacheState::Clean | CacheState::New | CacheState::Running | CacheState::Degraded => {}
        }
        if report.may_be_dirty && !report.state.is_running() {
            health.add(HealthLevel::Warning, "dirty data is on the cache device only");
        }
        if let Some(live) = &report.live {
            health.warnings(live);
        }
        if health.reasons.is_empty()
            && let Some(warning) = report.warnings.first()
        {
            health.add(HealthLevel::Warning, first_clause(warning));
        }
        health
    }

    fn add(&mut self, level: HealthLevel, reason: &str) {
        self.level = self.level.max(level);
        self.reasons.push(reason.to_owned());
    }

    fn failures(&mut self, state: CacheState, live: &LiveReport) {
        let dirty = &live.write_back;
        if state == CacheState::Degraded {
            if dirty.dirty_blocks > 0 {
                self.add(
                    HealthLevel::Failed,
                    "dirty data is only on the failed cache device",
                );
            }
            self.add(HealthLevel::Failed, BYPASSED);
        }
        if dirty.lost > 0 {
            self.add(
                HealthLevel::Failed,
                &counted(dirty.lost, "dirty block is damaged", "dirty blocks are damaged"),
            );
        }
        if dirty.failing {
            self.add(HealthLevel::Failed, "writeback to the origin fails");
        }
    }

    fn warnings(&mut self, live: &LiveReport) {
        let dirty = &live.write_back;
        let near = dirty.limit_bytes.saturating_mul(DIRTY_LIMIT_NEAR_PERCENT) / 100;
        if dirty.limit_bytes > 0 && dirty.dirty_device_bytes >= near {
            self.add(HealthLevel::Warning, "dirty data is at its limit, writers wait");
        }
        let failed = live.client_errors();
        let errors = &live.errors;
        for (count, one, many) in [
            (failed, "client request failed", "client requests failed"),
            (
                errors.origin_errors,
                "origin request failed",
                "origin requests failed",
            ),
            (
                errors.cache_read_errors.saturating_add(errors.cache_write_errors),
                "cache device request failed",
                "cache device requests failed",
            ),
            (
                errors.cache_unreadable_regions,
                "region of the cache device could not be read",
                "regions of the cache device could not be read",
            ),
            (
                errors.checksum_failures,
                "checksum was wrong",
                "checksums were wrong",
            ),
        ] {
            if count > 0 {
                self.add(HealthLevel::Warning, &counted(count, one, many));
            }
        }
        for (device, emulation) in [
            ("origin", live.daemon.emulate_origin),
            ("cache device", live.daemon.emulate_cache),
        ] {
            if emulation.is_some() {
                self.add(HealthLevel::Warning, &format!("the {device} is emulated"));
            }
        }
    }
}

const BYPASSED: &str = "the cache device failed and is bypassed";

/// The first clause of a warning.
fn first_clause(warning: &str) -> &str {
    warning.split([':', ';']).next().unwrap_or(warning)
}

/// `healthy`, or `warning: REASON`, with the number of further reasons.
impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.level.name())?;
        if let Some(reason) = self.reasons.first() {
            write!(f, ": {reason}")?;
        }
        if self.reasons.len() > 1 {
            write!(f, "; {} more", self.reasons.len() - 1)?;
        }
        Ok(())
    }
}

impl StatusReport {
    /// The report with its health.
    #[must_use]
    pub fn with_health(mut self) -> Self {
        self.health = Some(Health::of(&self));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::super::example::example;
    use super::super::*;
    use super::*;

    fn running() -> StatusReport {
        let mut report = example();
        report.warnings.clear();
        report.live.as_mut().unwrap().operations.clear();
        report
    }

    fn text(change: impl FnOnce(&mut StatusReport)) -> String {
        let mut report = running();
        change(&mut report);
        let health = Health::of(&report);
        assert_eq!(
            health.level == HealthLevel::Healthy,
            health.reasons.is_empty(),
            "{health:?}"
        );
        health.to_string()
    }

    fn live(report: &mut StatusReport) -> &mut LiveReport {
        report.live.as_mut().unwrap()
    }

    #[test]
    fn health_is_one_word_and_the_most_urgent_reason() {
        assert_eq!(text(|_| ()), "healthy");
        assert_eq!(
            text(|report| live(report).write_back.failing = true),
            "failed: writeback to the origin fails"
        );
        let bypassed = text(|report| report.state = CacheState::Degraded);
        assert_eq!(
            bypassed,
            "failed: dirty data is only on the failed cache device; 1 more"
        );
        let clean = text(|report| {
            report.state = CacheState::Degraded;
            live(report).write_back.dirty_blocks = 0;
        });
        assert_eq!(clean, "failed: the cache device failed and is bypassed");
        assert_eq!(
            text(|report| live(report).errors.checksum_failures = 1),
            "warning: 1 checksum was wrong"
        );
        assert_eq!(
            text(|report| live(report).errors.cache_unreadable_regions = 1),
            "warning: 1 region of the cache device could not be read"
        );
        let both = text(|report| {
            live(report).errors.origin_errors = 7;
            live(report).write_back.lost = 2;
        });
        assert_eq!(both, "failed: 2 dirty blocks are damaged; 1 more");
    }

    #[test]
    fn writers_that_wait_are_a_warning() {
        let at = |bytes| {
            text(|report| {
                live(report).write_back.limit_bytes = 1000;
                live(report).write_back.dirty_device_bytes = bytes;
            })
        };
        assert_eq!(at(949), "healthy");
        assert_eq!(at(950), "warning: dirty data is at its limit, writers wait");
        assert_eq!(
            text(|report| {
                live(report).write_back.limit_bytes = 0;
                live(report).write_back.dirty_device_bytes = 0;
            }),
            "healthy",
            "no shard reports a limit"
        );
    }

    #[test]
    fn a_stopped_cache_is_healthy_unless_the_origin_lacks_data() {
        let stopped = |state, may_be_dirty| {
            text(|report| {
                report.live = None;
                report.state = state;
                report.may_be_dirty = may_be_dirty;
            })
        };
        assert_eq!(stopped(CacheState::Clean, false), "healthy");
        assert_eq!(stopped(CacheState::New, false), "healthy");
        assert_eq!(
            stopped(CacheState::Clean, true),
            "warning: dirty data is on the cache device only"
        );
        assert_eq!(
            stopped(CacheState::Unclean, true),
            "warning: the last daemon did not stop cleanly; 1 more"
        );
    }

    #[test]
    fn a_cache_that_cannot_start_has_failed() {
        let refused = text(|report| {
            report.live = None;
            report.state = CacheState::Clean;
            report.may_be_dirty = false;
            report.start_refused = Some("the origin is missing".to_owned());
        });
        assert_eq!(refused, "failed: the origin is missing");
    }

    #[test]
    fn an_unknown_warning_is_not_healthy() {
        let warned = text(|report| report.warnings.push("the moon is full: wait a week".to_owned()));
        assert_eq!(warned, "warning: the moon is full");
        // A long reason is whole: a page may have to wrap it.
        let long = "x".repeat(200);
        let warned = text(|report| report.warnings.push(format!("{long}; y")));
        assert_eq!(warned, format!("warning: {long}"));
    }
}
