//! The report for a terminal.

use std::fmt::Write;

use flaz_bench::layout::{Align, Style, Table, decimal_bytes, paint};
use flaz_page::text::wrapped;

use super::evaluation::{Data, Evaluation};
use super::published::{Campaign, Standing};

/// Columns of a line of text.
const COLUMNS: usize = 120;

impl Evaluation {
    /// The report.
    #[must_use]
    pub fn text(&self, colour: bool) -> String {
        let mut text = format!(
            "{}\n{}\n\n",
            paint(&self.device.title, Style::Bold, colour),
            self.summary()
        );
        text.push_str(&self.rates_table(colour));
        text.push_str(&format!(
            "\n{}\n",
            paint("One request at a time, MB/s: write / read", Style::Bold, colour)
        ));
        text.push_str(&self.records_table(colour));
        text.push_str(&format!(
            "\n{}\n",
            paint("Uniform random writes to a full device", Style::Bold, colour)
        ));
        text.push_str(&self.life_table(colour));
        if let Some(campaign) = &self.published {
            text.push_str(&campaign.text(colour));
        }
        text
    }

    /// The device in a line.
    #[must_use]
    pub fn summary(&self) -> String {
        let device = &self.device;
        format!(
            "{:.0} GB for the host on {} of flash; {} in units of {} KiB, at least {:.0} % of a unit is stored; flash at {:.0} MB/s",
            device.user_bytes() as f64 / 1e9,
            decimal_bytes(device.flash_bytes()),
            device.controller.engine,
            device.controller.unit_kib,
            device.controller.lowest_fraction * 100.0,
            self.flash_mb_per_s
        )
    }

    fn rates_table(&self, colour: bool) -> String {
        let mut table = Table::new(vec![
            ("data", Align::Left),
            ("stored", Align::Right),
            ("write MB/s", Align::Right),
            ("full, at random", Align::Right),
            ("read MB/s", Align::Right),
        ]);
        for data in &self.data {
            table.push(plain([
                data.name.clone(),
                format!("{:.2}", data.stored_fraction),
                format!("{:.1}", data.write_mb_per_s),
                format!("{:.1}", data.write_full_mb_per_s),
                format!("{:.1}", data.read_mb_per_s),
            ]));
        }
        table.text(colour)
    }

    /// The record sizes, as heads of columns.
    pub(super) fn record_heads(&self) -> &'static [&'static str] {
        const HEADS: [&str; 6] = ["4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB", "4 MiB"];
        let shown = self.data.first().map_or(0, |data| data.records.len());
        &HEADS[HEADS.len() - shown..]
    }

    fn records_table(&self, colour: bool) -> String {
        let mut heads = vec![("data", Align::Left)];
        heads.extend(self.record_heads().iter().map(|head| (*head, Align::Right)));
        let mut table = Table::new(heads);
        for data in &self.data {
            let rates = data
                .records
                .iter()
                .map(|record| format!("{:.0} / {:.0}", record.write_mb_per_s, record.read_mb_per_s));
            table.push(plain([data.name.clone()].into_iter().chain(rates)));
        }
        table.text(colour)
    }

    fn life_table(&self, colour: bool) -> String {
        let mut table = Table::new(vec![
            ("data", Align::Left),
            ("cleaning", Align::Right),
            ("closed form", Align::Right),
            ("write amplification", Align::Right),
            ("life", Align::Right),
            ("$ per effective GB", Align::Right),
            ("$ per written TB", Align::Right),
        ]);
        for data in &self.data {
            table.push(plain([
                data.name.clone(),
                format!("{:.2}", data.cleaning_simulated),
                format!("{:.2}", data.cleaning_closed_form),
                format!("{:.2}", data.write_amplification),
                life(data),
                dollars(data.price_per_effective_gb_usd),
                dollars(data.price_per_written_tb_usd),
            ]));
        }
        let day = self.written_bytes_per_day as f64 / 1e9;
        format!(
            "{}Life at {day} GB a day. Effective: data in the flash, compressed.\n",
            table.text(colour)
        )
    }
}

/// The life of a device: bytes, and years.
#[must_use]
pub fn life(data: &Data) -> String {
    let years = match data.life_years {
        years if years >= 99.95 => format!("{years:.0}"),
        years => format!("{years:.1}"),
    };
    format!("{:.0} TB, {years} years", data.life_bytes / 1e12)
}

