//! Metrics of a server for Prometheus, on a Unix socket or a TCP port.
//!
//! | module | contents |
//! |---|---|
//! | `address` | the address, and which addresses need a permission |
//! | `families` | from a status report to named metrics: pure |
//! | `page` | metrics as Prometheus text |
//! | `http` | the answer to one HTTP request: pure but for the connection |
//! | `exporter` | the listening socket and its threads |

mod address;
mod exporter;
mod families;
mod http;
mod page;

pub use address::{InsecureMetrics, MetricsAddress};
pub use exporter::{Exporter, ExporterError, Scrape};
pub use page::{Identity, page};

#[cfg(test)]
mod tests;
