use std::sync::mpsc;
use std::thread::JoinHandle;

use flaz_control::report::{FrontEndSizeReport, ShrinkReport};
use flaz_engine::cache::{CreateOptions, create};
use flaz_engine::format::geometry::GeometryOptions;
use flaz_engine::settings::AfterCrash;
use flaz_runtime::file::OpenMode;

use super::start::{request_bytes, start_front_ends, thread_count};
use super::writeback::left_dirty;
use super::*;
use crate::front_end::{Failed, SessionThreads};
use crate::safety;
use crate::threads::watched;

/// A daemon without one of its threads would block requests for ever. The message does not say that the next start is
/// cold: after a crash, dirty blocks are only on the cache device, and a user might discard them.
#[test]
fn a_thread_panic_is_reported_at_shutdown() {
    let (tell, told) = mpsc::channel();
    let failed = Arc::new(move |error: HostError| tell.send(error.to_string()).expect("somebody listens"));
    let join = watched("flaz-7".to_owned(), failed, || panic!("on purpose")).expect("a thread");
    let error = told
        .recv_timeout(Duration::from_secs(60))
        .expect("the error is reported");
    assert!(
        error.contains("thread flaz-7 panicked") && error.contains("crash recovery"),
        "{error}"
    );
    assert!(!error.contains("cold"), "{error}");
    join.join().expect("it ended cleanly");
}

/// A cache of 16 MiB in write-back over an origin of 16 MiB, and an address for clients.
fn idle_cache(folder: &std::path::Path) -> ServeSpec {
    let (cache, origin) = (folder.join("cache"), folder.join("origin"));
    for path in [&cache, &origin] {
        let file = std::fs::File::create(path).expect("a file");
        file.set_len(16 << 20).expect("it takes no room");
    }
    let runtime = Runtime::new(Config::default()).expect("a runtime");
    let options = CreateOptions {
        uuid: uuid::Uuid::from_u128(1),
        created_unix_s: 0,
        wish: GeometryOptions {
            region_bytes: Some(1 << 20),
            ..GeometryOptions::default()
        }
        .into(),
        codec: flaz_codec::CodecChoice::default(),
        origin_len: 16 << 20,
        origin_identity: String::new(),
        origin_path: origin.to_string_lossy().into_owned(),
    };
    runtime.block_on(async {
        let open =
            |path: &std::path::Path| FileDevice::open(path, OpenMode::default()).expect("it can be opened");
        let origin_identity = open(&origin).identity().id.clone();
        let options = CreateOptions {
            origin_identity,
            ..options
        };
        create(&open(&cache), options).await.expect("it fits");
    });
    drop(runtime);
    ServeSpec {
        cache,
        origin: None,
        nbd: Vec::new(),
        device: None,
        name: None,
        metrics: None,
        settings: SettingsPatch {
            mode: Some(Mode::WriteBack),
            ..SettingsPatch::default()
        },
        threads: None,
        index_memory: None,
        discard_cache: false,
        discard_dirty: false,
        after_crash: AfterCrash::Warm,
        device_timeout: None,
        state_dir: Some(folder.join("state")),
        read_only: false,
        emulate_origin: None,
        emulate_cache: None,
    }
}

/// The client stays connected until the detach ends.
const WAITS: fn() -> bool = || false;

/// A daemon with a slow origin and dirty blocks that take a while to write.
fn dirty(folder: &std::path::Path) -> (ServeSpec, Daemon) {
    let socket = folder.join("nbd");
    let spec = ServeSpec {
        nbd: vec![format!("unix:{}", socket.display()).parse().expect("an address")],
        emulate_origin: Some(flaz_control::settings::Emulation::Hdd),
        ..idle_cache(folder)
    };
    let daemon = start(&spec, Arc::new(|_| {})).expect("it starts");
    let mut client = flaz_nbd::Client::connect(&socket).expect("connects");
    for number in 0..512_u64 {
        // So far apart that each is a write of its own.
        client.write(number << 15, &[7; 4096]).expect("writes");
    }
    (spec, daemon)
}

fn dirty_bytes(daemon: &Daemon) -> u64 {
    let live = daemon.status().expect("it answers").live.expect("it runs");
    live.write_back.dirty_bytes
}

