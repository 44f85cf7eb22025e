//! PostgreSQL on ext4 on the export, while cache device and origin lose power. Committed transactions are present, the
//! books balance, and PostgreSQL's own tools find nothing wrong, finally on the origin alone.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use flaz_random::Random;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::disk::{self, wait_ready};
use crate::support::forgetful::{self, Flush, persist};
use crate::support::{Cache, Disk, Forgetful, Mount, Program, Scratch, ServeMode, Server, need};

const ORIGIN_BYTES: u64 = 512 << 20;
/// Smaller than the database and its log, so that regions are reclaimed.
const CACHE_BYTES: u64 = 40 << 20;
/// pgbench scale: 100,000 accounts each, about 30 MB.
const SCALE: u32 = 2;
const CLIENTS: u32 = 4;
const POWER_CUTS: u32 = 3;
/// pgbench writes its log to the file 4 KiB at a time, about a hundred transactions.
const LOG_BYTES_A_LIFE: u64 = 8 << 10;
/// Maximum time between enough transactions and the cut.
const MOMENT_MAX_US: u64 = 300_000;
const WAIT_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);
/// PostgreSQL refuses to run as root.
const USER: &str = "--reuid=nobody --regid=nogroup --clear-groups";
const UID: u32 = 65534;
/// Little memory and log, so that pages are read again and checkpoints are frequent.
const SETTINGS: [&str; 5] = [
    "listen_addresses=",
    "shared_buffers=2MB",
    "min_wal_size=32MB",
    "max_wal_size=32MB",
    "checkpoint_timeout=30s",
];

/// Both disks, the server between them, and its export as a file system. Removed from top to bottom.
struct Machine {
    mount: Mount,
    disk: Disk,
    server: Server,
    disks: [Forgetful; 2],
}

impl Machine {
    fn power_on(scratch: &Scratch, images: &[PathBuf; 2], mode: ServeMode, new: bool) -> Self {
        let disks = [("origin", &images[0]), ("cache", &images[1])]
            .map(|(name, image)| Forgetful::start(scratch, name, image, Flush::Honest));
        let cache = Cache {
            path: disks[1].file(),
        };
        if new {
            Program::flaz()
                .arg("create")
                .arg(&cache.path)
                .arg("--origin")
                .arg(disks[0].file())
                .words("--region-size 1MiB --shards 2")
                .ok();
        }
        let server = Server::start(scratch, &cache, mode.words());
        assert!(new || server.started_warm(), "{}", server.log());
        let disk = Disk::attach(scratch, &server);
        if new {
            Program::new("mkfs.ext4")
                .words("-q -F -E nodiscard")
                .arg(disk.device())
                .ok();
        }
        let mount = Mount::new(scratch, disk.device());
        Self {
            mount,
            disk,
            server,
            disks,
        }
    }

    fn data(&self) -> PathBuf {
        self.mount.path.join("data")
    }

    /// Everything at once. Data of the file system that the kernel still holds is lost.
    fn power_off(self) {
        self.server.end_by(Signal::KILL);
        drop(self.disks);
    }

    /// In order. After that cache and origin may be used separately, also in write-back.
    fn shut_down(self, mode: ServeMode) {
        self.mount.unmount();
        self.disk.detach();
        match mode {
            ServeMode::WriteThrough => self.server.stop(),
            ServeMode::WriteBack => self.server.detach(),
        }
        Cache {
            path: self.disks[1].file(),
        }
        .check();
    }
}

/// PostgreSQL's programs, and the directory of its socket.
struct Postgres<'a> {
    programs: &'a Path,
    sockets: PathBuf,
    child: Option<Child>,
}

impl<'a> Postgres<'a> {
    /// A new database cluster with checksums in its pages.
    fn init(programs: &Path, data: &Path) {
        std::fs::create_dir(data).expect("the file system takes a folder");
        chown(data, Some(UID), None).expect("root may give it away");
        as_user(&programs.join("initdb"))
            .words("--data-checksums --auth=trust --username=postgres --encoding=UTF8 --locale=C")
            .arg("--pgdata")
            .arg(data)
            .ok();
    }

