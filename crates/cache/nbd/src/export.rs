//! The export: what the server reports to a client about the device that it serves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::limits::{PAYLOAD_BYTES_MAX, STRING_BYTES_MAX};
use crate::protocol::transmission;

/// Minimum unit of requests in bytes: any byte can be addressed.
pub const BLOCK_BYTES_MIN: u32 = 1;
/// Preferred unit of requests, in bytes.
pub const BLOCK_BYTES_PREFERRED: u32 = 4096;

/// The one export of a server. Clients select it by its name or by the empty name. Clones have the same size.
#[derive(Clone, Debug)]
pub struct Export {
    name: String,
    description: String,
    size: Arc<AtomicU64>,
    read_only: bool,
    fast_zero: bool,
}

/// A name or description that cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the export's {what} has {len} bytes: the maximum is {STRING_BYTES_MAX}, without NUL")]
pub struct ExportError {
    what: &'static str,
    len: usize,
}

impl Export {
    /// A writable export of `size` bytes, with the empty name.
    #[must_use]
    pub fn new(size: u64) -> Self {
        Self {
            name: String::new(),
            description: String::new(),
            size: Arc::new(AtomicU64::new(size)),
            read_only: false,
            fast_zero: false,
        }
    }

    /// Sets the name of the export.
    ///
    /// # Errors
    /// The name is longer than 4096 bytes or contains a NUL.
    pub fn with_name(mut self, name: &str) -> Result<Self, ExportError> {
        self.name = sendable("name", name)?;
        Ok(self)
    }

    /// Sets the description of the export.
    ///
    /// # Errors
    /// The text is longer than 4096 bytes or contains a NUL.
    pub fn with_description(mut self, text: &str) -> Result<Self, ExportError> {
        self.description = sendable("description", text)?;
        Ok(self)
    }

    /// Makes the export read-only.
    #[must_use]
    pub fn read_only(mut self, yes: bool) -> Self {
        self.read_only = yes;
        self
    }

    /// Announces that zeroing is always faster than writing zeroes; false unless the host knows better.
    #[must_use]
    pub fn fast_zero(mut self, yes: bool) -> Self {
        self.fast_zero = yes;
        self
    }

    /// The name in lists of exports.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The description; may be empty.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// The export has `size` bytes from now on, unless it is larger. Clients that connect from now on are told so; those that are
    /// connected are not, but their requests beyond the old end are accepted. The volumes are as large already.
    pub fn grow(&self, size: u64) {
        self.size.fetch_max(size, Ordering::AcqRel);
    }

    /// Whether the export is read-only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether FAST_ZERO is supported.
    #[must_use]
    pub fn has_fast_zero(&self) -> bool {
        self.fast_zero && !self.read_only
    }

    /// Whether a client that requests `name` gets this export.
    #[must_use]
    pub fn answers_to(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// The transmission flags. They depend on whether structured replies were negotiated.
    #[must_use]
    pub fn transmission_flags(&self, structured: bool) -> u16 {
        let mut flags = transmission::HAS_FLAGS
            | transmission::SEND_FLUSH
            | transmission::SEND_FUA
            | transmission::SEND_CACHE
            // A volume's flush covers the acknowledged writes of all its clones.
            | transmission::CAN_MULTI_CONN;
        flags |= if self.read_only {
            transmission::READ_ONLY
        } else {
            transmission::SEND_TRIM | transmission::SEND_WRITE_ZEROES
        };
        if self.has_fast_zero() {
            flags |= transmission::SEND_FAST_ZERO;
        }
        if structured {
            flags |= transmission::SEND_DF;
        }
        flags
    }

    /// Minimum and preferred block size and maximum payload, in bytes.
    #[must_use]
    pub fn block_sizes(&self) -> [u32; 3] {
        [BLOCK_BYTES_MIN, BLOCK_BYTES_PREFERRED, PAYLOAD_BYTES_MAX]
    }
}

fn sendable(what: &'static str, text: &str) -> Result<String, ExportError> {
    if text.len() > STRING_BYTES_MAX || text.contains('\0') {
        return Err(ExportError {
            what,
            len: text.len(),
        });
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_match_the_specification() {
        let export = Export::new(1 << 20);
        // HAS_FLAGS, FLUSH, FUA, TRIM, WRITE_ZEROES, MULTI_CONN, CACHE.
        assert_eq!(export.transmission_flags(false), 0b0101_0110_1101);
        assert_eq!(export.transmission_flags(true), 0b0101_1110_1101);
        // HAS_FLAGS, READ_ONLY, FLUSH, FUA, MULTI_CONN, CACHE.
        let read_only = export.clone().read_only(true).fast_zero(true);
        assert_eq!(read_only.transmission_flags(false), 0b0101_0000_1111);
        assert_eq!(export.fast_zero(true).transmission_flags(false), 0b1101_0110_1101);
    }

    #[test]
    fn an_export_grows_for_all_its_clones() {
        let export = Export::new(1 << 20);
        let clone = export.clone().read_only(true);
        export.grow(2 << 20);
        assert_eq!((export.size(), clone.size()), (2 << 20, 2 << 20));
        clone.grow(1 << 20);
        assert_eq!(export.size(), 2 << 20, "it does not shrink");
    }

    #[test]
    fn names_are_limited_and_the_empty_name_is_the_default() {
        assert!(Export::new(0).with_name(&"n".repeat(4096)).is_ok());
        let error = Export::new(0).with_name(&"n".repeat(4097)).unwrap_err();
        assert!(error.to_string().contains("name has 4097 bytes"), "{error}");
        assert!(Export::new(0).with_description("a\0b").is_err());
        let export = Export::new(0).with_name("disk").unwrap();
        assert!(export.answers_to(b"") && export.answers_to(b"disk") && !export.answers_to(b"dis"));
    }
}
