//! Generated loads, which stand for what was not recorded.

use flaz_trace::recording::Recorded;

use super::file_server::file_server;
use super::files::Files;
use super::{Workload, WorkloadError};

/// Blocks of a MiB.
const MIB_BLOCKS: u64 = 256;
/// Most blocks of a request.
const REQUEST_BLOCKS: u64 = 32;

/// A generated load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generated {
    /// The operation mix of SPECsfs2008 for NFS, with the sizes of SPEC SFS 3.0.
    FileServer,
    /// Sequential reads of more than the cache: each is stored, so reclaim never pauses.
    Stream,
}

impl Generated {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FileServer => "file-server",
            Self::Stream => "stream",
        }
    }

    /// The load, of which `scale` divides the size.
    ///
    /// # Errors
    /// Never with a `scale` for which something is left.
    pub fn workload(self, scale: u64) -> Result<Workload, WorkloadError> {
        let scale = scale.max(1);
        let requests = match self {
            Self::FileServer => file_server(scale),
            Self::Stream => stream(scale),
        };
        Workload::new(self.name(), requests)
    }
}

/// A read of 128 KiB after another.
fn stream(scale: u64) -> Vec<Recorded> {
    let total = 512 * MIB_BLOCKS / scale;
    let mut files = Files::new(1024, 4);
    for at in (0..total).step_by(REQUEST_BLOCKS as usize) {
        files.read(at, REQUEST_BLOCKS.min(total - at));
    }
    files.finish()
}

#[cfg(test)]
mod tests {
    use flaz_trace::Op;

    use super::*;

    #[test]
    fn loads_are_what_they_say() {
        for load in [Generated::FileServer, Generated::Stream] {
            let workload = load.workload(20).expect("a load");
            let requests = workload.requests();
            let writes = requests.iter().filter(|it| it.request.op == Op::Write).count();
            assert_eq!(workload.name(), load.name());
            assert!(requests.len() > 20, "{load:?}: {} requests", requests.len());
            assert_eq!(writes == 0, load == Generated::Stream);
            assert!(workload.footprint_bytes() <= workload.origin_bytes());
            // The same each time.
            let again = load.workload(20).expect("a load");
            assert_eq!(again.requests(), requests, "{load:?}");
        }
    }
}