    /// Serves `data`, once it has recovered it. `life` distinguishes its sockets from those of others.
    fn start(scratch: &Scratch, programs: &'a Path, data: &Path, life: &str) -> Self {
        let sockets = scratch.place(&format!("pg-{life}"));
        std::fs::create_dir(&sockets).expect("a folder for its socket");
        chown(&sockets, Some(UID), None).expect("root may give it away");
        let log =
            std::fs::File::create(scratch.image(&format!("pg-{life}.log"))).expect("a file for its log");
        let child = Command::new("setpriv")
            .args(USER.split_whitespace())
            .arg(programs.join("postgres"))
            .arg("-D")
            .arg(data)
            .arg("-k")
            .arg(&sockets)
            .args(SETTINGS.iter().flat_map(|setting| ["-c", setting]))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file handle can be cloned"))
            .stderr(log)
            .spawn()
            .expect("setpriv (util-linux) starts");
        let mut postgres = Self {
            programs,
            sockets,
            child: Some(child),
        };
        let ready = postgres
            .program("pg_isready")
            .words("--quiet --username=postgres");
        let ready = || ready.clone().output().status.success();
        wait_ready(
            "postgres",
            postgres.child.as_mut().expect("it was just started"),
            ready,
        );
        postgres
    }

    fn program(&self, name: &str) -> Program {
        as_user(&self.programs.join(name))
            .arg("--host")
            .arg(&self.sockets)
    }

    fn ask(&self, statement: &str) -> String {
        let answer = self
            .program("psql")
            .words("--username=postgres --no-psqlrc --tuples-only --no-align --command")
            .arg(statement)
            .ok();
        answer.trim().to_owned()
    }

    fn number(&self, statement: &str) -> u64 {
        let answer = self.ask(statement);
        answer
            .parse()
            .unwrap_or_else(|error| panic!("{statement}: {answer}: {error}"))
    }

    /// Expects it to end cleanly after `signal`.
    fn end_by(mut self, signal: Signal) {
        self.end(signal);
    }

    fn end(&mut self, signal: Signal) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        let _ = kill_process(Pid::from_child(&child), signal);
        let give_up = Instant::now() + WAIT_MAX;
        while child.try_wait().expect("a child can be waited for").is_none() {
            if Instant::now() > give_up {
                let _ = child.kill();
            }
            thread::sleep(POLL);
        }
    }
}

impl Drop for Postgres<'_> {
    fn drop(&mut self) {
        // At once, without a checkpoint, and with all of its processes.
        self.end(Signal::QUIT);
    }
}

fn as_user(program: &Path) -> Program {
    Program::new("setpriv").words(USER).arg(program)
}

/// Expects every committed transaction, no others except those in progress at the end, and none in part.
fn look_at(postgres: &Postgres, committed: u64, under_way_max: u64) -> u64 {
    let history = postgres.number("select count(*) from pgbench_history");
    assert!(
        (committed..=committed + under_way_max).contains(&history),
        "{history} transactions are there, {committed} were committed, {under_way_max} more may have been"
    );
    let sum =
        |table: &str, column: &str| postgres.ask(&format!("select coalesce(sum({column}), 0) from {table}"));
    let booked = sum("pgbench_history", "delta");
    for (table, column) in [
        ("pgbench_accounts", "abalance"),
        ("pgbench_tellers", "tbalance"),
        ("pgbench_branches", "bbalance"),
    ] {
        assert_eq!(sum(table, column), booked, "{column} against the history");
    }
    let accounts = postgres.number("select count(*) from pgbench_accounts");
    assert_eq!(accounts, u64::from(SCALE) * 100_000);
    postgres
        .program("pg_amcheck")
        .words("--username=postgres --all --install-missing --heapallindexed")
        .ok();
    history
}

/// Transactions that were reported to pgbench as committed: each is a line.
fn logged(folder: &Path) -> String {
    let files = std::fs::read_dir(folder).expect("the folder of the log is there");
    files
        .map(|file| std::fs::read_to_string(file.expect("its files can be listed").path()).expect("text"))
        .collect()
}

