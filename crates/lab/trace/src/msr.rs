//! CSV of MSR Cambridge (SNIA IOTTA): "time, host, disk, Read or Write, offset, size, response time". Times are in 100 ns.

use crate::fields::{Bad, Devices, number};
use crate::request::{Op, Request, in_bytes};

#[derive(Debug, Default)]
pub(crate) struct Msr {
    devices: Devices,
}

impl Msr {
    pub fn line(&mut self, line: &str) -> Result<Option<Request>, Bad> {
        if line.trim().is_empty() || line.starts_with("Timestamp") {
            return Ok(None);
        }
        let Some((time, device, op, offset, len)) = parts(line) else {
            return Err(Bad::new(
                "time, host, disk, Read or Write, offset, size, response time",
                line,
            ));
        };
        in_bytes(Some(time / 10), op, self.devices.number(device)?, offset, len)
    }
}

fn parts(line: &str) -> Option<(u64, &str, Op, u64, u64)> {
    let (time, rest) = line.trim().split_once(',')?;
    let host_end = rest.find(',')?;
    let disk_end = host_end + 1 + rest.get(host_end + 1..)?.find(',')?;
    let (device, rest) = (rest.get(..disk_end)?, rest.get(disk_end + 1..)?);
    let mut fields = rest.split(',').map(str::trim);
    let op = match fields.next()? {
        kind if kind.eq_ignore_ascii_case("read") => Op::Read,
        kind if kind.eq_ignore_ascii_case("write") => Op::Write,
        _ => return None,
    };
    Some((
        number(Some(time))?,
        device,
        op,
        number(fields.next())?,
        number(fields.next())?,
    ))
}

pub(crate) fn is_line(line: &str) -> bool {
    parts(line).is_some() || line.starts_with("Timestamp,Hostname,DiskNumber,Type,Offset,Size")
}
