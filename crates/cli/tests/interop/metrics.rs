//! `flaz serve --metrics`: what a scraper gets from the real program.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use flaz_nbd::Client;

use crate::support::{Cache, CacheSpec, Scratch, Server};

const ORIGIN_BYTES: u64 = 64 << 20;

fn scrape(socket: &Path) -> String {
    let mut client = UnixStream::connect(socket).expect("connects");
    client
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n")
        .expect("sends");
    let mut text = String::new();
    client.read_to_string(&mut text).expect("reads until the end");
    let (head, page) = text.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    page.to_owned()
}

/// The value of a metric whose labels contain `label`, and, if it has a blank, each part of it.
#[track_caller]
fn value(page: &str, name: &str, label: &str) -> f64 {
    let samples = page
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix('{'));
    let mut found = samples.filter(|sample| label.split(' ').all(|label| sample.contains(label)));
    let sample = found
        .next()
        .unwrap_or_else(|| panic!("no {name} {label} in\n{page}"));
    assert!(found.next().is_none(), "several {name} {label}");
    let (_, value) = sample.rsplit_once("} ").expect("labels and a value");
    value.parse().expect("a number")
}

#[test]
fn metrics_follow_the_requests_of_clients() {
    let scratch = Scratch::new();
    let origin = scratch.sparse("origin.img", ORIGIN_BYTES);
    let cache = Cache::create(&scratch, &origin, &CacheSpec::default());
    let socket = scratch.place("metrics.sock");
    let words = format!("--metrics unix:{} --mode write-back", socket.display());
    let server = Server::start(&scratch, &cache, &words);
    // A control request is answered when the server has started, and the page is of a server that has.
    let uuid = server.status()["cache"]["uuid"]
        .as_str()
        .expect("a text")
        .to_owned();
    let before = scrape(&socket);
    assert_eq!(value(&before, "flaz_up", &format!("uuid=\"{uuid}\"")), 1.0);
    assert_eq!(value(&before, "flaz_info", "mode=\"write-back\""), 1.0);
    assert_eq!(value(&before, "flaz_health", "level=\"healthy\""), 1.0);
    assert_eq!(value(&before, "flaz_requests_total", "operation=\"write\""), 0.0);
    let mut client = Client::connect(server.socket()).expect("connects");
    for _ in 0..3 {
        client.write(0, &[7; 8192]).expect("writes");
    }
    for _ in 0..5 {
        client.read(0, &mut [0; 8192]).expect("reads");
    }
    let after = scrape(&socket);
    assert_eq!(value(&after, "flaz_requests_total", "operation=\"write\""), 3.0);
    assert_eq!(value(&after, "flaz_requests_total", "operation=\"read\""), 5.0);
    assert_eq!(
        value(&after, "flaz_request_bytes_total", "operation=\"read\""),
        5.0 * 8192.0
    );
    assert_eq!(value(&after, "flaz_read_hits_total", "uuid"), 5.0);
    assert_eq!(
        value(
            &after,
            "flaz_request_duration_seconds_count",
            "operation=\"write\""
        ),
        3.0
    );
    // The last bucket has all, and they took some time.
    assert_eq!(
        value(
            &after,
            "flaz_request_duration_seconds_bucket",
            "le=\"+Inf\" operation=\"write\""
        ),
        3.0
    );
    assert!(value(&after, "flaz_request_duration_seconds_sum", "operation=\"write\"") > 0.0);
    assert_eq!(value(&after, "flaz_errors_total", "cause=\"origin\""), 0.0);
    // Unless it was written back already, it has an age.
    let is_dirty = value(&after, "flaz_dirty_bytes", "uuid") > 0.0;
    assert_eq!(
        value(&after, "flaz_dirty_seconds", "uuid") > 0.0,
        is_dirty,
        "{after}"
    );
    drop(client);
    server.flush();
    let flushed = scrape(&socket);
    assert_eq!(value(&flushed, "flaz_dirty_bytes", "uuid"), 0.0);
    assert_eq!(value(&flushed, "flaz_dirty_seconds", "uuid"), 0.0);
    assert_eq!(
        value(&flushed, "flaz_writeback_bytes_total", "uuid") as u64 % 8192,
        0
    );
    server.stop();
    assert!(!socket.exists(), "the socket is removed");
}
