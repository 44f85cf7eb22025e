//! The queues of a device, each served on a thread.
//!
//! Each is made ready before the driver gives the device to this server: its thread runs where the requests come from, and its
//! memory is there. Then the character device is passed to all of them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use flaz_runtime::{OneReceiver, OneSender, oneshot};
use flaz_ublk::protocol::{DeviceInfo, Processors};
use flaz_ublk::{CharDevice, Counters, Counts, Queue};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::super::{Phase, Phases, SETTLE_POLL, SETTLE_WITHIN};
use crate::error::HostError;
use crate::front_end::{Failed, Session, SessionThreads};

/// How long a thread may take to allocate the memory of a queue.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// The queues of a device.
#[derive(Default)]
pub(super) struct Queues {
    phases: Arc<Phases>,
    /// Queues with a session.
    count: Arc<AtomicUsize>,
    /// The first error of a queue.
    error: Arc<OnceLock<String>>,
    senders: Mutex<Senders>,
    /// Of each queue.
    counters: Mutex<Vec<Arc<Counters>>>,
}

#[derive(Default)]
struct Senders {
    /// Begins the service of each queue.
    begin: Vec<OneSender<CharDevice>>,
    /// Ends it.
    park: Vec<OneSender<()>>,
}

/// Counts a queue.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Queues {
    pub(super) fn enter(&self, phase: Phase) -> Phase {
        self.phases.enter(phase)
    }

    /// Number of queues that have not ended.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// The first error of a queue. The driver may then wait for a request that is never answered.
    pub(super) fn error(&self) -> Option<&str> {
        self.error.get().map(String::as_str)
    }

    fn senders(&self) -> MutexGuard<'_, Senders> {
        self.senders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What each queue has served.
    pub(super) fn counts(&self) -> Vec<Counts> {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        counters.iter().map(|counters| counters.counts()).collect()
    }

    /// Makes all queues ready; each thread is to run on the processors of its queues.
    ///
    /// # Errors
    /// A thread has ended, or does not answer.
    pub(super) fn prepare(
        &self,
        info: DeviceInfo,
        mut processors: Vec<Option<Processors>>,
        threads: &SessionThreads,
        failed: &Failed,
    ) -> Result<(), HostError> {
        let mut ready = Vec::new();
        for number in 0..info.queues {
            let thread = usize::from(number) % threads.count();
            let (begin, begun) = oneshot();
            let (park, parked) = oneshot();
            let (sender, receiver) = oneshot();
            let counters = Arc::new(Counters::default());
            let mut all = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
            all.push(Arc::clone(&counters));
            drop(all);
            let parts = Parts {
                number,
                counters,
                info,
                // Once for each thread.
                processors: processors[thread].take(),
                ready: sender,
                begun,
                parked,
                phases: Arc::clone(&self.phases),
                error: Arc::clone(&self.error),
                failed: Arc::clone(failed),
                counted: Counted::new(&self.count),
            };
            let mut senders = self.senders();
            senders.begin.push(begin);
            senders.park.push(park);
            drop(senders);
            if threads.run(thread, session(parts)).is_err() {
                return Err("ublk: a thread accepts no orders".into());
            }
            ready.push(receiver);
        }
        for queue in ready {
            queue
                .recv_blocking(READY_WITHIN)
                .map_err(|error| format!("ublk: a thread cannot serve a queue: {error}"))?;
        }
        Ok(())
    }

    /// Begins to serve them.
    pub(super) fn begin(&self, device: &CharDevice) {
        for sender in std::mem::take(&mut self.senders().begin) {
            // A queue that was parked receives nothing.
            let _ = sender.send(device.clone());
        }
    }

    /// Leaves further requests to the next server.
    pub(super) fn park(&self) {
        self.enter(Phase::Leaving);
        let senders = std::mem::take(&mut *self.senders());
        for sender in senders.park {
            // A queue that has ended receives nothing.
            let _ = sender.send(());
        }
    }

    /// Whether all have ended, which takes a moment.
    pub(super) fn wait_for_end(&self) -> bool {
        let give_up = Instant::now() + SETTLE_WITHIN;
        while self.count() > 0 && Instant::now() < give_up {
            std::thread::sleep(SETTLE_POLL);
        }
        self.count() == 0
    }
}

/// What a thread needs to serve a queue.
struct Parts {
    number: u16,
    counters: Arc<Counters>,
    info: DeviceInfo,
    /// The thread is to run on these.
    processors: Option<Processors>,
    ready: OneSender<()>,
    begun: OneReceiver<CharDevice>,
    parked: OneReceiver<()>,
    phases: Arc<Phases>,
    error: Arc<OnceLock<String>>,
    failed: Failed,
    counted: Counted,
}

fn session(parts: Parts) -> Session {
    Box::new(move |volume| {
        if let Some(processors) = &parts.processors {
            run_on(processors);
        }
        let queue = Queue::new(parts.number, &parts.info, parts.counters);
        // If the start was cancelled, there is no receiver.
        let _ = parts.ready.send(());
        Box::pin(async move {
            let failed = |error: flaz_ublk::UblkError| {
                if parts.phases.now() != Phase::Leaving {
                    let _ = parts.error.set(error.to_string());
                    (parts.failed)(error.into());
                }
            };
            if let Ok(device) = parts.begun.recv().await {
                queue.serve(device, volume, parts.parked, failed).await;
            }
            drop(parts.counted);
        })
    })
}

/// Makes this thread run on those processors whose requests it serves, as far as it may.
fn run_on(processors: &Processors) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let mut chosen = CpuSet::new();
    let numbers = processors
        .numbers()
        .take_while(|number| *number < CpuSet::MAX_CPU);
    for number in numbers.filter(|number| allowed.is_set(*number)) {
        chosen.set(number);
    }
    if chosen.count() > 0
        && let Err(error) = sched_setaffinity(None, &chosen)
    {
        tracing::debug!(%error, "a thread runs on any processor");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_counted_even_if_they_never_run() {
        let queues = Queues::default();
        let counted = [Counted::new(&queues.count), Counted::new(&queues.count)];
        assert_eq!(queues.count(), 2);
        drop(counted);
        assert_eq!(queues.count(), 0);
    }

    #[test]
    fn a_thread_runs_only_where_it_may() {
        let ran = std::thread::spawn(|| {
            let allowed = sched_getaffinity(None).unwrap();
            run_on(&Processors::default());
            assert_eq!(
                sched_getaffinity(None).unwrap(),
                allowed,
                "no processor: as before"
            );
            let mut bytes = [0_u8; size_of::<Processors>()];
            bytes[..8].fill(0xff);
            run_on(&zerocopy::FromBytes::read_from_bytes(&bytes).unwrap());
            let now = sched_getaffinity(None).unwrap();
            (0..CpuSet::MAX_CPU).all(|number| !now.is_set(number) || allowed.is_set(number))
        });
        assert!(ran.join().unwrap());
    }
}
