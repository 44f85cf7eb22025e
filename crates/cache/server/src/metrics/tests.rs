//! The page of an example report, by a strict parser of the text format, by promtool, and beside the alert rules and the dashboard
//! in `dist`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flaz_control::report::example::example;
use flaz_control::report::{CacheState, MemoryUse, ShareReport, StatusReport};
use serde_json::Value;
use uuid::Uuid;

use super::{Identity, page};

type Labels = BTreeMap<String, String>;

#[derive(Debug)]
struct Family {
    kind: String,
    /// Name, labels and value of each sample.
    samples: Vec<(String, Labels, f64)>,
}

fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(fits)
}

/// Labels between their braces, and what follows.
fn parse_labels(mut text: &str) -> (Labels, &str) {
    let mut labels = Labels::new();
    loop {
        let (name, rest) = text.split_once("=\"").expect("a label");
        assert!(is_name(name), "{name}");
        let mut value = String::new();
        let mut characters = rest.char_indices();
        let end = loop {
            match characters.next().expect("the value ends") {
                (at, '"') => break at,
                (_, '\n') => panic!("a value has no raw end of line"),
                (_, '\\') => value.push(match characters.next().expect("an escape").1 {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    c => panic!("unknown escape {c}"),
                }),
                (_, c) => value.push(c),
            }
        };
        assert!(labels.insert(name.to_owned(), value).is_none(), "{name} twice");
        text = &rest[end + 1..];
        if let Some(after) = text.strip_prefix('}') {
            return (labels, after);
        }
        text = text.strip_prefix(',').expect("a comma between labels");
    }
}

/// Each family is one block: HELP, TYPE, then its samples, each with other labels.
fn parse(text: &str) -> BTreeMap<String, Family> {
    assert!(text.ends_with('\n'));
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').expect("a help text");
            assert!(is_name(name) && help.ends_with('.') && help.len() > 10, "{line}");
            let kind = lines
                .next()
                .and_then(|line| line.strip_prefix(&format!("# TYPE {name} ")));
            let kind = kind.unwrap_or_else(|| panic!("the type follows the help of {name}"));
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{kind}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            let family = Family {
                kind: kind.to_owned(),
                samples: Vec::new(),
            };
            assert!(families.insert(name.to_owned(), family).is_none(), "{name} twice");
            name.clone_into(&mut current);
            continue;
        }
        let (name, rest) = line.split_once('{').expect("a sample has labels");
        let (labels, value) = parse_labels(rest);
        let value: f64 = value
            .strip_prefix(' ')
            .and_then(|value| value.parse().ok())
            .expect("a number");
        assert!(value.is_finite() && value >= 0.0, "{line}");
        let family = families.get_mut(&current).expect("a family before its samples");
        let suffixes: &[&str] = if family.kind == "histogram" {
            &["_bucket", "_sum", "_count"]
        } else {
            &[""]
        };
        assert!(
            suffixes.iter().any(|suffix| name == format!("{current}{suffix}")),
            "{line} in {current}"
        );
        let again = family
            .samples
            .iter()
            .any(|(other, others, _)| other == name && *others == labels);
        assert!(!again, "twice: {line}");
        family.samples.push((name.to_owned(), labels, value));
    }
    for (name, family) in &families {
        if family.kind == "histogram" {
            check_histograms(name, family);
        }
    }
    families
}

fn check_histograms(name: &str, family: &Family) {
    let mut series: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
    for (sample, labels, value) in &family.samples {
        if sample.ends_with("_bucket") {
            let mut labels = labels.clone();
            let bound = labels.remove("le").expect("a bucket has a bound");
            let bound = if bound == "+Inf" {
                f64::INFINITY
            } else {
                bound.parse().unwrap()
            };
            series.entry(labels).or_default().push((bound, *value));
        }
    }
    for (labels, buckets) in series {
        assert!(
            buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1),
            "{name} {labels:?} {buckets:?}"
        );
        let of = |suffix: &str| {
            let wanted = format!("{name}{suffix}");
            let found = family
                .samples
                .iter()
                .find(|(sample, of, _)| *sample == wanted && *of == labels);
            found.expect("sum and count").2
        };
        assert_eq!(
            buckets.last(),
            Some(&(f64::INFINITY, of("_count"))),
            "{name} {labels:?}"
        );
        assert!(of("_sum") > 0.0 || of("_count") == 0.0, "{name} {labels:?}");
    }
}