/// Runs transactions until the power cut. Returns how many were committed.
fn work_until_power_cut(
    scratch: &Scratch,
    machine: Machine,
    postgres: Postgres,
    life: u32,
    numbers: &mut Random,
) -> u64 {
    let folder = scratch.place(&format!("log-{life}"));
    std::fs::create_dir(&folder).expect("a folder for the log");
    chown(&folder, Some(UID), None).expect("root may give it away");
    let bench = postgres
        .program("pgbench")
        .words("--username=postgres --no-vacuum --time=120 --log")
        .words(&format!("--client={CLIENTS} --log-prefix"))
        .arg(folder.join("bench"))
        .arg("postgres");
    let output = thread::scope(|scope| {
        let bench = scope.spawn(|| bench.output());
        let give_up = Instant::now() + WAIT_MAX;
        while (logged(&folder).len() as u64) < LOG_BYTES_A_LIFE && !bench.is_finished() {
            assert!(Instant::now() < give_up, "no transactions in {WAIT_MAX:?}");
            thread::sleep(POLL);
        }
        thread::sleep(Duration::from_micros(numbers.bits() % MOMENT_MAX_US));
        if numbers.bits().is_multiple_of(2) {
            persist(machine.disks[usize::from(numbers.bits().is_multiple_of(2))].socket());
        }
        machine.power_off();
        bench.join().expect("running pgbench does not panic")
    });
    assert!(!output.status.success(), "pgbench has not noticed the power cut");
    // It fails by itself without power.
    drop(postgres);
    logged(&folder).lines().count() as u64
}

fn committed_transactions_survive_power_cuts(mode: ServeMode) {
    let wanted = [forgetful::TOOLS, disk::TOOLS, &[("mkfs.ext4", "e2fsprogs")]].concat();
    if !(need::tools(&wanted) && need::mounts("ext4")) {
        return;
    }
    let Some(programs) = need::postgres() else { return };
    let scratch = Scratch::new();
    let others_pass = std::fs::Permissions::from_mode(0o711);
    let top = scratch.place("any");
    std::fs::set_permissions(top.parent().expect("a place lies in a folder"), others_pass)
        .expect("the folder is ours");
    let images = [
        scratch.sparse("origin.img", ORIGIN_BYTES),
        scratch.sparse("cache.img", CACHE_BYTES),
    ];
    let mut numbers = Random::new(11);
    let mut committed = 0;
    let mut under_way_max = 0;
    for life in 0..POWER_CUTS {
        let machine = Machine::power_on(&scratch, &images, mode, life == 0);
        if life == 0 {
            Postgres::init(&programs, &machine.data());
        }
        let postgres = Postgres::start(&scratch, &programs, &machine.data(), &life.to_string());
        if life == 0 {
            postgres
                .program("pgbench")
                .words("--username=postgres --quiet --initialize --scale")
                .arg(SCALE.to_string())
                .arg("postgres")
                .ok();
        }
        committed = look_at(&postgres, committed, under_way_max);
        committed += work_until_power_cut(&scratch, machine, postgres, life, &mut numbers);
        under_way_max = u64::from(CLIENTS);
    }

    let machine = Machine::power_on(&scratch, &images, mode, false);
    let postgres = Postgres::start(&scratch, &programs, &machine.data(), "last");
    committed = look_at(&postgres, committed, under_way_max);
    assert!(committed > 0, "no transaction was committed");
    assert!(
        machine.server.live("/lookups/hits") > 0,
        "the cache held nothing after the last cut"
    );
    postgres.end_by(Signal::INT);
    machine.shut_down(mode);

    // The origin alone.
    let mount = Mount::of_file(&scratch, &images[0]);
    let data = mount.path.join("data");
    as_user(&programs.join("pg_checksums"))
        .words("--check --pgdata")
        .arg(&data)
        .ok();
    let postgres = Postgres::start(&scratch, &programs, &data, "origin");
    look_at(&postgres, committed, 0);
    postgres.end_by(Signal::INT);
    mount.unmount();
}

#[test]
fn committed_transactions_survive_power_cuts_in_write_through() {
    committed_transactions_survive_power_cuts(ServeMode::WriteThrough);
}

#[test]
fn committed_transactions_survive_power_cuts_in_write_back() {
    committed_transactions_survive_power_cuts(ServeMode::WriteBack);
}
