//! `flaz create` on real block devices: mounted, used for swap, partitioned, claimed. Needs root and loop devices;
//! without them each test prints a message and passes.

use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const SIZE: u64 = 64 << 20;

/// A directory with an image, a loop device backed by it, and a mount point; all removed at the end.
struct Rig {
    folder: tempfile::TempDir,
    device: PathBuf,
    undo: Vec<(&'static str, Vec<PathBuf>)>,
}

fn tool(program: &str, arguments: &[&Path]) -> Output {
    let search = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    Command::new(program)
        .args(arguments)
        .env("PATH", search)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[track_caller]
fn must(program: &str, arguments: &[&Path]) -> String {
    let output = tool(program, arguments);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

impl Rig {
    /// The rig, on an image prepared by `prepare`; `None` without loop devices.
    fn new(prepare: impl FnOnce(&File)) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        let file = File::create(&image).unwrap();
        file.set_len(SIZE).unwrap();
        prepare(&file);
        File::create(folder.path().join("origin"))
            .unwrap()
            .set_len(SIZE)
            .unwrap();
        std::fs::create_dir(folder.path().join("mnt")).unwrap();
        let losetup = tool(
            "losetup",
            &[
                "--find".as_ref(),
                "--show".as_ref(),
                "--partscan".as_ref(),
                &image,
            ],
        );
        if !losetup.status.success() {
            eprintln!(
                "skipped: no loop device: {}",
                String::from_utf8_lossy(&losetup.stderr)
            );
            return None;
        }
        let device = PathBuf::from(String::from_utf8(losetup.stdout).unwrap().trim());
        let undo = vec![("losetup", vec!["--detach".into(), device.clone()])];
        Some(Self { folder, device, undo })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn mount(&mut self, device: &Path) {
        let place = self.path("mnt");
        must("mount", &[device, &place]);
        self.undo.push(("umount", vec![place]));
    }

    /// Runs `flaz create` on `cache`; returns its status and output.
    fn create(&self, cache: &Path, words: &[&str]) -> (Option<i32>, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_flaz"))
            .arg("create")
            .arg(cache)
            .arg("--origin")
            .arg(self.path("origin"))
            .args(words)
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }

    /// Refused with and without --force, with this text.
    #[track_caller]
    fn never(&self, cache: &Path, part: &str) {
        for words in [&[][..], &["--force"]] {
            let (status, text) = self.create(cache, words);
            assert_eq!(status, Some(1), "{text}");
            assert!(text.contains(part), "no '{part}' in {text}");
            assert!(text.contains("--force does not override"), "{text}");
        }
    }

    /// Refused without --force.
    #[track_caller]
    fn only_forced(&self, cache: &Path, part: &str) {
        let (status, text) = self.create(cache, &[]);
        assert_eq!(status, Some(1), "{text}");
        assert!(
            text.contains(part) && text.contains("use --force"),
            "no '{part}' in {text}"
        );
        let (_, text) = self.create(cache, &["--force"]);
        assert!(!text.contains("is not free"), "{text}");
    }

    /// Refused without --force; not tried with it, which would destroy the rig.
    #[track_caller]
    fn not_unforced(&self, cache: &Path, part: &str) {
        let (status, text) = self.create(cache, &[]);
        assert_eq!(status, Some(1), "{text}");
        assert!(
            text.contains(part) && text.contains("use --force"),
            "no '{part}' in {text}"
        );
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        while let Some((program, arguments)) = self.undo.pop() {
            let arguments: Vec<&Path> = arguments.iter().map(PathBuf::as_path).collect();
            let output = tool(program, &arguments);
            if !output.status.success() {
                eprintln!(
                    "{program} {arguments:?}: {}",
                    String::from_utf8_lossy(&output.stderr)
                );
            }
        }
    }
}

#[test]
fn a_mounted_file_system() {
    for (make, options) in [("mkfs.ext4", "-q"), ("mkfs.btrfs", "-fq")] {
        let Some(mut rig) = Rig::new(|_| {}) else { return };
        let device = rig.device.clone();
        if make == "mkfs.btrfs" {
            // The minimum size of btrfs exceeds the image.
            File::options()
                .write(true)
                .open(rig.path("image"))
                .unwrap()
                .set_len(128 << 20)
                .unwrap();
            must("losetup", &["--set-capacity".as_ref(), &device]);
        }
        must(make, &[options.as_ref(), &device]);
        rig.mount(&device);
        let place = format!("mounted on {}", rig.path("mnt").display());
        rig.never(&device, &place);
        rig.never(&rig.path("image"), &place);
    }
}

#[test]
fn an_unmounted_file_system() {
    let Some(rig) = Rig::new(|_| {}) else { return };
    must("mkfs.ext4", &["-q".as_ref(), &rig.device]);
    let (_, text) = rig.create(&rig.path("image"), &[]);
    assert!(text.contains("used by the loop device"), "{text}");
    rig.only_forced(&rig.device, "ext4 file system (signature at offset 1080)");
}

#[test]
fn swap_in_use() {
    let Some(mut rig) = Rig::new(|_| {}) else { return };
    let device = rig.device.clone();
    must("mkswap", &[&device]);
    let output = tool("swapon", &[&device]);
    if !output.status.success() {
        eprintln!("skipped: {}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    rig.undo.push(("swapoff", vec![device.clone()]));
    rig.never(&device, "used as swap space");
    rig.never(&rig.path("image"), "used as swap space");
}

/// One partition of type 83 from 1 MiB on.
fn partition(file: &File) {
    let sectors = u32::try_from(SIZE / 512).unwrap() - 2048;
    let mut entry = [0, 0, 2, 0, 0x83, 0, 2, 0, 0, 8, 0, 0, 0, 0, 0, 0];
    entry[12..].copy_from_slice(&sectors.to_le_bytes());
    file.write_all_at(&entry, 446).unwrap();
    file.write_all_at(b"\x55\xaa", 510).unwrap();
}

#[test]
fn a_disk_with_a_mounted_partition() {
    let Some(mut rig) = Rig::new(partition) else {
        return;
    };
    let disk = rig.device.clone();
    let first = PathBuf::from(format!("{}p1", disk.display()));
    if !first.exists() {
        eprintln!("skipped: the kernel shows no partitions of loop devices");
        return;
    }
    rig.not_unforced(&disk, "dos partition table (signature at offset 510)");
    must("mkfs.ext4", &["-q".as_ref(), &first]);
    rig.mount(&first);
    let name = first.file_name().unwrap().to_str().unwrap();
    rig.never(&disk, &format!("(ext4, through {name})"));
    rig.never(&first, "mounted on");
    rig.never(&rig.path("image"), &format!("through {name}"));
}

#[test]
fn the_origin_behind_a_loop_device() {
    let Some(rig) = Rig::new(|_| {}) else { return };
    let output = Command::new(env!("CARGO_BIN_EXE_flaz"))
        .arg("create")
        .arg(&rig.device)
        .arg("--origin")
        .arg(rig.path("image"))
        .arg("--force")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("the cache would overwrite the origin"), "{text}");
}

/// Mounted in another mount namespace: no table that this process can read lists it, but the kernel knows.
#[test]
fn a_mount_in_another_namespace_is_refused() {
    struct Elsewhere(Child);
    impl Drop for Elsewhere {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let Some(rig) = Rig::new(|_| {}) else { return };
    must("mkfs.ext4", &["-q".as_ref(), &rig.device]);
    let script = format!(
        "mount {} {} && echo mounted && exec sleep 60",
        rig.device.display(),
        rig.path("mnt").display()
    );
    let child = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", &script])
        .stdout(Stdio::piped())
        .spawn();
    let Ok(child) = child else {
        eprintln!("skipped: no unshare");
        return;
    };
    let mut elsewhere = Elsewhere(child);
    let mut line = String::new();
    let mut stdout = std::io::BufReader::new(elsewhere.0.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    if line.trim() != "mounted" {
        eprintln!("skipped: no mount namespace");
        return;
    }
    rig.never(&rig.device, "claimed by the kernel");
}

#[test]
fn devices_are_studied_and_never_overwritten() {
    let block: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    let Some(rig) = Rig::new(|file| file.write_all_at(&block, 8 << 20).unwrap()) else {
        return;
    };
    let flaz = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_flaz"))
            .args(words)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code(), text)
    };
    let device = rig.device.to_str().unwrap();
    let (status, text) = flaz(&["study", device, "--json"]);
    assert_eq!(status, Some(0), "{text}");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["total_bytes"], SIZE);
    assert_eq!(report["zeroes"]["percent"], 100.0 * 63.0 / 64.0);
    let link = rig.path("cells.csv");
    std::os::unix::fs::symlink(device, &link).unwrap();
    let (link, folder) = (link.to_str().unwrap(), rig.folder.path().to_str().unwrap());
    let means = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../bench/report/tests/data/sf1222-throughput.csv"
    );
    let image = rig.path("image");
    let study = image.to_str().unwrap();
    let report = ["bench", "report", means, "--runs", "10"];
    for place in [device, link] {
        let json = format!("--json={place}");
        for words in [
            &["bench", "data", "--size", "1MiB", "--output", place][..],
            &["study", study, "--distribution", place],
            &[&report[..], &["--output", place]].concat(),
            &[&report[..], &["--csv-dir", folder]].concat(),
            &["demo", "--html", place],
            &["demo", "--no-html", &json],
        ] {
            let (status, text) = flaz(words);
            assert_eq!(status, Some(2), "{words:?}: {text}");
            assert!(text.contains("is a block device"), "{words:?}: {text}");
        }
    }
    for words in [
        &["study", means, "--distribution", study][..],
        &["bench", "data", "--size", "1MiB", "--output", study],
    ] {
        let (status, text) = flaz(words);
        assert_eq!(status, Some(1), "{words:?}: {text}");
        assert!(text.contains("used by the loop device"), "{words:?}: {text}");
    }
    let mut found = vec![0; 1 << 20];
    File::open(&rig.device)
        .unwrap()
        .read_exact_at(&mut found, 8 << 20)
        .unwrap();
    assert!(found == block, "nothing was written");
    assert!(std::fs::metadata(device).unwrap().file_type().is_block_device());
}

/// Runs `flaz bench run` on a device with its path as confirmation; returns its status and output.
fn measure(rig: &Rig, device: &Path) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_flaz"))
        .args([
            "bench",
            "run",
            "--tests",
            "write,random_read,fread",
            "--levels",
            "50",
            "--runs",
            "1",
        ])
        .args([
            "--size",
            "4MiB",
            "--writers",
            "2",
            "--drop-caches",
            "target",
            "--verify",
            "--output",
        ])
        .arg(rig.path("out.json"))
        .arg("--yes-destroy")
        .arg(device)
        .arg(device)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_device_in_use_is_not_measured() {
    let Some(mut rig) = Rig::new(|_| {}) else { return };
    let device = rig.device.clone();
    must("mkfs.ext4", &["-q".as_ref(), &device]);
    let (status, text) = measure(&rig, &device);
    assert_eq!(status, Some(1), "{text}");
    assert!(
        text.contains("ext4 file system") && text.contains("No option overrides"),
        "{text}"
    );
    let (status, text) = measure(&rig, &rig.path("image"));
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("used by the loop device"), "{text}");
    rig.mount(&device);
    let (status, text) = measure(&rig, &device);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("mounted on"), "{text}");
    assert!(!rig.path("out.json").exists());
}