fn identity() -> Identity {
    Identity {
        uuid: Uuid::from_u128(7),
        name: "disk".to_owned(),
    }
}

fn shown(report: &StatusReport) -> BTreeMap<String, Family> {
    parse(&page(&identity(), Some(report)))
}

/// The value of the sample with this label, or of the only one.
#[track_caller]
fn value(families: &BTreeMap<String, Family>, name: &str, label: Option<(&str, &str)>) -> f64 {
    let family = &families[name];
    let mut found = family.samples.iter().filter(|(sample, labels, _)| {
        sample == name && label.is_none_or(|(label, value)| labels[label] == value)
    });
    let first = found.next().expect("a sample").2;
    assert!(found.next().is_none(), "{name} has several");
    first
}

#[test]
fn the_page_has_the_values_of_the_report() {
    let mut report = example();
    report.live.as_mut().unwrap().errors.cache_unreadable_regions = 2;
    let families = shown(&report);
    for (name, expected) in [
        ("flaz_up", 1.0),
        ("flaz_info", 1.0),
        ("flaz_bypass", 0.0),
        ("flaz_read_hits_total", 900.0),
        ("flaz_dirty_bytes", 10_485_760.0),
        ("flaz_dirty_seconds", 2.5),
        ("flaz_writeback_remaining_seconds", 0.8),
        ("flaz_writeback_bytes_total", 409_600_000.0),
        ("flaz_effective_capacity_bytes", 261e9),
        ("flaz_cache_written_bytes_total", 5.2e9),
        ("flaz_uptime_seconds", 7620.0),
    ] {
        assert_eq!(value(&families, name, None), expected, "{name}");
    }
    for (name, label, expected) in [
        ("flaz_requests_total", ("operation", "read"), 1_234_567.0),
        ("flaz_requests_total", ("operation", "prefetch"), 0.0),
        ("flaz_request_errors_total", ("operation", "write"), 3.0),
        ("flaz_refused_blocks_total", ("reason", "sequential"), 4.0),
        ("flaz_errors_total", ("cause", "checksum"), 0.0),
        ("flaz_errors_total", ("cause", "cache-region"), 2.0),
        ("flaz_health", ("level", "warning"), 1.0),
        ("flaz_health", ("level", "healthy"), 0.0),
        ("flaz_queue_depth", ("queue", "admission"), 1.0),
        ("flaz_nbd_connections", ("address", "unix:/x"), 2.0),
    ] {
        assert_eq!(value(&families, name, Some(label)), expected, "{name} {label:?}");
    }
    let buckets: Vec<(&str, f64)> = families["flaz_request_duration_seconds"]
        .samples
        .iter()
        .filter(|(name, labels, _)| name.ends_with("_bucket") && labels["operation"] == "read")
        .map(|(_, labels, value)| (labels["le"].as_str(), *value))
        .collect();
    assert_eq!(
        buckets,
        [
            ("0.0001", 1_000_000.0),
            ("0.01", 1_234_000.0),
            ("+Inf", 1_234_567.0)
        ]
    );
    let info = &families["flaz_info"].samples[0].1;
    assert_eq!(
        (&*info["uuid"], &*info["name"]),
        (&*identity().uuid.to_string(), "disk")
    );
    assert_eq!(
        (&*info["cache"], &*info["mode"]),
        ("/dev/nvme0n1p3", "write-through")
    );
}

#[test]
fn a_bypassed_cache_and_unknown_values() {
    let mut report = example();
    report.state = CacheState::Degraded;
    report.live.as_mut().unwrap().write_back.failing = true;
    let families = shown(&report);
    assert_eq!(value(&families, "flaz_bypass", None), 1.0);
    assert_eq!(value(&families, "flaz_health", Some(("level", "failed"))), 1.0);
    assert_eq!(value(&families, "flaz_writeback_failing", None), 1.0);
    assert!(
        !families.contains_key("flaz_writeback_remaining_seconds"),
        "not known while writeback fails"
    );
}

#[test]
fn a_server_that_does_not_answer_is_down() {
    let mut stopped = example();
    stopped.live = None;
    for report in [None, Some(&stopped)] {
        let families = parse(&page(&identity(), report));
        assert_eq!(families.keys().collect::<Vec<_>>(), ["flaz_up"]);
        assert_eq!(value(&families, "flaz_up", None), 0.0);
    }
}

