//! Noting what the origin begins with: see [`watch`](super::watch).

use std::pin::pin;
use std::time::Duration;

use flaz_device::Env;
use futures_util::future::{Either, select};

use super::OriginIo;
use crate::fingerprint::{Fingerprint, fingerprint};
use crate::host_record::NotedOrigin;
use crate::planted::{PlantedBug, planted};
use crate::shard::platform::Platform;

/// How long the host has for a note.
const NOTE_WITHIN: Duration = Duration::from_secs(10);

/// What became of a look at the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard) enum Noted {
    Yes,
    /// Other places are watched than when it began: a next one can be noted.
    NotYet,
    /// The origin cannot be read, or the host takes no note.
    Failed,
}

impl<P: Platform> OriginIo<P> {
    /// Whether the fingerprint of the origin depends on a stripe, by its number on the origin.
    pub(in crate::shard) fn is_watched(&self, stripe: u64) -> bool {
        self.shared().watch().has(stripe)
    }

    /// Notes what the origin begins with now. The origin was flushed since `ticket` was taken. But for [`Noted::Yes`] the
    /// intents of watched stripes must stay.
    pub(in crate::shard) async fn note(&self, ticket: u64) -> Noted {
        let Some(host) = &self.host else {
            return Noted::Yes;
        };
        if planted(PlantedBug::OriginNotNoted) {
            return Noted::Yes;
        }
        let len = self.len();
        let Fingerprint { value, stripes, .. } = match fingerprint(self.device(), len).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(shard = self.shard, %error, "cannot read the beginning of the origin");
                return Noted::Failed;
            }
        };
        if !self.shared().watch().covers(ticket, &stripes) {
            return Noted::NotYet;
        }
        let noted = NotedOrigin {
            fingerprint: value,
            len,
        };
        let late = pin!(self.env.sleep(NOTE_WITHIN));
        match select(host.note_origin(ticket, noted), late).await {
            Either::Left((true, _)) => Noted::Yes,
            Either::Left((false, _)) | Either::Right(_) => Noted::Failed,
        }
    }
}
