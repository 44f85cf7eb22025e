//! What `make install` and the package install: all files are there, the unit is valid, and everything is removed again.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

fn install(destination: &Path, prefix: &str, argument: &str) -> Output {
    Command::new(root().join("tools/install"))
        .arg(argument)
        .env("DESTDIR", destination)
        .env("PREFIX", prefix)
        .output()
        .unwrap()
}

#[track_caller]
fn succeeded(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.is_empty(), "{text}");
}

/// All files below a directory.
fn files(directory: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut left = vec![directory.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else {
                let inside = path.strip_prefix(directory).unwrap();
                found.insert(inside.to_str().unwrap().to_owned());
            }
        }
    }
    found
}

#[test]
fn an_installation_is_complete_and_can_be_removed() {
    for (prefix, rules) in [
        ("/usr", "usr/lib/udev/rules.d"),
        ("/opt/flaz", "etc/udev/rules.d"),
    ] {
        let scratch = tempfile::tempdir().unwrap();
        let destination = scratch.path();
        succeeded(&install(destination, prefix, env!("CARGO_BIN_EXE_flaz")));
        let found = files(destination);
        let below = |path: &str| format!("{}/{path}", &prefix[1..]);
        for path in [
            below("bin/flaz"),
            below("lib/systemd/system/flaz@.service"),
            below("lib/systemd/system-generators/flaz-generator"),
            below("share/man/man1/flaz.1"),
            below("share/man/man1/flaz-serve.1"),
            below("share/man/man1/flaz-list.1"),
            below("share/bash-completion/completions/flaz"),
            below("share/fish/vendor_completions.d/flaz.fish"),
            below("share/doc/flaz/operation.md"),
            below("share/flaz/prometheus/flaz.rules.yml"),
            below("share/flaz/grafana/flaz.json"),
            below("share/flaz/json/status.schema.json"),
            format!("{rules}/60-flaz.rules"),
            "etc/flaz/example.toml.sample".to_owned(),
        ] {
            assert!(found.contains(&path), "{path} of {found:?}");
        }
        assert!(found.iter().any(|path| path.ends_with("/_flaz")), "{found:?}");
        let unit = fs::read_to_string(destination.join(below("lib/systemd/system/flaz@.service"))).unwrap();
        assert!(
            unit.contains(&format!("ExecStart={prefix}/bin/flaz serve /etc/flaz/%i.toml")),
            "{unit}"
        );
        fs::write(destination.join("etc/flaz/mine.toml"), "").unwrap();
        succeeded(&install(destination, prefix, "--uninstall"));
        let kept = BTreeSet::from(["etc/flaz/mine.toml".to_owned()]);
        assert_eq!(files(destination), kept, "configurations stay");
    }
}

/// The targets of the links of a page to other files.
fn links(page: &str) -> Vec<&str> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let paths = targets.filter_map(|target| target.split('#').next());
    paths
        .filter(|path| !path.is_empty() && !path.contains("://"))
        .collect()
}

#[test]
fn links_of_installed_pages_lead_to_installed_files() {
    let scratch = tempfile::tempdir().unwrap();
    succeeded(&install(scratch.path(), "/usr", env!("CARGO_BIN_EXE_flaz")));
    let docs = scratch.path().join("usr/share/doc/flaz");
    let mut followed = 0;
    for page in files(&docs) {
        let text = fs::read_to_string(docs.join(&page)).unwrap();
        for link in links(&text) {
            assert!(docs.join(link).exists(), "{page}: {link}");
            followed += 1;
        }
        assert!(!text.contains("`dist/"), "{page} names a file of the repository");
    }
    assert!(followed > 5, "{followed} links");
}

#[test]
fn the_package_has_every_installed_file() {
    let scratch = tempfile::tempdir().unwrap();
    succeeded(&install(scratch.path(), "/usr", env!("CARGO_BIN_EXE_flaz")));
    let manifest = fs::read_to_string(root().join("crates/cli/Cargo.toml")).unwrap();
    for path in files(scratch.path()) {
        let directory = Path::new(&path).parent().unwrap().display();
        assert!(manifest.contains(&format!("\"{directory}/\"")), "{path}");
    }
}

#[test]
fn the_installer_says_what_is_wrong() {
    let scratch = tempfile::tempdir().unwrap();
    let refused = install(scratch.path(), "/usr", "no-such-program");
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("make build"));
    let refused = install(scratch.path(), "usr", env!("CARGO_BIN_EXE_flaz"));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("absolute"));
    assert!(files(scratch.path()).is_empty());
}

/// The unit with the drop-ins of two configurations, as the generator makes them.
#[test]
fn the_unit_and_its_drop_ins_are_valid() {
    let scratch = tempfile::tempdir().unwrap();
    let (etc, units) = (scratch.path().join("etc"), scratch.path().join("units"));
    for directory in [&etc, &units] {
        fs::create_dir(directory).unwrap();
    }
    fs::write(
        etc.join("a.toml"),
        "cache = '/dev/disk/by-id/c'\norigin = '/dev/sdb'\nublk = true\n",
    )
    .unwrap();
    fs::write(
        etc.join("b.toml"),
        "cache = '/home/u/a b%/c'\norigin = '/srv/o'\nnbd-device = true\n",
    )
    .unwrap();
    fs::write(etc.join("x.toml"), "cache = 'c'\n").unwrap();
    let generate = || {
        Command::new(env!("CARGO_BIN_EXE_flaz"))
            .args(["generate", "systemd"])
            .arg(&units)
            .env("FLAZ_CONFIG_DIR", &etc)
            .env_remove("FLAZ_LOG")
            .output()
            .unwrap()
    };
    let output = generate();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("x.toml:1:"), "{text}");
    fs::remove_file(etc.join("x.toml")).unwrap();
    assert!(generate().status.success(), "again, over the same files");
    let service = fs::read_to_string(units.join("flaz@a.service.d/50-flaz.conf")).unwrap();
    assert!(service.contains("After=dev-sdb.device\n"), "{service}");
    let unit = fs::read_to_string(root().join("dist/flaz@.service")).unwrap();
    let unit = unit.replace("/usr/bin/flaz", env!("CARGO_BIN_EXE_flaz"));
    fs::write(units.join("flaz@.service"), unit).unwrap();
    for name in ["a", "b"] {
        let verified = Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(units.join(format!("flaz@{name}.service")))
            .env("SYSTEMD_UNIT_PATH", format!("{}:", units.display()))
            .output();
        let Ok(verified) = verified else {
            println!("skipped: systemd-analyze is not installed");
            return;
        };
        let text = String::from_utf8_lossy(&verified.stdout) + String::from_utf8_lossy(&verified.stderr);
        assert!(verified.status.success() && text.is_empty(), "{text}");
    }
}