/// An interrupted detach leaves the cache as it was.
#[test]
fn a_detach_without_a_client_leaves_the_cache_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let (spec, daemon) = dirty(folder.path());
    let interrupted = daemon.detach(&|| true).expect_err("canceled").to_string();
    assert!(interrupted.starts_with("interrupted: "), "{interrupted}");
    let mode = || {
        let settings = daemon.status().expect("it answers").settings;
        settings.map(|settings| settings.mode)
    };
    assert_eq!(mode(), Some(Mode::WriteBack));
    let flushed = daemon.clean(&|| true).expect_err("canceled").to_string();
    assert!(flushed.starts_with("interrupted: "), "{flushed}");
    daemon.shutdown().expect("it stops");
    drop(daemon);
    let daemon = start(&spec, Arc::new(|_| {})).expect("it starts");
    assert!(daemon.opened.start.keeps_contents(), "it was not emptied");
    daemon.shutdown().expect("it stops");
}

/// A stop during a detach keeps the cache contents; its message does not mention writes that did not arrive.
#[test]
fn a_stop_during_a_detach_keeps_the_contents() {
    let folder = tempfile::tempdir().expect("a folder");
    let (spec, daemon) = dirty(folder.path());
    std::thread::scope(|scope| {
        let detach = scope.spawn(|| daemon.detach(&WAITS));
        while *daemon.detach_state() == Detach::No {
            std::thread::yield_now();
        }
        let left = daemon.shutdown().expect("it stops as always");
        assert!(left > 0, "the origin was fast: nothing is tested");
        let refused = detach.join().expect("no panic").expect_err("the stop came first");
        assert!(
            refused.to_string().contains("may still contain dirty blocks"),
            "{refused}"
        );
    });
    drop(daemon);
    let daemon = start(&spec, Arc::new(|_| {})).expect("it starts");
    assert!(daemon.opened.start.keeps_contents());
    assert!(dirty_bytes(&daemon) > 0);
    daemon.shutdown().expect("it stops");
}

#[test]
fn a_detach_during_a_stop_does_not_report_success() {
    let folder = tempfile::tempdir().expect("a folder");
    let spec = idle_cache(folder.path());
    let daemon = start(&spec, Arc::new(|_| {})).expect("it starts");
    daemon.stopping.store(true, Ordering::SeqCst);
    assert_eq!(daemon.left_by_stop(), Leave::Contents);
    let refused = daemon.detach(&WAITS).expect_err("the stop has missed it");
    assert!(
        refused.to_string().contains("may still contain dirty blocks"),
        "{refused}"
    );
    // The detach has already set write-through.
    let back = SettingsPatch {
        mode: Some(Mode::WriteBack),
        ..SettingsPatch::default()
    };
    let refused = daemon
        .set(&back, Lasting::Stored)
        .expect_err("the stop may have marked the cache");
    assert!(refused.to_string().contains("daemon is stopping"), "{refused}");
    let refused = daemon
        .resize_volume()
        .expect_err("the stop may have closed the cache");
    assert!(refused.to_string().contains("daemon is stopping"), "{refused}");
    daemon.stopping.store(false, Ordering::SeqCst);
    *daemon.detach_state() = Detach::No;
    daemon.detach(&WAITS).expect("nothing is dirty");
    daemon.shutdown().expect("it stops");
    // Its threads have ended: a missing answer must not count as "nothing is dirty".
    let unknown = daemon
        .status()
        .map(|report| report.live.map(|live| live.write_back));
    let unknown = unknown.expect_err("the amount of dirty data is unknown");
    assert!(unknown.to_string().contains("ended"), "{unknown}");
}

/// A daemon whose cache is full, and its shrink that has begun.
fn shrinking(folder: &std::path::Path) -> (ServeSpec, Daemon) {
    let socket = folder.join("nbd");
    let address = format!("unix:{}", socket.display());
    let spec = ServeSpec {
        nbd: vec![address.parse().expect("an address")],
        ..idle_cache(folder)
    };
    let daemon = start(&spec, Arc::new(|_| {})).expect("it starts");
    let mut client = flaz_nbd::Client::connect(&socket).expect("connects");
    let mut data = vec![0; 1 << 20];
    for mib in 0..16_u64 {
        // Does not compress.
        let mut random = mib + 1;
        for byte in &mut data {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            *byte = (random >> 56) as u8;
        }
        client.write(mib << 20, &data).expect("writes");
    }
    drop(client);
    let begun = daemon.resize(Some(8 << 20)).expect("it is possible");
    assert!(matches!(begun, Resize::Shrinking(_)), "{begun:?}");
    (spec, daemon)
}

