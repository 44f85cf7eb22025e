//! A cache hit allocates nothing, from the request's header to the last byte of the reply.
//!
//! This is a separate test binary, because its allocator counts. It counts only on the thread that serves.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use flaz_device::Env;
use flaz_engine::cache::{CreateOptions, LocalCache, create};
use flaz_engine::format::geometry::GeometryOptions;
use flaz_engine::policy::PolicyKind;
use flaz_engine::router::CachedVolume;
use flaz_engine::settings::Settings;
use flaz_engine::shard::Platform;
use flaz_engine::stats::StatsSnapshot;
use flaz_nbd::{Counters, Export, Limits, NbdAddress, Server, Service, Shutdown, serve_connection};
use flaz_random::Random;
use flaz_runtime::file::{FileDevice, OpenMode};
use flaz_runtime::{Backend, Config, Rt, Runtime};
use support::client::{Client, READ};
use support::{MIB, run, until};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static COUNTED: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: every call is passed unchanged to the system's allocator; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTED.try_with(Cell::get).unwrap_or(false) {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller keeps the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System.alloc` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct OnFiles;

impl Platform for OnFiles {
    type Env = Rt;
    type Cache = FileDevice;
    type Origin = FileDevice;
}

const ORIGIN_LEN: u64 = 8 * MIB;
const BLOCK: u64 = 4096;
/// Blocks that are read repeatedly. Their extents are full, so they are read from the device.
const HOT_BLOCKS: u64 = 64;
const HITS: u64 = 1024;

fn device(path: &std::path::Path, len: u64) -> Rc<FileDevice> {
    let file = std::fs::File::create(path).expect("a file");
    file.set_len(len).expect("its length");
    Rc::new(FileDevice::open(path, OpenMode::default()).expect("opens"))
}

/// Serves a cache on this thread until `shutdown`, and returns the count.
async fn serve(dir: &std::path::Path, server: Server, shutdown: Shutdown) -> StatsSnapshot {
    let (origin, disk) = (
        device(&dir.join("origin"), ORIGIN_LEN),
        device(&dir.join("cache"), 64 * MIB),
    );
    let settings = Settings {
        policy: PolicyKind::Fifo,
        codec: "none".parse().expect("a codec"),
        ..Settings::default()
    };
    let options = CreateOptions {
        uuid: uuid::Uuid::from_u128(1),
        created_unix_s: 0,
        wish: GeometryOptions::default().into(),
        codec: settings.codec,
        origin_len: ORIGIN_LEN,
        origin_identity: "test".into(),
        origin_path: "test".into(),
    };
    create(&*disk, options).await.expect("fits");
    let cache = LocalCache::<OnFiles>::open(Rt, disk, Rc::clone(&origin), settings)
        .await
        .expect("opens");
    let volume = CachedVolume::new(cache.shards(), origin, ORIGIN_LEN, 0);
    let service = Service {
        export: Arc::new(Export::new(ORIGIN_LEN)),
        limits: Limits::default(),
        counters: Arc::new(Counters::default()),
    };
    server
        .run(&Rt, |incoming| {
            Rt.spawn(serve_connection(incoming, volume.clone(), Rt, service.clone()));
        })
        .await
        .expect("serves");
    until("all connections end", || shutdown.connections() == 0).await;
    cache.stats()
}

fn block(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    Random::new(number).fill(&mut bytes);
    bytes
}

/// Reads hot blocks `HITS` times, `depth` requests at a time.
async fn hit(client: &mut Client, depth: u64) {
    for round in 0..HITS / depth {
        for at in 0..depth {
            let number = (round * depth + at) % HOT_BLOCKS;
            client.start(READ, 0, number * BLOCK, BLOCK as u32, b"").await;
        }
        for _ in 0..depth {
            let (_, reply) = client.reply().await.expect("an answer");
            assert_eq!(reply.bytes().len() as u64, BLOCK);
        }
    }
}

#[test]
fn a_hit_allocates_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let socket = dir.path().join("s");
    let shutdown = Shutdown::new();
    let address = NbdAddress::Unix(socket.clone());
    let server = Server::bind(&address, Limits::default(), shutdown.clone()).expect("binds");
    let (stop, place) = (shutdown.clone(), dir.path().to_owned());
    let (told, backend) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime = Runtime::new(Config::default()).expect("a runtime");
        told.send(runtime.backend()).expect("the test waits");
        COUNTED.set(true);
        let stats = runtime.block_on(serve(&place, server, stop));
        COUNTED.set(false);
        stats
    });
    let on_threads = backend.recv().expect("it runs") == Backend::Threads;
    run(async {
        let mut client = Client::connect(&socket);
        client.negotiate(true).await;
        for number in 0..512 {
            let reply = client.write(number * BLOCK, &block(number)).await;
            assert_eq!(reply, support::client::Reply::Done);
        }
        Rt.sleep(Duration::from_millis(200)).await;
        for depth in [1, 16] {
            hit(&mut client, depth).await;
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            hit(&mut client, depth).await;
            assert!(before > 0, "opening the cache allocates: the counter counts");
            let allocated = ALLOCATIONS.load(Ordering::Relaxed) - before;
            // Other work may run on that thread now and then; a cost per hit would exceed this.
            assert!(
                allocated < HITS / 20 || on_threads,
                "{allocated} allocations for {HITS} hits, {depth} at a time"
            );
        }
        assert_eq!(client.read(7 * BLOCK, BLOCK as u32).await.bytes(), block(7));
    });
    shutdown.stop();
    let stats = thread.join().expect("the server does not panic");
    assert!(stats.counts.read_hits >= 4 * HITS, "{:?}", stats.counts);
    assert!(stats.counts.cache_reads >= HITS, "they came from the device");
}
