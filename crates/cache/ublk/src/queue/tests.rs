use std::cell::RefCell;
use std::future::{Future, pending};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use flaz_engine::volume::{IoError, Segments, StatusExtent};
use flaz_runtime::oneshot;

use super::*;
use crate::request::tests::request;

const DISCARD: u32 = 3;
const LARGE_SECTORS: u32 = 2 * BUFFER_BYTES / 512;
const BUFFER_BYTES: u32 = 256 << 10;

/// A driver of which each tag's fetch has a status at once, or none.
#[derive(Default)]
struct Fake {
    statuses: Vec<Option<i32>>,
    requests: Vec<Descriptor>,
    asked: RefCell<Vec<&'static str>>,
}

impl Driver for Fake {
    async fn command(&self, op: IoOp, tag: u16, _: i32, buf: IoBuf) -> (IoBuf, i32) {
        let (asked, status) = match op {
            IoOp::Fetch => ("fetch", self.statuses[usize::from(tag)]),
            IoOp::CommitAndFetch => ("answer", None),
        };
        self.asked.borrow_mut().push(asked);
        match status {
            Some(status) => (buf, status),
            None => pending().await,
        }
    }

    async fn map(&self) -> Result<Box<dyn Fn(u16) -> Descriptor>, UblkError> {
        self.asked.borrow_mut().push("map");
        let requests = self.requests.clone();
        Ok(Box::new(move |tag| requests[usize::from(tag)]))
    }
}

/// A volume whose discards end when they are told to.
#[derive(Clone, Default)]
struct Slow {
    begun: Rc<Cell<usize>>,
    end: Rc<Notify>,
}

impl Volume for Slow {
    fn size(&self) -> u64 {
        1 << 30
    }

    async fn trim(&self, _: u64, _: u64, _: bool) -> Result<(), IoError> {
        self.begun.set(self.begun.get() + 1);
        self.end.notified().await;
        Ok(())
    }

    async fn read(&self, _: u64, _: u32) -> Result<Segments, IoError> {
        unreachable!("not asked for")
    }

    async fn write(&self, _: u64, _: Segments, _: bool) -> Result<(), IoError> {
        unreachable!("not asked for")
    }

    async fn flush(&self) -> Result<(), IoError> {
        unreachable!("not asked for")
    }

    async fn write_zeroes(&self, _: u64, _: u64, _: bool, _: bool) -> Result<(), IoError> {
        unreachable!("not asked for")
    }

    async fn prefetch(&self, _: u64, _: u64) -> Result<(), IoError> {
        unreachable!("ublk has no such request")
    }

    async fn block_status(&self, _: u64, _: u64, _: usize) -> Result<Vec<StatusExtent>, IoError> {
        unreachable!("ublk has no such request")
    }
}

fn queue(depth: usize) -> Queue {
    let buffer = |_| IoBuf::new(BUFFER_BYTES as usize);
    Queue {
        number: 3,
        buffers: (0..depth).map(buffer).collect(),
        counters: Arc::default(),
    }
}

/// Polls once, and again for what the first poll has woken.
fn polled(mut future: std::pin::Pin<&mut impl Future<Output = ()>>) -> Poll<()> {
    let mut context = Context::from_waker(Waker::noop());
    match future.as_mut().poll(&mut context) {
        Poll::Pending => future.poll(&mut context),
        ready => ready,
    }
}

#[test]
fn an_error_of_one_tag_is_reported_while_others_wait() {
    let driver = Fake {
        statuses: vec![None, Some(-libc::EIO), Some(-libc::ENODEV), None],
        ..Fake::default()
    };
    let (volume, errors) = (Slow::default(), RefCell::new(Vec::new()));
    let (park, parked) = oneshot();
    let failed = |error: UblkError| errors.borrow_mut().push(error.to_string());
    let mut served = pin!(serve(queue(4), &driver, &volume, false, parked, failed));
    assert_eq!(polled(served.as_mut()), Poll::Pending);
    let reported = errors.borrow().clone();
    assert!(
        matches!(&reported[..], [one] if one.contains("queue 3") && one.contains("Input/output error")),
        "{reported:?}"
    );
    park.send(()).expect("the queue is served");
    assert_eq!(polled(served.as_mut()), Poll::Ready(()));
    assert_eq!(errors.borrow().len(), 1, "once");
}

#[test]
fn all_fetches_are_sent_before_the_requests_are_mapped() {
    let driver = Fake {
        statuses: vec![None; 64],
        ..Fake::default()
    };
    let volume = Slow::default();
    let (_park, parked) = oneshot();
    let mut served = pin!(serve(queue(64), &driver, &volume, false, parked, |_| {}));
    assert_eq!(polled(served.as_mut()), Poll::Pending);
    let asked = driver.asked.borrow();
    assert_eq!(asked.len(), 65);
    assert_eq!(asked.last(), Some(&"map"));
}

#[test]
fn large_discards_take_turns_and_small_ones_do_not_wait() {
    let large = request(DISCARD, LARGE_SECTORS, 0);
    let small = request(DISCARD, 8, 0);
    let driver = Fake {
        statuses: vec![Some(0); 4],
        requests: vec![large, large, small, small],
        ..Fake::default()
    };
    let volume = Slow::default();
    let (_park, parked) = oneshot();
    let mut served = pin!(serve(queue(4), &driver, &volume, false, parked, |error| panic!(
        "{error}"
    )));
    assert_eq!(polled(served.as_mut()), Poll::Pending);
    assert_eq!(volume.begun.get(), 3, "one large, two small");
    volume.end.notify_all();
    assert_eq!(polled(served.as_mut()), Poll::Pending);
    assert_eq!(volume.begun.get(), 4);
}

#[test]
fn large_discards_count_as_memory() {
    assert_eq!(bytes_in_progress_max(64, 256 << 10), (16 << 20) + (8 << 20));
}