fn size_of(daemon: &Daemon) -> u64 {
    daemon.status().expect("it answers").cache.size_bytes
}

fn shrink_of(daemon: &Daemon) -> Option<ShrinkReport> {
    daemon.status().expect("it answers").live.expect("it runs").shrink
}

#[test]
fn a_shrink_without_a_client_is_called_off() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, daemon) = shrinking(folder.path());
    let again = daemon.resize(None).expect_err("one is under way").to_string();
    assert!(
        again.contains("already shrinking") && again.contains("ends by itself within 20 seconds"),
        "{again}"
    );
    let shrink = shrink_of(&daemon).expect("status shows it");
    assert_eq!(shrink.size_bytes, 8 << 20, "that of the first client");
    assert!(shrink.regions_left > 0, "{shrink:?}");
    {
        let mut waited = daemon.resize.lock().expect("no panic");
        let waited = waited.as_mut().expect("only its client completes it");
        waited.asked = waited
            .asked
            .checked_sub(Duration::from_secs(60))
            .expect("a minute ago");
    }
    daemon.housekeep(HOUSEKEEP_EVERY);
    let gone = daemon
        .continue_resize()
        .expect_err("it was cancelled")
        .to_string();
    assert!(gone.contains("cancelled"), "{gone}");
    assert_eq!(shrink_of(&daemon), None);
    assert_eq!(size_of(&daemon), 16 << 20);
    let mut step = daemon.resize(Some(8 << 20)).expect("another one can begin");
    while let Resize::Shrinking(progress) = step {
        let shrink = shrink_of(&daemon).expect("status shows it");
        assert_eq!(shrink.regions_left, progress.regions_left);
        std::thread::sleep(Duration::from_millis(10));
        step = daemon.continue_resize().expect("it goes on");
    }
    assert_eq!(shrink_of(&daemon), None);
    assert_eq!(size_of(&daemon), 8 << 20);
    daemon.shutdown().expect("it stops");
}

#[test]
fn a_stop_does_not_wait_for_a_shrink() {
    let folder = tempfile::tempdir().expect("a folder");
    let (spec, daemon) = shrinking(folder.path());
    daemon.shutdown().expect("it stops");
    let late = daemon.resize(None).expect_err("it has stopped").to_string();
    assert!(late.contains("after the next start"), "{late}");
    assert!(daemon.continue_resize().is_err());
    drop(daemon);
    let daemon = start(&spec, Arc::new(|_| {})).expect("it starts");
    assert!(daemon.opened.start.keeps_contents());
    assert_eq!(size_of(&daemon), 16 << 20);
    daemon.shutdown().expect("it stops");
}

#[test]
fn a_stop_does_not_blame_clients_for_a_slow_device() {
    let told = cut_off(3);
    assert!(
        told.starts_with("disconnected 3 connections") && told.contains("a device is slow"),
        "{told}"
    );
    let told = cut_off(1);
    assert!(told.starts_with("disconnected 1 connection with"), "{told}");
}

#[test]
fn no_advice_discards_intact_blocks() {
    let told = left_dirty(3, 0).to_string();
    assert!(
        told.starts_with("3 blocks are still dirty because clients rewrite"),
        "{told}"
    );
    assert!(!told.contains("damaged") && !told.contains("--discard"), "{told}");
    let told = left_dirty(3, 2).to_string();
    assert!(
        told.starts_with("2 blocks cannot be written to the origin because they are damaged"),
        "{told}"
    );
    for (one, expected) in [
        (
            left_dirty(1, 0),
            "1 block is still dirty because clients rewrite data",
        ),
        (
            left_dirty(1, 1),
            "1 block cannot be written to the origin because it is damaged",
        ),
    ] {
        assert!(one.to_string().starts_with(expected), "{one}");
    }
}

#[test]
fn threads_are_at_most_one_per_shard() {
    for (wanted, shards, expected) in [(Some(3), 8, 3), (Some(8), 2, 2), (Some(0), 2, 1), (None, 1, 1)] {
        assert_eq!(thread_count(wanted, shards), expected, "{wanted:?} of {shards}");
    }
}

