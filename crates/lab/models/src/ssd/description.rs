//! The numbers of a device, and what follows from them.
//!
//! Invariant of a description that was read: every number is in its range, and the flash holds all units uncompressed, with
//! room for cleaning.

use std::time::Duration;

use flaz_codec::CodecSpec;
use serde::Serialize;

use super::ftl::{GRANULES_PER_UNIT, Geometry};

/// Flash blocks that a device of a reduced size has at least, so that cleaning works as in the full size.
const BLOCKS_MIN: u64 = 128;
/// Smallest size of a served device.
pub const SIZE_BYTES_MIN: u64 = 16 << 20;

/// A device: one drive, or several equal ones in a RAID 0.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Description {
    /// Name of the preset, or of the file.
    pub name: String,
    /// What it is.
    pub title: String,
    /// Number of drives; all other numbers are those of one drive.
    pub drives: u32,
    /// Price of one drive in US dollars, if known.
    pub price_usd: Option<f64>,
    /// The link to the host.
    pub link: Link,
    /// The flash.
    pub flash: Flash,
    /// The controller.
    pub controller: Controller,
}

/// The link to the host.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Link {
    /// Limit of writes, in MB/s.
    pub write_mb_per_s: f64,
    /// Limit of reads, in MB/s.
    pub read_mb_per_s: f64,
    /// Time of a command apart from its data, in microseconds.
    pub command_us: f64,
    /// Time to read a KiB for the host, whatever is stored, in microseconds.
    pub read_us_per_kib: f64,
    /// Time to read a KiB as it is stored, in microseconds.
    pub read_stored_us_per_kib: f64,
}

/// The flash.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Flash {
    /// Channels.
    pub channels: u32,
    /// Dies on a channel.
    pub dies_per_channel: u32,
    /// Planes of a die, which program together.
    pub planes_per_die: u32,
    /// Blocks of a plane.
    pub blocks_per_plane: u32,
    /// Pages of a block.
    pub pages_per_block: u32,
    /// Size of a page in KiB.
    pub page_kib: u32,
    /// Time to read a page, in microseconds.
    pub read_us: f64,
    /// Time to program a page, in microseconds.
    pub program_us: f64,
    /// Time to erase a block, in microseconds.
    pub erase_us: f64,
    /// Times that a block can be programmed and erased.
    pub cycles: u32,
    /// Parity and map, in percent of the stored data.
    pub overhead_percent: f64,
}

/// The controller.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Controller {
    /// Size for the host, in GB.
    pub user_gb: f64,
    /// Unit of compression and of the map, in KiB.
    pub unit_kib: u32,
    /// Codec.
    #[schemars(with = "String")]
    pub engine: CodecSpec,
    /// Smallest share of a unit that is stored, however well it compresses.
    pub lowest_fraction: f64,
    /// Data that is accepted before it is programmed, in KiB as stored.
    pub buffer_kib: u32,
}

impl Description {
    /// Size for the host in bytes, of all drives.
    #[must_use]
    pub fn user_bytes(&self) -> u64 {
        (self.controller.user_gb * 1e9).round() as u64 * u64::from(self.drives)
    }

    /// Flash in bytes, of all drives.
    #[must_use]
    pub fn flash_bytes(&self) -> u64 {
        self.block_bytes() * u64::from(self.flash.blocks_per_plane)
    }

