//! Information in a file besides its numbers: where, when and with which data they were measured.

use serde::Serialize;
use serde_json::Value;

use crate::campaign_file::{Achieved, Campaign, CampaignCell, Duplicates};
use crate::cell::{CellKey, Level};
use crate::import::Imported;
use crate::layout::decimal_bytes;
use crate::unit::WholeBytes;

/// Information in a file besides its numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Background {
    /// Name given by the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Names with values, in display order.
    pub environment: Vec<(String, String)>,
    /// For each cell, the savings of codecs on its data.
    #[serde(skip)]
    pub achieved: Vec<(CellKey, Achieved)>,
    /// For each cell, the share of duplicates in its data.
    #[serde(skip)]
    pub duplicates: Vec<(CellKey, Duplicates)>,
    /// For each cell, the number in the campaign of the run that produced each sample.
    #[serde(skip)]
    pub orders: Vec<(CellKey, Vec<u32>)>,
    /// Limits of the results that a reader should know.
    pub notes: Vec<String>,
}

impl Background {
    pub(crate) fn of_campaign(campaign: &Campaign) -> Self {
        let environment = &campaign.environment;
        let mut lines: Vec<(String, String)> = Vec::new();
        let mut tell = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                lines.push((name.to_owned(), value));
            }
        };
        tell("device", environment.device_model.clone());
        tell("firmware", environment.device_firmware.clone());
        tell("file system", environment.file_system.clone());
        tell("mount options", environment.mount_options.clone());
        tell("free space", environment.free_bytes.map(decimal_bytes));
        tell("kernel", environment.kernel.clone());
        tell("processor", environment.cpu.clone());
        tell("governor", environment.governor.clone());
        tell("memory", environment.memory_bytes.map(decimal_bytes));
        for (name, value) in &environment.other {
            tell(&name.replace('_', " "), text_of(value));
        }
        tell("measured by", campaign.program.clone());
        tell("began", campaign.started.clone());
        tell("seed", Some(campaign.seed.to_string()));
        let achieved = campaign.cells.iter().flat_map(|cell| {
            let key = cell.key.clone();
            cell.achieved
                .iter()
                .map(move |achieved| (key.clone(), achieved.clone()))
        });
        let ordered = campaign
            .cells
            .iter()
            .filter(|cell| cell.order.len() == cell.samples.len());
        Self {
            name: campaign.name.clone(),
            achieved: achieved.collect(),
            duplicates: campaign
                .cells
                .iter()
                .filter_map(|cell| Some((cell.key.clone(), cell.duplicates?)))
                .collect(),
            orders: ordered
                .map(|cell| (cell.key.clone(), cell.order.clone()))
                .collect(),
            environment: lines,
            notes: notes_of(&campaign.cells),
        }
    }

    pub(crate) fn of_import(imported: &mut Imported) -> Self {
        Self {
            environment: std::mem::take(&mut imported.environment),
            notes: std::mem::take(&mut imported.notes),
            ..Self::default()
        }
    }
}

/// What the campaign recorded about its own cells.
fn notes_of(cells: &[CampaignCell]) -> Vec<String> {
    let mut notes = Vec::new();
    let drifts = || {
        let drifting = |cell: &'_ CampaignCell| cell.drift.map(|drift| drift.change_pct);
        cells.iter().filter_map(move |cell| Some((cell, drifting(cell)?)))
    };
    if let Some((cell, change)) = drifts().max_by(|a, b| a.1.abs().total_cmp(&b.1.abs())) {
        notes.push(format!(
            "{} of {} cells drifted significantly from the first run to the last; the largest drift is {}, by \
             {change:+.1} %.",
            drifts().count(),
            cells.len(),
            cell.key
        ));
    }
    let restless = cells.iter().filter(|cell| cell.steady == Some(false)).count();
    if restless > 0 {
        notes.push(format!(
            "{restless} of {} cells were not in steady state (SNIA) in their last five runs.",
            cells.len()
        ));
    }
    let excess = |cell: &CampaignCell| {
        let pairs = cell.naive.iter().zip(&cell.samples);
        pairs
            .filter(|(_, sample)| **sample > 0.0)
            .map(|(naive, sample)| naive / sample)
            .max_by(f64::total_cmp)
    };
    let naive = cells.iter().filter_map(|cell| Some((cell, excess(cell)?)));
    if let Some((cell, most)) = naive.max_by(|a, b| a.1.total_cmp(&b.1)) {
        notes.push(format!(
            "Several writers: rates are all bytes from the first start to the last end. The sum of the \
             writers' own rates (the naive bandwidth) is up to {most:.2} times that, in {}.",
            cell.key
        ));
    }
    notes.extend(duplicates_note(cells));
    notes
}

