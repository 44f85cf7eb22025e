//! A device in time: when a request that arrives now completes.
//!
//! Requests use the link one after the other. A write is acknowledged when its data is in the buffer, which the flash empties
//! at its own rate; the link waits while the buffer is full. A flush waits for the flash. A read waits for the link, and for
//! the latency of a page; a read behind a program of the same die would wait longer in a real drive.
//!
//! Cleaning a block takes as long as moving it does, in one piece. A controller cleans in small steps, so its time is spread
//! over the writes that fill the block which cleaning has opened.
//!
//! Invariants: times only grow; the same requests at the same times complete at the same times. All times are multiplied by
//! the slowdown, so that a machine that cannot keep up can serve a slower device of the same proportions.

use flaz_device::Nanos;

use super::description::Description;
use super::ftl::{Ftl, GRANULES_PER_UNIT, Wear};

/// Times in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Times {
    command: f64,
    page_read: f64,
    write_byte: f64,
    read_byte: f64,
    read_granule: f64,
    program_granule: f64,
    move_granule: f64,
    erase: f64,
    /// What the flash needs for a full buffer.
    buffer: f64,
}

impl Times {
    fn of(device: &Description, slowdown: f64) -> Self {
        let (link, flash) = (&device.link, &device.flash);
        let drives = f64::from(device.drives);
        let granule_bytes = device.unit_bytes() as f64 / f64::from(GRANULES_PER_UNIT);
        let stripe_granules = device.stripe_bytes() as f64 / device.overhead() / granule_bytes;
        let program_granule = flash.program_us / stripe_granules;
        let buffer_granules = f64::from(device.controller.buffer_kib) * 1024.0 / granule_bytes;
        let ns = |us: f64| us * 1e3 * slowdown;
        Self {
            command: ns(link.command_us),
            page_read: ns(flash.read_us),
            write_byte: ns(1.0 / link.write_mb_per_s / drives),
            read_byte: ns((link.read_us_per_kib / 1024.0).max(1.0 / link.read_mb_per_s) / drives),
            read_granule: ns(link.read_stored_us_per_kib / 1024.0 * granule_bytes / drives),
            program_granule: ns(program_granule),
            move_granule: ns(program_granule + flash.read_us / stripe_granules),
            erase: ns(flash.erase_us),
            buffer: ns(buffer_granules * program_granule),
        }
    }
}

/// Counters, as a drive reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Bytes that the host has written.
    pub host_written_bytes: u64,
    /// Bytes that the host has read.
    pub host_read_bytes: u64,
    /// Bytes programmed to the flash: for the host, by cleaning, and overhead.
    pub flash_written_bytes: u64,
    /// Of these, those that cleaning has moved.
    pub flash_moved_bytes: u64,
    /// Blocks erased, each one of every plane.
    pub erased_blocks: u64,
}

/// A device.
#[derive(Debug)]
pub struct Drive {
    ftl: Ftl,
    times: Times,
    link_free: f64,
    flash_free: f64,
    /// Time of cleaning that was not charged yet.
    debt: f64,
    written_bytes: u64,
    read_bytes: u64,
    programmed_bytes_per_granule: f64,
}

impl Drive {
    /// A new device; times are multiplied by `slowdown`.
    ///
    /// # Errors
    /// The flash cannot hold all units.
    pub fn new(device: &Description, slowdown: f64) -> Result<Self, String> {
        let granule_bytes = device.unit_bytes() as f64 / f64::from(GRANULES_PER_UNIT);
        Ok(Self {
            ftl: Ftl::new(device.geometry()?),
            times: Times::of(device, slowdown),
            link_free: 0.0,
            flash_free: 0.0,
            debt: 0.0,
            written_bytes: 0,
            read_bytes: 0,
            programmed_bytes_per_granule: granule_bytes * device.overhead(),
        })
    }

    /// A write of `bytes` that stores the units from `first` on in `sizes` granules. With `fua`, it completes when it is in the
    /// flash.
    pub fn write(&mut self, now: Nanos, bytes: u64, first: u32, sizes: &[u8], fua: bool) -> Nanos {
        let times = self.times;
        let start = self.link_free.max(now.0 as f64);
        self.link_free = start + times.write_byte * bytes as f64;
        let mut work = 0.0;
        for (unit, granules) in (first..).zip(sizes) {
            work += times.program_granule * f64::from(*granules) + self.pay(*granules);
            let done = self.ftl.write(unit, *granules);
            self.debt += times.move_granule * done.moved as f64 + times.erase * done.erased as f64;
        }
        self.flash_free = (self.flash_free.max(start) + work).max(self.link_free);
        self.link_free = self.link_free.max(self.flash_free - times.buffer);
        self.written_bytes += bytes;
        let done = self.link_free + times.command;
        moment(if fua { done.max(self.flash_free) } else { done })
    }

