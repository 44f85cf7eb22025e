//! The error of a server.

/// Any error of the server; its message says what was expected, found, and what to do.
pub type HostError = Box<dyn std::error::Error + Send + Sync>;
