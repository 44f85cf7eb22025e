//! Checks dependencies by `deny.toml` (their licences, their sources, and banned crates), and the directions of
//! dependencies between the folders of this workspace.
//!
//! The first check is the part of `cargo deny check` that needs no tool and no network, so that it always runs; `make audit`
//! runs all of it, with the advisory database.

use std::process::Command;

use serde_json::Value;

type Failure = Box<dyn std::error::Error>;

/// Folders, with the folders whose crates they may use, except in tests. The first that fits counts.
const FOLDERS: [(&str, &[&str]); 4] = [
    ("crates/cache/", &["crates/cache/"]),
    (
        "crates/bench/",
        &[
            "crates/bench/",
            "crates/random/",
            "crates/cache/codec/",
            "crates/cache/device/",
        ],
    ),
    ("crates/lab/trace/", &[]),
    (
        "crates/lab/",
        &[
            "crates/lab/",
            "crates/cache/",
            "crates/bench/",
            "crates/random/",
            "crates/testing/sim/",
        ],
    ),
];

/// Options of the check; there are none.
#[derive(Debug, clap::Args)]
pub struct Options {}

/// The parts of `deny.toml` that are used here.
struct Rules {
    licences: Vec<spdx::Licensee>,
    registries: Vec<String>,
    banned: Vec<(String, String)>,
}

impl Rules {
    fn read(text: &str) -> Result<Self, Failure> {
        let rules: toml::Table = text.parse()?;
        let list = |table: &str, key: &str| -> Result<Vec<toml::Value>, Failure> {
            let found = rules.get(table).and_then(|table| table.get(key));
            let list = found.and_then(toml::Value::as_array).cloned();
            list.ok_or_else(|| format!("deny.toml: expected a list '{key}' in [{table}]").into())
        };
        let text = |value: &toml::Value| value.as_str().unwrap_or_default().to_owned();
        let mut licences = Vec::new();
        for name in list("licenses", "allow")?.iter().map(text) {
            licences.push(
                spdx::Licensee::parse(&name)
                    .map_err(|error| format!("deny.toml: '{name}': {}", error.reason))?,
            );
        }
        let field = |entry: &toml::Value, key: &str| entry.get(key).map(text).unwrap_or_default();
        Ok(Self {
            licences,
            registries: list("sources", "allow-registry")?.iter().map(text).collect(),
            banned: list("bans", "deny")?
                .iter()
                .map(|entry| (field(entry, "crate"), field(entry, "reason")))
                .collect(),
        })
    }

    /// Problems of a package.
    fn objections(&self, package: &Value) -> Vec<String> {
        let text = |key: &str| package.get(key).and_then(Value::as_str);
        let name = text("name").unwrap_or_default();
        let mut wrong = Vec::new();
        match text("license").map(|text| (text, spdx::Expression::parse_mode(text, spdx::ParseMode::LAX))) {
            None => wrong.push("names no licence".to_owned()),
            Some((text, Err(error))) => wrong.push(format!("licence '{text}': {}", error.reason)),
            Some((text, Ok(licence))) => {
                if !licence.evaluate(|wanted| self.licences.iter().any(|ours| ours.satisfies(wanted))) {
                    wrong.push(format!("licence '{text}' is not allowed"));
                }
            }
        }
        // A package without a source belongs to this workspace.
        if let Some(source) = text("source") {
            let known = source
                .strip_prefix("registry+")
                .is_some_and(|registry| self.registries.iter().any(|allowed| allowed == registry));
            if !known {
                wrong.push(format!("comes from {source}"));
            }
        }
        if let Some((_, reason)) = self.banned.iter().find(|(banned, _)| banned == name) {
            wrong.push(format!("is banned: {reason}"));
        }
        wrong
    }
}

/// Crates that a package of the workspace at `root` uses against [`FOLDERS`].
fn misdirected(package: &Value, root: &str) -> Vec<String> {
    let below = |path: &str| {
        path.strip_prefix(root)
            .map(|path| format!("{}/", path.trim_matches('/')))
    };
    let manifest = package.get("manifest_path").and_then(Value::as_str);
    let Some(place) = manifest.and_then(below) else {
        return Vec::new();
    };
    let Some((folder, allowed)) = FOLDERS.iter().find(|(folder, _)| place.starts_with(folder)) else {
        return Vec::new();
    };
    let dependencies = package.get("dependencies").and_then(Value::as_array);
    dependencies
        .into_iter()
        .flatten()
        .filter(|dependency| dependency.get("kind").is_none_or(Value::is_null))
        .filter_map(|dependency| dependency.get("path").and_then(Value::as_str).and_then(below))
        .filter(|path| !allowed.iter().any(|allowed| path.starts_with(allowed)))
        .map(|path| format!("uses {path}, which crates in {folder} may not"))
        .collect()
}

