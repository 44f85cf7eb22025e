//! Queues between threads: limits and ends; no value and no wake is lost.

use std::time::Duration;

use flaz_device::Env;
use flaz_runtime::mailbox::channel;
use flaz_runtime::{Lost, RecvTimeoutError, Rt, oneshot};
use futures_util::future::join_all;

use crate::runtime;

#[test]
fn a_full_queue_returns_the_value() {
    let (sender, mut receiver) = channel(2);
    assert_eq!(sender.try_send(1), Ok(()));
    assert_eq!(sender.try_send(2), Ok(()));
    assert_eq!(sender.try_send(3), Err(3));
    assert_eq!(receiver.try_recv(), Some(1));
    assert_eq!(sender.try_send(3), Ok(()));
    assert_eq!(sender.len(), 2);
}

#[test]
fn the_end_of_the_senders_comes_after_all_values() {
    let (sender, mut receiver) = channel(4);
    let second = sender.clone();
    sender.try_send(1).expect("room");
    drop(sender);
    second.try_send(2).expect("room");
    drop(second);
    runtime().block_on(async {
        assert_eq!(receiver.recv().await, Some(1));
        assert_eq!(receiver.recv().await, Some(2));
        assert_eq!(receiver.recv().await, None);
    });
}

#[test]
fn a_dropped_receiver_ends_senders_and_drops_the_queue() {
    let (sender, receiver) = channel(1);
    let (answer, question) = oneshot::<()>();
    sender.try_send(Some(answer)).ok().expect("room");
    runtime().block_on(async {
        Rt.spawn(async move {
            Rt.sleep(Duration::from_millis(2)).await;
            drop(receiver);
        });
        assert!(sender.send(None).await.is_err());
        assert!(sender.is_closed());
        assert_eq!(question.recv().await, Err(Lost), "the queued value was dropped");
    });
}

/// Several threads, several waiting senders each, a queue of two: every value arrives once, in each sender's order.
#[test]
fn many_senders_through_a_small_queue() {
    const THREADS: u64 = 3;
    const TASKS: u64 = 8;
    const VALUES: u64 = 2000;
    let (sender, mut receiver) = channel::<(u64, u64)>(2);
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let sender = sender.clone();
            std::thread::spawn(move || {
                runtime().block_on(join_all((0..TASKS).map(|task| {
                    let sender = &sender;
                    async move {
                        for value in 0..VALUES {
                            sender
                                .send((thread * TASKS + task, value))
                                .await
                                .expect("the receiver lives");
                        }
                    }
                })));
            })
        })
        .collect();
    drop(sender);
    let mut next = vec![0; (THREADS * TASKS) as usize];
    runtime().block_on(async {
        while let Some((from, value)) = receiver.recv().await {
            assert_eq!(value, next[from as usize]);
            next[from as usize] += 1;
        }
    });
    assert!(next.iter().all(|count| *count == VALUES), "{next:?}");
    for thread in threads {
        thread.join().expect("no sender panics");
    }
}

#[test]
fn a_oneshot_works_with_a_plain_thread() {
    let (sender, receiver) = oneshot();
    let thread = std::thread::spawn(move || {
        runtime().block_on(async {
            Rt.sleep(Duration::from_millis(5)).await;
            sender.send("done").expect("somebody waits");
        });
    });
    assert_eq!(receiver.recv_blocking(Duration::from_secs(10)), Ok("done"));
    thread.join().expect("no panic");

    let (sender, receiver) = oneshot::<()>();
    drop(sender);
    assert_eq!(
        receiver.recv_blocking(Duration::from_secs(10)),
        Err(RecvTimeoutError::Lost)
    );

    let (sender, receiver) = oneshot::<()>();
    let timeout = Duration::from_millis(5);
    assert_eq!(
        receiver.recv_blocking(timeout),
        Err(RecvTimeoutError::Timeout(timeout))
    );
    assert!(sender.is_abandoned());
    assert_eq!(sender.send(()), Err(()));
}
