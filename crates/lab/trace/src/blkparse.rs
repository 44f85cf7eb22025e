//! The text that `blkparse` prints: an event for each stage of a request.
//!
//! A request appears once for each stage. One stage is read: queued (Q), where clients hand requests to the device; in traces without
//! it, issued to the driver (D), or completed (C). Lines that are no events, such as the summary at the end, are skipped.

use crate::fields::{Bad, Devices, number, seconds};
use crate::request::{Op, Request, in_sectors};

const ACTION: usize = 5;
/// First words of the other lines that `blkparse` prints.
const SUMMARY: [&str; 16] = [
    "CPU",
    "Total",
    "Throughput",
    "Events",
    "Skips",
    "Input",
    "Reads",
    "Read",
    "Writes",
    "Write",
    "Partial",
    "Allocation",
    "Merges",
    "PC",
    "IO",
    "Dispatches",
];

/// Reads events of one stage.
#[derive(Debug)]
pub(crate) struct Blkparse {
    action: &'static str,
    devices: Devices,
}

impl Blkparse {
    /// The first stage of which the beginning of the trace has an event.
    pub fn new(head: &str) -> Self {
        let has = |action: &&str| {
            head.lines()
                .any(|line| is_event(line) && action_of(line) == Some(*action))
        };
        Self {
            action: ["Q", "D", "C"].into_iter().find(has).unwrap_or("Q"),
            devices: Devices::default(),
        }
    }

    pub fn line(&mut self, line: &str) -> Result<Option<Request>, Bad> {
        if !is_event(line) {
            let word = line.split_ascii_whitespace().next().unwrap_or_default();
            return match word.is_empty() || SUMMARY.iter().any(|known| word.starts_with(known)) {
                true => Ok(None),
                false => Err(Bad::new(
                    "an event: device, processor, sequence, time, process, action",
                    line,
                )),
            };
        }
        let mut fields = line.split_ascii_whitespace();
        let (device, _processor) = (fields.next().unwrap_or_default(), fields.next());
        if number(fields.next()).is_none() {
            return Err(Bad::new("a sequence number after device and processor", line));
        }
        let time = fields.next().and_then(seconds);
        if fields.nth(1) != Some(self.action) {
            return Ok(None);
        }
        let Some(op) = fields.next().map(op) else {
            return Err(Bad::new("the kind of the request after the action", line));
        };
        let (first, plus, sectors) = (fields.next(), fields.next(), fields.next());
        match (op, time, number(first), plus, number(sectors)) {
            // Flushes, and other requests without data.
            (None, ..) => Ok(None),
            (_, _, None, ..) if first.is_none_or(|it| it.starts_with('[')) => Ok(None),
            (Some(op), Some(time), Some(first), Some("+"), Some(sectors)) => {
                in_sectors(Some(time), op, self.devices.number(device)?, first, sectors)
            }
            _ => Err(Bad::new("time, action, kind, first sector + sectors", line)),
        }
    }
}

/// The kind by the letters of RWBS.
fn op(rwbs: &str) -> Option<Op> {
    let letters = match rwbs.strip_prefix('F') {
        Some(rest) if !rest.is_empty() => rest,
        _ => rwbs,
    };
    match letters.as_bytes().first() {
        Some(b'R') => Some(Op::Read),
        Some(b'W') => Some(Op::Write),
        Some(b'D') => Some(Op::Trim),
        _ => None,
    }
}

/// Whether it begins with device, processor, sequence and time.
pub(crate) fn is_event(line: &str) -> bool {
    let mut fields = line.split_ascii_whitespace();
    let device = fields.next().and_then(|device| device.split_once(','));
    let is_device =
        device.is_some_and(|(major, minor)| number(Some(major)).and(number(Some(minor))).is_some());
    is_device && number(fields.next()).is_some()
}

fn action_of(line: &str) -> Option<&str> {
    line.split_ascii_whitespace().nth(ACTION)
}
