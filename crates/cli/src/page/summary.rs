//! The short page of `flaz status`: health first, ten lines, on a terminal of at most [`COLUMNS`] columns, and one for a write budget. Its
//! labels do not depend on values. The health line is never truncated: it wraps on a terminal.

use std::path::Path;
use std::time::Duration;

use flaz_page::text::wrapped;

use super::{Page, seconds};
use crate::rates::Rates;
use crate::report::{CacheState, Health, LiveReport, StatusReport, WriteBackReport, WriteBudgetReport};
use crate::size::{HumanBytes, HumanCount, HumanDuration, HumanMicros, HumanPercent, HumanRatio, counted};

/// Maximum width of a line.
const COLUMNS: usize = 80;
/// Columns of a label and the space after it.
const LABEL_COLUMNS: usize = 14;
/// Columns of a path; of a longer one the end is shown.
const PATH_COLUMNS: usize = 48;

/// The short page of `flaz status`, with a line of rates if there is an earlier report. `is_cut`: its lines have at most [`COLUMNS`]
/// columns, for a terminal.
#[must_use]
pub fn summary(report: &StatusReport, earlier: Option<(&StatusReport, Duration)>, is_cut: bool) -> String {
    let mut page = Page(String::new());
    let limit = |columns: usize| if is_cut { columns } else { usize::MAX };
    let health = visible(&health(report).to_string());
    page.lines("Health", &wrapped(&health, limit(COLUMNS - LABEL_COLUMNS)));
    let mut line = |label: &str, text: &str| page.line(label, &fitted(text, limit(COLUMNS - LABEL_COLUMNS)));
    line("State", &state_line(report));
    let device = |path: &Path, bytes, more: &str| {
        let rest = format!(", {}{more}", HumanBytes(bytes));
        let columns = PATH_COLUMNS.min(COLUMNS - LABEL_COLUMNS - rest.len());
        shortened(path, limit(columns)) + &rest
    };
    let shrink = report.live.as_ref().and_then(|live| live.shrink);
    let shrink = shrink.map_or_else(String::new, |shrink| {
        format!(", shrinking to {}", HumanBytes(shrink.size_bytes))
    });
    let (bytes, of) = match report.live.as_ref().and_then(|live| live.share.as_ref()) {
        Some(share) => (share.held_bytes, " of a shared device"),
        None => (report.cache.size_bytes, ""),
    };
    line(
        "Cache",
        &device(&report.cache.path, bytes, &format!("{of}{shrink}")),
    );
    line(
        "Origin",
        &device(&report.origin.path, report.origin.size_bytes, ""),
    );
    let Some(live) = &report.live else {
        let dirty = if report.may_be_dirty {
            "the origin may lack data: keep the cache, or use `flaz flush`"
        } else {
            "none"
        };
        line("Dirty", dirty);
        return page.0;
    };
    line("Clients", &clients(live, &limit));
    line("Hits", &hits(live));
    line("Contents", &contents(live));
    line("Dirty", &dirty(&live.write_back));
    if let Some(budget) = &live.write_budget {
        line("Budget", &write_budget(budget));
    }
    line("Latency", &latency(live));
    line("Errors", &errors(live));
    if let Some((
        StatusReport {
            live: Some(before), ..
        },
        span,
    )) = earlier
    {
        line("Now", &now(before, live, span));
    }
    page.0
}

/// The health that the daemon reports, or, of an older daemon, that its report shows.
pub(super) fn health(report: &StatusReport) -> Health {
    report.health.clone().unwrap_or_else(|| Health::of(report))
}

/// What the state of a cache means.
pub(super) fn state(report: &StatusReport) -> &'static str {
    match report.state {
        CacheState::Clean if report.start_refused.is_some() => "not running; stopped cleanly",
        CacheState::Clean => "not running; stopped cleanly, the next start is warm",
        CacheState::Unclean => "not running; not stopped cleanly",
        CacheState::New => "not running; empty: not served since it was created or detached",
        CacheState::Starting => "starting",
        CacheState::Running => "running",
        CacheState::Degraded => "degraded: origin only",
        CacheState::Stopping => "stopping",
    }
}

fn state_line(report: &StatusReport) -> String {
    let mut text = state(report).to_owned();
    if let Some(live) = &report.live {
        // Since its start, so not since it degraded.
        let link = if report.state == CacheState::Running {
            " for"
        } else {
            "; up"
        };
        text += &format!("{link} {}", HumanDuration(seconds(live.daemon.uptime_s)));
        if let Some(settings) = &report.settings {
            text += &format!(", {}, codec {}", settings.mode, settings.codec);
        }
        if live.daemon.read_only {
            text += ", read-only";
        }
    }
    text
}

