//! What a file says beside its numbers: where, when and on what data they were measured.

use serde::Serialize;
use serde_json::Value;

use crate::campaign_file::{Achieved, Campaign};
use crate::cell::CellKey;
use crate::import::Imported;
use crate::layout::decimal_bytes;

/// What a file says beside its numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Background {
    /// What the user calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Names with values, in an order to be read.
    pub environment: Vec<(String, String)>,
    /// For each cell, what codecs made of its data.
    #[serde(skip)]
    pub achieved: Vec<(CellKey, Achieved)>,
    /// For each cell, the how-manieth run of the campaign each of its samples was.
    #[serde(skip)]
    pub orders: Vec<(CellKey, Vec<u32>)>,
    /// What one should know before one believes the numbers.
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
            orders: ordered
                .map(|cell| (cell.key.clone(), cell.order.clone()))
                .collect(),
            environment: lines,
            notes: Vec::new(),
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

/// A value as one would say it.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}
