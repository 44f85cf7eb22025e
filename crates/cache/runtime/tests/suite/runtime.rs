//! The executor: wakes from this and other threads, timers, yielding, cancelled operations.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use flaz_device::{Env, IoBuf, Priority};
use flaz_runtime::net::Stream;
use flaz_runtime::{Config, Rt, Runtime, oneshot};
use futures_util::future::join_all;

use crate::runtime;

#[test]
fn spawned_tasks_run_in_the_order_of_their_spawns() {
    let order = Rc::new(RefCell::new(Vec::new()));
    let runtime = runtime();
    runtime.block_on(async {
        for number in 0..10 {
            let order = Rc::clone(&order);
            Rt.spawn(async move { order.borrow_mut().push(number) });
        }
        Rt.yield_now().await;
    });
    assert_eq!(*order.borrow(), (0..10).collect::<Vec<_>>());
}

#[test]
fn a_task_wakes_another_of_its_thread() {
    let got = runtime().block_on(async {
        let (sender, receiver) = oneshot();
        Rt.spawn(async move {
            Rt.yield_now().await;
            sender.send(42).expect("the receiver waits");
        });
        receiver.recv().await
    });
    assert_eq!(got, Ok(42));
}

#[test]
fn a_wake_from_another_thread_ends_the_wait_in_the_kernel() {
    let runtime = runtime();
    for _ in 0..200 {
        let (sender, receiver) = oneshot();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(100));
            sender.send(7).expect("the receiver waits");
        });
        assert_eq!(runtime.block_on(receiver.recv()), Ok(7));
        thread.join().expect("the sender does not panic");
    }
}

/// Two threads that wake each other as fast as they can: a lost wake would hang.
#[test]
fn no_wake_is_lost_between_threads() {
    const ROUNDS: u32 = 20_000;
    let (to_a, mut from_b) = flaz_runtime::mailbox::channel::<u32>(1);
    let (to_b, mut from_a) = flaz_runtime::mailbox::channel::<u32>(1);
    let thread = std::thread::spawn(move || {
        runtime().block_on(async {
            while let Some(number) = from_a.recv().await {
                to_a.send(number + 1).await.expect("the other side waits");
            }
        });
    });
    runtime().block_on(async {
        for number in 0..ROUNDS {
            to_b.send(number).await.expect("the other side waits");
            assert_eq!(from_b.recv().await, Some(number + 1));
        }
        drop(to_b);
    });
    thread.join().expect("the other side does not panic");
}

#[test]
fn sleeps_take_their_time_and_end_in_order() {
    let order = Rc::new(RefCell::new(Vec::new()));
    runtime().block_on(async {
        for ms in [90u64, 30, 60, 0] {
            let order = Rc::clone(&order);
            Rt.spawn(async move {
                let before = Rt.now();
                Rt.sleep(Duration::from_millis(ms)).await;
                assert!(Rt.now().since(before) >= Duration::from_millis(ms));
                order.borrow_mut().push(ms);
            });
        }
        while order.borrow().len() < 4 {
            Rt.sleep(Duration::from_millis(1)).await;
        }
    });
    assert_eq!(*order.borrow(), [0, 30, 60, 90]);
}

