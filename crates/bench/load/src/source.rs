//! Where the bytes of writes come from.

use flaz_data::Pool;

use crate::pattern::Access;

/// Where the bytes of writes come from: made before the clock starts.
#[derive(Clone, Copy, Debug)]
pub struct Source<'p> {
    /// The data. Its length is a multiple of the record's.
    pub pool: &'p Pool,
    /// Where the medium begins in the data, in bytes: writers do not write the same. A multiple of the record's length.
    pub base: u64,
    /// Whether the how-manieth access decides about the bytes, and not its offset. For tests that write one place again and
    /// again, so that this is not the same write each time.
    pub numbered: bool,
}

impl<'p> Source<'p> {
    /// The bytes of access number `number`.
    #[must_use]
    pub fn record(&self, number: u64, access: Access) -> &'p [u8] {
        let place = if self.numbered {
            number * access.bytes as u64
        } else {
            access.offset
        };
        self.pool.record(self.base + place, access.bytes)
    }
}