#[test]
fn labels_with_any_characters_are_escaped() {
    let mut report = example();
    let strange = "a\"b\\c\nd{e}, =é";
    report.cache.path = format!("/{strange}").into();
    let live = report.live.as_mut().unwrap();
    live.nbd[0].address = format!("unix:{strange}");
    live.write_back.dirty_s = f64::NAN;
    let named = Identity {
        name: strange.to_owned(),
        ..identity()
    };
    let families = parse(&page(&named, Some(&report)));
    let info = &families["flaz_info"].samples[0].1;
    assert_eq!(
        (info["name"].as_str(), &info["cache"]),
        (strange, &format!("/{strange}"))
    );
    assert_eq!(value(&families, "flaz_dirty_seconds", None), 0.0);
}

/// Runs promtool with `text` as its standard input. False: it is not installed.
fn promtool(arguments: &[&str], text: &str) -> bool {
    let child = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("skipped: promtool is not installed; it is in the Debian package prometheus");
        return false;
    };
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    true
}

#[test]
fn promtool_accepts_the_page() {
    let text = page(&identity(), Some(&example()));
    if promtool(&["check", "metrics"], &text) {
        promtool(&["check", "metrics"], &page(&identity(), None));
    }
}

fn dist(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../dist")
        .join(name)
}

/// Names of metrics in an expression.
fn names_in(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !is_part(c));
    words
        .filter(|word| word.starts_with("flaz_"))
        .map(str::to_owned)
        .collect()
}

/// Asserts that the exporter has all metrics of these expressions.
#[track_caller]
fn all_exist(expressions: &[String]) {
    let mut report = example();
    let live = report.live.as_mut().expect("it is served");
    live.share = Some(ShareReport {
        volume: "home".to_owned(),
        held_bytes: 1 << 30,
        at_least_bytes: 0,
        at_most_bytes: None,
        free_bytes: 0,
        need: 1,
        write_budget: None,
    });
    live.memory.uses.push(MemoryUse::default());
    let families = shown(&report);
    let known: BTreeSet<&str> = families
        .values()
        .flat_map(|family| family.samples.iter().map(|(name, ..)| name.as_str()))
        .collect();
    for expression in expressions {
        let names = names_in(expression);
        assert!(!names.is_empty(), "no metric in {expression}");
        for name in names {
            assert!(
                known.contains(name.as_str()),
                "the exporter has no {name}, in {expression}"
            );
        }
    }
}

#[test]
fn alert_rules_use_metrics_that_exist() {
    let path = dist("prometheus/flaz.rules.yml");
    let text = std::fs::read_to_string(&path).unwrap();
    let fields = |key: &str| -> Vec<String> {
        let lines = text.lines().map(str::trim_start);
        lines
            .filter_map(|line| line.strip_prefix(key))
            .map(|rest| rest.trim().to_owned())
            .collect()
    };
    let (alerts, expressions) = (fields("- alert:"), fields("expr:"));
    assert!(alerts.len() >= 8, "{alerts:?}");
    assert_eq!(alerts.iter().collect::<BTreeSet<_>>().len(), alerts.len());
    for needed in ["expr:", "severity:", "summary:", "description:"] {
        assert_eq!(fields(needed).len(), alerts.len(), "each alert has {needed}");
    }
    all_exist(&expressions);
    promtool(&["check", "rules", path.to_str().unwrap()], "");
}

/// All values of the key `expr`.
fn expressions_in(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(text) if key == "expr" => found.push(text.clone()),
                    value => expressions_in(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| expressions_in(value, found)),
        _ => {}
    }
}

#[test]
fn the_dashboard_uses_metrics_that_exist() {
    let text = std::fs::read_to_string(dist("grafana/flaz.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        assert!(panel["title"].is_string() && panel["type"].is_string(), "{panel}");
        let place = &panel["gridPos"];
        assert!(
            place["x"].as_u64().unwrap() + place["w"].as_u64().unwrap() <= 24,
            "{panel}"
        );
        let mut expressions = Vec::new();
        expressions_in(panel, &mut expressions);
        assert!(!expressions.is_empty(), "{panel}");
    }
    let mut expressions = Vec::new();
    expressions_in(&dashboard, &mut expressions);
    all_exist(&expressions);
}
