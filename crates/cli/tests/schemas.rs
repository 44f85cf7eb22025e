//! The JSON of every command is described by a schema in `docs/json`, which is the one of the types, and which what the program
//! prints follows: every field is described, has its type, and is there if the schema says so.
//!
//! The check of a value knows as much of JSON Schema as the schemas use, and refuses a keyword that it does not know.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use flaz_cli::control::{Asker, ControlHandler, Reply, Request, Server};
use flaz_cli::report::example::example;
use flaz_cli::report::{FrontEndSizeReport, VolumeResizeReport};
use serde_json::{Map, Value};

const SUFFIX: &str = ".schema.json";

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json")
}

fn schema(command: &str) -> Value {
    let path = docs().join(format!("{command}{SUFFIX}"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// Keywords that say nothing about a value.
const NOTES: [&str; 6] = ["$schema", "title", "description", "$defs", "default", "format"];

/// Fields that the schemas of one object describe together; `true`: any other as well.
#[derive(Default)]
struct Fields<'a> {
    known: BTreeMap<&'a str, &'a Value>,
    others: Option<&'a Value>,
}

struct Check<'a> {
    root: &'a Value,
}

impl<'a> Check<'a> {
    fn resolve(&self, schema: &'a Value) -> &'a Value {
        match schema.get("$ref").and_then(Value::as_str) {
            Some(reference) => {
                let pointer = reference.strip_prefix('#').expect("a reference in the same file");
                self.root
                    .pointer(pointer)
                    .unwrap_or_else(|| panic!("nothing at {reference}"))
            }
            None => schema,
        }
    }

    /// Why `value` does not follow `schema`.
    fn objection(&self, schema: &'a Value, value: &Value, place: &str) -> Option<String> {
        let keywords = match schema {
            Value::Bool(true) => return None,
            Value::Object(keywords) => keywords,
            other => return Some(format!("{place}: schema {other}")),
        };
        let mut objections = keywords.iter().filter_map(|(keyword, rule)| {
            let wrong = |why: String| Some(format!("{place}: {why}"));
            match keyword.as_str() {
                note if NOTES.contains(&note) => None,
                "$ref" => self.objection(self.resolve(schema), value, place),
                "type" => {
                    let types: Vec<&str> = match rule {
                        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
                        one => one.as_str().into_iter().collect(),
                    };
                    let fits = types.iter().any(|name| is_of(value, name));
                    if fits {
                        None
                    } else {
                        wrong(format!("{value} is not {types:?}"))
                    }
                }
                "enum" => match rule.as_array().is_some_and(|values| values.contains(value)) {
                    true => None,
                    false => wrong(format!("{value} is none of {rule}")),
                },
                "const" if rule == value => None,
                "const" => wrong(format!("{value} is not {rule}")),
                "minimum" | "maximum" => {
                    let (Some(found), Some(limit)) = (value.as_f64(), rule.as_f64()) else {
                        return None;
                    };
                    let fits = if keyword == "minimum" {
                        found >= limit
                    } else {
                        found <= limit
                    };
                    if fits {
                        None
                    } else {
                        wrong(format!("{found}: {keyword} {limit}"))
                    }
                }
                "minItems" | "maxItems" => {
                    let (count, limit) = (value.as_array()?.len() as u64, rule.as_u64()?);
                    let fits = if keyword == "minItems" {
                        count >= limit
                    } else {
                        count <= limit
                    };
                    if fits {
                        None
                    } else {
                        wrong(format!("{count} items: {keyword} {limit}"))
                    }
                }
                "required" => {
                    let fields = value.as_object()?;
                    let names = rule.as_array()?.iter().filter_map(Value::as_str);
                    let missing: Vec<&str> = names.filter(|name| !fields.contains_key(*name)).collect();
                    if missing.is_empty() {
                        None
                    } else {
                        wrong(format!("without {missing:?}"))
                    }
                }
                "prefixItems" => {
                    let pairs = rule.as_array()?.iter().zip(value.as_array()?);
                    pairs
                        .enumerate()
                        .find_map(|(at, (rule, item))| self.objection(rule, item, &format!("{place}/{at}")))
                }
                "items" => {
                    let before = keywords
                        .get("prefixItems")
                        .and_then(Value::as_array)
                        .map_or(0, Vec::len);
                    let items = value.as_array()?.iter().enumerate().skip(before);
                    let mut wrong =
                        items.filter_map(|(at, item)| self.objection(rule, item, &format!("{place}/{at}")));
                    wrong.next()
                }
                "anyOf" | "oneOf" => {
                    let all: Vec<String> = rule
                        .as_array()?
                        .iter()
                        .map_while(|one| self.objection(one, value, place))
                        .collect();
                    (all.len() == rule.as_array()?.len()).then(|| all.join(" and "))
                }
                "allOf" => rule
                    .as_array()?
                    .iter()
                    .find_map(|one| self.objection(one, value, place)),
                "properties" | "additionalProperties" | "unevaluatedProperties" => None,
                unknown => wrong(format!(
                    "the schema has the keyword {unknown}, which this test does not know"
                )),
            }
        });
        objections.next()
    }

    /// The fields of the object, those of the schemas that it combines included.
    fn fields(&self, schema: &'a Value, value: &Value, fields: &mut Fields<'a>) {
        let schema = self.resolve(schema);
        let properties = schema.get("properties").and_then(Value::as_object);
        for (name, rule) in properties.into_iter().flatten() {
            fields.known.insert(name, rule);
        }
        if let Some(others) = schema
            .get("additionalProperties")
            .filter(|others| **others != Value::Bool(false))
        {
            fields.others = Some(others);
        }
        for keyword in ["allOf", "anyOf", "oneOf"] {
            for one in schema
                .get(keyword)
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                if self.objection(one, value, "").is_none() {
                    self.fields(one, value, fields);
                }
            }
        }
    }

    /// Asserts that `value`, and all that is in it, is described.
    #[track_caller]
    fn whole(&self, schema: &'a Value, value: &Value, place: &str) {
        if let Some(objection) = self.objection(schema, value, place) {
            panic!("{objection}");
        }
        match value {
            Value::Object(object) => self.object(schema, object, value, place),
            Value::Array(items) => {
                let schema = self.of_kind(schema, value);
                for (at, item) in items.iter().enumerate() {
                    let first = schema.get("prefixItems").and_then(|rules| rules.get(at));
                    let rule = first.or_else(|| schema.get("items"));
                    let rule = rule.unwrap_or_else(|| panic!("{place}: items are not described: {schema}"));
                    self.whole(rule, item, &format!("{place}/{at}"));
                }
            }
            _ => {}
        }
    }

    /// The alternative that describes a value.
    fn of_kind(&self, schema: &'a Value, value: &Value) -> &'a Value {
        let schema = self.resolve(schema);
        for keyword in ["anyOf", "oneOf"] {
            let choices = schema
                .get(keyword)
                .and_then(Value::as_array)
                .into_iter()
                .flatten();
            for one in choices {
                if self.objection(one, value, "").is_none() {
                    return self.of_kind(one, value);
                }
            }
        }
        schema
    }

    #[track_caller]
    fn object(&self, schema: &'a Value, object: &Map<String, Value>, value: &Value, place: &str) {
        // Whatever it is: `plan` and `progress` of a campaign belong to the program.
        if *schema == Value::Bool(true) {
            return;
        }
        let mut fields = Fields::default();
        self.fields(schema, value, &mut fields);
        let anything =
            fields.known.is_empty() && fields.others.is_none() && self.resolve(schema).get("type").is_none();
        for (name, inner) in object {
            let place = format!("{place}/{name}");
            match fields.known.get(name.as_str()).copied().or(fields.others) {
                Some(rule) => self.whole(rule, inner, &place),
                None => assert!(anything, "{place}: the schema does not describe it"),
            }
        }
    }
}

fn is_of(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => {
            value.is_u64() || value.is_i64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        other => panic!("unknown type {other}"),
    }
}

/// Asserts that this is what the schema of the command describes.
#[track_caller]
fn follows(command: &str, value: &Value) {
    let schema = schema(command);
    Check { root: &schema }.whole(&schema, value, command);
}

#[test]
fn the_schemas_in_docs_are_those_of_the_types() {
    let folder = tempfile::tempdir().unwrap();
    let status = flaz(folder.path(), "generate schemas .").status().unwrap();
    assert!(status.success());
    let read = |folder: &Path| -> BTreeMap<String, String> {
        let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
        let named = entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path()));
        let schemas = named.filter(|(name, _)| name.ends_with(SUFFIX));
        schemas
            .map(|(name, path)| (name, fs::read_to_string(path).unwrap()))
            .collect()
    };
    let (made, kept) = (read(folder.path()), read(&docs()));
    let again =
        "run `cargo run -p flaz-cli -- generate schemas docs/json`, and delete what it does not write";
    assert!(
        made.keys().eq(kept.keys()),
        "{:?} {:?}: {again}",
        made.keys(),
        kept.keys()
    );
    for (name, text) in &made {
        assert!(kept[name] == *text, "docs/json/{name} is out of date: {again}");
    }
}

