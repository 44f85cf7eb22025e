//! The source of written data.

use flaz_data::Pool;

use crate::pattern::Access;

/// The source of written data, generated before the clock starts.
#[derive(Clone, Copy, Debug)]
pub struct Source<'p> {
    /// The data. Its length is a multiple of the record size.
    pub pool: &'p Pool,
    /// Start of the medium in the data, in bytes, different for each writer. A multiple of the record size.
    pub base: u64,
    /// Whether the number of the access, and not its offset, selects the bytes. For tests that write one place
    /// repeatedly, so that each write has different data.
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
