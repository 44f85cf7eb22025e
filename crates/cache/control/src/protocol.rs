//! Requests and replies: each is one line with a JSON object.
//!
//! ```text
//! > {"v":1,"cmd":"status"}
//! < {"v":1,"ok":true,"status":{..}}                  a StatusReport
//! > {"v":1,"cmd":"identify"}                         answered at once, also during the start and the stop
//! < {"v":1,"ok":true,"file":{..}}                    a ServedFile
//! > {"v":1,"cmd":"advise"}
//! < {"v":1,"ok":true,"advice":{..}}                  an AdviseReport
//! > {"v":1,"cmd":"set","mode":"write-around"}        keys as of `flaz set`, sequential-cutoff in bytes
//! < {"v":1,"ok":true,"settings":{..}}                all settings then in force; the change is stored in the cache
//! > {"v":1,"cmd":"set-until-restart","mode":".."}    the same, not stored
//! > {"v":1,"cmd":"flush"}                            reply after all dirty blocks are on the origin; canceled if the client
//!                                                    disconnects
//! < {"v":1,"ok":true,"dirty_blocks":0}               written meanwhile, or damaged
//! > {"v":1,"cmd":"resize","size":1048576}            how much of the cache device to use; without size: all of it
//! < {"v":1,"ok":true,"shrinking":{..}}               a ShrinkProgress: not done yet
//! > {"v":1,"cmd":"continue-resize"}                  asked again and again, or the cache keeps its size
//! < {"v":1,"ok":true,"resized":{..}}                 a ResizeReport: done
//! > {"v":1,"cmd":"volume-resize"}                    the origin has grown: serve all of it
//! < {"v":1,"ok":true,"volume":{..}}                  a VolumeResizeReport
//! > {"v":1,"cmd":"give-space","bytes":1048576,"need":7}   for another volume of the cache device: see ShareReport
//! < {"v":1,"ok":true,"gives_bytes":262144}           what it begins to give back; 0 if it needs it itself
//! > {"v":1,"cmd":"make-room","keep_bytes":1048576}   the cache device becomes smaller: give back the rest, move from its end
//! < {"v":1,"ok":true,"shrinking":{..}}               a ShrinkProgress: asked again and again
//! > {"v":1,"cmd":"detach"}                           switch to write-through, flush, stop; canceled if the client disconnects
//!                                                    before the flush ends: the mode is restored
//! < {"v":1,"ok":true}                                detached
//! < {"v":1,"ok":false,"error":"..","users":[".."]}   as of a stop
//! > {"v":1,"cmd":"stop","wait":true}                 wait: answer when stopped (default), or at once
//! < {"v":1,"ok":true,"dirty_blocks":0}               what the origin lacks; not known at once
//! < {"v":1,"ok":false,"error":"..","users":[".."]}   clients use it; with "force":true it stops all the same
//! > {"v":1,"cmd":"fly"}
//! < {"v":1,"ok":false,"error":"unknown variant `fly`, .."}
//! ```
//!
//! `v` is optional. A daemon refuses unknown versions; within one version, fields are only added.

use flaz_engine::settings::Settings;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::file::ServedFile;
use crate::report::{AdviseReport, ResizeReport, ShrinkProgress, StatusReport, VolumeResizeReport};
use crate::settings::SettingsPatch;