    /// One block of every plane, which are programmed and erased together: the unit of cleaning.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.stripe_bytes() * u64::from(self.flash.pages_per_block)
    }

    /// One page of every plane, which are programmed together.
    #[must_use]
    pub fn stripe_bytes(&self) -> u64 {
        let flash = &self.flash;
        [flash.channels, flash.dies_per_channel, flash.planes_per_die]
            .into_iter()
            .map(u64::from)
            .product::<u64>()
            * u64::from(self.drives)
            * (u64::from(flash.page_kib) << 10)
    }

    /// Unit of compression in bytes.
    #[must_use]
    pub fn unit_bytes(&self) -> u64 {
        u64::from(self.controller.unit_kib) << 10
    }

    /// Bytes programmed for each byte stored: 1 plus the overhead.
    #[must_use]
    pub fn overhead(&self) -> f64 {
        1.0 + self.flash.overhead_percent / 100.0
    }

    /// Physical space for data, divided by that of the host: what cleaning lives on, at a stored fraction of one.
    #[must_use]
    pub fn space_ratio(&self) -> f64 {
        self.flash_bytes() as f64 / self.overhead() / self.user_bytes() as f64
    }

    /// Share of a unit that is stored, from the share that the codec leaves. Stored sizes are whole granules.
    #[must_use]
    pub fn granules(&self, left: f64) -> u8 {
        let fraction = left.max(self.controller.lowest_fraction).min(1.0);
        // The smallest number of granules that is not less, but for rounding.
        (fraction * f64::from(GRANULES_PER_UNIT) - 1e-9).ceil().max(1.0) as u8
    }

    /// The geometry of the flash translation layer.
    ///
    /// # Errors
    /// The flash cannot hold all units.
    pub fn geometry(&self) -> Result<Geometry, String> {
        let granule = self.unit_bytes() as f64 / f64::from(GRANULES_PER_UNIT);
        let granules = self.block_bytes() as f64 / self.overhead() / granule;
        Geometry::new(
            self.user_bytes() / self.unit_bytes(),
            self.flash.blocks_per_plane.into(),
            granules as u64,
        )
    }

    /// The same device with another size for the host and as much less flash: with smaller blocks, if it would have few. The
    /// rates are the same.
    ///
    /// # Errors
    /// It would be too small or larger than the device.
    pub fn with_size(&self, bytes: u64) -> Result<Self, String> {
        let full = self.user_bytes();
        if !(SIZE_BYTES_MIN..=full).contains(&bytes) {
            return Err(format!(
                "expected a size from {} MiB to that of the device, {full} bytes, found {bytes} bytes",
                SIZE_BYTES_MIN >> 20
            ));
        }
        let mut small = self.clone();
        let part = bytes as f64 / full as f64;
        let drives = f64::from(self.drives);
        small.controller.user_gb = (bytes / self.unit_bytes() * self.unit_bytes()) as f64 / drives / 1e9;
        let flash_bytes = self.flash_bytes() as f64 * part;
        while small.flash.pages_per_block > 1 && flash_bytes < (BLOCKS_MIN * small.block_bytes()) as f64 {
            small.flash.pages_per_block /= 2;
            small.flash.erase_us /= 2.0;
        }
        small.flash.blocks_per_plane = (flash_bytes / small.block_bytes() as f64).ceil() as u32;
        small.geometry().map(|_| small)
    }

    /// Time to program one block of every plane, and to erase it.
    #[must_use]
    pub fn block_time(&self) -> Duration {
        let flash = &self.flash;
        micros(f64::from(flash.pages_per_block) * flash.program_us + flash.erase_us)
    }
}

fn micros(us: f64) -> Duration {
    Duration::from_secs_f64(us / 1e6)
}

#[cfg(test)]
mod tests {
    use super::super::description_file::preset;
    use super::*;

    #[test]
    fn the_preset_has_the_published_sizes() {
        let drive = preset("sf1222").unwrap();
        assert_eq!(drive.flash_bytes(), 64 << 30);
        assert_eq!(drive.block_bytes(), 32 << 20);
        assert_eq!(drive.user_bytes(), 60_000_000_000);
        let raid = preset("sf1200x2-raid0").unwrap();
        assert_eq!(
            (raid.flash_bytes(), raid.user_bytes()),
            (128 << 30, 120_000_000_000)
        );
    }

    #[test]
    fn stored_sizes_are_whole_granules_and_not_below_the_lowest_fraction() {
        let drive = preset("sf1222").unwrap();
        for (left, granules) in [
            (0.0, 9),
            (0.14, 9),
            (0.25, 16),
            (0.2501, 17),
            (0.75, 48),
            (1.0, 64),
            (1.5, 64),
        ] {
            assert_eq!(drive.granules(left), granules, "{left}");
        }
    }

    #[test]
    fn a_smaller_device_has_the_same_share_of_spare_space() {
        let drive = preset("sf1222").unwrap();
        for bytes in [
            SIZE_BYTES_MIN,
            64 << 20,
            1 << 30,
            9_999_999_999,
            drive.user_bytes(),
        ] {
            let small = drive.with_size(bytes).unwrap();
            assert!(
                small.user_bytes() <= bytes && small.user_bytes() > bytes - 8192,
                "{bytes}"
            );
            let ratio = small.space_ratio() / drive.space_ratio();
            assert!((1.0..1.02).contains(&ratio), "{bytes}: {ratio}");
        }
        for bytes in [0, SIZE_BYTES_MIN - 1, drive.user_bytes() + 1] {
            assert!(
                drive
                    .with_size(bytes)
                    .unwrap_err()
                    .contains("expected a size from")
            );
        }
    }
}