#[test]
fn a_dropped_sleep_does_not_delay_the_runtime() {
    let started = Instant::now();
    let runtime = runtime();
    runtime.block_on(async {
        let mut sleep = pin!(Rt.sleep(Duration::from_secs(3600)));
        poll_fn(|cx| {
            assert!(sleep.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
    });
    runtime.block_on(Rt.sleep(Duration::from_millis(5)));
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_yielding_task_does_not_starve_io() {
    let (here, there) = UnixStream::pair().expect("socket pair");
    let done = Rc::new(Cell::new(false));
    runtime().block_on(async {
        let spinning = Rc::clone(&done);
        Rt.spawn(async move {
            while !spinning.get() {
                Rt.yield_now().await;
            }
        });
        let stream = Stream::new(OwnedFd::from(here)).expect("stream");
        Rt.spawn(async move {
            Rt.sleep(Duration::from_millis(5)).await;
            drop(there);
        });
        let (_, received) = stream.recv(IoBuf::new(16), 0, 16).await;
        assert_eq!(received.expect("the peer ended"), 0);
        done.set(true);
    });
}

#[test]
fn a_cancelled_operation_does_not_disturb_the_next() {
    let runtime = runtime();
    runtime.block_on(async {
        for round in 0..2000u32 {
            let (here, there) = UnixStream::pair().expect("socket pair");
            let stream = Stream::new(OwnedFd::from(here)).expect("stream");
            {
                let mut receive = pin!(stream.recv(IoBuf::new(4096), 0, 4096));
                poll_fn(|cx| {
                    assert!(receive.as_mut().poll(cx).is_pending());
                    Poll::Ready(())
                })
                .await;
            }
            // The next round reuses the descriptor's number while the cancellation may still be in progress.
            let message = round.to_ne_bytes();
            let peer = Stream::new(OwnedFd::from(there)).expect("stream");
            let mut batch = flaz_runtime::SendBatch::new();
            batch.push_bytes(&message);
            peer.send_all(batch)
                .await
                .1
                .expect("the socket accepts four bytes");
            // The dropped receive may have won the race for the bytes; if not, they arrive here unharmed.
            peer.shutdown();
            let (buf, received) = stream.recv(IoBuf::new(16), 0, 16).await;
            match received.expect("a local socket") {
                0 => {}
                len => assert_eq!(buf[..len], message),
            }
        }
    });
}

#[test]
fn a_runtime_with_open_operations_ends() {
    let (here, _there) = UnixStream::pair().expect("socket pair");
    let started = Instant::now();
    let runtime = runtime();
    runtime.block_on(async {
        Rt.spawn(async move {
            let stream = Stream::new(OwnedFd::from(here)).expect("stream");
            let (_, received) = stream.recv(IoBuf::new(16), 0, 16).await;
            unreachable!("nobody sends, but received {received:?}");
        });
        Rt.sleep(Duration::from_millis(1)).await;
    });
    drop(runtime);
    assert!(started.elapsed() < Duration::from_secs(2));
    drop(crate::runtime()); // the thread may have a new one
}

#[test]
fn more_tasks_and_operations_than_the_ring_holds() {
    let runtime = Runtime::new(Config {
        sq_entries: 8,
        ..Config::default()
    })
    .expect("a runtime");
    let pairs: Vec<_> = (0..400)
        .map(|_| UnixStream::pair().expect("socket pair"))
        .collect();
    let received = Rc::new(Cell::new(0));
    runtime.block_on(async {
        let mut peers = Vec::new();
        for (here, there) in pairs {
            let received = Rc::clone(&received);
            peers.push(there);
            Rt.spawn(async move {
                let stream = Stream::new(OwnedFd::from(here)).expect("stream");
                let (buf, result) = stream.recv(IoBuf::new(16), 0, 16).await;
                assert_eq!(&buf[..result.expect("a message")], b"hello");
                received.set(received.get() + 1);
            });
        }
        for _ in 0..5000 {
            Rt.spawn(async {});
        }
        Rt.yield_now().await;
        for peer in &mut peers {
            std::io::Write::write_all(peer, b"hello").expect("space for five bytes");
        }
        while received.get() < 400 {
            Rt.sleep(Duration::from_millis(1)).await;
        }
    });
}

/// A waker may outlive its task and its runtime.
#[test]
fn stale_wakers_do_nothing() {
    let kept: Arc<Mutex<Option<Waker>>> = Arc::default();
    let runtime = runtime();
    runtime.block_on(async {
        let keep = Arc::clone(&kept);
        Rt.spawn(poll_fn(move |cx: &mut Context<'_>| {
            *keep.lock().expect("no panic") = Some(cx.waker().clone());
            Poll::Ready(())
        }));
        Rt.yield_now().await;
    });
    let waker = kept.lock().expect("no panic").take().expect("the task ran");
    waker.wake_by_ref();
    let mut polls = 0;
    runtime.block_on(async {
        Rt.spawn(async {}); // takes the slot over
        Rt.yield_now().await;
        polls += 1;
    });
    assert_eq!(polls, 1);
    drop(runtime);
    waker.wake_by_ref();
    std::thread::spawn(move || waker.wake())
        .join()
        .expect("a stale wake does not panic");
}

#[test]
fn compute_returns_the_result_and_passes_panics_on() {
    let runtime = runtime();
    let results = runtime.block_on(join_all((0..3000u64).map(|number| {
        let priority = if number % 2 == 0 {
            Priority::Read
        } else {
            Priority::Write
        };
        Rt.compute(priority, move || number * number)
    })));
    assert_eq!(
        results,
        (0..3000u64).map(|number| number * number).collect::<Vec<_>>()
    );
    assert!(Rt.parallelism() >= 1);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime.block_on(Rt.compute(Priority::Read, || panic!("on purpose")));
    }));
    assert!(panicked.is_err());
    assert_eq!(
        runtime.block_on(Rt.compute(Priority::Read, || 5)),
        5,
        "the pool and the runtime live on"
    );
}

#[test]
fn jobs_with_time_to_spare_have_their_own_threads_and_are_timed() {
    const TIME: Duration = Duration::from_millis(5);
    let runtime = runtime();
    let job = || {
        std::thread::sleep(TIME);
        std::thread::current().name().map(str::to_owned)
    };
    let all = runtime.block_on(join_all((0..10).map(|_| Rt.compute_spare(job))));
    for (name, took) in all {
        let is_own = name.is_some_and(|name| name.starts_with("flaz-spare-"));
        assert_eq!(is_own, Rt.parallelism() > 1);
        assert!(took >= TIME);
    }
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime.block_on(Rt.compute_spare(|| panic!("on purpose")));
    }));
    assert!(panicked.is_err());
    assert_eq!(runtime.block_on(Rt.compute_spare(|| 5)).0, 5);
}

#[test]
#[should_panic(expected = "requires a runtime")]
fn a_missing_runtime_panics_with_a_message() {
    Rt.spawn(async {});
}
