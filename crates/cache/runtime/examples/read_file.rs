//! Random reads of 4 KiB through [`FileDevice`] on one thread. Shows the overhead of the runtime; compare with `fio
//! --ioengine=io_uring --direct=1 --rw=randread --bs=4k --iodepth=N` on the same file.
//!
//! ```text
//! cargo run --release -p flaz-runtime --example read_file -- FILE [DEPTH] [SECONDS]
//! ```

use std::error::Error;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::{Device, Env, IoBuf};
use flaz_random::Random;
use flaz_runtime::file::{FileDevice, OpenMode};
use flaz_runtime::{Config, Rt, Runtime};
use futures_util::future::join_all;

const BLOCK: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments
        .next()
        .ok_or("usage: read_file FILE [DEPTH] [SECONDS]")?;
    let depth: usize = arguments.next().map_or(Ok(32), |text| text.parse())?;
    let seconds: u64 = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let device = FileDevice::open(
        &path,
        OpenMode {
            read_only: true,
            ..OpenMode::default()
        },
    )?;
    let blocks = device.len() / BLOCK as u64;
    if blocks == 0 {
        return Err(format!("{path} holds no block of {BLOCK} bytes").into());
    }
    let runtime = Runtime::new(Config::default())?;
    let duration = Duration::from_secs(seconds);
    let started = Rt.now();
    let device = Rc::new(device);
    let counts = runtime.block_on(join_all((0..depth).map(|task| {
        let device = Rc::clone(&device);
        let mut random = Random::stream(0, task as u64);
        async move {
            let mut buf = IoBuf::new(BLOCK);
            let mut reads = 0u64;
            while Rt.now().since(started) < duration {
                let offset = random.below(blocks) * BLOCK as u64;
                let (back, result) = device.read_at(offset, buf).await;
                result?;
                buf = back;
                reads += 1;
            }
            Ok::<_, flaz_device::DeviceError>(reads)
        }
    })));
    let took = Rt.now().since(started);
    let mut reads = 0;
    for count in counts {
        reads += count?;
    }
    println!(
        "{depth:>4} deep: {:.0} reads a second",
        reads as f64 / took.as_secs_f64()
    );
    Ok(())
}
