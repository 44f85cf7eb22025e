//! A disk that orders the requests that wait, as one with native command queueing does.
//!
//! When it is free, it serves the request with the shortest positioning time of the oldest [`DEPTH`] ones. A request that was among these
//! for [`PATIENCE`] goes first. Other requests wait as in the queue of a host; their number is limited by those who send them.
//!
//! A request learns when it ends once the disk starts it. For this, one of the tasks whose requests wait or are served keeps the time: it
//! sleeps until the disk is free, and then starts the next request and wakes its task, which keeps the time from then on. If it is
//! dropped, another one does.
//!
//! Invariants: times are those of the model, however late a task wakes up; while requests wait, a task keeps the time or was woken to do
//! so.

use std::collections::VecDeque;
use std::task::{Poll, Waker};
use std::time::Duration;

use flaz_device::Nanos;

use super::disk::Disk;
use super::{Access, Model};

/// Commands that a SATA disk can order.
const DEPTH: usize = 32;
/// Time after which a request goes first: that of reads in Linux's deadline scheduler.
const PATIENCE: Duration = Duration::from_millis(500);

/// What the task of a request does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Its request ends then.
    Ends(Nanos),
    /// It sleeps until then, and asks again.
    KeepsTime(Nanos),
}

#[derive(Debug)]
struct Request {
    number: u64,
    access: Access,
    arrived: Nanos,
    /// When it was first among those that the disk can order.
    ordered: Option<Nanos>,
    /// When it ends, once it has started.
    ends: Option<Nanos>,
    waker: Option<Waker>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Elevator {
    disk: Disk,
    /// Oldest first.
    requests: VecDeque<Request>,
    next_number: u64,
    /// Request whose task keeps the time.
    keeper: Option<u64>,
}

impl Elevator {
    pub(super) fn new(model: Model, len: u64) -> Self {
        Self {
            disk: Disk::new(model, len),
            requests: VecDeque::new(),
            next_number: 0,
            keeper: None,
        }
    }

    /// Adds a request that arrives at `now`; returns its number.
    pub(super) fn enter(&mut self, now: Nanos, access: Access) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.requests.push_back(Request {
            number,
            access,
            arrived: now,
            ordered: None,
            ends: None,
            waker: None,
        });
        number
    }

    /// What the task of a request does next; it is woken if there is nothing yet. Tasks to wake are added to `woken`.
    pub(super) fn poll(
        &mut self,
        now: Nanos,
        number: u64,
        waker: &Waker,
        woken: &mut Vec<Waker>,
    ) -> Poll<Turn> {
        self.start_until(now, woken);
        let keeper = self.keeper;
        let request = self.requests.iter_mut().find(|it| it.number == number);
        let request = request.expect("a request is here until it leaves");
        if let Some(ends) = request.ends {
            return Poll::Ready(Turn::Ends(ends));
        }
        if keeper.is_none_or(|keeper| keeper == number) {
            self.keeper = Some(number);
            return Poll::Ready(Turn::KeepsTime(self.disk.free()));
        }
        request.waker = Some(waker.clone());
        Poll::Pending
    }

    /// Removes a request that has ended, or whose task was dropped.
    pub(super) fn leave(&mut self, now: Nanos, number: u64, woken: &mut Vec<Waker>) {
        self.requests.retain(|it| it.number != number);
        if self.keeper == Some(number) {
            self.keeper = None;
        }
        self.start_until(now, woken);
        if self.keeper.is_none() {
            let mut waiting = self.requests.iter_mut().filter(|it| it.ends.is_none());
            woken.extend(waiting.find_map(|it| it.waker.take()));
        }
    }

    /// Starts the requests that the disk starts until `now`.
    fn start_until(&mut self, now: Nanos, woken: &mut Vec<Waker>) {
        while let Some(index) = self.next(now) {
            let request = &mut self.requests[index];
            let start = self.disk.free().max(request.arrived);
            request.ends = Some(self.disk.serve(start, &request.access));
            self.keeper = Some(request.number);
            woken.extend(request.waker.take());
        }
    }

