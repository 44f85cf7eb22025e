//! Categories side by side, each with a slot for every series: shared by bar charts, strip plots and difference charts.

use std::collections::BTreeSet;

use flaz_page::drawing::{Drawing, Scale, round_step};

use super::chart::class;
use super::summary::{CellSummary, Source};
use crate::cell::Level;
use crate::input::SOURCES_MAX;
use crate::unit::{Rate, Unit, WholeBytes};

/// Maximum number of categories in one chart; further ones go to the next chart.
pub(super) const CATEGORIES_MAX: usize = 24;

const WIDTH_MIN: f64 = 560.0;
/// Approximate width of the page.
const WIDTH_WHOLE: f64 = 1090.0;
const PLOT_HEIGHT: f64 = 250.0;
/// Number of characters whose length is at most the height of a drawing.
const AXIS_TITLE_CHARS_MAX: usize = 44;
const LEFT: f64 = 74.0;
const RIGHT_MARGIN: f64 = 14.0;
/// Gap between two categories.
const GAP: f64 = 18.0;
const SLOT_MIN: f64 = 11.0;
const SLOT_MAX: f64 = 46.0;
/// Space for a category's name.
const CATEGORY_MIN: f64 = 58.0;
const LEGEND_LINE: f64 = 20.0;
/// Approximate width of a character in a legend.
const CHARACTER: f64 = 7.4;

/// A category on the axis.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Category {
    pub(super) record_bytes: u64,
    /// `None` if the levels are the series.
    pub(super) level: Option<LevelOrder>,
}

/// Levels from the most compressible on, then those with names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LevelOrder(pub(super) Level);

impl PartialOrd for LevelOrder {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LevelOrder {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        match (&self.0, &other.0) {
            (Level::Percent(one), Level::Percent(two)) => two.cmp(one),
            (one, two) => one.cmp(two),
        }
    }
}

/// Assigns cells to categories and series: with one source the levels are the series, otherwise the sources are.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) categories: Vec<Category>,
    pub(super) series: Vec<String>,
    levels: Option<Vec<LevelOrder>>,
}

impl Layout {
    /// For the cells of one test, in chunks of [`CATEGORIES_MAX`] categories.
    pub(super) fn of(sources: &[&Source], is_shown: &dyn Fn(&CellSummary) -> bool) -> Vec<Self> {
        let cells: Vec<&CellSummary> = sources
            .iter()
            .flat_map(|source| source.cells.iter().filter(|cell| is_shown(cell)))
            .collect();
        let by_level: BTreeSet<LevelOrder> = cells
            .iter()
            .map(|cell| LevelOrder(cell.key.level.clone()))
            .collect();
        let levels: Option<Vec<LevelOrder>> =
            (sources.len() == 1 && by_level.len() <= SOURCES_MAX).then(|| by_level.into_iter().collect());
        let categories: BTreeSet<Category> = cells
            .iter()
            .map(|cell| Category {
                record_bytes: cell.key.record_bytes,
                level: levels.is_none().then(|| LevelOrder(cell.key.level.clone())),
            })
            .collect();
        let categories: Vec<Category> = categories.into_iter().collect();
        let series: Vec<String> = match &levels {
            Some(levels) => levels.iter().map(|level| level.0.to_string()).collect(),
            None => sources.iter().map(|source| source.label.clone()).collect(),
        };
        categories
            .chunks(CATEGORIES_MAX)
            .map(|categories| Self {
                categories: categories.to_vec(),
                series: series.clone(),
                levels: levels.clone(),
            })
            .collect()
    }

    /// Category and series of a cell of source number `source`.
    pub(super) fn place(&self, source: usize, cell: &crate::cell::CellKey) -> Option<(usize, usize)> {
        let level = LevelOrder(cell.level.clone());
        let series = match &self.levels {
            Some(levels) => levels.iter().position(|known| *known == level)?,
            None => source,
        };
        let category = self.categories.iter().position(|category| {
            category.record_bytes == cell.record_bytes
                && category.level.as_ref().is_none_or(|known| *known == level)
        })?;
        Some((category, series))
    }

