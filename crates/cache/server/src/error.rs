//! The errors of a server.

/// Any error of the server; its message says what was expected, found, and what to do.
pub type HostError = Box<dyn std::error::Error + Send + Sync>;

/// Receives a failure that ends the server.
pub type Failed = std::sync::Arc<dyn Fn(HostError) + Send + Sync>;
