//! Decoders that several threads share.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::dictionary::Dictionaries;
use crate::registry::Decoders;

/// Decoders for jobs of several threads. There are as many as were in use at once. They are kept between jobs, because creating one takes
/// longer than restoring a few blocks.
#[derive(Clone, Default)]
pub struct SharedDecoders(Arc<Mutex<Vec<Decoders>>>);

impl SharedDecoders {
    /// Calls `decode` with decoders that nothing else uses meanwhile. They restore blocks that were compressed with these dictionaries,
    /// too.
    pub fn decode<T>(&self, dictionaries: Dictionaries, decode: impl FnOnce(&mut Decoders) -> T) -> T {
        let mut decoders = self.unused().pop().unwrap_or_default();
        decoders.set_dictionaries(dictionaries);
        let result = decode(&mut decoders);
        self.unused().push(decoders);
        result
    }

    /// Drops those that are not in use.
    pub fn trim(&self) {
        let unused = std::mem::take(&mut *self.unused());
        drop(unused);
    }

    /// Locked for a moment only.
    fn unused(&self) -> MutexGuard<'_, Vec<Decoders>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SharedDecoders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedDecoders")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn there_are_as_many_as_were_in_use_at_once() {
        let shared = SharedDecoders::default();
        let kept_after = |count| {
            let all_have_some = Barrier::new(count);
            std::thread::scope(|scope| {
                for _ in 0..count {
                    scope.spawn(|| shared.decode(Dictionaries::default(), |_| all_have_some.wait()));
                }
            });
            shared.unused().len()
        };
        assert_eq!([3, 1, 2, 4].map(kept_after), [3, 3, 3, 4]);
        shared.trim();
        assert_eq!(kept_after(1), 1);
    }
}
