//! Metrics as Prometheus text, version 0.0.4: what every version of Prometheus and `promtool check metrics` read.

use std::fmt;

use flaz_control::report::StatusReport;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use uuid::Uuid;

use super::families::{Family, Kind, Sample, Value, families};

/// Labels of every metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// UUID of the cache.
    pub uuid: Uuid,
    /// A name for people; it may change.
    pub name: String,
}

/// The page of a server; without a report, of one that is starting or does not answer.
#[must_use]
pub fn page(identity: &Identity, report: Option<&StatusReport>) -> String {
    let labels = [
        ("uuid".into(), identity.uuid.to_string().into()),
        ("name".into(), identity.name.clone().into()),
    ];
    let mut registry = Registry::with_labels(labels.into_iter());
    registry.register_collector(Box::new(Page(families(report))));
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = prometheus_text::encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Page(Vec<Family>);

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in &self.0 {
            let kind = match family.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            // The encoder adds the suffix of a counter.
            let name = match family.kind {
                Kind::Counter => family.name.strip_suffix("_total").unwrap_or(family.name),
                Kind::Gauge | Kind::Histogram => family.name,
            };
            let mut metrics = encoder.encode_descriptor(name, family.help, None, kind)?;
            for Sample { labels, value } in &family.samples {
                encode(metrics.encode_family(labels)?, family.kind, value)?;
            }
        }
        Ok(())
    }
}

fn encode(mut metric: MetricEncoder<'_>, kind: Kind, value: &Value) -> fmt::Result {
    match (kind, value) {
        (Kind::Counter, Value::Whole(value)) => metric.encode_counter::<NoLabelSet, _, f64>(value, None),
        (Kind::Counter, Value::Real(value)) => metric.encode_counter::<NoLabelSet, _, f64>(value, None),
        (_, Value::Whole(value)) => metric.encode_gauge(value),
        (_, Value::Real(value)) => metric.encode_gauge(value),
        (_, Value::Histogram { sum, buckets }) => {
            let count = buckets
                .iter()
                .fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
            metric.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
        }
    }
}
