//! Turns of writeback runs at the origin: first come, first served over the shards of a cache.
//!
//! A shard queues one run at a time; its other runs wait for a place in this queue ([`Writeback::next_run`]). So a shard with a
//! long batch has at most one turn for each turn of a shard that waits.
//!
//! Each run has its own limit, which follows the reads of the origin and the urgency of its shard, besides that of [`Pace`].
//!
//! Invariants:
//! - A run begins only while fewer are in flight than its limit, and only if no run that queued earlier could begin.
//! - A run whose limit is reached blocks no run with a higher limit.
//! - A place or a turn that is dropped leaves nothing behind, and wakes the run that can begin now.
//!
//! [`Writeback::next_run`]: crate::shard::writeback::Writeback::next_run

#![expect(
    clippy::disallowed_types,
    reason = "shards on several threads share it; held for a look or a change of a short queue, around runs alone"
)]

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use super::pace::Pace;

/// See the module's documentation. The shards share it.
#[derive(Debug, Default)]
pub(in crate::shard) struct Turns {
    pace: Pace,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    in_flight: u64,
    /// As many as there are shards at most, in the order in which they came.
    places: VecDeque<Waiting>,
    next_id: u64,
}

#[derive(Debug)]
struct Waiting {
    id: u64,
    /// The limit that the run gave last.
    most: u64,
    waker: Option<Waker>,
}

impl State {
    /// The run that may begin while there may be `pace` runs.
    fn next(&mut self, pace: u64) -> Option<&mut Waiting> {
        let in_flight = self.in_flight;
        (self.places.iter_mut()).find(|place| in_flight < place.most.min(pace))
    }
}

impl Turns {
    /// Queues a run. It cannot begin before it gives a limit.
    pub(in crate::shard) fn queue(&self) -> Place<'_> {
        let mut state = self.state();
        let id = state.next_id;
        state.next_id += 1;
        state.places.push_back(Waiting {
            id,
            most: 0,
            waker: None,
        });
        Place { turns: self, id }
    }

    /// The origin took this long for a write of a run.
    pub(in crate::shard) fn note_write(&self, took: Duration) {
        let in_flight = self.state().in_flight;
        self.pace.note(took, in_flight);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The queue is correct after a panic of another holder, too.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the run that may begin now, if it sleeps.
    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let waker = state.next(self.pace.runs()).and_then(|place| place.waker.take());
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A run in the queue, until it is dropped.
#[derive(Debug)]
pub(in crate::shard) struct Place<'a> {
    turns: &'a Turns,
    id: u64,
}

impl<'a> Place<'a> {
    /// Begins the run, if fewer than `most` are in flight and no earlier run may begin.
    pub(in crate::shard) fn take(&self, most: u64) -> Option<Turn<'a>> {
        let mut state = self.turns.state();
        let own = state.places.iter_mut().find(|place| place.id == self.id);
        own.expect("it is in the queue until it is dropped").most = most;
        let next = state.next(self.turns.pace.runs())?;
        if next.id != self.id {
            // If this one's limit has become lower, a later run may begin.
            self.turns.wake(state);
            return None;
        }
        // The next run is woken when the caller drops this place.
        state.in_flight += 1;
        Some(Turn(self.turns))
    }

    /// Waits until the run may begin with the limit that it gave last.
    pub(in crate::shard) async fn wait(&self) {
        poll_fn(|cx| {
            let mut state = self.turns.state();
            if (state.next(self.turns.pace.runs())).is_some_and(|next| next.id == self.id) {
                return Poll::Ready(());
            }
            if let Some(own) = state.places.iter_mut().find(|place| place.id == self.id) {
                own.waker = Some(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state();
        state.places.retain(|place| place.id != self.id);
        self.turns.wake(state);
    }
}

/// A run in flight, until it is dropped.
#[derive(Debug)]
pub(in crate::shard) struct Turn<'a>(&'a Turns);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        assert!(state.in_flight > 0, "turns are counted in pairs");
        state.in_flight -= 1;
        self.0.wake(state);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Context;

    use flaz_sim::Rng;
    use std::pin::pin;

    use super::*;
    use crate::shard::simulated::WakeCount;

    /// Shards with batches of any length, on an origin that has few turns.
    #[test]
    fn each_shard_that_waits_is_next_before_another_comes_twice() {
        const SHARDS: usize = 8;
        for seed in 0..200 {
            let (turns, mut rng) = (Turns::default(), Rng::new(seed));
            let mut runs: Vec<u64> = (0..SHARDS).map(|_| rng.below(2) * rng.below(100)).collect();
            let mut places: Vec<Option<Place<'_>>> = (0..SHARDS).map(|_| None).collect();
            // How often each shard was given a turn since another one came.
            let mut overtaken = [[0; SHARDS]; SHARDS];
            let (mut flying, mut most) = (Vec::new(), 0);
            while runs.iter().any(|runs| *runs > 0) {
                let shard = rng.below(SHARDS as u64) as usize;
                if rng.below(3) == 0 && !flying.is_empty() {
                    flying.swap_remove(rng.below(flying.len() as u64) as usize);
                }
                if runs[shard] == 0 {
                    continue;
                }
                if places[shard].is_none() {
                    places[shard] = Some(turns.queue());
                    overtaken[shard] = [0; SHARDS];
                }
                let place = places[shard].as_ref().expect("it waits");
                let Some(turn) = place.take(u64::MAX) else {
                    continue;
                };
                flying.push(turn);
                most = most.max(flying.len() as u64);
                places[shard] = None;
                runs[shard] -= 1;
                for (other, place) in places.iter().enumerate() {
                    if place.is_some() {
                        overtaken[other][shard] += 1;
                        assert!(
                            overtaken[other][shard] <= 1,
                            "seed {seed}: shard {shard} before {other}"
                        );
                    }
                }
            }
            assert!(most <= turns.pace.runs(), "seed {seed}");
        }
    }

    /// A shard that gives way to readers, or whose origin fails, does not hold up the others.
    #[test]
    fn a_limit_that_is_reached_and_a_place_that_is_left_block_nobody() {
        let turns = Turns::default();
        let (first, second, third) = (turns.queue(), turns.queue(), turns.queue());
        assert!(first.take(0).is_none());
        let turn = second.take(1).expect("the first one may not begin");
        drop(second);
        assert!(first.take(1).is_none(), "one is in flight");
        drop(third.take(2).expect("its limit is higher"));
        drop(turn);
        assert!(third.take(2).is_none(), "the first one is before it");
        drop(first);
        assert!(third.take(2).is_some());
    }

    #[test]
    fn the_run_that_may_begin_is_woken() {
        let turns = Turns::default();
        let counts = [0, 1].map(|_| Arc::new(WakeCount::default()));
        let wakers = counts.clone().map(Waker::from);
        let woken = || counts.each_ref().map(|count| count.get());
        let running = turns.queue().take(1).expect("none is in flight");
        let places = [turns.queue(), turns.queue()];
        assert!(places.iter().all(|place| place.take(1).is_none()));
        let [first, second] = &places;
        let (mut a, mut b) = (pin!(first.wait()), pin!(second.wait()));
        assert!(a.as_mut().poll(&mut Context::from_waker(&wakers[0])).is_pending());
        assert!(b.as_mut().poll(&mut Context::from_waker(&wakers[1])).is_pending());
        drop(running);
        assert_eq!(woken(), [1, 0]);
        assert!(a.as_mut().poll(&mut Context::from_waker(&wakers[0])).is_ready());
        // It gives way after all.
        assert!(first.take(0).is_none());
        assert_eq!(woken(), [1, 1]);
    }
}