/// Version of the protocol.
pub const PROTOCOL_VERSION: u64 = 1;
/// Maximum length of a request line in bytes, including its end.
pub const REQUEST_LINE_MAX: usize = 16 << 10;
/// Maximum length of a reply line in bytes, including its end.
pub const REPLY_LINE_MAX: usize = 4 << 20;

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Report status, settings and counters.
    Status {},
    /// Name the file or device of the cache.
    Identify {},
    /// Estimate what other capacities and codecs would be worth.
    Advise {},
    /// Change settings, and store the change in the cache for later starts; either all of them or none.
    Set(SettingsPatch),
    /// Change settings until the daemon stops; either all of them or none.
    SetUntilRestart(SettingsPatch),
    /// Write all dirty blocks to the origin.
    Flush {},
    /// Use more of the cache device, or less of it.
    Resize {
        /// Bytes; `None`: all of the device.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size: Option<u64>,
    },
    /// Report how far the cache is that becomes smaller.
    ContinueResize {},
    /// Serve all of an origin that has grown.
    VolumeResize {},
    /// Give space of the cache device back, for another volume.
    GiveSpace {
        /// At most as many bytes.
        bytes: u64,
        /// How much the other volume needs it.
        need: u64,
    },
    /// The cache device that volumes share becomes smaller: do the next step for it.
    MakeRoom {
        /// What the volume keeps of its space.
        keep_bytes: u64,
    },
    /// Write all dirty blocks to the origin, set write-through, and leave an empty cache at the stop that follows.
    Detach {
        /// Also while clients are connected.
        #[serde(default, skip_serializing_if = "is_false")]
        force: bool,
    },
    /// Stop cleanly.
    Stop {
        /// Reply when the daemon has stopped, not at once.
        #[serde(default = "yes")]
        wait: bool,
        /// Also while clients are connected, or a block device is in use.
        #[serde(default, skip_serializing_if = "is_false")]
        force: bool,
    },
}

fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// The reply of the daemon.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// To a status request.
    Status(Box<StatusReport>),
    /// To a request to identify the cache.
    File(ServedFile),
    /// To a request for advice.
    Advice(Box<AdviseReport>),
    /// To a set request: the settings then in force.
    Settings(Settings),
    /// To a resize of the volume.
    VolumeResized(VolumeResizeReport),
    /// To a flush, or to a stop that waits: the number of dirty blocks.
    Left {
        /// After a flush: blocks written in the meantime, or damaged.
        dirty_blocks: u64,
    },
    /// To a resize: it is done.
    Resized(ResizeReport),
    /// To a resize: it is not done yet.
    Shrinking(ShrinkProgress),
    /// To a request for space.
    Gives {
        /// Bytes that are given back from now on.
        bytes: u64,
    },
    /// Done; or begun, for a stop that does not wait.
    Done,
    /// To a stop or a detach: it was not begun, because of these users.
    InUse {
        /// Clients, and users of block devices, for the user.
        users: Vec<String>,
    },
    /// Refused or failed, with a message for the user.
    Refused(String),
}

/// A reply in its JSON form.
#[derive(Serialize, Deserialize)]
struct Wire {
    v: u64,
    ok: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<Box<StatusReport>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<ServedFile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    advice: Option<Box<AdviseReport>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    settings: Option<Settings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    volume: Option<VolumeResizeReport>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dirty_blocks: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    users: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    resized: Option<ResizeReport>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shrinking: Option<ShrinkProgress>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gives_bytes: Option<u64>,
}

/// Why a line is not a valid request or reply, with a message for the user.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// Not a JSON object.
    #[error("expected one JSON object per line: {0}")]
    Json(String),
    /// Another version.
    #[error("protocol version {found}: expected version {PROTOCOL_VERSION}")]
    Version {
        /// As found.
        found: String,
    },
    /// JSON with unexpected contents.
    #[error("{0}")]
    Content(String),
}

impl Request {
    /// Parses a line, which is not trusted.
    ///
    /// # Errors
    /// The reason why it is invalid.
    pub fn parse(line: &str) -> Result<Self, LineError> {
        let object = versioned_object(line)?;
        serde_json::from_value(Value::Object(object)).map_err(|error| LineError::Content(error.to_string()))
    }

    /// The line, including its end.
    #[must_use]
    pub fn to_line(&self) -> String {
        let mut object = Map::new();
        object.insert("v".to_owned(), PROTOCOL_VERSION.into());
        if let Ok(Value::Object(fields)) = serde_json::to_value(self) {
            object.extend(fields);
        }
        Value::Object(object).to_string() + "\n"
    }
}

