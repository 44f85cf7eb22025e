//! Serves a RAM disk over NBD: the front end with nothing behind it, for measuring and for trying clients.
//!
//! `cargo run --release -p flaz-nbd --example ram_disk -- unix:/tmp/ram.sock 1024`
//!
//! A third argument delays every request by this many microseconds, as a device would.

#[path = "../tests/support/ram_volume.rs"]
mod ram_volume;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use flaz_device::{Env, IoBuf};
use flaz_engine::volume::{STRIPE_BYTES, Volume};
use flaz_nbd::{Counters, Export, Limits, NbdAddress, Server, Service, Shutdown, serve_connection};
use flaz_runtime::{Config, Rt, Runtime};
use ram_volume::RamVolume;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(address), Some(mib)) = (arguments.next(), arguments.next()) else {
        return Err("usage: ram_disk unix:PATH|tcp:HOST:PORT SIZE_IN_MIB [DELAY_IN_US]".into());
    };
    let address: NbdAddress = address.parse()?;
    let size = mib.parse::<u64>()? << 20;
    let delay = arguments.next().map_or(Ok(0), |text| text.parse())?;
    let shutdown = Shutdown::new();
    let runtime = Runtime::new(Config::default())?;
    let server = Server::bind(&address, Limits::default(), shutdown)?;
    println!("{}", address.uri(""));
    runtime.block_on(async {
        let volume = RamVolume::new(size);
        // Write all memory first: pages that were never written would be read from holes, which is unrealistically
        // fast.
        for stripe in 0..size / STRIPE_BYTES {
            let mut data = IoBuf::new(STRIPE_BYTES as usize);
            data.fill(stripe as u8 | 1);
            volume.write(stripe * STRIPE_BYTES, [data].into(), false).await?;
        }
        volume.probe.delay.set(Duration::from_micros(delay));
        let service = Service {
            export: Arc::new(Export::new(size).with_description("RAM disk")?),
            limits: Limits::default(),
            counters: Arc::new(Counters::default()),
        };
        server
            .run(&Rt, |incoming| {
                let served = serve_connection(incoming, volume.clone(), Rt, service.clone());
                let counters = Arc::clone(&service.counters);
                Rt.spawn(async move {
                    served.await;
                    println!("{:?}", counters.snapshot());
                });
            })
            .await?;
        Ok(())
    })
}
