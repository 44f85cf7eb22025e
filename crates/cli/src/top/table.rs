//! The table of `flaz top`: one line for each cache, and a line for all. Pure.

use std::cmp::Ordering;

use clap::ValueEnum;
use flaz_engine::settings::Mode;

use super::number::{bytes, count, latency, percent, ratio};
use crate::rates::Rates;
use crate::report::{CacheState, Health, HealthLevel, LiveReport, StatusReport};

/// Least width of the table: all columns of [`NARROW`].
pub const COLUMNS_MIN: usize = 80;
/// Least width of the names.
const NAME_COLUMNS_MIN: usize = 10;
/// Maximum width of the names.
const NAME_COLUMNS_MAX: usize = 32;

/// What is known of one cache.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name of its device, its cache, or its socket.
    pub name: String,
    /// What there is to show.
    pub state: RowState,
}

/// A cache that answers, or not.
#[derive(Clone, Debug)]
pub enum RowState {
    /// The report, and the rates of the last interval.
    Answers(Box<StatusReport>, Rates),
    /// Why there is no report, in one or two words.
    Silent(&'static str),
}

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Column {
    /// Name of the cache
    Name,
    /// State
    State,
    /// Mode
    Mode,
    /// Reads per second
    Reads,
    /// Share of their blocks that the cache had
    Hits,
    /// Writes per second
    Writes,
    /// Bytes of reads and writes per second
    Bytes,
    /// 99th percentile of the latency of reads and writes
    Latency,
    /// Dirty data
    Dirty,
    /// Effective capacity divided by the size of the cache
    Effective,
    /// Bytes written to the cache device per second
    Ssd,
    /// Errors since the start
    Errors,
    /// Share of the cache in use
    Full,
    /// Age of the oldest dirty data
    Age,
    /// Bytes read by clients per second
    ReadBytes,
    /// Bytes written by clients per second
    WrittenBytes,
    /// Bytes read from the origin per second
    OriginRead,
    /// Bytes written to the origin per second
    OriginWritten,
    /// CPU time of the server
    Cpu,
    /// Clients connected by NBD
    Clients,
    /// Health
    Health,
}

use Column as C;

/// Columns of a terminal with 80 columns, and of output that is not a terminal.
const NARROW: [Column; 12] = [
    C::Name,
    C::State,
    C::Mode,
    C::Reads,
    C::Hits,
    C::Writes,
    C::Bytes,
    C::Latency,
    C::Dirty,
    C::Effective,
    C::Ssd,
    C::Errors,
];
/// Further columns, as far as there is room. The last takes what is left.
const WIDE: [Column; 9] = [
    C::Full,
    C::Age,
    C::ReadBytes,
    C::WrittenBytes,
    C::OriginRead,
    C::OriginWritten,
    C::Cpu,
    C::Clients,
    C::Health,
];

impl Column {
    /// Its head, and its width. Names and health take more if there is room.
    fn head(self) -> (&'static str, usize) {
        match self {
            C::Name => ("CACHE", NAME_COLUMNS_MIN),
            C::State => ("STATE", 7),
            C::Mode => ("MODE", 4),
            C::Reads => ("READ/s", 6),
            C::Hits => ("HIT%", 4),
            C::Writes => ("WRIT/s", 6),
            C::Bytes => ("B/s", 5),
            C::Latency => ("P99", 5),
            C::Dirty => ("DIRTY", 5),
            C::Effective => ("EFF", 4),
            C::Ssd => ("SSD/s", 5),
            C::Errors => ("ERRS", 5),
            C::Full => ("FULL%", 5),
            C::Age => ("AGE", 5),
            C::ReadBytes => ("READ B/s", 8),
            C::WrittenBytes => ("WRIT B/s", 8),
            C::OriginRead => ("ORIG RD/s", 9),
            C::OriginWritten => ("ORIG WR/s", 9),
            C::Cpu => ("CPU%", 5),
            C::Clients => ("NBD", 4),
            C::Health => ("HEALTH", 24),
        }
    }

    fn is_text(self) -> bool {
        matches!(self, C::Name | C::State | C::Mode | C::Health)
    }

    /// The next column by which the table can be sorted.
    #[must_use]
    pub fn next(self) -> Self {
        let at = NARROW.iter().position(|column| *column == self);
        NARROW[at.map_or(0, |at| (at + 1) % NARROW.len())]
    }