    /// Whether the names of categories have a second line.
    fn names_levels(&self) -> bool {
        self.levels.is_none()
    }
}

/// A drawing with the legend and the names of the categories, and the positions in it.
#[derive(Debug)]
pub(super) struct Grid {
    pub(super) drawing: Drawing,
    pub(super) top: f64,
    pub(super) bottom: f64,
    right: f64,
    category_width: f64,
    slot: f64,
}

impl Grid {
    /// For a layout; `description` is for screen readers.
    pub(super) fn new(layout: &Layout, description: &str) -> Self {
        let names: Vec<[String; 2]> = layout
            .categories
            .iter()
            .map(|category| {
                let level = category
                    .level
                    .as_ref()
                    .map_or_else(String::new, |level| level.0.to_string());
                [WholeBytes(category.record_bytes).to_string(), level]
            })
            .collect();
        Self::with_names(
            &layout.series,
            &names,
            layout.names_levels(),
            "record size",
            description,
        )
    }

    /// For any categories, each with a name of up to two lines.
    pub(super) fn with_names(
        series: &[String],
        names: &[[String; 2]],
        two_lines: bool,
        axis: &str,
        description: &str,
    ) -> Self {
        let categories = names.len().max(1) as f64;
        let in_each = series.len().max(1) as f64;
        let wanted = (WIDTH_MIN - LEFT - RIGHT_MARGIN) / categories - GAP;
        let slot = (wanted / in_each).clamp(SLOT_MIN, SLOT_MAX);
        let category_width = (slot * in_each + GAP).max(CATEGORY_MIN);
        let mut width = (LEFT + RIGHT_MARGIN + category_width * categories).max(WIDTH_MIN);
        if width > WIDTH_MIN {
            // Whether it has a row of the page of its own.
            width = width.max(WIDTH_WHOLE);
        }
        let category_width = (width - LEFT - RIGHT_MARGIN) / categories;
        let slot = ((category_width - GAP) / in_each).clamp(SLOT_MIN, SLOT_MAX);
        let lines = legend_lines(series, width);
        let top = 14.0 + LEGEND_LINE * lines.len() as f64;
        let bottom = top + PLOT_HEIGHT;
        let height = bottom + if two_lines { 62.0 } else { 46.0 };
        let mut grid = Self {
            drawing: Drawing::new(width, height, description),
            top,
            bottom,
            right: width - RIGHT_MARGIN,
            category_width,
            slot,
        };
        grid.legend(&lines);
        for (at, [first, second]) in names.iter().enumerate() {
            let middle = LEFT + category_width * (at as f64 + 0.5);
            grid.drawing
                .text("tick", "middle", (middle, bottom + 17.0), first);
            grid.drawing
                .text("tick", "middle", (middle, bottom + 33.0), second);
            if at > 0 {
                let edge = LEFT + category_width * at as f64;
                grid.drawing.line("grid faint", (edge, top), (edge, bottom));
            }
        }
        let axis = if two_lines {
            format!("{axis}, level")
        } else {
            axis.to_owned()
        };
        let middle = f64::midpoint(LEFT, grid.right);
        grid.drawing
            .text("axis-title", "middle", (middle, height - 8.0), &axis);
        grid
    }

    fn legend(&mut self, lines: &[Vec<(usize, &str, f64)>]) {
        for (line, items) in lines.iter().enumerate() {
            let y = LEGEND_LINE * line as f64 + 6.0;
            for (series, name, x) in items {
                let shape = format!("bar {}", class(*series));
                self.drawing.rectangle(&shape, (*x, y), (12.0, 12.0), name);
                self.drawing
                    .text("legend-text", "start", (x + 17.0, y + 10.5), name);
            }
        }
    }

    /// Start and width of the slot of a series in a category.
    pub(super) fn slot(&self, category: usize, series: usize, in_each: usize) -> (f64, f64) {
        let middle = LEFT + self.category_width * (category as f64 + 0.5);
        let from = middle - self.slot * in_each as f64 / 2.0;
        (from + self.slot * series as f64, self.slot)
    }