/// The first address, and what there is besides.
fn clients(live: &LiveReport, limit: &impl Fn(usize) -> usize) -> String {
    let devices = live.block_devices.iter().map(|device| device.name.as_path());
    let sockets = live.nbd.iter().map(|nbd| Path::new(&nbd.address));
    let mut addresses = devices.chain(sockets);
    let Some(first) = addresses.next() else {
        return "none: no address".to_owned();
    };
    let others = addresses.count();
    let connections: u64 = live.nbd.iter().map(|nbd| u64::from(nbd.connections)).sum();
    let mut rest = String::new();
    if others > 0 {
        rest += &format!(" and {others} more");
    }
    if !live.nbd.is_empty() {
        rest += &format!(", {}", counted(connections, "NBD client", "NBD clients"));
    }
    let columns = COLUMNS - LABEL_COLUMNS - rest.len().min(PATH_COLUMNS);
    shortened(first, limit(columns)) + &rest
}

fn hits(live: &LiveReport) -> String {
    let lookups = &live.lookups;
    let reads = [lookups.hits, lookups.partial_hits, lookups.misses];
    let reads = reads.into_iter().fold(0, u64::saturating_add);
    format!(
        "{} of {}, {} of their blocks",
        HumanPercent {
            part: lookups.hits,
            whole: reads
        },
        counted(reads, "read", "reads"),
        HumanPercent {
            part: lookups.hit_blocks,
            whole: lookups.hit_blocks.saturating_add(lookups.miss_blocks)
        },
    )
}

fn contents(live: &LiveReport) -> String {
    let space = &live.space;
    if space.cached_bytes == 0 {
        return "none yet".to_owned();
    }
    let text = format!(
        "{} of data, {} full",
        HumanBytes(space.cached_bytes),
        HumanPercent {
            part: space.used_bytes,
            whole: space.capacity_bytes
        }
    );
    // Of a few blocks, the ratio says nothing: they may all be zeroes.
    if space.used_bytes.saturating_mul(100) < space.capacity_bytes {
        return text;
    }
    text + &format!(
        "; effective capacity {} ({})",
        HumanBytes(space.effective_capacity_bytes),
        HumanRatio {
            amount: space.effective_capacity_bytes,
            by: space.capacity_bytes
        }
    )
}

fn dirty(dirty: &WriteBackReport) -> String {
    if dirty.dirty_blocks == 0 {
        return "none".to_owned();
    }
    let mut text = format!(
        "{}, {} of the limit, for up to {}",
        HumanBytes(dirty.dirty_bytes),
        HumanPercent {
            part: dirty.dirty_device_bytes,
            whole: dirty.limit_bytes
        },
        HumanDuration(seconds(dirty.dirty_s))
    );
    // While writeback fails, its pace so far says nothing.
    if let Some(clean_s) = dirty.clean_s.filter(|_| !dirty.failing) {
        text += &format!("; clean in {}", HumanDuration(seconds(clean_s)));
    }
    text
}

fn write_budget(budget: &WriteBudgetReport) -> String {
    format!(
        "{}; {} of {} in 24 h, {} left",
        budget.state,
        HumanBytes(budget.last_day_bytes),
        HumanBytes(budget.bytes_per_day),
        HumanBytes(budget.left_bytes)
    )
}

fn latency(live: &LiveReport) -> String {
    let p99 = |name: &str| {
        let latency = live
            .operation(name)
            .and_then(|operation| operation.latency_us.as_ref());
        latency.map_or_else(|| "-".to_owned(), |it| HumanMicros(it.p99).to_string())
    };
    format!(
        "99 % below: reads {}, writes {}, flushes {}",
        p99("read"),
        p99("write"),
        p99("flush")
    )
}

fn errors(live: &LiveReport) -> String {
    let errors = &live.errors;
    let cache_device = errors.cache_read_errors.saturating_add(errors.cache_write_errors);
    let causes = [
        (live.client_errors(), "client"),
        (errors.origin_errors, "origin"),
        (cache_device, "cache device"),
        (errors.cache_unreadable_regions, "region"),
        (errors.checksum_failures, "checksum"),
    ];
    let parts: Vec<String> = causes
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, cause)| format!("{} {cause}", HumanCount(count)))
        .collect();
    if parts.is_empty() {
        "none".to_owned()
    } else {
        parts.join(", ")
    }
}

/// Rates since an earlier report.
fn now(before: &LiveReport, live: &LiveReport, span: Duration) -> String {
    let rates = Rates::between(before, live, span);
    let part = |count: f64, name: &str, bytes: f64| {
        format!(
            "{} {name}/s ({}/s)",
            HumanCount(count as u64),
            HumanBytes(bytes as u64)
        )
    };
    format!(
        "{}, {}",
        part(rates.reads, "reads", rates.read_bytes),
        part(rates.writes, "writes", rates.written_bytes)
    )
}

/// At most `columns` characters of a path: its end, after two dots.
fn shortened(path: &Path, columns: usize) -> String {
    let text = path.display().to_string();
    let len = text.chars().count();
    if len <= columns {
        return text;
    }
    "..".chars().chain(text.chars().skip(len - columns + 2)).collect()
}

/// A text that fits behind a label.
fn fitted(text: &str, columns: usize) -> String {
    let text = visible(text);
    if text.chars().count() <= columns {
        return text;
    }
    text.chars().take(columns - 2).chain("..".chars()).collect()
}

/// A path may contain anything; a line stays a line.
fn visible(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}