/// The duplicates that a device can find, if there are more than a reader expects.
#[must_use]
pub fn duplicates_note(cells: &[CampaignCell]) -> Option<String> {
    // Zeroes are known to be equal.
    let zeros = Level::Named("zeros".to_owned());
    let all: Vec<Duplicates> = cells
        .iter()
        .filter(|cell| cell.key.level != zeros)
        .filter_map(|cell| cell.duplicates)
        .collect();
    let telling = |found: &&Duplicates| found.requested_pct > 0.0 || found.begins_anew();
    let first = all.iter().find(telling)?;
    let between = |share: fn(&Duplicates) -> f64| {
        let shares = || all.iter().map(share);
        let texts = [
            shares().fold(f64::INFINITY, f64::min),
            shares().fold(f64::NEG_INFINITY, f64::max),
        ]
        .map(|share| format!("{share:.1}"));
        match texts {
            [least, most] if least == most => format!("{least} %"),
            [least, most] => format!("{least} to {most} %"),
        }
    };
    let mut note = format!(
        "Duplicates: {} % requested; {} of the blocks of {} equal an earlier one of the {} that are generated",
        first.requested_pct,
        between(|found| found.pool_pct),
        WholeBytes(first.block_bytes),
        decimal_bytes(first.pool_bytes)
    );
    if first.begins_anew() {
        note.push_str(&format!(
            ". A pass writes {}, which repeats these, so that {} of its blocks are duplicates: a device that \
             deduplicates over that distance finds them all",
            decimal_bytes(first.pass_bytes),
            between(|found| found.pass_pct),
        ));
    }
    Some(note + ".")
}

/// Formats a value.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign_file::Drift;

    #[test]
    fn findings_of_a_campaign_are_noted() {
        let cell = |test| CampaignCell::new(test, 4096, "50".parse().unwrap(), vec![100.0, 200.0]);
        let mut cells = vec![cell("read"), cell("write"), cell("reread")];
        assert_eq!(notes_of(&cells), [""; 0]);
        for (at, change_pct) in [(0, 3.0), (1, -12.5)] {
            cells[at].drift = Some(Drift {
                change_pct,
                adjusted_p: 0.01,
            });
        }
        cells[2].steady = Some(false);
        cells[0].steady = Some(true);
        cells[1].naive = vec![110.0, 250.0];
        let notes = notes_of(&cells);
        assert_eq!(notes.len(), 3, "{notes:?}");
        assert!(
            notes[0].starts_with("2 of 3 cells drifted") && notes[0].contains("-12.5 %"),
            "{notes:?}"
        );
        assert!(notes[1].starts_with("1 of 3 cells"), "{notes:?}");
        assert!(
            notes[2].contains("up to 1.25 times") && notes[2].contains("write"),
            "{notes:?}"
        );
    }

    #[test]
    fn duplicates_are_noted_if_there_are_any() {
        let cell = |level: &str, duplicates| {
            let mut cell = CampaignCell::new("write", 4096, level.parse().unwrap(), vec![1.0, 2.0]);
            cell.duplicates = duplicates;
            cell
        };
        let of = |requested_pct, pass_bytes, pool_pct, pass_pct| {
            Some(Duplicates {
                block_bytes: 4096,
                requested_pct,
                pool_bytes: 256 << 20,
                pool_pct,
                pass_bytes,
                pass_pct,
            })
        };
        let unique = of(0.0, 256 << 20, 0.0, 0.0);
        let zeros = of(0.0, 1 << 30, 100.0, 100.0);
        assert_eq!(
            duplicates_note(&[cell("50", None), cell("2", unique), cell("zeros", zeros)]),
            None
        );
        let asked = of(20.0, 256 << 20, 19.7, 19.7);
        assert_eq!(
            duplicates_note(&[cell("50", asked)]).unwrap(),
            "Duplicates: 20 % requested; 19.7 % of the blocks of 4 KiB equal an earlier one of the 256 MiB that are generated."
        );
        let anew = [of(0.0, 1 << 30, 0.0, 75.0), of(0.0, 1 << 30, 0.5, 75.2)];
        let note = duplicates_note(&[cell("2", anew[0]), cell("98", anew[1]), cell("zeros", zeros)]).unwrap();
        for part in [
            " 0 % requested; 0.0 to 0.5 %",
            "writes 1.0 GiB",
            "75.0 to 75.2 % of its blocks",
        ] {
            assert!(note.contains(part), "no '{part}' in {note}");
        }
    }
}
