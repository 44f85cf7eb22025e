//! An origin that fails while it is served: what the log and the status say.

use flaz_nbd::Client;
use flaz_nbd::request::Command;

use crate::support::{Cache, CacheSpec, Program, Scratch, Server};

const READS: u64 = 20;

/// In write-through, where nothing but the client would notice.
#[test]
fn errors_of_the_origin_are_logged_once_and_counted() {
    let scratch = Scratch::new();
    let origin = scratch.sparse("origin.img", 16 << 20);
    let cache = Cache::create(&scratch, &origin, &CacheSpec::default());
    let server = Server::start(&scratch, &cache, "");
    let mut client = Client::connect(server.socket()).expect("connects");
    let file = std::fs::File::options().write(true).open(&origin).expect("opens");
    file.set_len(0).expect("a file can be truncated");
    for block in 0..READS {
        client
            .call(Command::Read, block * 8192, 4096)
            .expect_err("nothing is there");
    }
    drop(client);
    assert_eq!(server.live("/errors/origin_errors"), READS);
    let page = Program::flaz()
        .words("status --control")
        .arg(server.control())
        .ok();
    assert!(page.contains("\nErrors        20 client, 20 origin\n"), "{page}");
    server.stop();
    let log = std::fs::read_to_string(scratch.image("serve.log")).expect("the log can be read");
    let lines = |part: &'static str| log.lines().filter(move |line| line.contains(part));
    assert_eq!(
        lines("the origin failed an operation: read of 4096 bytes").count(),
        1,
        "{log}"
    );
    let counted = lines("more failed read operations of the origin").map(|line| {
        let (before, _) = line.split_once(" more ").expect("it contains this");
        let number = before.split_ascii_whitespace().next_back().expect("a number");
        number.parse::<u64>().expect("a number")
    });
    assert_eq!(counted.sum::<u64>(), READS - 1, "{log}");
}