/// Otherwise the other tests here could not fail.
#[test]
fn the_check_finds_what_is_wrong() {
    let right = serde_json::to_value(example().with_health()).unwrap();
    follows("status", &right);
    let wrong = |change: &dyn Fn(&mut Value)| {
        let mut value = right.clone();
        change(&mut value);
        let schema = schema("status");
        let check = std::panic::AssertUnwindSafe(|| Check { root: &schema }.whole(&schema, &value, "status"));
        std::panic::catch_unwind(check).is_err()
    };
    assert!(!wrong(&|_| ()));
    assert!(wrong(&|value| value["state"] = "asleep".into()));
    assert!(wrong(&|value| value["surprise"] = 1.into()));
    assert!(wrong(&|value| value["live"]["lookups"]["surprise"] = 1.into()));
    assert!(wrong(&|value| value["live"]["queues"][0]["depth"] = "deep".into()));
    assert!(wrong(&|value| value["live"]["queues"][0]["depth"] = (-1).into()));
    assert!(wrong(&|value| value["cache"]
        .as_object_mut()
        .unwrap()
        .remove("uuid")
        .map_or((), drop)));
    assert!(wrong(&|value| value["settings"]["mode"] = "write-behind".into()));
    assert!(wrong(&|value| value["health"]["level"] = "fine".into()));
}

