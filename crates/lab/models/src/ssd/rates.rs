//! Rates of a device in closed form. MB/s are 10^6 bytes per second of the host's data.
//!
//! A write is as fast as the link or as the flash, whichever is slower: the flash programs `s * A` bytes for each byte of the
//! host, with `s` the share that is stored and `A` the write amplification of cleaning, reads `s * (A - 1)` of them first, and
//! erases as many blocks as it fills. A read takes a time for what the host gets, and one for what is stored.

use super::description::Description;

/// Rates of a device.
#[derive(Clone, Copy, Debug)]
pub struct Rates<'a>(pub &'a Description);

impl Rates<'_> {
    fn drives(self) -> f64 {
        f64::from(self.0.drives)
    }

    /// Rate at which the flash programs stored data, with erasing and without cleaning.
    #[must_use]
    pub fn flash_mb_per_s(self) -> f64 {
        self.0.block_bytes() as f64 / self.0.overhead() / self.0.block_time().as_secs_f64() / 1e6
    }

    /// Microseconds of the flash for a byte of the host.
    fn flash_us_per_byte(self, stored: f64, amplification: f64) -> f64 {
        let flash = &self.0.flash;
        let read_us = f64::from(flash.pages_per_block) * flash.read_us;
        let move_us_per_byte = read_us * self.0.overhead() / self.0.block_bytes() as f64;
        stored * (amplification / self.flash_mb_per_s() + (amplification - 1.0) * move_us_per_byte)
    }

    /// Writes with many requests in flight, or large ones.
    #[must_use]
    pub fn write_mb_per_s(self, stored: f64, amplification: f64) -> f64 {
        let link = self.0.link.write_mb_per_s * self.drives();
        link.min(1.0 / self.flash_us_per_byte(stored, amplification))
    }

    /// Reads with many requests in flight, or a read-ahead.
    #[must_use]
    pub fn read_mb_per_s(self, stored: f64) -> f64 {
        self.drives() / self.read_us_per_byte(stored)
    }

    /// Of one drive.
    fn read_us_per_byte(self, stored: f64) -> f64 {
        let link = &self.0.link;
        let us_per_kib = link.read_us_per_kib + link.read_stored_us_per_kib * stored;
        (us_per_kib / 1024.0).max(1.0 / link.read_mb_per_s)
    }

    /// Writes of `record_bytes`, one at a time, without cleaning.
    #[must_use]
    pub fn write_one_mb_per_s(self, stored: f64, record_bytes: u64) -> f64 {
        let bytes = record_bytes as f64;
        let link_us = self.0.link.command_us + bytes / self.0.link.write_mb_per_s / self.drives();
        bytes / link_us.max(bytes * self.flash_us_per_byte(stored, 1.0))
    }

    /// Reads of `record_bytes`, one at a time, without a read-ahead.
    #[must_use]
    pub fn read_one_mb_per_s(self, stored: f64, record_bytes: u64) -> f64 {
        let bytes = record_bytes as f64;
        let latency_us = self.0.link.command_us + self.0.flash.read_us;
        bytes / (latency_us + bytes * self.read_us_per_byte(stored) / self.drives())
    }

    /// Bytes that the host can write before the flash is worn out.
    #[must_use]
    pub fn life_bytes(self, stored: f64, amplification: f64) -> f64 {
        let cycles = f64::from(self.0.flash.cycles);
        self.0.flash_bytes() as f64 * cycles / self.write_amplification(stored, amplification)
    }

    /// Bytes of the flash for a byte of the host, with overhead.
    #[must_use]
    pub fn write_amplification(self, stored: f64, amplification: f64) -> f64 {
        stored * self.0.overhead() * amplification
    }
}

#[cfg(test)]
mod tests {
    use super::super::description_file::preset;
    use super::*;

    #[test]
    fn the_flash_is_as_fast_as_its_geometry() {
        let mut drive = preset("sf1222").unwrap();
        drive.flash.erase_us = 0.0;
        drive.flash.overhead_percent = 0.0;
        // 16 pages of 8 KiB in 1.3 ms.
        assert!((Rates(&drive).flash_mb_per_s() - 100.825).abs() < 0.001);
    }

    #[test]
    fn the_link_or_the_flash_limits_writes() {
        let drive = preset("sf1222").unwrap();
        let rates = Rates(&drive);
        assert_eq!(rates.write_mb_per_s(0.14, 1.0), 275.0);
        let raw = rates.write_mb_per_s(1.0, 1.0);
        assert!((raw - rates.flash_mb_per_s()).abs() < 1e-9);
        let cleaning = rates.write_mb_per_s(1.0, 4.0);
        assert!(cleaning < raw / 4.0 && cleaning > raw / 4.3, "{cleaning}");
        let raid = preset("sf1200x2-raid0").unwrap();
        assert_eq!(Rates(&raid).write_mb_per_s(0.14, 1.0), 550.0);
    }

    #[test]
    fn small_records_one_at_a_time_are_slower() {
        let drive = preset("sf1222").unwrap();
        let rates = Rates(&drive);
        for stored in [0.14, 1.0] {
            assert!(rates.read_one_mb_per_s(stored, 4096) < rates.read_one_mb_per_s(stored, 1 << 20));
            assert!(rates.read_one_mb_per_s(stored, 1 << 26) < rates.read_mb_per_s(stored));
            assert!(rates.write_one_mb_per_s(stored, 4096) <= rates.write_one_mb_per_s(stored, 1 << 20));
        }
        // 4 KiB: 20 us and 14.9 us of the link.
        assert!((rates.write_one_mb_per_s(0.14, 4096) - 4096.0 / 34.89).abs() < 0.1);
    }

    #[test]
    fn the_life_is_that_of_the_flash_divided_by_the_amplification() {
        let mut drive = preset("sf1222").unwrap();
        drive.flash.overhead_percent = 0.0;
        let rates = Rates(&drive);
        let life = rates.life_bytes(0.5, 1.16);
        assert!((life / (64.0 * 1024.0_f64.powi(3) * 3000.0 / 0.58) - 1.0).abs() < 1e-9);
    }
}
