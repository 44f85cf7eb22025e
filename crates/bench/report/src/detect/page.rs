//! The result as text.

use std::fmt::Write;

use super::verdict::{Answer, CaveatState, Question};
use super::{Detection, MARGIN_PCT, SMALL_PCT};
use crate::layout::{Align, Style, Table, p_value, paint};
use crate::unit::{Rate, Unit};

impl Detection {
    /// The page.
    #[must_use]
    pub fn text(&self, colour: bool) -> String {
        let random = Rate {
            value: self.random_bytes_per_s,
            unit: Unit::BytesPerSecond,
        };
        let mut text = format!(
            "{}: {} rounds, random data at {random}\n\n",
            paint(&self.target, Style::Bold, colour),
            self.rounds
        );
        text.push_str(&self.effects_table(colour));
        text.push('\n');
        self.write_findings(&mut text, colour);
        self.write_caveats(&mut text, colour);
        let reading = self.reading();
        let _ = writeln!(text, "\n{}", paint(&reading, Style::Dim, colour));
        text
    }

    /// Whether the device reports what it stores.
    fn reports_kept(&self) -> bool {
        self.effects.iter().any(|effect| effect.kept.is_some())
    }

    fn effects_table(&self, colour: bool) -> String {
        let told = self.reports_kept();
        let mut heads = vec![
            ("data", Align::Left),
            ("relative to random", Align::Right),
            ("95 % interval", Align::Left),
            ("adj. p", Align::Right),
        ];
        if told {
            heads.push(("kept", Align::Right));
        }
        heads.push(("", Align::Left));
        let mut table = Table::new(heads);
        for effect in &self.effects {
            let (word, style) = match () {
                () if effect.is_proven() && told => ("less", Style::Green),
                () if effect.is_proven() => ("faster", Style::Green),
                () if effect.is_excluded() => ("the same", Style::Plain),
                () => ("unclear", Style::Yellow),
            };
            let mut row = vec![
                (effect.pattern.to_string(), Style::Plain),
                (format!("{:.2}", effect.ratio), Style::Plain),
                (format!("{:.2} to {:.2}", effect.low, effect.high), Style::Plain),
                (p_value(effect.p), Style::Plain),
            ];
            if told {
                let kept = effect.kept.map_or_else(String::new, |kept| format!("{kept:.2}"));
                row.push((kept, Style::Plain));
            }
            row.push((word.to_owned(), style));
            table.push(row);
        }
        table.text(colour)
    }

    fn write_findings(&self, text: &mut String, colour: bool) {
        // Writing to a String cannot fail.
        for finding in &self.findings {
            let confidence = finding.confidence.map_or_else(String::new, |confidence| {
                format!(", confidence {}", percent(confidence))
            });
            let _ = writeln!(
                text,
                "{}: {}{confidence}\n    {}",
                words(finding.question),
                paint(answer_word(finding.answer), Style::Bold, colour),
                finding.reason
            );
        }
    }

    fn write_caveats(&self, text: &mut String, colour: bool) {
        text.push_str("\nPossible confounders:\n");
        for caveat in &self.caveats {
            let (word, style) = match caveat.state {
                CaveatState::RuledOut => ("ruled out", Style::Plain),
                CaveatState::Possible => ("possible", Style::Yellow),
                CaveatState::Present => ("yes", Style::Red),
                CaveatState::Unknown => ("unknown", Style::Yellow),
            };
            let _ = writeln!(
                text,
                "  {}: {}; {}",
                caveat.cause,
                paint(word, style, colour),
                caveat.reason
            );
        }
    }

    /// How to read the words of the table.
    fn reading(&self) -> String {
        if self.reports_kept() {
            format!(
                "Kept: the share that the device reports as stored, which decides, because rates of a memory \
                 device are those of the processor. Less: below {:.2}.",
                1.0 / (1.0 + MARGIN_PCT / 100.0)
            )
        } else {
            format!(
                "Faster: a gain above {MARGIN_PCT} % is significant over all kinds of data (Holm, below 1 %), \
                 and again in as many further rounds. The same: a gain above {SMALL_PCT} % is excluded."
            )
        }
    }
}

fn percent(confidence: f64) -> String {
    if confidence > 0.9999 {
        "above 99.99 %".to_owned()
    } else {
        format!("{:.2} %", 100.0 * confidence)
    }
}

fn words(question: Question) -> &'static str {
    match question {
        Question::Compresses => "Compresses",
        Question::ElidesZeros => "Elides zeros",
        Question::Deduplicates => "Deduplicates",
        Question::EntropyStage => "Has an entropy stage",
        Question::Unit => "Unit of compression",
        Question::Window => "Window of compression",
    }
}

fn answer_word(answer: Answer) -> &'static str {
    match answer {
        Answer::Yes => "yes",
        Answer::No => "no",
        Answer::Unclear => "unclear",
    }
}
