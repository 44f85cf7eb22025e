//! `flaz lab record`: what clients do to a file is done to the file, and recorded.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use flaz_nbd::Client;
use flaz_random::Random;
use flaz_trace::recording::Recorded;
use flaz_trace::{Op, Options, TraceReader};
use serde_json::Value;

use crate::support::disk::wait_ready;
use crate::support::{Program, Scratch};

const BLOCK: usize = 4096;

fn start(scratch: &Scratch, origin: &Path, recording: &Path) -> (Child, std::path::PathBuf) {
    let socket = scratch.place("disk.sock");
    let child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", env!("CARGO_BIN_EXE_flaz"), "lab", "record"])
        .arg(origin)
        .arg(format!("--nbd=unix:{}", socket.display()))
        .arg("--output")
        .arg(recording)
        .arg("--json")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = child.expect("setpriv (util-linux) starts");
    wait_ready("flaz lab record", &mut child, || {
        UnixStream::connect(&socket).is_ok()
    });
    (child, socket)
}

fn recorded(path: &Path) -> Vec<Recorded> {
    let mut reader = TraceReader::open(path, Options::default()).expect("a trace");
    let mut all = Vec::new();
    while let Some(recorded) = reader.next_recorded().expect("a recording") {
        all.push(recorded);
    }
    all
}

#[test]
fn a_load_is_recorded_and_passed_through() {
    let scratch = Scratch::new();
    let origin = scratch.sparse("origin.img", 16 << 20);
    let recording = scratch.image("load.flaztrace.zst");
    let (child, socket) = start(&scratch, &origin, &recording);
    let mut client = Client::connect(&socket).expect("connects");
    assert_eq!(client.size_bytes(), 16 << 20);
    // A block of one value, a random one, and one of which a half is random.
    let mut data = vec![5_u8; 3 * BLOCK];
    let mut random = Random::new(1);
    random.fill(&mut data[BLOCK..2 * BLOCK + BLOCK / 2]);
    client.write(8 << 10, &data).expect("written");
    let mut back = vec![0; data.len()];
    client.read(8 << 10, &mut back).expect("read");
    assert_eq!(back, data);
    client.flush().expect("flushed");
    // A part of the second and of the third block.
    client.read((16 << 10) - 512, &mut back[..1024]).expect("read");
    drop(client);

    let busy = Program::flaz()
        .words("lab record")
        .arg(&origin)
        .words("--nbd unix:/tmp/never.sock --output")
        .arg(scratch.place("other.zst"))
        .fails();
    assert!(busy.contains("origin.img"), "{busy}");

    Program::new("kill")
        .words("-TERM")
        .arg(child.id().to_string())
        .ok();
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", output.status);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&report["reads"], &report["writes"]), (&2.into(), &1.into()));

    let all = recorded(&recording);
    let ops: Vec<_> = all.iter().map(|it| (it.request.op, it.request.offset)).collect();
    assert_eq!(
        ops,
        [
            (Op::Write, 8 << 10),
            (Op::Read, 8 << 10),
            (Op::Read, 15 << 10 | 512)
        ]
    );
    let granules = |number: usize| {
        let sizes = all[number].sizes.iter();
        sizes.map(|it| it.map(|size| size.granules())).collect::<Vec<_>>()
    };
    assert_eq!((granules(0)[0], granules(0)[1]), ([0, 0], [64, 64]));
    assert!((33..36).contains(&granules(0)[2][0]), "{:?}", granules(0));
    assert_eq!(granules(0), granules(1));
    assert_eq!(granules(2), granules(0)[1..]);
    assert!(all.iter().all(|it| it.depth == 1));
    let file = fs::read(&origin).expect("the origin");
    assert_eq!(file[8 << 10..][..data.len()], data);
}
