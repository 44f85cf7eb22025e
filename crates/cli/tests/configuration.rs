//! Configurations as a user has them: `flaz create --name`, NAME in place of a path, `flaz list`, settings that last.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

const USAGE: i32 = 2;

struct Scratch(tempfile::TempDir);

impl Scratch {
    /// With the origin `origin`, the cache `disk.img` and the configuration `disk` of both, which has no front end.
    fn with_cache() -> Self {
        let scratch = Self(tempfile::tempdir().unwrap());
        let origin = File::create(scratch.path("origin")).unwrap();
        origin.set_len(16 << 20).unwrap();
        scratch.ok("create disk.img --size 32M --origin origin");
        fs::create_dir(scratch.path("etc")).unwrap();
        scratch.configure("");
        scratch
    }

    /// Writes the configuration.
    fn configure(&self, more: &str) {
        let text = format!(
            "cache = {:?}\norigin = {:?}\n{more}",
            self.path("disk.img"),
            self.path("origin")
        );
        fs::write(self.path("etc/disk.toml"), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flaz"));
        command
            .args(line.split_ascii_whitespace())
            .current_dir(self.0.path())
            .env("FLAZ_CONFIG_DIR", self.path("etc"))
            .env("FLAZ_RUNTIME_DIR", self.path("run"))
            .env("STATE_DIRECTORY", self.path("state"))
            .env_remove("FLAZ_LOG")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    #[track_caller]
    fn ok(&self, line: &str) -> (String, String) {
        let output = self.run(line);
        let texts = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        let [out, err] = texts;
        assert_eq!(output.status.code(), Some(0), "{line}\n{out}{err}");
        (out, err)
    }

    #[track_caller]
    fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.ok(line).0).unwrap()
    }

