//! A device that serves requests in the order of arrival.
//!
//! A request waits for one of `parallelism` servers (a disk has one: its actuator). It spends the positioning time there, unless it
//! continues the previous request on a device where that helps. Then it transfers its bytes over one link that all servers share. A limit
//! on operations per second, as cloud volumes have it, spaces the starts of requests evenly.

use std::time::Duration;

use flaz_device::Nanos;

use super::{Access, Model, Seek};

/// Maximum number of servers in a model.
const PARALLELISM_MAX: u32 = 1024;

/// Times at which the parts of the modelled device become free.
#[derive(Debug)]
pub(super) struct Queue {
    model: Model,
    servers: Vec<Nanos>,
    link_free: Nanos,
    /// Earliest start of the next operation, because of the limit on operations.
    next_start: Nanos,
    /// End offset of the previous access.
    position: Option<u64>,
}

impl Queue {
    pub(super) fn new(model: Model) -> Self {
        let servers = vec![Nanos::default(); model.parallelism.clamp(1, PARALLELISM_MAX) as usize];
        Self {
            model,
            servers,
            link_free: Nanos::default(),
            next_start: Nanos::default(),
            position: None,
        }
    }

    /// Adds a request that arrives at `now` and returns the time of its completion.
    pub(super) fn accept(&mut self, now: Nanos, access: Access) -> Nanos {
        let model = &self.model;
        let server = self
            .servers
            .iter_mut()
            .min()
            .expect("a model has at least one server");
        let mut start = now.max(*server);
        if let Some(limit) = model.operations_per_second.filter(|limit| *limit > 0) {
            start = start.max(self.next_start);
            self.next_start = start.after(Duration::from_secs(1) / limit);
        }
        let continues = model.seek == Seek::Fixed && self.position == Some(access.offset);
        let positioning = if continues { Duration::ZERO } else { model.latency };
        let transfer = model.transfer(access.direction, access.len);
        let done = start.after(positioning).max(self.link_free).after(transfer);
        self.link_free = done;
        *server = done;
        self.position = access.offset.checked_add(access.len);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::super::Direction::{self, Read, Write};
    use super::*;

    const MS: u64 = 1_000_000;

    impl Queue {
        fn serve(&mut self, now: Nanos, direction: Direction, offset: u64, len: u64) -> Nanos {
            self.accept(
                now,
                Access {
                    direction,
                    offset,
                    len,
                },
            )
        }
    }

    #[test]
    fn a_disk_positions_then_transfers_and_serves_one_at_a_time() {
        let mut disk = Queue::new(Model::HDD);
        // 100,000 bytes at 100 MB/s are 1 ms, at 90 MB/s 1.111111 ms.
        assert_eq!(disk.serve(Nanos(0), Read, 0, 100_000), Nanos(13_600_000));
        assert_eq!(disk.serve(Nanos(0), Read, 5_000_000, 100_000), Nanos(27_200_000));
        assert_eq!(
            disk.serve(Nanos(20 * MS), Write, 0, 100_000),
            Nanos(27_200_000 + 12_600_000 + 1_111_111)
        );
        // After a pause it starts at once.
        assert_eq!(
            disk.serve(Nanos(1000 * MS), Read, 9_000_000, 100_000),
            Nanos(1_013_600_000)
        );
    }

    #[test]
    fn sequential_access_needs_no_positioning() {
        let mut disk = Queue::new(Model::HDD);
        assert_eq!(disk.serve(Nanos(0), Read, 0, 1_000_000), Nanos(22_600_000));
        assert_eq!(
            disk.serve(Nanos(0), Read, 1_000_000, 1_000_000),
            Nanos(32_600_000)
        );
        assert_eq!(
            disk.serve(Nanos(50 * MS), Write, 2_000_000, 900_000),
            Nanos(60 * MS)
        );
        // Two alternating streams are random accesses.
        assert_eq!(disk.serve(Nanos(60 * MS), Read, 0, 0), Nanos(72_600_000));
        assert_eq!(disk.serve(Nanos(60 * MS), Read, 2_900_000, 0), Nanos(85_200_000));
    }

    #[test]
    fn an_ssd_overlaps_positioning_but_shares_its_link() {
        let mut ssd = Queue::new(Model::SSD);
        let transfer = 277_000 * 1_000_000_000 / 277_000_000; // 1 ms
        for number in 1..=3 {
            let done = ssd.serve(Nanos(0), Read, number * 7_000_000, 277_000);
            assert_eq!(done, Nanos(170_000 + number * transfer));
        }
        // Small reads: ten at a time; the eleventh waits for the first server to become free.
        let mut ssd = Queue::new(Model::SSD);
        let first: Vec<_> = (0..10)
            .map(|number| ssd.serve(Nanos(0), Read, number << 20, 0))
            .collect();
        assert!(first.iter().all(|done| *done == Nanos(170_000)), "{first:?}");
        assert_eq!(ssd.serve(Nanos(0), Read, 99 << 20, 0), Nanos(340_000));
    }

    #[test]
    fn a_volume_with_a_limit_of_operations_spaces_them() {
        let mut volume = Queue::new(Model::NETWORK_VOLUME);
        let spacing = 1_000_000_000 / 3000;
        for number in 0..100 {
            let done = volume.serve(Nanos(0), Write, number * 1_000_000, 0);
            assert_eq!(done, Nanos(MS + number * spacing));
        }
        // Large transfers reach the other limit: 125 KB take 1 ms.
        let mut volume = Queue::new(Model::NETWORK_VOLUME);
        assert_eq!(volume.serve(Nanos(0), Write, 0, 125_000), Nanos(2 * MS));
        assert_eq!(volume.serve(Nanos(0), Read, 0, 125_000), Nanos(3 * MS));
        assert_eq!(volume.serve(Nanos(0), Read, 0, 125_000), Nanos(4 * MS));
    }

    #[test]
    fn extreme_figures_do_not_overflow() {
        let mut queue = Queue::new(Model {
            read_bytes_per_second: 0,
            parallelism: 0,
            ..Model::HDD
        });
        let done = queue.serve(Nanos(u64::MAX - 5), Read, u64::MAX - 1, u64::MAX);
        assert_eq!(done, Nanos(u64::MAX));
    }
}