    /// The part of the debt that a write of so many granules pays: all of it is paid when the open block is full.
    fn pay(&mut self, granules: u8) -> f64 {
        let room = f64::from(self.ftl.room()).max(f64::from(granules));
        let part = self.debt * f64::from(granules) / room;
        self.debt -= part;
        part
    }

    /// A read of `bytes` of the units from `first` to before `end`.
    pub fn read(&mut self, now: Nanos, bytes: u64, first: u32, end: u32) -> Nanos {
        let times = self.times;
        let stored: f64 = (first..end).map(|unit| f64::from(self.ftl.size(unit))).sum();
        let start = self.link_free.max(now.0 as f64);
        self.link_free = start + times.read_byte * bytes as f64 + times.read_granule * stored;
        self.read_bytes += bytes;
        let latency = if stored > 0.0 { times.page_read } else { 0.0 };
        moment(self.link_free + times.command + latency)
    }

    /// A flush.
    pub fn flush(&mut self, now: Nanos) -> Nanos {
        moment(self.flash_free.max(now.0 as f64) + self.times.command)
    }

    /// Gives the contents of the units from `first` to before `end` up.
    pub fn trim(&mut self, now: Nanos, first: u32, end: u32) -> Nanos {
        for unit in first..end {
            self.ftl.forget(unit);
        }
        moment(self.link_free.max(now.0 as f64) + self.times.command)
    }

    /// Whether a unit has contents.
    #[must_use]
    pub fn has(&self, unit: u32) -> bool {
        self.ftl.size(unit) > 0
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let total = self.ftl.total();
        let bytes = |granules: u64| (granules as f64 * self.programmed_bytes_per_granule) as u64;
        Counters {
            host_written_bytes: self.written_bytes,
            host_read_bytes: self.read_bytes,
            flash_written_bytes: bytes(total.written + total.moved),
            flash_moved_bytes: bytes(total.moved),
            erased_blocks: total.erased,
        }
    }

    /// The wear.
    #[must_use]
    pub fn wear(&self) -> Wear {
        self.ftl.wear()
    }
}

fn moment(nanos: f64) -> Nanos {
    Nanos(nanos as u64)
}

#[cfg(test)]
mod tests {
    use super::super::amplification::amplification;
    use super::super::description_file::preset;
    use super::super::rates::Rates;
    use super::*;

    const SIZE: u64 = 256 << 20;
    const RECORD: u64 = 1 << 20;

    fn drive(name: &str, slowdown: f64) -> (Drive, Description) {
        let device = preset(name).unwrap().with_size(SIZE).unwrap();
        (Drive::new(&device, slowdown).unwrap(), device)
    }

    /// MB/s of writing the whole device in order, one record after the other, with a flush at the end.
    fn written(drive: &mut Drive, granules: u8) -> f64 {
        let begun = drive.flush(Nanos(0));
        let mut now = begun;
        let units = (RECORD / 4096) as u32;
        let records = SIZE / RECORD - 1;
        for record in 0..records as u32 {
            now = drive.write(
                now,
                RECORD,
                record * units,
                &vec![granules; units as usize],
                false,
            );
        }
        (records * RECORD) as f64 / drive.flush(now).since(begun).as_secs_f64() / 1e6
    }

    #[test]
    fn streams_have_the_rates_of_the_closed_form() {
        for (name, granules, stored) in [
            ("sf1222", 9, 0.14),
            ("sf1222", 48, 0.75),
            ("sf1222", 64, 1.0),
            ("sf1200x2-raid0", 64, 1.0),
        ] {
            let (mut drive, device) = drive(name, 1.0);
            let rates = Rates(&device);
            let first = written(&mut drive, granules);
            let again = written(&mut drive, granules);
            let expected = rates.write_mb_per_s(stored, 1.0);
            // The first pass erases nothing.
            for rate in [first, again] {
                assert!(
                    (rate / expected - 1.0).abs() < 0.03,
                    "{name} {stored}: {rate:.1} of {expected:.1} MB/s"
                );
            }
            let (begun, mut now) = (drive.flush(Nanos(0)), drive.flush(Nanos(0)));
            for record in 0..100 {
                let done = drive.read(now, RECORD, record * 256, (record + 1) * 256);
                now =
                    Nanos(done.0 - device.link.command_us as u64 * 1000 - device.flash.read_us as u64 * 1000);
            }
            let rate = 100.0 * RECORD as f64 / now.since(begun).as_secs_f64() / 1e6;
            let expected = rates.read_mb_per_s(stored);
            assert!(
                (rate / expected - 1.0).abs() < 0.01,
                "{name} {stored}: {rate:.1} of {expected:.1} MB/s"
            );
        }
    }