    /// Its name as an option value.
    #[must_use]
    pub fn word(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// At most as wide as the table.
    pub text: String,
    /// How urgent: for its colour.
    pub level: HealthLevel,
}

/// Head, rows and total.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The heads of the columns.
    pub head: String,
    /// One for each cache.
    pub rows: Vec<Line>,
    /// Sums, if there are several caches.
    pub total: Option<Line>,
}

/// The table of these caches, at most `width` columns wide, sorted by a column: numbers with the largest first, texts in order;
/// reversed on request.
#[must_use]
pub fn table(mut rows: Vec<Row>, width: usize, sort: Column, reversed: bool) -> Table {
    rows.sort_by(|a, b| compare(a, b, sort, reversed));
    let layout = layout(&rows, width.max(COLUMNS_MIN));
    let cells = |cell: &dyn Fn(Column) -> String| {
        let mut text = String::new();
        for (column, width) in &layout {
            let cell = clipped(&cell(*column), *width);
            if !text.is_empty() {
                text.push(' ');
            }
            if column.is_text() {
                text.push_str(&format!("{cell:<width$}"));
            } else {
                text.push_str(&format!("{cell:>width$}"));
            }
        }
        text.truncate(text.trim_end().len());
        text
    };
    Table {
        head: cells(&|column| column.head().0.to_owned()),
        rows: rows
            .iter()
            .map(|row| Line {
                text: cells(&|column| cell(row, column)),
                level: level(row),
            })
            .collect(),
        total: (rows.len() > 1).then(|| {
            let total = Total::of(&rows);
            Line {
                text: cells(&|column| total.cell(column)),
                level: HealthLevel::Healthy,
            }
        }),
    }
}

/// The columns that fit, with their widths.
fn layout(rows: &[Row], width: usize) -> Vec<(Column, usize)> {
    let mut layout: Vec<(Column, usize)> = NARROW.map(|column| (column, column.head().1)).into();
    let used = |layout: &[(Column, usize)]| layout.iter().map(|(_, width)| width + 1).sum::<usize>() - 1;
    for column in WIDE {
        let needed = column.head().1 + 1;
        if used(&layout) + needed > width {
            break;
        }
        layout.push((column, column.head().1));
    }
    let mut left = width.saturating_sub(used(&layout));
    let longest = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
    let more = longest.clamp(NAME_COLUMNS_MIN, NAME_COLUMNS_MAX) - NAME_COLUMNS_MIN;
    layout[0].1 += more.min(left);
    left -= more.min(left);
    if let Some((C::Health, width)) = layout.last_mut() {
        *width += left;
    }
    layout
}

/// At most `width` characters, of which none controls a terminal: names may come from the daemons of other users.
fn clipped(text: &str, width: usize) -> String {
    let visible = text.chars().map(|c| if c.is_control() { '?' } else { c });
    if text.chars().count() <= width {
        return visible.collect();
    }
    visible.take(width.saturating_sub(1)).chain(['~']).collect()
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::WriteThrough => "wt",
        Mode::WriteBack => "wb",
        Mode::WriteAround => "wa",
        Mode::PassThrough => "pt",
    }
}

fn state(state: CacheState) -> &'static str {
    match state {
        CacheState::Clean | CacheState::Unclean | CacheState::New => "stopped",
        CacheState::Starting => "starts",
        CacheState::Running => "running",
        CacheState::Degraded => "BYPASS",
        CacheState::Stopping => "stops",
    }
}

/// Failed requests of clients, and errors of the devices.
fn errors(live: &LiveReport) -> u64 {
    let errors = &live.errors;
    [
        errors.checksum_failures,
        errors.cache_read_errors,
        errors.cache_write_errors,
        errors.cache_unreadable_regions,
        errors.origin_errors,
    ]
    .into_iter()
    .fold(live.client_errors(), u64::saturating_add)
}

fn health(report: &StatusReport) -> Health {
    report.health.clone().unwrap_or_else(|| Health::of(report))
}

fn level(row: &Row) -> HealthLevel {
    match &row.state {
        RowState::Answers(report, _) => health(report).level,
        RowState::Silent(_) => HealthLevel::Failed,
    }
}

fn cell(row: &Row, column: Column) -> String {
    let (report, rates) = match &row.state {
        RowState::Answers(report, rates) => (report, rates),
        RowState::Silent(why) => {
            return match column {
                C::Name => row.name.clone(),
                C::State => (*why).to_owned(),
                _ => "-".to_owned(),
            };
        }
    };
    match column {
        C::Name => row.name.clone(),
        C::State => state(report.state).to_owned(),
        C::Mode => report
            .settings
            .as_ref()
            .map_or("-", |settings| mode(settings.mode))
            .to_owned(),
        C::Health => health(report).to_string(),
        _ => match &report.live {
            Some(live) => number(&Amounts::of(live, rates), column),
            None => "-".to_owned(),
        },
    }
}

/// What the numeric columns show, of one cache or of all.
#[derive(Debug, Default)]
struct Amounts {
    rates: Rates,
    dirty_bytes: u64,
    dirty_s: f64,
    effective_bytes: u64,
    capacity_bytes: u64,
    used_bytes: u64,
    errors: u64,
    clients: u64,
}