    /// The vertical axis from `least` to `most`, with grid lines; `label` formats a value.
    pub(super) fn y_axis(
        &mut self,
        (least, most): (f64, f64),
        title: &str,
        label: &dyn Fn(f64) -> String,
    ) -> Scale {
        let span = (most - least).max(f64::MIN_POSITIVE);
        let step = round_step(span, 6);
        let (low, high) = (
            (least / step - 1e-9).ceil() as i64,
            (most / step + 1e-9).floor() as i64,
        );
        let y = Scale {
            least,
            most,
            from: self.bottom,
            to: self.top,
            logarithmic: false,
        };
        for tick in low..=high {
            let value = tick as f64 * step;
            let place = y.at(value);
            let class = if tick == 0 { "axis" } else { "grid" };
            self.drawing.line(class, (LEFT, place), (self.right, place));
            self.drawing
                .text("tick", "end", (LEFT - 7.0, place + 4.0), &label(value));
        }
        let middle = f64::midpoint(self.top, self.bottom);
        self.drawing
            .upright_text("axis-title", "middle", (13.0, middle), title);
        y
    }

    /// A line over the full width.
    pub(super) fn level_line(&mut self, class: &str, y: f64) {
        self.drawing.line(class, (LEFT, y), (self.right, y));
    }

    /// A band over the full width.
    pub(super) fn band(&mut self, class: &str, (top, bottom): (f64, f64), title: &str) {
        self.drawing
            .rectangle(class, (LEFT, top), (self.right - LEFT, bottom - top), title);
    }
}

/// The items of a legend by line: series, name, position.
fn legend_lines(series: &[String], width: f64) -> Vec<Vec<(usize, &str, f64)>> {
    let mut lines: Vec<Vec<(usize, &str, f64)>> = Vec::new();
    let mut x = LEFT;
    for (at, name) in series.iter().enumerate() {
        let wide = 40.0 + CHARACTER * name.chars().count() as f64;
        if lines.is_empty() || x + wide > width && x > LEFT {
            lines.push(Vec::new());
            x = LEFT;
        }
        if let Some(line) = lines.last_mut() {
            line.push((at, name, x));
        }
        x += wide;
    }
    lines
}

/// Format of the values on an axis: divisor and unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AxisUnit {
    pub(super) divisor: f64,
    pub(super) name: &'static str,
}

/// Largest number on an axis: more digits do not fit beside it.
const AXIS_NUMBER_MAX: f64 = 20_000.0;

impl AxisUnit {
    /// For several axes whose largest values are from `least` to `most`: the unit of the smallest one, unless the numbers of
    /// the largest one become too long.
    pub(super) fn common(unit: Unit, least: f64, most: f64) -> Self {
        let (step, names): (f64, &[&'static str]) = match unit {
            Unit::BytesPerSecond => (1024.0, &["B/s", "KiB/s", "MiB/s", "GiB/s", "TiB/s"]),
            Unit::OperationsPerSecond => (1000.0, &["IOPS", "thousand IOPS", "million IOPS"]),
        };
        let mut divisor = 1.0;
        let mut at = 0;
        let too_small = |divisor: f64| least / divisor >= step * 2.0 || most / divisor > AXIS_NUMBER_MAX;
        while too_small(divisor) && at + 1 < names.len() {
            divisor *= step;
            at += 1;
        }
        Self {
            divisor,
            name: names[at],
        }
    }
}

/// A number without trailing zeros.
pub(super) fn plain(value: f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" {
        "0".to_owned()
    } else {
        text.to_owned()
    }
}

/// A value as in tables.
pub(super) fn rate(value: f64, unit: Unit) -> String {
    Rate { value, unit }.to_string()
}

/// The end of an axis that starts at 0, rounded up to a grid line.
pub(super) fn round_most(most: f64) -> f64 {
    let step = round_step(most.max(f64::MIN_POSITIVE), 6);
    (most / step - 1e-9).ceil().max(1.0) * step
}
/// Title of an axis: test and unit, or only the unit if both do not fit; the drawing's title has the test.
pub(super) fn axis_title(test: &str, what: &str) -> String {
    let whole = format!("{test}, {what}");
    if whole.chars().count() > AXIS_TITLE_CHARS_MAX {
        return what.to_owned();
    }
    whole
}