/// A difference in percent; zero has no sign.
pub(super) fn difference(percent: f64) -> String {
    match format!("{percent:+.1}").as_str() {
        "+0.0" | "-0.0" => "0.0 %".to_owned(),
        text => format!("{text} %"),
    }
}

/// A price, if it is known.
#[must_use]
pub fn dollars(price: Option<f64>) -> String {
    price.map_or_else(|| "-".to_owned(), |price| format!("{price:.2}"))
}

fn plain(fields: impl IntoIterator<Item = String>) -> Vec<(String, Style)> {
    fields.into_iter().map(|field| (field, Style::Plain)).collect()
}

impl Campaign {
    fn text(&self, colour: bool) -> String {
        let mut text = format!(
            "\n{}\n{}\n",
            paint("Published figures and the model", Style::Bold, colour),
            self.title
        );
        let mut table = Table::new(vec![
            ("test", Align::Left),
            ("data", Align::Left),
            ("stored", Align::Right),
            ("published MB/s", Align::Right),
            ("predicted", Align::Right),
            ("difference", Align::Right),
            ("", Align::Left),
        ]);
        for figure in &self.figures {
            let style = match figure.standing {
                Standing::Agrees => Style::Green,
                Standing::Differs => Style::Red,
                _ => Style::Dim,
            };
            let mut row = plain([
                figure.test.clone(),
                figure.data.clone(),
                format!("{:.2}", figure.stored_fraction),
                format!("{:.1}", figure.published_mb_per_s),
                format!("{:.1}", figure.predicted_mb_per_s),
                difference(figure.difference_pct),
            ]);
            row.push((figure.standing.to_string(), style));
            table.push(row);
        }
        text.push_str(&table.text(colour));
        let _ = writeln!(text, "{}", self.verdict());
        for reason in self.reasons() {
            let _ = writeln!(text, "{}", wrapped(&reason, COLUMNS));
        }
        for line in &self.fitted {
            let _ = writeln!(text, "{}", wrapped(line, COLUMNS));
        }
        text
    }

    /// How many figures agree, and how well.
    #[must_use]
    pub fn verdict(&self) -> String {
        let compared = self.count(Standing::Agrees) + self.count(Standing::Differs);
        format!(
            "{} of {compared} compared figures agree within {} %; the largest difference is {:.1} %.",
            self.count(Standing::Agrees),
            self.within_pct,
            self.largest_difference_pct()
        )
    }

    /// Why figures are not compared: each reason once, with their number.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        let mut reasons: Vec<(Standing, &str, usize)> = Vec::new();
        for figure in &self.figures {
            let Some(reason) = figure.reason else { continue };
            match reasons.iter_mut().find(|(_, known, _)| *known == reason) {
                Some((_, _, count)) => *count += 1,
                None => reasons.push((figure.standing, reason, 1)),
            }
        }
        let line =
            |(standing, reason, count): &(Standing, &str, usize)| format!("{standing} ({count}): {reason}.");
        reasons.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::evaluation::tests::of;

    #[test]
    fn the_report_has_every_table_and_says_what_was_fitted() {
        let text = of("sf1222").text(false);
        for part in [
            "SandForce SF-1222, 60 GB, MLC\n60 GB for the host on 64.0 GiB of flash; lz4 in units of 4 KiB",
            "98 %    0.14       275.0",
            "$ per effective GB",
            "Life at 20 GB a day.",
            "42 of 42 compared figures agree within 5 %",
            "artefact (6): above the speed of the link",
            "slower than data of which the flash stores more",
            "Fitted: the two numbers of reads",
            " 256 KiB      1 MiB      4 MiB",
            "196.6       0.0 %  fitted",
        ] {
            assert!(text.contains(part), "no '{part}' in\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 140), "{text}");
        assert!(!text.contains('\x1b') && of("sf1222").text(true).contains('\x1b'));
        let raid = of("sf1200x2-raid0").text(false);
        assert!(
            raid.contains("3 of 3 compared figures agree within 10 %"),
            "{raid}"
        );
        assert!(!of("sf1222-raw").text(false).contains("Published"));
    }
}