impl Amounts {
    fn of(live: &LiveReport, rates: &Rates) -> Self {
        Self {
            rates: rates.clone(),
            dirty_bytes: live.write_back.dirty_bytes,
            dirty_s: live.write_back.dirty_s,
            effective_bytes: live.space.effective_capacity_bytes,
            capacity_bytes: live.space.capacity_bytes,
            used_bytes: live.space.used_bytes,
            errors: errors(live),
            clients: live.nbd.iter().map(|nbd| u64::from(nbd.connections)).sum(),
        }
    }

    fn add(&mut self, other: &Self) {
        self.rates.add(&other.rates);
        self.dirty_s = self.dirty_s.max(other.dirty_s);
        for (sum, more) in [
            (&mut self.dirty_bytes, other.dirty_bytes),
            (&mut self.effective_bytes, other.effective_bytes),
            (&mut self.capacity_bytes, other.capacity_bytes),
            (&mut self.used_bytes, other.used_bytes),
            (&mut self.errors, other.errors),
            (&mut self.clients, other.clients),
        ] {
            *sum = sum.saturating_add(more);
        }
    }

    /// For sorting: not known is less than zero.
    fn value(&self, column: Column) -> f64 {
        let rates = &self.rates;
        let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
        match column {
            C::Name | C::State | C::Mode | C::Health => 0.0,
            C::Reads => rates.reads,
            C::Hits => rates.hit_share().unwrap_or(-1.0),
            C::Writes => rates.writes,
            C::Bytes => rates.read_bytes + rates.written_bytes,
            C::Latency => rates.latency_s(0.99).unwrap_or(-1.0),
            C::Dirty => self.dirty_bytes as f64,
            C::Age => self.dirty_s,
            C::Effective => share(self.effective_bytes, self.capacity_bytes)
                .filter(|ratio| *ratio > 0.0)
                .unwrap_or(-1.0),
            C::Full => share(self.used_bytes, self.capacity_bytes).unwrap_or(-1.0),
            C::Ssd => rates.cache_written_bytes,
            C::Errors => self.errors as f64,
            C::ReadBytes => rates.read_bytes,
            C::WrittenBytes => rates.written_bytes,
            C::OriginRead => rates.origin_read_bytes,
            C::OriginWritten => rates.origin_written_bytes,
            C::Cpu => rates.cpu,
            C::Clients => self.clients as f64,
        }
    }
}

fn number(amounts: &Amounts, column: Column) -> String {
    let value = amounts.value(column);
    if value < 0.0 {
        return "-".to_owned();
    }
    match column {
        C::Name | C::State | C::Mode | C::Health => String::new(),
        C::Reads | C::Writes | C::Errors | C::Clients => count(value),
        C::Hits | C::Full | C::Cpu => percent(value),
        C::Latency | C::Age => latency(value),
        C::Effective => ratio(value),
        C::Bytes | C::Dirty | C::Ssd | C::ReadBytes | C::WrittenBytes | C::OriginRead | C::OriginWritten => {
            bytes(value)
        }
    }
}

struct Total {
    amounts: Amounts,
    caches: usize,
}

impl Total {
    fn of(rows: &[Row]) -> Self {
        let mut amounts = Amounts::default();
        for row in rows {
            if let RowState::Answers(report, rates) = &row.state
                && let Some(live) = &report.live
            {
                amounts.add(&Amounts::of(live, rates));
            }
        }
        Self {
            amounts,
            caches: rows.len(),
        }
    }

    fn cell(&self, column: Column) -> String {
        match column {
            C::Name => "total".to_owned(),
            C::State => format!("({})", self.caches),
            C::Mode | C::Health => String::new(),
            column => number(&self.amounts, column),
        }
    }
}