    #[track_caller]
    fn refused(&self, line: &str, parts: &[&str]) {
        let output = self.run(line);
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(USAGE), "{line}\n{err}");
        for part in parts {
            assert!(err.contains(part), "{line}\nno '{part}' in\n{err}");
        }
    }

    /// Starts a server; returns when clients can connect.
    #[track_caller]
    fn serve(&self, words: &str) -> Server {
        let mut child = self
            .command(&format!("serve {words}"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let server = Server(child);
        assert!(line.starts_with("ready: "), "serve {words}: {line:?}");
        server
    }

    #[track_caller]
    fn mode(&self) -> String {
        let status = self.json("status disk --json");
        status["settings"]["mode"].as_str().unwrap().to_owned()
    }

    /// Starts a server with some options, and returns its mode.
    #[track_caller]
    fn mode_with(&self, words: &str) -> String {
        let mut server = self.serve(&format!("disk {words}"));
        let mode = self.mode();
        // Also of metrics and of `flaz top`.
        assert_eq!(self.json("status disk --json")["live"]["daemon"]["name"], "disk");
        self.ok("stop disk");
        assert!(server.0.wait().unwrap().success());
        mode
    }
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn every_command_takes_a_name() {
    let scratch = Scratch::with_cache();
    let server = scratch.serve("disk");
    let status = scratch.json("status disk --json");
    assert_eq!(
        status["cache"]["path"],
        scratch.path("disk.img").to_str().unwrap()
    );
    assert_eq!(status["origin"]["path"], scratch.path("origin").to_str().unwrap());
    scratch.ok("set disk policy=fifo");
    scratch.ok("flush disk");
    scratch.ok("volume resize disk");
    scratch.ok("stop disk");
    drop(server);
    scratch.ok("check disk");
    scratch.ok("dump disk");
    scratch.ok("flush disk");
    scratch.ok("volume resize disk");
    scratch.ok("detach disk");
    // A configuration in another place.
    fs::rename(scratch.path("etc/disk.toml"), scratch.path("other.toml")).unwrap();
    assert_eq!(scratch.json("status other.toml --json")["state"], "new");
    fs::create_dir(scratch.path("folder.toml")).unwrap();
    scratch.refused(
        "status folder.toml",
        &["expected a configuration, which is a regular file"],
    );
    let missing = scratch.run("status none.toml");
    assert_eq!(missing.status.code(), Some(2));
    let err = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(err.contains("none.toml: no such configuration"), "{err}");
}

/// The level, the first reason and all warnings.
fn health(status: &Value) -> (String, String, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let warnings = status["warnings"].as_array().into_iter().flatten();
    (
        text(&status["health"]["level"]),
        text(&status["health"]["reasons"][0]),
        warnings.map(text).collect::<Vec<_>>().join("\n"),
    )
}

#[test]
fn status_says_whether_the_next_start_is_refused() {
    let scratch = Scratch::with_cache();
    let (origin, moved) = (scratch.path("origin"), scratch.path("moved"));
    let refused = |words: &str, reason: &str, warning: &str| {
        let status = scratch.json(&format!("status {words} --json"));
        let (level, first, warnings) = health(&status);
        assert_eq!((level.as_str(), first.as_str()), ("failed", reason), "{status:#}");
        assert!(warnings.contains(warning), "{status:#}");
        assert_eq!(status["start_refused"], reason);
        let start = scratch.run(&format!("serve {words}"));
        assert_eq!(start.status.code(), Some(1), "the start is refused");
    };
    let accepted = |words: &str| {
        let status = scratch.json(&format!("status {words} --json"));
        assert_eq!(health(&status).0, "healthy", "{status:#}");
    };
    accepted("disk");
    assert!(!scratch.path("state").exists(), "nothing is created");
    let _server = scratch.serve("disk");
    scratch.ok("stop disk");
    accepted("disk");

    fs::rename(&origin, &moved).unwrap();
    refused(
        "disk",
        "the origin is missing",
        "specify its current path with --origin",
    );
    accepted("disk --origin moved");
    File::create(&origin).unwrap().set_len(16 << 20).unwrap();
    refused("disk", "the origin is another device", "is not the origin");
    fs::rename(&moved, &origin).unwrap();
    accepted("disk");

    let file = File::options().write(true).open(&origin).unwrap();
    file.set_len(8 << 20).unwrap();
    refused("disk", "the origin has shrunk", "smaller than");
    file.set_len(24 << 20).unwrap();
    let status = scratch.json("status disk --json");
    assert_eq!(status["start_refused"], Value::Null);
    let grown = "the origin has grown to 25165824 bytes: the next start will serve its first 16777216 bytes";
    let (level, _, warnings) = health(&status);
    assert_eq!(level, "warning", "{status:#}");
    assert!(
        warnings.contains(grown) && warnings.contains("`flaz volume resize "),
        "{status:#}"
    );
    let _server = scratch.serve("disk");
    scratch.ok("stop disk");
    file.set_len(16 << 20).unwrap();
    accepted("disk");

    file.write_all_at(b"changed", 1024).unwrap();
    let reason = "the origin was changed without the cache";
    refused("disk", reason, "start with `flaz serve --discard-cache`");
    let (text, _) = scratch.ok("status disk");
    assert!(text.contains(&format!("failed: {reason}\n")), "{text}");
}

#[test]
fn status_says_that_the_next_start_is_cold() {
    let scratch = Scratch::with_cache();
    scratch.ok("create second.img --size 32M --origin origin");
    for cache in ["disk", "second.img"] {
        drop(scratch.serve(cache));
    }
    let warnings = |cache: &str| health(&scratch.json(&format!("status {cache} --json"))).2;
    let cold = "will not use the clean blocks of the cache (no data is lost): the origin was served through another cache";
    assert!(warnings("disk").contains(cold), "{}", warnings("disk"));
    assert!(!warnings("second.img").contains(cold));
}

/// After a crash, only the host record has the fingerprint of the origin.
#[test]
fn status_of_an_unclean_cache_reads_the_host_record() {
    let scratch = Scratch::with_cache();
    scratch.configure(&format!("state-dir = {:?}\n", scratch.path("elsewhere")));
    drop(scratch.serve("disk"));
    let first = || health(&scratch.json("status disk --json")).1;
    assert_eq!(first(), "the last daemon did not stop cleanly");
    let file = File::options().write(true).open(scratch.path("origin")).unwrap();
    file.write_all_at(b"changed", 1024).unwrap();
    assert_eq!(first(), "the origin was changed without the cache");
}

/// A killed daemon leaves its sockets. Nothing takes them for a daemon, and the next command removes them.
#[test]
fn the_sockets_of_a_killed_daemon_are_removed() {
    let scratch = Scratch::with_cache();
    scratch.ok("create second.img --size 32M --origin origin");
    let names = || {
        let entries = fs::read_dir(scratch.path("run")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names
            .filter(|name| name.ends_with(".sock") || name.ends_with(".nbd"))
            .collect::<Vec<_>>()
    };
    let sockets = || names().len();
    let kill = |mut server: Server| {
        server.0.kill().unwrap();
        server.0.wait().unwrap();
        // The kernel may release them a moment later than the process.
        for entry in fs::read_dir(scratch.path("run")).unwrap() {
            while UnixStream::connect(entry.as_ref().unwrap().path()).is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    };
    for command in ["list --json", "status disk", "top --count 1", "serve second.img"] {
        kill(scratch.serve("disk"));
        assert_eq!(sockets(), 2, "they are left behind");
        let uuid = names()[0][..8].to_owned();
        if let Some(other) = command.strip_prefix("serve ") {
            let _other = scratch.serve(other);
            assert_eq!(sockets(), 2, "those of the other cache");
            scratch.ok(&format!("stop {other}"));
        } else {
            let (out, _) = scratch.ok(command);
            // Other directories may have stale sockets, too.
            let gone = out
                .lines()
                .find(|line| line.contains("gone") && line.contains(&uuid));
            assert_eq!(gone, None);
        }
        assert_eq!(sockets(), 0, "{command}");
    }
    kill(scratch.serve("disk"));
    let list = scratch.json("list --json");
    let caches = list["caches"].as_array().unwrap();
    let of_disk: Vec<_> = caches.iter().filter(|cache| cache["name"] == "disk").collect();
    assert_eq!(of_disk.len(), 1, "{list:#}");
    assert_eq!(of_disk[0]["state"], "unclean");
    assert_eq!(of_disk[0]["problem"], Value::Null);
    assert_eq!(scratch.json("status disk --json")["state"], "unclean");
    let stop = scratch.run("stop disk");
    assert_eq!(stop.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&stop.stderr).contains("not running"));
    let _next = scratch.serve("disk");
    // Not those of a live daemon.
    scratch.ok("status second.img");
    scratch.ok("top --count 1");
    assert_eq!(sockets(), 2);
    assert_eq!(scratch.json("list --json")["caches"][0]["state"], "running");
    scratch.ok("stop disk");
    assert_eq!(sockets(), 0);
}

#[test]
fn a_configuration_names_the_control_socket_too() {
    let scratch = Scratch::with_cache();
    scratch.configure(&format!("control = {:?}\n", scratch.path("own.sock")));
    let _server = scratch.serve("disk");
    assert_eq!(scratch.json("status disk --json")["state"], "running");
    let list = scratch.json("list --json");
    assert_eq!(list["caches"][0]["state"], "running");
    scratch.ok("stop disk");
}

/// A copy has the UUID of the cache; only the cache is served.
#[test]
fn a_copy_of_a_served_cache_is_listed_as_idle() {
    let scratch = Scratch::with_cache();
    fs::copy(scratch.path("disk.img"), scratch.path("copy.img")).unwrap();
    let text = fs::read_to_string(scratch.path("etc/disk.toml")).unwrap();
    // Before the other one by its name.
    fs::write(
        scratch.path("etc/copy.toml"),
        text.replace("disk.img", "copy.img"),
    )
    .unwrap();
    for words in ["disk", "disk --control own.sock"] {
        if words.contains("own.sock") {
            let control = format!("control = {:?}\n", scratch.path("own.sock"));
            for name in ["etc/disk.toml", "etc/copy.toml"] {
                let text = fs::read_to_string(scratch.path(name)).unwrap();
                fs::write(scratch.path(name), text + &control).unwrap();
            }
        }
        let _server = scratch.serve(words);
        let list = scratch.json("list --json");
        let caches = list["caches"].as_array().unwrap();
        // Other caches of this host, which may be running, have no name here.
        let states: Vec<_> = caches
            .iter()
            .filter_map(|cache| Some((cache["name"].as_str()?, cache["state"].as_str()?)))
            .collect();
        assert_eq!(states, [("copy", "new"), ("disk", "running")], "{list:#}");
        scratch.ok("stop disk");
    }
}

#[test]
fn a_name_that_is_also_a_file_is_ambiguous() {
    let scratch = Scratch::with_cache();
    fs::rename(scratch.path("disk.img"), scratch.path("disk")).unwrap();
    scratch.refused(
        "status disk",
        &["'disk' is ambiguous", "./disk for the file", "etc/disk.toml"],
    );
    scratch.refused("serve disk", &["'disk' is ambiguous"]);
    assert_eq!(scratch.json("status ./disk --json")["state"], "new");
    // Without a configuration, the word is a path.
    fs::remove_file(scratch.path("etc/disk.toml")).unwrap();
    assert_eq!(scratch.json("status disk --json")["state"], "new");
}

#[test]
fn a_missing_configuration_and_a_missing_ssd_are_told_apart() {
    let scratch = Scratch::with_cache();
    fs::remove_file(scratch.path("disk.img")).unwrap();
    for command in ["serve", "status", "set", "stop", "flush", "detach", "check"] {
        let said = |name: &str| {
            let setting = if command == "set" { "mode=write-back" } else { "" };
            let output = scratch.run(&format!("{command} {name} {setting}"));
            assert_eq!(output.status.code(), Some(1), "{command} {name}");
            String::from_utf8_lossy(&output.stderr).into_owned()
        };
        let ssd = said("disk");
        let file = scratch.path("etc/disk.toml").display().to_string();
        let part = format!(
            "disk.img: no such cache device: connect it again, or correct `cache` in the configuration {file}"
        );
        assert!(ssd.contains(&part), "{ssd}");
        let configuration = said("other");
        let file = scratch.path("etc/other.toml").display().to_string();
        let part = format!("other: no such configuration (expected {file}), and no such cache device");
        assert!(configuration.contains(&part), "{configuration}");
        let path = said("./other");
        assert!(
            path.contains("./other: no such cache device: connect it again, or correct the path"),
            "{path}"
        );
    }
}

#[test]
fn a_refused_configuration_names_its_line() {
    let scratch = Scratch::with_cache();
    scratch.configure("moed = 'write-back'\n");
    for line in ["serve disk", "flush disk", "resize disk", "check disk"] {
        scratch.refused(line, &["etc/disk.toml:3: unknown key 'moed'"]);
    }
    let list = scratch.run("list");
    let [out, err] = [&list.stdout, &list.stderr].map(|text| String::from_utf8_lossy(text));
    assert_eq!(list.status.code(), Some(1), "{err}");
    assert!(out.contains("disk") && out.contains("invalid"), "{out}");
    assert!(err.contains("disk.toml:3"), "{err}");
    assert!(
        err.ends_with("list: a configuration is invalid: correct or remove it\n"),
        "{err}"
    );
    let list = scratch.run("list --json");
    let json: Value = serde_json::from_slice(&list.stdout).unwrap();
    assert_eq!(
        (list.status.code(), &json["caches"][0]["state"]),
        (Some(1), &"invalid".into())
    );
    scratch.configure("");
    scratch.ok("list");
}

#[test]
fn a_daemon_is_reached_with_a_refused_configuration() {
    let scratch = Scratch::with_cache();
    for (own_socket, control) in [(false, ""), (true, "control = ")] {
        let control = match own_socket {
            true => format!("{control}{:?}\n", scratch.path("own.sock")),
            false => String::new(),
        };
        scratch.configure(&control);
        let _server = scratch.serve("disk");
        scratch.configure(&format!("{control}moed = 'write-back'\n"));
        let status = scratch.json("status disk --json");
        let (level, first, warnings) = health(&status);
        assert_eq!(
            (level.as_str(), first.as_str()),
            ("warning", "the configuration is refused"),
            "{status:#}"
        );
        assert!(warnings.contains("unknown key 'moed'"), "{warnings}");
        assert_eq!(status["state"], "running");
        let (_, err) = scratch.ok("set disk policy=fifo");
        assert!(err.contains("unknown key 'moed'"), "{err}");
        let (_, err) = scratch.ok("stop disk");
        assert!(err.contains("unknown key 'moed'"), "{err}");
        let status = scratch.json("status disk --json");
        assert_eq!(status["state"], "clean");
        assert_eq!(health(&status).1, "the configuration is refused");
    }
}

#[test]
fn without_toml_a_daemon_is_reached_by_its_path_or_socket() {
    let scratch = Scratch::with_cache();
    let _server = scratch.serve("disk --control own.sock");
    fs::write(scratch.path("etc/disk.toml"), "origin = '/o'\ncache = \n").unwrap();
    for line in ["status disk", "stop disk", "set disk mode=write-back"] {
        scratch.refused(
            line,
            &["etc/disk.toml:2: ", "--control PATH", "the path of its cache"],
        );
    }
    let status = scratch.json("status disk --control own.sock --json");
    assert_eq!(status["state"], "running");
    scratch.ok("set disk mode=write-around --control own.sock");
    scratch.ok("stop disk --control own.sock");
    assert_eq!(scratch.json("status disk.img --json")["state"], "clean");
}

#[test]
fn no_cache_is_created_if_its_configuration_cannot_be_written() {
    let scratch = Scratch::with_cache();
    fs::create_dir(scratch.path("etc/folder.toml")).unwrap();
    // Not even root can make a file in /proc.
    let etc = scratch.path("etc");
    for (name, directory) in [("new", Path::new("/proc")), ("folder", etc.as_path())] {
        let line = format!("create new.img --size 32M --origin origin --name {name} --force");
        let output = scratch
            .command(&line)
            .env("FLAZ_CONFIG_DIR", directory)
            .output()
            .unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{err}");
        let part = format!("{name}.toml cannot be written, and no cache was created");
        assert!(err.contains(&part), "{err}");
        assert!(!scratch.path("new.img").exists());
    }
}

#[test]
fn create_writes_a_configuration() {
    let scratch = Scratch::with_cache();
    let (out, err) = scratch.ok("create new.img --size 32M --origin origin --name new.1");
    assert!(
        out.contains("new.img") && out.contains("flaz serve new.1\n") && err.contains("etc/new.1.toml"),
        "{out}{err}"
    );
    let path = scratch.path("etc/new.1.toml");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
    let text = fs::read_to_string(&path).unwrap();
    assert!(
        text.contains(&format!("cache = {:?}\n", scratch.path("new.img"))),
        "absolute: {text}"
    );
    assert_eq!(scratch.json("status new.1 --json")["state"], "new");
    assert_eq!(
        fs::read_dir(scratch.path("etc")).unwrap().count(),
        2,
        "no draft is left"
    );
    // Nothing is made if the name is taken.
    scratch.refused(
        "create third.img --size 32M --origin origin --name disk",
        &["etc/disk.toml exists", "--force"],
    );
    assert!(!scratch.path("third.img").exists());
    scratch.refused(
        "create third.img --size 32M --origin origin --name a/b",
        &["at most 64 letters"],
    );
    scratch.refused(
        "create third.img --size 32M --origin origin --name third.toml",
        &["does not end in '.toml'", "'third'"],
    );
    assert!(!scratch.path("third.img").exists());
    scratch.ok("create third.img --size 32M --origin origin --name disk --force");
    let text = fs::read_to_string(scratch.path("etc/disk.toml")).unwrap();
    assert!(text.contains("third.img"), "{text}");
}

#[test]
fn settings_last_unless_something_overrides_them() {
    let scratch = Scratch::with_cache();
    assert_eq!(scratch.mode_with(""), "write-through");
    let server = scratch.serve("disk");
    scratch.ok("set disk mode=write-back codec=zstd:3 dirty-limit=7");
    assert_eq!(scratch.mode(), "write-back");
    scratch.ok("set disk mode=pass-through --until-restart");
    assert_eq!(scratch.mode(), "pass-through");
    scratch.ok("stop disk");
    drop(server);
    // Also of a cache that is not running, and after a crash.
    let settings = &scratch.json("status disk --json")["settings"];
    assert_eq!(settings["mode"], "write-back");
    assert_eq!(
        (
            settings["codec"].as_str(),
            settings["dirty_limit_percent"].as_u64()
        ),
        (Some("zstd:3"), Some(7))
    );
    let server = scratch.serve("disk");
    scratch.ok("set disk policy=second-touch");
    drop(server);
    assert_eq!(scratch.mode_with(""), "write-back");
    assert_eq!(
        scratch.json("status disk --json")["settings"]["policy"],
        "second-touch"
    );
    // The command line, then the file, then what is stored.
    assert_eq!(scratch.mode_with("--mode write-around"), "write-around");
    scratch.configure("mode = 'write-through'\n");
    assert_eq!(scratch.mode_with(""), "write-through");
    assert_eq!(scratch.mode_with("--mode=pass-through"), "pass-through");
    let server = scratch.serve("disk");
    for name in ["disk", "disk.img"] {
        let (_, err) = scratch.ok(&format!("set {name} mode=write-around policy=fifo"));
        assert!(
            err.contains("mode is also set in ") && err.contains("etc/disk.toml:3"),
            "{name}: {err}"
        );
        assert!(!err.contains("policy"), "{err}");
    }
    let (_, err) = scratch.ok("set disk mode=write-through --until-restart");
    assert!(!err.contains("also set"), "{err}");
    scratch.ok("stop disk");
    drop(server);
    let dump = scratch.ok("dump disk.img --json").0;
    let superblock: Value = serde_json::from_str(dump.lines().next().unwrap()).unwrap();
    assert_eq!(
        superblock["fields"]["settings"]["mode"], "write-around",
        "{superblock}"
    );
}

#[test]
fn the_list_has_configured_and_running_caches() {
    let scratch = Scratch::with_cache();
    // Other caches of this host may be running.
    let caches = |scratch: &Scratch| {
        let mut caches = scratch.json("list --json")["caches"].as_array().unwrap().clone();
        let below = scratch.path("");
        let is_ours = |cache: &Value| {
            cache["cache"]
                .as_str()
                .is_some_and(|path| Path::new(path).starts_with(&below))
        };
        caches.retain(|cache| !cache["name"].is_null() || is_ours(cache));
        caches
    };
    assert_eq!(caches(&scratch)[0]["state"], "new");
    fs::copy(scratch.path("origin"), scratch.path("other")).unwrap();
    scratch.ok("create other.img --size 32M --origin other");
    fs::write(
        scratch.path("etc/gone.toml"),
        "cache = '/dev/no-such-disk'\norigin = '/dev/none'\n",
    )
    .unwrap();
    fs::write(scratch.path("etc/disk.toml.sample"), "no configuration").unwrap();
    let first = scratch.serve("disk --mode write-back");
    let second = scratch.serve("other.img");
    let found = caches(&scratch);
    let names: Vec<_> = found.iter().map(|cache| cache["name"].as_str()).collect();
    assert_eq!(names, [Some("disk"), Some("gone"), None]);
    let states: Vec<_> = found
        .iter()
        .map(|cache| cache["state"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["running", "missing", "running"]);
    assert_eq!(
        (found[0]["mode"].as_str(), found[0]["dirty_bytes"].as_u64()),
        (Some("write-back"), Some(0))
    );
    assert!(
        found[0]["exports"][0].as_str().unwrap().starts_with("unix:"),
        "{found:?}"
    );
    assert!(
        found[1]["problem"]
            .as_str()
            .unwrap()
            .contains("no such cache device"),
        "{found:?}"
    );
    assert!(
        found[2]["cache"].as_str().unwrap().ends_with("other.img"),
        "{found:?}"
    );
    let (out, err) = scratch.ok("list");
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    assert!(out.lines().count() >= 4, "{out}");
    assert!(err.contains("gone: "), "{err}");
    scratch.ok("stop disk");
    scratch.ok("stop other.img");
    drop((first, second));
    assert_eq!(caches(&scratch)[0]["state"], "clean");
    assert_eq!(caches(&scratch)[0]["mode"], "write-through");
    assert_eq!(caches(&scratch).len(), 2);
    scratch.configure("mode = 'write-around'\n");
    assert_eq!(
        caches(&scratch)[0]["mode"],
        "write-around",
        "that of the next start"
    );
    let empty = tempfile::tempdir().unwrap();
    let mut list = scratch.command("list");
    let output = list.env("FLAZ_CONFIG_DIR", empty.path()).output().unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success() && !out.contains("disk.img"), "{out}");
    assert_eq!(out.is_empty(), err.contains("no configuration in"), "{out}{err}");
}