#[test]
fn a_partitioned_device_is_not_measured() {
    let Some(rig) = Rig::new(partition) else { return };
    let (status, text) = measure(&rig, &rig.device);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("partition table"), "{text}");
}

#[test]
fn an_empty_device_is_measured_in_place() {
    let Some(rig) = Rig::new(|file| file.write_all_at(b"beyond", 8 << 20).unwrap()) else {
        return;
    };
    let (status, text) = measure(&rig, &rig.device);
    assert_eq!(status, Some(0), "{text}");
    let campaign: serde_json::Value =
        serde_json::from_slice(&std::fs::read(rig.path("out.json")).unwrap()).unwrap();
    assert_eq!(campaign["environment"]["target_kind"], "device");
    assert_eq!(campaign["environment"]["file_system"], "none");
    assert!(campaign["environment"]["free_bytes"].is_null());
    assert_eq!(campaign["cells"].as_array().unwrap().len(), 3);
    let mut found = [0; 6];
    File::open(&rig.device)
        .unwrap()
        .read_exact_at(&mut found, 8 << 20)
        .unwrap();
    assert_eq!(&found, b"beyond", "no more than --size is written");
}

#[test]
fn a_file_system_without_direct_io_uses_the_page_cache() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("ram");
    std::fs::create_dir(&place).unwrap();
    // The only file system in every kernel without O_DIRECT.
    let mounted = tool(
        "mount",
        &["-t".as_ref(), "ramfs".as_ref(), "none".as_ref(), &place],
    );
    if !mounted.status.success() {
        eprintln!("skipped: {}", String::from_utf8_lossy(&mounted.stderr));
        return;
    }
    let run = |words: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_flaz"))
            .args([
                "bench",
                "run",
                "ram",
                "--size",
                "1MiB",
                "--runs",
                "1",
                "--drop-caches",
                "target",
            ])
            .args([
                "--tests",
                "write,read",
                "--levels",
                "50",
                "--records",
                "64KiB",
                "--output",
                "out.json",
            ])
            .args(words)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let (strict, lax) = (run(&["--io", "direct"]), run(&[]));
    must("umount", &[&place]);
    let text = String::from_utf8(strict.stderr).unwrap();
    assert_eq!(strict.status.code(), Some(1), "{text}");
    assert!(text.contains("--io buffered"), "{text}");
    let text = String::from_utf8(lax.stderr).unwrap();
    assert_eq!(lax.status.code(), Some(0), "{text}");
    assert_eq!(text.matches("buffered").count(), 1, "said once: {text}");
}