fn compare(a: &Row, b: &Row, sort: Column, reversed: bool) -> Ordering {
    let value = |row: &Row| match &row.state {
        RowState::Answers(report, rates) => report
            .live
            .as_ref()
            .map_or(-2.0, |live| Amounts::of(live, rates).value(sort)),
        RowState::Silent(_) => -3.0,
    };
    let order = if sort.is_text() {
        cell(a, sort).cmp(&cell(b, sort))
    } else {
        value(b).total_cmp(&value(a))
    };
    let order = if reversed { order.reverse() } else { order };
    order.then_with(|| a.name.cmp(&b.name))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::report::example::example;

    fn row(name: &str, change: impl FnOnce(&mut StatusReport)) -> Row {
        let before = example();
        let mut now = example();
        change(&mut now);
        let (Some(old), Some(new)) = (&before.live, &now.live) else {
            panic!("a live report");
        };
        let rates = Rates::between(old, new, Duration::from_secs(1));
        Row {
            name: name.to_owned(),
            state: RowState::Answers(Box::new(now), rates),
        }
    }

    fn live(report: &mut StatusReport) -> &mut LiveReport {
        report.live.as_mut().unwrap()
    }

    fn rows() -> Vec<Row> {
        let busy = row("mail", |report| {
            let live = live(report);
            live.operations[0].count += 12_345;
            live.operations[0].bytes += 12_345 * 4096;
            live.operations[0].latency_counts[1] += 12_345;
            live.lookups.hit_blocks += 9;
            live.lookups.miss_blocks += 1;
            live.traffic.cache_written_bytes += 5 << 20;
        });
        let bypassed = row("a-cache-with-a-very-long-name-indeed-it-has", |report| {
            report.state = CacheState::Degraded;
            live(report).errors.cache_write_errors = 12_000;
        });
        let silent = Row {
            name: "db".to_owned(),
            state: RowState::Silent("silent"),
        };
        vec![busy, bypassed, silent]
    }

    #[test]
    fn a_line_for_each_cache_and_one_for_all() {
        let table = table(rows(), 80, Column::Name, false);
        assert_eq!(
            table.head,
            "CACHE         STATE   MODE READ/s HIT% WRIT/s   B/s   P99 DIRTY  EFF SSD/s  ERRS"
        );
        let lines: Vec<&str> = table.rows.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(
            lines,
            [
                "a-cache-with~ BYPASS  wt        0    -      0     0     - 10.0M 2.46     0 12.0K",
                "db            silent  -         -    -      -     -     -     -    -     -     -",
                "mail          running wt    12.3K  90%      0 48.2M 9.9ms 10.0M 2.46 5.00M     3",
            ]
        );
        let total = table.total.unwrap().text;
        assert_eq!(
            total,
            "total         (3)           12.3K  90%      0 48.2M 9.9ms 20.0M 2.46 5.00M 12.0K"
        );
        let levels = [HealthLevel::Failed, HealthLevel::Failed, HealthLevel::Warning];
        assert!(table.rows.iter().map(|line| line.level).eq(levels));
    }

    #[test]
    fn every_width_is_kept_and_used() {
        for width in [80, 81, 100, 132, 200, 300] {
            let table = table(rows(), width, Column::Name, false);
            let lines = table.rows.iter().chain(&table.total).map(|line| &line.text);
            for line in lines.chain([&table.head]) {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
        let wide = table(rows(), 200, Column::Name, false);
        assert!(
            wide.head.contains("ORIG WR/s") && wide.head.ends_with("HEALTH"),
            "{}",
            wide.head
        );
        assert!(
            wide.rows[0].text.contains("a-cache-with-a-very-long-name"),
            "{wide:?}"
        );
        assert!(
            wide.rows[0].text.contains("failed: dirty data is only on the"),
            "{wide:?}"
        );
        // A narrower terminal cuts lines; the table stays whole.
        assert_eq!(
            table(rows(), 20, Column::Name, false),
            table(rows(), 80, Column::Name, false)
        );
    }

    #[test]
    fn rows_are_sorted_by_the_column() {
        let order = |sort, reversed| -> Vec<String> {
            let sorted = table(rows(), 80, sort, reversed);
            sorted.rows.iter().map(|line| line.text[..2].to_owned()).collect()
        };
        assert_eq!(order(Column::Name, false), ["a-", "db", "ma"]);
        assert_eq!(order(Column::Reads, false), ["ma", "a-", "db"]);
        assert_eq!(order(Column::Errors, false), ["a-", "ma", "db"]);
        assert_eq!(order(Column::Errors, true), ["db", "ma", "a-"]);
        let mut column = Column::Name;
        for _ in 0..NARROW.len() {
            column = column.next();
        }
        assert_eq!(column, Column::Name, "all columns come around");
    }

    /// The daemon of another user could otherwise write to the terminal of root.
    #[test]
    fn names_do_not_control_the_terminal() {
        let hostile = row("a\u{1b}[2J\r\n\u{9b}31m", |report| {
            report.health = Some(Health {
                level: HealthLevel::Warning,
                reasons: vec!["\u{1b}]0;title\u{7}".to_owned()],
            });
        });
        let table = table(vec![hostile], 300, Column::Name, false);
        assert!(!table.rows[0].text.contains(char::is_control), "{table:?}");
        assert!(table.rows[0].text.starts_with("a?[2J???31m "), "{table:?}");
    }

    #[test]
    fn no_cache_has_an_empty_table() {
        let empty = table(Vec::new(), 80, Column::Name, false);
        assert!(empty.rows.is_empty() && empty.total.is_none());
    }
}