impl Reply {
    /// Parses a line.
    ///
    /// # Errors
    /// The reason why it is invalid.
    pub fn parse(line: &str) -> Result<Self, LineError> {
        // Check the version first: a reply of another version may have another form.
        let mut object = versioned_object(line)?;
        object.insert("v".to_owned(), PROTOCOL_VERSION.into());
        let wire: Wire = serde_json::from_value(Value::Object(object))
            .map_err(|error| LineError::Content(error.to_string()))?;
        Ok(match wire {
            Wire {
                ok: false,
                users: Some(users),
                ..
            } => Self::InUse { users },
            Wire { ok: false, error, .. } => {
                Self::Refused(error.unwrap_or_else(|| "no reason given".to_owned()))
            }
            Wire {
                status: Some(status), ..
            } => Self::Status(status),
            Wire { file: Some(file), .. } => Self::File(file),
            Wire {
                advice: Some(advice), ..
            } => Self::Advice(advice),
            Wire {
                settings: Some(settings),
                ..
            } => Self::Settings(settings),
            Wire {
                volume: Some(volume), ..
            } => Self::VolumeResized(volume),
            Wire {
                dirty_blocks: Some(dirty_blocks),
                ..
            } => Self::Left { dirty_blocks },
            Wire {
                resized: Some(report),
                ..
            } => Self::Resized(report),
            Wire {
                shrinking: Some(progress),
                ..
            } => Self::Shrinking(progress),
            Wire {
                gives_bytes: Some(bytes),
                ..
            } => Self::Gives { bytes },
            Wire { .. } => Self::Done,
        })
    }

    /// The line, including its end.
    #[must_use]
    pub fn to_line(&self) -> String {
        let mut wire = Wire {
            v: PROTOCOL_VERSION,
            ok: true,
            error: None,
            status: None,
            file: None,
            advice: None,
            settings: None,
            volume: None,
            dirty_blocks: None,
            users: None,
            resized: None,
            shrinking: None,
            gives_bytes: None,
        };
        match self {
            Self::Status(status) => wire.status = Some(status.clone()),
            Self::File(file) => wire.file = Some(file.clone()),
            Self::Advice(advice) => wire.advice = Some(advice.clone()),
            Self::Settings(settings) => wire.settings = Some(settings.clone()),
            Self::VolumeResized(report) => wire.volume = Some(report.clone()),
            Self::Left { dirty_blocks } => wire.dirty_blocks = Some(*dirty_blocks),
            Self::Resized(report) => wire.resized = Some(*report),
            Self::Shrinking(progress) => wire.shrinking = Some(*progress),
            Self::Gives { bytes } => wire.gives_bytes = Some(*bytes),
            Self::Done => {}
            Self::InUse { users } => {
                wire.ok = false;
                wire.error = Some(format!("in use: {}", users.join("; ")));
                wire.users = Some(users.clone());
            }
            Self::Refused(message) => {
                wire.ok = false;
                wire.error = Some(message.clone());
            }
        }
        let text = serde_json::to_string(&wire).unwrap_or_else(|error| {
            // Nothing in a reply lacks a JSON form.
            let message = Value::from(format!("cannot encode the reply as JSON: {error}"));
            format!(r#"{{"v":{PROTOCOL_VERSION},"ok":false,"error":{message}}}"#)
        });
        text + "\n"
    }
}

/// Parses the object on a line, and checks and removes its version.
fn versioned_object(line: &str) -> Result<Map<String, Value>, LineError> {
    let mut object: Map<String, Value> =
        serde_json::from_str(line).map_err(|error| LineError::Json(error.to_string()))?;
    match object.remove("v") {
        None => {}
        Some(version) if version.as_u64() == Some(PROTOCOL_VERSION) => {}
        Some(version) => {
            return Err(LineError::Version {
                found: version.to_string(),
            });
        }
    }
    Ok(object)
}

#[cfg(test)]
mod tests {
    use flaz_codec::CodecChoice;
    use flaz_engine::policy::PolicyKind;
    use flaz_engine::settings::Mode;

    use crate::report::FrontEndSizeReport;

    use super::*;

