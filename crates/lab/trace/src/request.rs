//! One request of a trace.

use crate::fields::Bad;

/// Size of a sector in all formats that count sectors, in bytes.
pub(crate) const SECTOR_BYTES: u64 = 512;
/// Maximum length of a read or write in bytes: a longer one means a damaged trace.
pub const LENGTH_BYTES_MAX: u64 = 1 << 30;
/// Maximum end of a request on its device in bytes.
pub const END_BYTES_MAX: u64 = 1 << 60;
/// Maximum number of devices in a trace.
pub const DEVICES_MAX: usize = 1 << 12;

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read. Formats that do not distinguish reads from writes have only reads.
    Read,
    /// Write.
    Write,
    /// Trim, also known as discard.
    Trim,
}

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Time in microseconds from an arbitrary moment, if the format has times.
    pub at_us: Option<u64>,
    /// What was requested.
    pub op: Op,
    /// Number of the device, from 0 in the order of their first requests.
    pub device: u32,
    /// Offset on the device in bytes.
    pub offset: u64,
    /// Length in bytes, at least 1.
    pub len: u64,
}

/// A request in bytes within the limits; `None` if it is empty.
pub(crate) fn in_bytes(
    at_us: Option<u64>,
    op: Op,
    device: u32,
    offset: u64,
    len: u64,
) -> Result<Option<Request>, Bad> {
    let is_long = op != Op::Trim && len > LENGTH_BYTES_MAX;
    if is_long || offset.checked_add(len).is_none_or(|end| end > END_BYTES_MAX) {
        return Err(Bad::new(
            "at most 1 GiB on a device of at most 1 EiB",
            format!("{len} bytes at offset {offset}"),
        ));
    }
    Ok((len > 0).then_some(Request {
        at_us,
        op,
        device,
        offset,
        len,
    }))
}

/// The same in sectors.
pub(crate) fn in_sectors(
    at_us: Option<u64>,
    op: Op,
    device: u32,
    first: u64,
    sectors: u64,
) -> Result<Option<Request>, Bad> {
    let bytes = |sectors: u64| sectors.saturating_mul(SECTOR_BYTES);
    in_bytes(at_us, op, device, bytes(first), bytes(sectors))
}