/// Once for each device, by the daemon, but not by a command that opens a cache for a moment.
#[test]
fn only_serve_reports_missing_direct_io() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("ram");
    std::fs::create_dir(&place).unwrap();
    let mounted = tool(
        "mount",
        &["-t".as_ref(), "ramfs".as_ref(), "none".as_ref(), &place],
    );
    if !mounted.status.success() {
        eprintln!("skipped: {}", String::from_utf8_lossy(&mounted.stderr));
        return;
    }
    File::create(place.join("origin"))
        .unwrap()
        .set_len(16 << 20)
        .unwrap();
    let flaz = |words: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flaz"));
        command
            .args(words.split_whitespace())
            .current_dir(folder.path())
            .env("FLAZ_RUNTIME_DIR", folder.path().join("run"))
            .env("STATE_DIRECTORY", folder.path().join("state"))
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        command
    };
    let said = |output: Output| (output.status, String::from_utf8(output.stderr).unwrap());
    let quiet: Vec<_> = [
        "create ram/cache --size 16M --origin ram/origin",
        "status ram/cache",
        "check ram/cache",
        "flush ram/cache",
    ]
    .map(|words| (words, said(flaz(words).output().unwrap())))
    .into();
    let server = flaz("serve ram/cache").spawn().unwrap();
    // It replies as soon as it has started.
    let mut stopped = false;
    for _ in 0..100 {
        stopped = flaz("stop ram/cache").output().unwrap().status.success();
        if stopped {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    if !stopped {
        let mut server = server;
        let _ = server.kill();
        let _ = server.wait();
        must("umount", &[&place]);
        panic!("it did not start");
    }
    let (status, loud) = said(server.wait_with_output().unwrap());
    must("umount", &[&place]);
    for (words, (status, text)) in quiet {
        assert!(
            status.success() && !text.contains("no direct I/O"),
            "{words}: {text}"
        );
    }
    assert!(status.success(), "{loud}");
    for what in [
        "cache device ram/cache: no direct I/O",
        "ram/origin: no direct I/O",
    ] {
        assert_eq!(loud.matches(what).count(), 1, "{what}: {loud}");
    }
}

/// As when the SSD has failed or was unplugged: the daemon serves the origin.
#[test]
fn a_daemon_is_found_though_its_cache_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let flaz = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flaz"));
        command
            .args(words)
            .current_dir(folder.path())
            .env("FLAZ_RUNTIME_DIR", folder.path().join("run"))
            .env("STATE_DIRECTORY", folder.path().join("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    };
    let said = |words: &[&str]| {
        let output = flaz(words).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    };
    let place = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (cache, other, origin) = (place("cache"), place("other"), place("origin"));
    File::create(&origin).unwrap().set_len(16 << 20).unwrap();
    for path in [&cache, &other] {
        assert!(said(&["create", path, "--size", "16M", "--origin", &origin]).0);
    }
    let mut server = flaz(&["serve", &cache]).spawn().unwrap();
    let running = || said(&["status", &cache, "--json"]).1.contains("\"live\"");
    if !(0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        running()
    }) {
        let _ = server.kill();
        panic!("it did not start: {:?}", server.wait_with_output());
    }
    for path in [&cache, &other] {
        std::fs::remove_file(path).unwrap();
    }
    let (of_cache, of_other) = (said(&["status", &cache, "--json"]), said(&["stop", &other]));
    let stopped = said(&["stop", &cache]);
    if !stopped.0 {
        let _ = server.kill();
    }
    let _ = server.wait();
    assert!(of_cache.0 && of_cache.1.contains("\"live\""), "{}", of_cache.1);
    assert!(!of_other.0 && of_other.1.contains("other"), "{}", of_other.1);
    assert!(stopped.0, "{}", stopped.1);
}