    #[test]
    fn requests_read_back_as_written() {
        let patch = SettingsPatch {
            codec: "zstd:-3".parse().ok(),
            ..SettingsPatch::default()
        };
        for request in [
            Request::Status {},
            Request::Identify {},
            Request::Advise {},
            Request::GiveSpace { bytes: 4096, need: 7 },
            Request::MakeRoom { keep_bytes: 4096 },
            Request::Set(patch.clone()),
            Request::SetUntilRestart(patch),
            Request::Flush {},
            Request::VolumeResize {},
            Request::Detach { force: false },
            Request::Detach { force: true },
            Request::Resize { size: None },
            Request::Resize { size: Some(1 << 40) },
            Request::ContinueResize {},
            Request::Stop {
                wait: false,
                force: false,
            },
            Request::Stop {
                wait: true,
                force: true,
            },
        ] {
            assert_eq!(Request::parse(&request.to_line()), Ok(request));
        }
    }

    #[test]
    fn requests_as_documented() {
        assert_eq!(Request::parse(r#"{"cmd":"status"}"#), Ok(Request::Status {}));
        assert_eq!(
            Request::parse(r#"{"cmd":"stop"}"#),
            Ok(Request::Stop {
                wait: true,
                force: false
            })
        );
        let set = Request::parse(r#"{"v":1,"cmd":"set","mode":"write-around","sequential-cutoff":4096}"#);
        let patch = SettingsPatch {
            mode: Some(Mode::WriteAround),
            sequential_cutoff: Some(4096),
            ..SettingsPatch::default()
        };
        assert_eq!(set, Ok(Request::Set(patch)));
    }

    #[test]
    fn wrong_requests_are_refused() {
        for (line, word) in [
            ("", "one JSON object"),
            ("[]", "one JSON object"),
            ("{}", "cmd"),
            (r#"{"cmd":"fly"}"#, "fly"),
            (r#"{"v":2,"cmd":"status"}"#, "version 2"),
            (r#"{"v":"x","cmd":"status"}"#, "version"),
            (r#"{"cmd":"status","x":1}"#, "x"),
            (r#"{"cmd":"set","moed":"write-around"}"#, "moed"),
            (r#"{"cmd":"set","codec":"zstd:99"}"#, "-7"),
            (r#"{"cmd":"stop","wait":3}"#, "boolean"),
            (r#"{"cmd":"resize","size":-1}"#, "u64"),
        ] {
            let error = Request::parse(line).expect_err(line).to_string();
            assert!(error.contains(word), "{line}: {error}");
        }
        assert!(Request::parse(&"[".repeat(100_000)).is_err());
    }

    /// The name of a file may be any bytes.
    #[test]
    fn a_path_that_is_not_utf8_reads_back() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;

        let mut report = crate::report::example::example();
        report.cache.path = OsStr::from_bytes(b"/srv/caf\xe9.img").into();
        report.origin.path = OsStr::from_bytes(b"/\xff\\").into();
        let reply = Reply::Status(Box::new(report));
        let line = reply.to_line();
        assert!(line.contains(r#""path":"/srv/caf\\xe9.img""#), "{line}");
        assert_eq!(Reply::parse(&line), Ok(reply));
    }

    #[test]
    fn replies_read_back_as_written() {
        let settings = Settings {
            mode: Mode::PassThrough,
            policy: PolicyKind::Fifo,
            codec: CodecChoice::NONE,
            ..Settings::default()
        };
        for reply in [
            Reply::Status(Box::new(crate::report::example::example())),
            Reply::Settings(settings),
            Reply::Done,
            Reply::Resized(ResizeReport {
                size_before_bytes: 1 << 30,
                size_bytes: 2 << 30,
                regions_before: 100,
                regions: 200,
            }),
            Reply::Shrinking(ShrinkProgress {
                regions_left: 7,
                dirty_bytes_left: 4096,
            }),
            Reply::VolumeResized(VolumeResizeReport {
                bytes_before: 1,
                bytes: 2,
                front_ends: vec![FrontEndSizeReport {
                    name: "unix:/s".to_owned(),
                    up_to_date: false,
                    advice: Some("connect again".to_owned()),
                }],
            }),
            Reply::InUse {
                users: vec!["process 7 (nbdcopy)".to_owned()],
            },
            Reply::Refused("no\nway \"".to_owned()),
        ] {
            let line = reply.to_line();
            assert_eq!(line.matches('\n').count(), 1, "one line: {line}");
            assert_eq!(Reply::parse(&line), Ok(reply));
        }
    }
}