/// Checks every package of the lock file.
///
/// # Errors
/// A package that may not be used, with the reason; or `cargo metadata` or `deny.toml` cannot be read.
pub fn run(_: &Options) -> Result<(), Failure> {
    let rules =
        Rules::read(&std::fs::read_to_string("deny.toml").map_err(|error| format!("deny.toml: {error}"))?)?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--all-features"])
        .output()?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata
        .get("packages")
        .and_then(Value::as_array)
        .ok_or("cargo metadata names no packages")?;
    let root = metadata.get("workspace_root").and_then(Value::as_str);
    let root = root.ok_or("cargo metadata names no workspace")?;
    let mut wrong = 0;
    for package in packages {
        for objection in rules
            .objections(package)
            .into_iter()
            .chain(misdirected(package, root))
        {
            let text = |key: &str| package.get(key).and_then(Value::as_str).unwrap_or("?");
            eprintln!("{} {} {objection}", text("name"), text("version"));
            wrong += 1;
        }
    }
    if wrong > 0 {
        return Err(format!("{wrong} problems of dependencies").into());
    }
    println!(
        "{} packages: licences and sources are allowed by deny.toml",
        packages.len()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rules() -> Rules {
        Rules::read(include_str!("../../deny.toml")).expect("deny.toml can be read")
    }

    #[test]
    fn permissive_licences_pass_and_others_do_not() {
        let of = |licence: &str| rules().objections(&json!({ "name": "x", "license": licence }));
        for fine in [
            "MIT OR Apache-2.0",
            "MIT/Apache-2.0",
            "GPL-3.0-only OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
        ] {
            assert!(of(fine).is_empty(), "{fine}: {:?}", of(fine));
        }
        for wrong in [
            "GPL-2.0-only",
            "MIT AND GPL-2.0-only",
            "MPL-2.0",
            "no licence at all",
        ] {
            assert_eq!(of(wrong).len(), 1, "{wrong}");
        }
        assert!(rules().objections(&json!({ "name": "x" }))[0].contains("no licence"));
    }

    #[test]
    fn other_sources_and_banned_crates_are_reported() {
        let of = |name: &str, source: &str| {
            rules().objections(&json!({ "name": name, "license": "MIT", "source": source }))
        };
        let registry = "registry+https://github.com/rust-lang/crates.io-index";
        assert!(of("serde", registry).is_empty());
        assert!(of("serde", "git+https://example.org/x")[0].contains("comes from git"));
        assert!(of("bincode", registry)[0].contains("hostile input"));
    }

    #[test]
    fn dependencies_against_the_direction_are_named() {
        let of = |folder: &str, uses: &str, kind: Option<&str>| {
            let package = json!({
                "manifest_path": format!("/w/crates/{folder}/Cargo.toml"),
                "dependencies": [{ "path": format!("/w/crates/{uses}"), "kind": kind }, { "name": "serde" }],
            });
            misdirected(&package, "/w")
        };
        assert_eq!(
            of("cache/server", "bench/page", None),
            ["uses crates/bench/page/, which crates in crates/cache/ may not"]
        );
        assert_eq!(of("bench/load", "cache/engine", None).len(), 1);
        assert_eq!(of("cache/nbd", "random", None).len(), 1);
        assert_eq!(of("cache/nbd", "lab/models", None).len(), 1);
        assert_eq!(of("bench/load", "lab/models", None).len(), 1);
        assert_eq!(of("cache/server", "lab/replay", None).len(), 1);
        assert_eq!(of("lab/trace", "cache/engine", None).len(), 1);
        assert_eq!(of("lab/replay", "demo", None).len(), 1);
        for (folder, uses, kind) in [
            ("cache/server", "cache/engine", None),
            ("cache/nbd", "random", Some("dev")),
            ("bench/load", "cache/codec", None),
            ("bench/load", "random", None),
            ("demo", "bench/page", None),
            ("lab/models", "cache/nbd", None),
            ("lab/models", "bench/report", None),
            ("lab/replay", "lab/trace", None),
            ("lab/replay", "testing/sim", None),
        ] {
            assert_eq!(of(folder, uses, kind), [""; 0], "{folder} {uses}");
        }
    }
}