    /// The request that the disk starts next, if it does so until `now`.
    fn next(&mut self, now: Nanos) -> Option<usize> {
        let oldest = self.requests.iter().find(|it| it.ends.is_none())?;
        let start = self.disk.free().max(oldest.arrived);
        if start > now {
            return None;
        }
        let disk = &self.disk;
        let waiting = self.requests.iter_mut().enumerate();
        let waiting = waiting.filter(|(_, it)| it.ends.is_none() && it.arrived <= start);
        let key = |request: &mut Request| {
            let ordered = *request.ordered.get_or_insert(start);
            match start.since(ordered) >= PATIENCE {
                // Before all others; the oldest first.
                true => None,
                false => Some(disk.positioning(start, &request.access)),
            }
        };
        let keyed = waiting.take(DEPTH).map(|(index, request)| (key(request), index));
        keyed.min().map(|(_, index)| index)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::Wake;

    use flaz_random::Random;

    use super::super::Direction;
    use super::*;

    const LEN: u64 = 500_000_000_000;

    fn elevator() -> Elevator {
        Elevator::new(Model::QUEUEING_HDD, LEN)
    }

    fn read(offset: u64) -> Access {
        Access {
            direction: Direction::Read,
            offset,
            len: 4096,
        }
    }

    /// Serves one request: its number, and when it ends.
    fn serve(elevator: &mut Elevator) -> (u64, Nanos) {
        elevator.start_until(elevator.disk.free(), &mut Vec::new());
        let started = elevator.requests.iter().find(|it| it.ends.is_some());
        let (number, ends) = started.map(|it| (it.number, it.ends)).expect("a request waits");
        elevator.leave(Nanos(0), number, &mut Vec::new());
        (number, ends.expect("it has started"))
    }

    /// Random reads per second with `depth` of them in flight, and the longest time of one.
    fn random_reads(depth: u64) -> (f64, Duration) {
        const COUNT: u64 = 4000;
        let (mut elevator, mut random) = (elevator(), Random::new(7));
        let (mut now, mut longest) = (Nanos(0), Duration::ZERO);
        let mut arrivals = Vec::new();
        for number in 0..COUNT + depth {
            elevator.enter(now, read(random.below(LEN / 4096) * 4096));
            arrivals.push(now);
            if number + 1 >= depth {
                let served;
                (served, now) = serve(&mut elevator);
                longest = longest.max(now.since(arrivals[served as usize]));
            }
        }
        (COUNT as f64 * 1e9 / now.0 as f64, longest)
    }

    /// One in flight has the latency of the model; deep queues are reported to double the rate of disks.
    #[test]
    fn random_reads_are_faster_with_more_of_them_and_none_waits_for_long() {
        let measured = [1, 2, 4, 8, 16, 32].map(random_reads);
        let rates = measured.map(|(rate, _)| rate);
        assert!((rates[0] - 79.4).abs() < 2.0, "{rates:?}");
        assert!(rates.is_sorted(), "{rates:?}");
        let gain = |index: usize| rates[index] / rates[0];
        assert!(
            (1.3..1.5).contains(&gain(2)) && (1.9..2.4).contains(&gain(5)),
            "{rates:?}"
        );
        // Those whose patience has ended at the same time.
        let limit = PATIENCE + DEPTH as u32 * Duration::from_millis(10);
        assert!(
            measured.iter().all(|(_, longest)| *longest < limit),
            "{measured:?}"
        );
    }

    #[test]
    fn a_request_far_away_does_not_wait_for_a_stream() {
        let mut elevator = elevator();
        let mut now = Nanos(0);
        elevator.enter(now, read(0));
        let far = elevator.enter(now, read(LEN / 2));
        for number in 1.. {
            elevator.enter(now, read(number * 4096));
            let served;
            (served, now) = serve(&mut elevator);
            if served == far {
                break;
            }
        }
        assert!(now > Nanos(0).after(PATIENCE) && now < Nanos(0).after(PATIENCE + Duration::from_millis(30)));
    }

    #[test]
    fn only_the_oldest_are_ordered() {
        let mut elevator = elevator();
        for number in 0..DEPTH as u64 {
            elevator.enter(Nanos(0), read(LEN / 2 + number * LEN / 100));
        }
        let near = elevator.enter(Nanos(0), read(4096));
        let (first, end) = serve(&mut elevator);
        assert!(first != near && end > Nanos(1_000_000));
        // One that has not arrived yet is not seen.
        let late = elevator.enter(end.after(Duration::from_nanos(1)), read(LEN / 2));
        assert_ne!(serve(&mut elevator).0, late);
    }

    struct Count(AtomicU64);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn another_task_keeps_the_time_if_one_is_dropped() {
        let mut elevator = elevator();
        let count = Arc::new(Count(AtomicU64::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        let mut woken = Vec::new();
        let [first, second, third] = [3, 2, 1].map(|part| elevator.enter(Nanos(0), read(LEN / 4 * part)));
        let Poll::Ready(Turn::Ends(end)) = elevator.poll(Nanos(0), third, &waker, &mut woken) else {
            panic!("the disk was free");
        };
        assert_eq!(elevator.poll(Nanos(0), second, &waker, &mut woken), Poll::Pending);
        assert_eq!(elevator.poll(Nanos(0), first, &waker, &mut woken), Poll::Pending);
        // The task of the request that is served is dropped.
        elevator.leave(Nanos(1), third, &mut woken);
        assert_eq!(woken.len(), 1);
        assert_eq!(
            elevator.poll(Nanos(1), first, &waker, &mut woken),
            Poll::Ready(Turn::KeepsTime(end))
        );
        // At that time the nearest one starts, and its task is woken.
        woken.clear();
        assert_eq!(elevator.poll(end, first, &waker, &mut woken), Poll::Pending);
        assert_eq!((woken.len(), elevator.keeper), (1, Some(second)));
        // It wakes up late: the times are those of the disk.
        let late = end.after(Duration::from_secs(1));
        let Poll::Ready(Turn::Ends(second_end)) = elevator.poll(late, second, &waker, &mut woken) else {
            panic!("it was started");
        };
        let Poll::Ready(Turn::Ends(first_end)) = elevator.poll(late, first, &waker, &mut woken) else {
            panic!("it was started");
        };
        assert!(end < second_end && second_end < first_end && first_end < late);
        elevator.leave(late, second, &mut woken);
        elevator.leave(late, first, &mut woken);
        assert!(elevator.requests.is_empty() && elevator.keeper.is_none());
    }
}
