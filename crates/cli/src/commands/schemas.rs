//! The JSON schema of each command's JSON, from the types that it prints. `docs/json` has them; a test keeps it up to date.

use flaz_bench::campaign_file::Campaign;
use flaz_bench::claim::ClaimsReport;
use flaz_bench::comparison::Comparison;
use flaz_bench::detect::Detection;
use flaz_bench::report::Report;
use flaz_data::page::DataReport;
use flaz_data::study::StudyReport;
use flaz_demo::Outcome;
use flaz_engine::settings::Settings;
use flaz_evaluate::report::EvaluationReport;
use flaz_lab::record::RecordReport;
use flaz_lab::ssd::evaluation::Evaluation;
use flaz_replay::report::ReplayReport;
use schemars::generate::SchemaSettings;
use schemars::transform::transform_subschemas;
use schemars::{JsonSchema, Schema};
use serde_json::Value;

use super::list::ListReport;
use crate::report::{
    AdviseReport, CheckReport, CreateReport, DumpRecord, FlushReport, RemovedDeviceReport, ResizeReport,
    SharedReport, StatusReport, VolumeResizeReport, VolumesReport,
};

/// The end of the name of a schema's file, after the words of the command.
pub const SUFFIX: &str = ".schema.json";

/// What `flaz create` prints: with `--shared`, of a device that volumes share.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
enum Created {
    Cache(CreateReport),
    Shared(SharedReport),
}

/// What `flaz resize` prints: of a cache, or of a device that volumes share.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
enum Resized {
    Cache(ResizeReport),
    Shared(SharedReport),
}

/// Every command with JSON, its words joined by `-`, and the schema of what it prints: one value, or one for each line.
#[must_use]
pub fn schemas() -> Vec<(&'static str, Schema)> {
    vec![
        ("create", of::<Created>()),
        ("status", of::<StatusReport>()),
        ("advise", of::<AdviseReport>()),
        ("list", of::<ListReport>()),
        ("set", of::<Settings>()),
        ("flush", of::<FlushReport>()),
        ("resize", of::<Resized>()),
        ("volume-add", of::<CreateReport>()),
        ("volume-list", of::<VolumesReport>()),
        ("volume-resize", of::<VolumeResizeReport>()),
        ("remove-device", of::<RemovedDeviceReport>()),
        ("check", of::<CheckReport>()),
        ("dump", of::<DumpRecord>()),
        ("demo", of::<Outcome>()),
        ("bench-run", of::<Campaign>()),
        ("bench-compare", of::<Comparison>()),
        ("bench-report", of::<Report>()),
        ("bench-claim", of::<ClaimsReport>()),
        ("bench-detect", of::<Detection>()),
        ("bench-data", of::<DataReport>()),
        ("study", of::<StudyReport>()),
        ("lab-ssd", of::<Evaluation>()),
        ("lab-evaluate", of::<EvaluationReport>()),
        ("lab-record", of::<RecordReport>()),
        ("lab-replay", of::<ReplayReport>()),
    ]
}

/// Describes the output: a field that is always printed is required, even if it has a default when it is read.
fn of<T: JsonSchema>() -> Schema {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    without_links(&mut schema);
    schema
}

/// Descriptions are those of the types; their links lead nowhere here.
fn without_links(schema: &mut Schema) {
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace("[`", "`").replace("`]", "`");
    }
    transform_subschemas(&mut without_links, schema);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{Command, CommandFactory};

    use super::*;
    use crate::args::Cli;

    /// Commands with `--json`, their words joined by `-`.
    fn with_json(command: &Command, before: &str, found: &mut BTreeSet<String>) {
        for inner in command.get_subcommands() {
            let name = format!("{before}{}", inner.get_name());
            with_json(inner, &format!("{name}-"), found);
            if inner.get_arguments().any(|arg| arg.get_id() == "json") {
                found.insert(name);
            }
        }
    }

    #[test]
    fn every_command_with_json_has_a_schema() {
        let mut expected = BTreeSet::new();
        with_json(&Cli::command(), "", &mut expected);
        let schemas = schemas();
        let found: BTreeSet<String> = schemas.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(found.len(), schemas.len(), "each once");
        assert_eq!(found, expected);
    }
}