    #[test]
    fn a_slowdown_multiplies_every_time() {
        let (mut one, _) = drive("sf1222", 1.0);
        let (mut ten, _) = drive("sf1222", 10.0);
        let ratio = written(&mut one, 64) / written(&mut ten, 64);
        assert!((ratio - 10.0).abs() < 0.01, "{ratio}");
    }

    /// Random writes to a full device: the rate is that of the closed form, no write waits for a whole cleaning, and the
    /// counters tell the amplification.
    #[test]
    fn random_writes_pay_for_cleaning_evenly() {
        let (mut drive, device) = drive("sf1222", 1.0);
        written(&mut drive, 64);
        let mut random = flaz_random::Random::named(3, "places");
        let units = device.geometry().unwrap().units();
        let mut run = |drive: &mut Drive, writes: u32| {
            let begun = drive.flush(Nanos(0));
            let (mut now, mut longest) = (begun, 0);
            for _ in 0..writes {
                let done = drive.write(now, 4096, random.below(units.into()) as u32, &[64], false);
                longest = longest.max(done.0 - now.0);
                now = done;
            }
            let seconds = drive.flush(now).since(begun).as_secs_f64();
            (f64::from(writes) * 4096.0 / seconds / 1e6, longest)
        };
        run(&mut drive, 3 * units);
        let before = drive.counters();
        let (rate, longest) = run(&mut drive, 2 * units);
        let after = drive.counters();
        let flash = (after.flash_written_bytes - before.flash_written_bytes) as f64;
        let host = (after.host_written_bytes - before.host_written_bytes) as f64;
        let cleaning = flash / host / device.overhead();
        let expected = amplification(device.space_ratio());
        assert!(
            (cleaning / expected - 1.0).abs() < 0.15,
            "{cleaning} of {expected}"
        );
        let of_formula = Rates(&device).write_mb_per_s(1.0, cleaning);
        assert!((rate / of_formula - 1.0).abs() < 0.03, "{rate} of {of_formula}");
        assert!(longest < 20_000_000, "{longest} ns");
        assert!(after.erased_blocks > before.erased_blocks && drive.wear().most > 0);
    }

    #[test]
    fn a_buffer_takes_a_burst_and_a_flush_waits_for_the_flash() {
        let (mut drive, device) = drive("sf1222", 1.0);
        let burst = u64::from(device.controller.buffer_kib) << 10;
        let units = (burst / 4096) as usize;
        let done = drive.write(Nanos(0), burst, 0, &vec![64; units], false);
        let flushed = drive.flush(done);
        let seconds = |moment: Nanos| moment.0 as f64 / 1e9;
        assert!(
            seconds(done) < burst as f64 / 270e6 + 1e-4,
            "at the rate of the link: {done:?}"
        );
        assert!(seconds(flushed) > burst as f64 / 102e6, "{flushed:?}");
        let later = Nanos(1 << 40);
        let done = drive.write(later, burst, 0, &vec![64; units], true);
        assert!(drive.flush(done).0 - done.0 <= 20_001, "nothing is left to flush");
    }

    #[test]
    fn trimmed_units_have_nothing_to_read() {
        let (mut drive, _) = drive("sf1222", 1.0);
        drive.write(Nanos(0), 8192, 5, &[64, 64], false);
        assert!(drive.has(5) && drive.has(6) && !drive.has(7));
        let full = drive.read(Nanos(1 << 40), 8192, 5, 7).0;
        drive.trim(Nanos(1 << 40), 5, 7);
        assert!(!drive.has(5));
        let empty = drive.read(Nanos(1 << 41), 8192, 5, 7).0 - (1 << 41);
        assert!(empty + 75_000 < full - (1 << 40));
    }
}
