//! `flaz bench detect` on real devices: compression is detected, its absence is not mistaken for it, lower layers are
//! named, and a target in use is never written.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::limited::TOOLS as LIMITED_TOOLS;
use crate::support::{Limited, Mount, Program, Scratch, need};

const BTRFS: &[(&str, &str)] = &[("mkfs.btrfs", "btrfs-progs")];
const DISK_BYTES: u64 = 256 << 20;
/// How long to wait for a loop device that is still open.
const DETACH_MAX: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);
/// Rounds per attempt, and attempts: six rounds are sufficient on an idle machine, and with other load in more than
/// half of the attempts.
const ROUNDS: [u32; 4] = [6, 12, 24, 48];

/// The result of `flaz bench detect` on `target`, with these arguments.
fn detect(target: &str, words: &str) -> Value {
    let json = Program::flaz()
        .words("bench detect --json")
        .words(words)
        .arg(target)
        .ok();
    serde_json::from_str(&json).expect("nothing but JSON in the JSON")
}

/// As [`detect`], on a target that is overwritten.
fn overwrite(target: &str, words: &str) -> Value {
    detect(target, &format!("--yes-destroy {target} {words}"))
}

fn answer<'a>(found: &'a Value, question: &str) -> &'a str {
    let findings = found["findings"].as_array().expect("findings");
    let finding = findings.iter().find(|finding| finding["question"] == question);
    finding.map_or("not asked", |finding| finding["answer"].as_str().expect("a word"))
}

fn reason<'a>(found: &'a Value, question: &str) -> &'a str {
    let findings = found["findings"].as_array().expect("findings");
    let finding = findings.iter().find(|finding| finding["question"] == question);
    finding.map_or("not asked", |finding| finding["reason"].as_str().expect("a text"))
}

fn caveat<'a>(found: &'a Value, cause: &str) -> (&'a str, &'a str) {
    let mut caveats = found["caveats"].as_array().expect("caveats").iter();
    let caveat = caveats
        .find(|caveat| caveat["cause"] == cause)
        .expect("the caveat");
    (
        caveat["state"].as_str().expect("a word"),
        caveat["reason"].as_str().expect("a text"),
    )
}

/// A btrfs with forced compression on a device with limited bandwidth. Removed from top to bottom.
struct Compressing {
    mount: Mount,
    _disk: Limited,
    _scratch: Scratch,
}

impl Compressing {
    /// `None`: a requirement is missing, and a message was printed.
    fn new() -> Option<Self> {
        if !(need::tools(LIMITED_TOOLS) && need::tools(BTRFS) && need::mounts("btrfs")) {
            return None;
        }
        let scratch = Scratch::new();
        let disk = Limited::start(&scratch, DISK_BYTES, "400M");
        Program::new("mkfs.btrfs")
            .words("-q -f -m single")
            .arg(disk.device())
            .ok();
        Some(Self {
            mount: Mount::with_options(&scratch, disk.device(), "compress-force=zstd:1"),
            _disk: disk,
            _scratch: scratch,
        })
    }
}

#[test]
fn a_plain_device_is_not_taken_for_one_that_compresses() {
    if !(need::tools(LIMITED_TOOLS) && need::mounts("ext4")) {
        return;
    }
    let scratch = Scratch::new();
    let disk = Limited::start(&scratch, DISK_BYTES, "800M");
    let found = overwrite(disk.device(), "--sample 2MiB --size 16MiB --rounds 8");
    for question in ["compresses", "elides-zeros", "deduplicates"] {
        assert_ne!(answer(&found, question), "yes", "{found:#}");
    }
    assert_eq!(
        caveat(&found, "file-system compression").0,
        "ruled-out",
        "{found:#}"
    );
    let (state, why) = caveat(&found, "layers below");
    assert!(state == "possible" && why.contains("a file on fuse"), "{found:#}");
}

/// The rates of a real file system that compresses. On a busy machine an attempt may give no answer, but never a *no*.
/// The rates without noise are tested on models whose bandwidth counts compressed bytes.
#[test]
fn btrfs_with_zstd_is_detected_by_its_rates() {
    let Some(btrfs) = Compressing::new() else {
        return;
    };
    let folder = btrfs.mount.path.to_str().expect("a plain path");
    let tries = ROUNDS.into_iter().map(|rounds| {
        let words = format!("--buffered --sample 4MiB --size 32MiB --rounds {rounds} --seed {rounds}");
        detect(folder, &words)
    });
    let mut last = None;
    for found in tries {
        assert_ne!(answer(&found, "deduplicates"), "yes", "{found:#}");
        assert_ne!(answer(&found, "compresses"), "no", "{found:#}");
        let done = answer(&found, "compresses") == "yes";
        last = Some(found);
        if done {
            break;
        }
    }
    let found = last.expect("at least one try");
    assert_eq!(answer(&found, "compresses"), "yes", "{found:#}");
    assert_ne!(answer(&found, "entropy-stage"), "no", "{found:#}");
    assert!(reason(&found, "compresses").contains("75 %: "), "{found:#}");
}