fn flaz(folder: &Path, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flaz"));
    command
        .args(line.split_ascii_whitespace())
        .current_dir(folder)
        .env("FLAZ_RUNTIME_DIR", folder.join("run"))
        .env("STATE_DIRECTORY", folder.join("state"))
        .env_remove("FLAZ_LOG")
        .stdin(Stdio::null());
    command
}

/// Standard output of a command that succeeds.
#[track_caller]
fn output(folder: &Path, line: &str) -> String {
    let output = flaz(folder, line).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "flaz {line}\n{err}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn json(folder: &Path, line: &str) -> Value {
    serde_json::from_str(&output(folder, line)).unwrap()
}

/// A running cache that reports an example.
struct Fake;

impl ControlHandler for Fake {
    fn handle(&self, request: Request, _: Asker<'_>) -> Reply {
        match request {
            Request::Set(_) => Reply::Settings(example().settings.unwrap()),
            Request::Flush {} => Reply::Left { dirty_blocks: 3 },
            Request::VolumeResize {} => Reply::VolumeResized(VolumeResizeReport {
                bytes_before: 1 << 20,
                bytes: 1 << 30,
                front_ends: vec![FrontEndSizeReport {
                    name: "unix:/s".to_owned(),
                    up_to_date: false,
                    advice: Some("connect again".to_owned()),
                }],
            }),
            _ => Reply::Status(Box::new(example())),
        }
    }
}

#[test]
fn the_json_of_caches_follows_its_schema() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    File::create(folder.join("origin"))
        .unwrap()
        .set_len(16 << 20)
        .unwrap();
    follows(
        "create",
        &json(folder, "create cache --size 16M --origin origin --json"),
    );
    follows("status", &json(folder, "status cache --json"));
    follows("check", &json(folder, "check cache --json"));
    follows("flush", &json(folder, "flush cache --json"));
    follows("resize", &json(folder, "resize cache --size 20M --json"));
    follows("volume-resize", &json(folder, "volume resize cache --json"));
    let dump = output(folder, "dump cache --json");
    assert!(dump.lines().count() > 3, "{dump}");
    for line in dump.lines() {
        follows("dump", &serde_json::from_str(line).unwrap());
    }
    let server = Server::start(&folder.join("s"), Arc::new(Fake)).unwrap();
    let running = json(folder, "status --control s --json");
    follows("status", &running);
    assert_eq!(
        running["health"]["level"], "warning",
        "also of a daemon that does not report it"
    );
    follows("set", &json(folder, "set --control s mode=write-around --json"));
    follows("flush", &json(folder, "flush --control s --json"));
    follows("volume-resize", &json(folder, "volume resize --control s --json"));
    server.close();
    // Its command needs a block device.
    let removed = flaz_cli::report::RemovedDeviceReport {
        name: "/dev/flaz/disk".into(),
        device: "/dev/ublkb0".into(),
        bytes: 1 << 30,
    };
    follows("remove-device", &serde_json::to_value(removed).unwrap());
}

#[test]
fn the_json_of_benchmarks_follows_its_schema() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::create_dir(folder.join("disk")).unwrap();
    let run = |name: &str| {
        let campaign = json(
            folder,
            &format!(
                "bench run disk --size 1MiB --tests write,iops --records 64KiB --levels random --runs 3 --drop-caches target \
                 --json --output {name}"
            ),
        );
        follows("bench-run", &campaign);
    };
    run("a.json");
    run("b.json");
    follows(
        "bench-compare",
        &json(folder, "bench compare a.json b.json --json"),
    );
    follows("bench-report", &json(folder, "bench report a.json b.json --json"));
    follows(
        "bench-claim",
        &json(folder, "bench claim a.json --claim random_read_iops=1IOPS --json"),
    );
    follows(
        "bench-detect",
        &json(
            folder,
            "bench detect disk --sample 2MiB --size 4MiB --rounds 5 --json",
        ),
    );
    follows(
        "bench-data",
        &json(folder, "bench data --level 50 --size 1MiB --output data --json"),
    );
    follows("study", &json(folder, "study data --json"));
    for device in ["sf1222", "sf1222-raw"] {
        follows(
            "lab-ssd",
            &json(folder, &format!("lab ssd --device {device} --json")),
        );
    }
    fs::write(folder.join("t.lis"), "8 8 0 0\n16 8 0 1\nx\n8 8 0 2\n").unwrap();
    let replay = "lab replay t.lis --cache 32M,64M --skip-bad 1 --duration 1d --ssd-endurance 1TBW --json";
    follows("lab-replay", &json(folder, replay));
    let recording = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../lab/evaluate/recordings/tpch-q11.flaztrace.zst"
    );
    let evaluate =
        format!("lab evaluate {recording} --scale 64 --machine 1D1S --shares 50 --codec lz4 --json");
    follows("lab-evaluate", &json(folder, &evaluate));
}
