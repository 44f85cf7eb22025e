//! The cells of a report as one table.

use super::csv::Csv;
use super::rates;
use super::summary::Report;

/// Every cell of a report in one table; the columns of a published table come first.
#[must_use]
pub fn cells_csv(report: &Report) -> String {
    let mut csv = Csv::new(&rates::COLUMNS);
    for source in report.all() {
        for cell in source.cells.iter().filter(|cell| cell.mean.is_some()) {
            csv.row(&rates::fields(source, cell));
        }
    }
    csv.finish()
}
