//! Bounded queues between threads: many senders, one receiver.
//!
//! Invariant: an accepted value is received unless the receiver is dropped first. Every send wakes a waiting receiver,
//! and free space wakes every waiting sender.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use crossbeam_queue::ArrayQueue;
use futures_util::task::AtomicWaker;

struct Inner<T> {
    queue: ArrayQueue<T>,
    receiver: AtomicWaker,
    receiver_gone: AtomicBool,
    senders: AtomicUsize,
    /// Senders that found the queue full; `waiting_len` lets the receiver skip the lock.
    waiting: Mutex<VecDeque<Waker>>,
    waiting_len: AtomicUsize,
}

impl<T> Inner<T> {
    /// Wakes all waiting senders: a woken sender may have lost interest, so waking only one could have no effect.
    fn wake_senders(&self) {
        // Pairs with the fence in `poll_send`: either the sender's second attempt sees the free space, or this thread
        // sees the sender.
        fence(Ordering::SeqCst);
        if self.waiting_len.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let wakers = std::mem::take(&mut *waiting);
        self.waiting_len.store(0, Ordering::Relaxed);
        drop(waiting);
        for waker in wakers {
            waker.wake();
        }
    }

    fn try_send(&self, value: T) -> Result<(), T> {
        if self.receiver_gone.load(Ordering::Acquire) {
            return Err(value);
        }
        self.queue.push(value)?;
        self.receiver.wake();
        // Pairs with the fence in the receiver's drop: a value that was sent while the receiver was dropped must not
        // stay in the queue until the last sender is dropped, because it may own the sending half of a oneshot.
        fence(Ordering::SeqCst);
        if self.receiver_gone.load(Ordering::Relaxed) {
            self.drain();
        }
        Ok(())
    }

    fn drain(&self) {
        while self.queue.pop().is_some() {}
    }
}

/// The sending side; clones send to the same receiver.
pub struct Sender<T> {
    inner: Arc<Inner<T>>,
}

/// The receiving side.
pub struct Receiver<T> {
    inner: Arc<Inner<T>>,
}

/// A queue for at most `capacity` values.
///
/// # Panics
/// If `capacity` is 0.
#[must_use]
pub fn channel<T: Send>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let inner = Arc::new(Inner {
        queue: ArrayQueue::new(capacity),
        receiver: AtomicWaker::new(),
        receiver_gone: AtomicBool::new(false),
        senders: AtomicUsize::new(1),
        waiting: Mutex::default(),
        waiting_len: AtomicUsize::new(0),
    });
    (
        Sender {
            inner: Arc::clone(&inner),
        },
        Receiver { inner },
    )
}

impl<T: Send> Sender<T> {
    /// Sends without waiting.
    ///
    /// # Errors
    /// Returns the value if the queue is full or the receiver is gone ([`Sender::is_closed`]).
    pub fn try_send(&self, value: T) -> Result<(), T> {
        self.inner.try_send(value)
    }

    /// Sends, waiting for free space.
    ///
    /// # Errors
    /// Returns the value if the receiver is gone.
    pub async fn send(&self, value: T) -> Result<(), T> {
        let mut value = Some(value);
        poll_fn(|cx| self.poll_send(&mut value, cx)).await
    }

    fn poll_send(&self, slot: &mut Option<T>, cx: &mut Context<'_>) -> Poll<Result<(), T>> {
        let value = slot.take().expect("polled after the end");
        let Err(value) = self.inner.try_send(value) else {
            return Poll::Ready(Ok(()));
        };
        if self.is_closed() {
            return Poll::Ready(Err(value));
        }
        let mut waiting = self.inner.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push_back(cx.waker().clone());
        }
        self.inner.waiting_len.store(waiting.len(), Ordering::Relaxed);
        drop(waiting);
        fence(Ordering::SeqCst);
        // Space may have become free, or the receiver may have gone, before this sender was on the list.
        match self.inner.try_send(value) {
            Ok(()) => Poll::Ready(Ok(())),
            Err(value) if self.is_closed() => Poll::Ready(Err(value)),
            Err(value) => {
                *slot = Some(value);
                Poll::Pending
            }
        }
    }

    /// Whether the receiver is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.inner.receiver_gone.load(Ordering::Acquire)
    }

    /// Values in the queue.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.queue.len()
    }

    /// Whether nothing is in the queue.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inner.queue.is_empty()
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.inner.senders.fetch_add(1, Ordering::Relaxed);
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.inner.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.inner.receiver.wake();
        }
    }
}

impl<T: Send> Receiver<T> {
    /// The next value; `None` when the queue is empty and all senders are gone.
    pub async fn recv(&mut self) -> Option<T> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// As [`Receiver::recv`], for hand-written futures.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        if let Some(value) = self.try_recv() {
            return Poll::Ready(Some(value));
        }
        self.inner.receiver.register(cx.waker());
        // A send, or the end of the last sender, before the registration would have woken no task. The senders are
        // counted first, so that the last one's values are then in the queue.
        let gone = self.inner.senders.load(Ordering::Acquire) == 0;
        match self.try_recv() {
            Some(value) => Poll::Ready(Some(value)),
            None if gone => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    /// The next value, if there is one.
    pub fn try_recv(&mut self) -> Option<T> {
        let value = self.inner.queue.pop()?;
        self.inner.wake_senders();
        Some(value)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.inner.receiver_gone.store(true, Ordering::Release);
        self.inner.wake_senders(); // begins with a fence
        self.inner.drain();
    }
}