/// Notes what is called.
struct Noting(Arc<Mutex<Vec<&'static str>>>);

impl FrontEnd for Noting {
    fn name(&self) -> String {
        "a note".to_owned()
    }

    fn prepare(&self, _: &SessionThreads, _: &Failed) -> Result<(), HostError> {
        self.0.lock().unwrap().push("prepare");
        Ok(())
    }

    fn start(&self, _: SessionThreads, _: Failed) -> Result<Vec<JoinHandle<()>>, HostError> {
        self.0.lock().unwrap().push("start");
        Ok(Vec::new())
    }

    fn stop(&self) {}

    fn clients(&self) -> usize {
        0
    }

    fn cut(&self) {}

    fn grow(&self, _: u64) -> Vec<FrontEndSizeReport> {
        Vec::new()
    }

    fn request_bytes(&self) -> usize {
        24 << 20
    }
}

#[test]
fn memory_is_reserved_before_clients_send_requests() {
    let called = Arc::default();
    let front_ends: [Box<dyn FrontEnd>; 2] = [
        Box::new(Noting(Arc::clone(&called))),
        Box::new(Noting(Arc::clone(&called))),
    ];
    let reserve = || called.lock().unwrap().push("reserve");
    let failed: Failed = Arc::new(|_| {});
    let sessions = SessionThreads::new(Vec::new());
    start_front_ends(&front_ends, &sessions, &failed, reserve, drop).unwrap();
    assert_eq!(
        *called.lock().unwrap(),
        ["prepare", "prepare", "reserve", "start", "start"]
    );
    assert_eq!(request_bytes(&front_ends, 4), (48 + 64 + 32) << 20);
}

/// Two volumes of a shared device of 16 MiB, with chunks of 256 KiB, over origins of 16 MiB.
fn volumes(folder: &std::path::Path) -> [ServeSpec; 2] {
    use crate::pool::manage::{Share, VolumeSpec, add, create_shared};

    let device = folder.join("ssd");
    let permission = safety::Permission {
        size_bytes: Some(16 << 20),
        ..safety::Permission::default()
    };
    let claim = safety::claim_for_create(&device, None, permission).expect("it is free");
    create_shared(&claim, Some(256 << 10)).expect("it fits");
    drop(claim);
    ["one", "two"].map(|name| {
        let origin = folder.join(name);
        let file = std::fs::File::create(&origin).expect("a file");
        file.set_len(16 << 20).expect("it takes no room");
        let spec = VolumeSpec {
            device: device.clone(),
            name: name.to_owned(),
            origin,
            codec: flaz_codec::CodecChoice::default(),
            extent_bytes: 64 << 10,
            shards: Some(1),
            share: Share::default(),
        };
        add(&spec).expect("there is room");
        ServeSpec {
            cache: crate::pool::Place::path_of(&device, name),
            nbd: vec![
                format!("unix:{}", folder.join(format!("{name}.nbd")).display())
                    .parse()
                    .expect("an address"),
            ],
            ..idle_cache(folder)
        }
    })
}

fn held(daemon: &Daemon) -> u64 {
    let live = daemon.status().expect("it answers").live.expect("it runs");
    live.share.expect("a volume").held_bytes
}

/// Fills the cache of a volume with what does not compress.
fn fill(folder: &std::path::Path, name: &str, mib: u64) {
    let mut client = flaz_nbd::Client::connect(&folder.join(format!("{name}.nbd"))).expect("connects");
    let mut data = vec![0; 1 << 20];
    for at in 0..mib {
        let mut random = at + 1;
        for byte in &mut data {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            *byte = (random >> 56) as u8;
        }
        client.write(at << 20, &data).expect("writes");
    }
}

#[test]
fn space_goes_to_the_volume_that_needs_it_more() {
    use crate::pool::manage::{Share, set_share};

    let folder = tempfile::tempdir().expect("a folder");
    let specs = volumes(folder.path());
    let [one, two] = specs
        .each_ref()
        .map(|spec| start(spec, Arc::new(|_| {})).expect("it starts"));
    fill(folder.path(), "one", 16);
    let full = held(&one);
    assert!(full > 12 << 20, "{full}: it took what was free");
    assert!(one.give_space(1 << 20, 1 << 30).is_err(), "it has not looked yet");
    for daemon in [&one, &two] {
        daemon.balance(Duration::from_secs(10)).expect("it looks");
    }
    let need = one
        .status()
        .expect("it answers")
        .live
        .and_then(|live| live.share)
        .map(|share| share.need);
    let need = need.expect("a volume");
    let give = |need| one.give_space(1 << 20, need).expect("it answers");
    assert_eq!(give(need), 0, "not clearly more");
    assert_eq!(give(u64::MAX), 1 << 20);
    let settle = |daemon: &Daemon| {
        let give_up = Instant::now() + Duration::from_secs(60);
        while daemon.go_on_giving().expect("it answers").is_some() {
            assert!(Instant::now() < give_up, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    settle(&one);
    assert_eq!(held(&one), full - (1 << 20));
    // It takes nothing again, and the other volume can have it.
    fill(folder.path(), "one", 16);
    assert_eq!(held(&one), full - (1 << 20));
    let before = held(&two);
    fill(folder.path(), "two", 16);
    assert!(held(&two) >= before + (1 << 20), "{} of {before}", held(&two));
    // The administrator's limit.
    let device = folder.path().join("ssd");
    let share = Share {
        at_most: Some(4 << 20),
        at_least: None,
    };
    set_share(&device, "one", share).expect("it is possible");
    one.balance(Duration::from_secs(10)).expect("it looks");
    settle(&one);
    assert!(held(&one) <= 4 << 20, "{}", held(&one));
    // Its data is intact.
    let mut client = flaz_nbd::Client::connect(&folder.path().join("one.nbd")).expect("connects");
    let mut block = vec![0; 1 << 20];
    client.read(3 << 20, &mut block).expect("reads");
    drop(client);
    // Below its guarantee it asks for more, and the other one keeps what it needs.
    assert_eq!(
        two.give_space(u64::MAX, u64::MAX).expect("it answers") % (256 << 10),
        0
    );
    settle(&two);
    for daemon in [one, two] {
        daemon.clean(&WAITS).expect("it writes");
        daemon.shutdown().expect("it stops");
    }
    for spec in specs {
        let report = crate::offline::check(&spec.cache, &mut |_, _| ()).expect("it can be read");
        assert_eq!(report.bad, Default::default());
    }
}

/// What `flaz resize` asks of a volume of a device that becomes smaller; and without that command, the shrink is called off.
#[test]
fn a_volume_makes_room_on_its_device() {
    use crate::pool::{HostPool, PoolClient};
    use crate::safety::Access;

    let folder = tempfile::tempdir().expect("a folder");
    let specs = volumes(folder.path());
    let [one, two] = specs
        .each_ref()
        .map(|spec| start(spec, Arc::new(|_| {})).expect("it starts"));
    fill(folder.path(), "one", 16);
    let (client, superblock) =
        PoolClient::start(&folder.path().join("ssd"), Access::ReadWrite).expect("a pool");
    let chunk = superblock.layout.chunk_bytes;
    let target = superblock.chunks - superblock.chunks / 4;
    let begun = client.ask_blocking(Access::ReadWrite, async move |pool: HostPool| {
        Ok(pool.begin_shrink(target).await?)
    });
    begun.expect("they fit");
    let keep = held(&one) - u64::from(superblock.chunks / 4 + 1) * chunk;
    let give_up = Instant::now() + Duration::from_secs(60);
    let first = one.make_room(keep).expect("it can");
    assert!(first.regions_left > 0, "it has just begun");
    assert_eq!(shrink_of(&one).map(|shrink| shrink.size_bytes), Some(keep));
    while one.make_room(keep).expect("it can").regions_left > 0
        || two.make_room(u64::MAX).expect("it can").regions_left > 0
    {
        assert!(Instant::now() < give_up, "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(held(&one) <= keep, "{}", held(&one));
    assert_eq!(shrink_of(&one), None);
    let left = client.ask_blocking(Access::Read, async |pool: HostPool| {
        let superblock = pool.superblock();
        let beyond = superblock
            .volumes
            .iter()
            .map(|volume| pool.parts_beyond(volume.number).len());
        Ok((superblock.shrink_to, beyond.sum::<usize>()))
    });
    assert_eq!(left.expect("it can be read"), (Some(target), 0));
    // No command holds the size.
    one.balance(Duration::from_secs(10)).expect("it looks");
    let now = client.ask_blocking(Access::Read, async |pool: HostPool| {
        Ok(pool.superblock().shrink_to)
    });
    assert_eq!(now.expect("it can be read"), None);
    let mut client = flaz_nbd::Client::connect(&folder.path().join("one.nbd")).expect("connects");
    let mut block = vec![0; 1 << 20];
    client.read(3 << 20, &mut block).expect("reads");
    drop(client);
    for daemon in [one, two] {
        daemon.shutdown().expect("it stops");
    }
    for spec in specs {
        let report = crate::offline::check(&spec.cache, &mut |_, _| ()).expect("it can be read");
        assert_eq!(report.bad, Default::default());
    }
}
