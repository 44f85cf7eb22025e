//! One value from one thread to another, for tasks and for plain threads.

use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

struct Slot<T> {
    value: Option<T>,
    waker: Option<Waker>,
    sender_gone: bool,
    receiver_gone: bool,
    /// A plain thread waits on the condition variable.
    blocked: bool,
}

struct Inner<T> {
    slot: Mutex<Slot<T>>,
    arrived: Condvar,
}

impl<T> Inner<T> {
    fn lock(&self) -> MutexGuard<'_, Slot<T>> {
        // No user code runs under the lock, so a poisoned slot is still consistent.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the receiver, outside the lock.
    fn announce(&self, mut slot: MutexGuard<'_, Slot<T>>) {
        let waker = slot.waker.take();
        let blocked = slot.blocked;
        drop(slot);
        if blocked {
            self.arrived.notify_one();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The sender was dropped without sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the sender was dropped without sending")]
pub struct Lost;

/// Why [`OneReceiver::recv_blocking`] returned no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecvTimeoutError {
    /// The sender was dropped without sending.
    #[error("the sender was dropped without sending")]
    Lost,
    /// No value arrived in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
}

/// Sends one value.
pub struct OneSender<T> {
    inner: Arc<Inner<T>>,
}

/// Receives one value.
pub struct OneReceiver<T> {
    inner: Arc<Inner<T>>,
}

/// A channel for one value, between any two threads.
#[must_use]
pub fn oneshot<T: Send>() -> (OneSender<T>, OneReceiver<T>) {
    let slot = Slot {
        value: None,
        waker: None,
        sender_gone: false,
        receiver_gone: false,
        blocked: false,
    };
    let inner = Arc::new(Inner {
        slot: Mutex::new(slot),
        arrived: Condvar::new(),
    });
    (
        OneSender {
            inner: Arc::clone(&inner),
        },
        OneReceiver { inner },
    )
}

impl<T: Send> OneSender<T> {
    /// Sends `value`.
    ///
    /// # Errors
    /// Returns the value if the receiver is gone.
    pub fn send(self, value: T) -> Result<(), T> {
        let mut slot = self.inner.lock();
        if slot.receiver_gone {
            return Err(value);
        }
        slot.value = Some(value);
        self.inner.announce(slot);
        Ok(())
    }

    /// Whether the receiver is gone.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.inner.lock().receiver_gone
    }
}

impl<T> Drop for OneSender<T> {
    fn drop(&mut self) {
        let mut slot = self.inner.lock();
        slot.sender_gone = true;
        self.inner.announce(slot);
    }
}

impl<T: Send> OneReceiver<T> {
    /// Waits for the value.
    ///
    /// # Errors
    /// [`Lost`] if the sender was dropped without sending.
    pub async fn recv(self) -> Result<T, Lost> {
        poll_fn(|cx| {
            let mut slot = self.inner.lock();
            if let Some(value) = slot.value.take() {
                return Poll::Ready(Ok(value));
            }
            if slot.sender_gone {
                return Poll::Ready(Err(Lost));
            }
            match &mut slot.waker {
                Some(waker) if waker.will_wake(cx.waker()) => {}
                other => *other = Some(cx.waker().clone()),
            }
            Poll::Pending
        })
        .await
    }

    /// The value, if it was sent already.
    #[must_use]
    pub fn try_recv(&self) -> Option<T> {
        self.inner.lock().value.take()
    }

    /// Blocks this thread until the value arrives. Not for threads with a runtime.
    ///
    /// # Errors
    /// The sender is gone, or no value arrived within `timeout`.
    pub fn recv_blocking(self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        self.wait_blocking(timeout)
    }

    /// The same; after a timeout, the value may be waited for again.
    ///
    /// # Errors
    /// As [`OneReceiver::recv_blocking`].
    pub fn wait_blocking(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        let deadline = Instant::now() + timeout;
        let mut slot = self.inner.lock();
        loop {
            if let Some(value) = slot.value.take() {
                return Ok(value);
            }
            if slot.sender_gone {
                return Err(RecvTimeoutError::Lost);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(RecvTimeoutError::Timeout(timeout));
            }
            slot.blocked = true;
            slot = self
                .inner
                .arrived
                .wait_timeout(slot, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

impl<T> Drop for OneReceiver<T> {
    fn drop(&mut self) {
        let mut slot = self.inner.lock();
        slot.receiver_gone = true;
        let waker = slot.waker.take();
        drop(slot);
        drop(waker);
    }
}