#[test]
fn a_compressing_file_system_is_named_below_files_and_loops() {
    let Some(btrfs) = Compressing::new() else {
        return;
    };
    let folder = btrfs.mount.path.to_str().expect("a plain path");
    let found = detect(folder, "--buffered --sample 2MiB --size 8MiB --rounds 4");
    let (state, why) = caveat(&found, "file-system compression");
    assert!(state == "present" && why.contains("btrfs"), "{found:#}");
    // The device backed by a file there has no file system and does not compress.
    let image = btrfs.mount.path.join("image");
    let file = fs::File::create(&image).expect("a file");
    file.set_len(64 << 20).expect("room");
    let device = Loop::over(&image);
    let found = overwrite(&device.0, "--sample 2MiB --size 8MiB --rounds 4");
    let (state, why) = caveat(&found, "layers below");
    assert!(state == "present" && why.contains("a file on btrfs"), "{found:#}");
    assert_eq!(
        found["facts"]["direct"], false,
        "the loop device is cached: {found:#}"
    );
    drop(device);
}

#[test]
fn zram_reports_its_stored_bytes() {
    let Some(zram) = Zram::new(64 << 20) else {
        return;
    };
    let found = overwrite(&zram.device(), "--sample 2MiB --size 8MiB --rounds 4");
    assert_eq!(answer(&found, "compresses"), "yes", "{found:#}");
    assert_eq!(answer(&found, "deduplicates"), "no", "{found:#}");
    assert_eq!(
        answer(&found, "entropy-stage"),
        "no",
        "lzo-rle has none: {found:#}"
    );
    assert_eq!(reason(&found, "unit"), "4 KiB at a time", "{found:#}");
    let kept = |pattern: &str| {
        let mut effects = found["effects"].as_array().expect("effects").iter();
        let effect = effects
            .find(|effect| effect["pattern"] == pattern)
            .expect("the kind");
        effect["kept"].as_f64().expect("a share")
    };
    for (pattern, share) in [("25 %", 0.75), ("50 %", 0.5), ("75 %", 0.25), ("zeros", 0.0)] {
        assert!((kept(pattern) - share).abs() < 0.04, "{pattern}: {found:#}");
    }
}

#[test]
fn devices_in_use_are_refused() {
    if !(need::tools(&[("losetup", "mount"), ("mkfs.ext4", "e2fsprogs")]) && need::mounts("ext4")) {
        return;
    }
    let scratch = Scratch::new();
    let device = Loop::over(&scratch.sparse("image", 32 << 20));
    let refused = |words: &str| {
        Program::flaz()
            .words("bench detect --sample 2MiB --size 4MiB --rounds 4")
            .words(words)
            .fails()
    };
    let path = &device.0;
    let text = refused(path);
    assert!(text.contains(&format!("--yes-destroy {path}")), "{text}");
    let text = refused(&format!("{path} --yes-destroy /dev/other"));
    assert!(text.contains("found '/dev/other': nothing was written"), "{text}");
    assert!(
        fs::read(scratch.image("image"))
            .expect("the image")
            .iter()
            .all(|byte| *byte == 0)
    );
    Program::new("mkfs.ext4").words("-q").arg(path).ok();
    let text = refused(&format!("{path} --yes-destroy {path}"));
    assert!(
        text.contains("ext4 file system") && text.contains("No option overrides"),
        "{text}"
    );
}

/// A loop device, buffered. Detached when dropped.
struct Loop(String);

impl Loop {
    fn over(image: &Path) -> Self {
        let device = Program::new("losetup").words("--find --show").arg(image).ok();
        Self(device.trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Program::new("losetup").words("--detach").arg(&self.0).output();
        // The kernel detaches it when the last process closes it, usually udev.
        let name = self.0.trim_start_matches("/dev/");
        let attached = format!("/sys/block/{name}/loop");
        let give_up = Instant::now() + DETACH_MAX;
        while Path::new(&attached).exists() && Instant::now() < give_up {
            thread::sleep(POLL);
        }
    }
}

/// A compressed disk in memory. Removed when dropped.
struct Zram(u32);

impl Zram {
    fn new(len: u64) -> Option<Self> {
        // Reading makes the device.
        let made = fs::read_to_string("/sys/class/zram-control/hot_add");
        let Some(number) = made.ok().and_then(|text| text.trim().parse().ok()) else {
            println!("skipped: no zram, or not root");
            return None;
        };
        let zram = Self(number);
        let set = |file: &str, value: &str| fs::write(zram.sys(file), value);
        if set("comp_algorithm", "lz4").is_err() {
            println!("skipped: zram without lz4");
            return None;
        }
        set("disksize", &len.to_string()).expect("a size");
        Some(zram)
    }

    fn sys(&self, file: &str) -> String {
        format!("/sys/block/zram{}/{file}", self.0)
    }

    fn device(&self) -> String {
        format!("/dev/zram{}", self.0)
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let _ = fs::write(self.sys("reset"), "1");
        let _ = fs::write("/sys/class/zram-control/hot_remove", self.0.to_string());
    }
}
