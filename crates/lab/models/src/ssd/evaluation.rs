//! Everything about a device in one report.

use serde::Serialize;

use super::amplification::amplification;
use super::description::Description;
use super::ftl::{Ftl, Work};
use super::mix::Mix;
use super::published::{self, Campaign};
use super::rates::Rates;
use flaz_random::Random;

/// Blocks of the simulated model of a device, and units of a block: the write amplification of larger models is the same.
const BLOCKS: u32 = 384;
const UNITS_PER_BLOCK: u32 = 2048;
/// The host writes as much as the device holds so many times: in order first, then at random.
const FILLS: u32 = 6;
/// Points of the curve for each of these.
const POINTS_PER_FILL: u32 = 4;
/// Points at the end of the curve that are the steady state.
const STEADY_POINTS: usize = 4;
/// Record sizes.
const RECORDS_BYTES: [u64; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// Days of a year.
const YEAR_DAYS: f64 = 365.25;

/// A device with data.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Evaluation {
    /// The device.
    pub device: Description,
    /// Rate of its flash for stored data, in MB/s.
    pub flash_mb_per_s: f64,
    /// Bytes that the host writes in a day.
    pub written_bytes_per_day: u64,
    /// By data.
    pub data: Vec<Data>,
    /// Published figures, if there are any.
    pub published: Option<Campaign>,
}

/// A device with one kind of data.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Data {
    /// The level, or the file of the distribution.
    pub name: String,
    /// Mean share of a unit that is stored.
    pub stored_fraction: f64,
    /// Rate of writes without cleaning, in MB/s.
    pub write_mb_per_s: f64,
    /// Rate of uniform random writes to a full device, in MB/s.
    pub write_full_mb_per_s: f64,
    /// Rate of reads, in MB/s.
    pub read_mb_per_s: f64,
    /// By record size, one request at a time.
    pub records: Vec<Record>,
    /// Bytes that the host may write to the flash's end, with uniform random writes to a full device.
    pub life_bytes: f64,
    /// The same in years.
    pub life_years: f64,
    /// Price of a GB of this data in the flash, in dollars.
    pub price_per_effective_gb_usd: Option<f64>,
    /// Price of a TB that is written in the life of the device, in dollars.
    pub price_per_written_tb_usd: Option<f64>,
    /// Cleaning of uniform random writes to a full device, in closed form: writes of the flash for each stored byte.
    pub cleaning_closed_form: f64,
    /// The same, simulated.
    pub cleaning_simulated: f64,
    /// Bytes of the flash for each byte of the host, simulated, with compression, cleaning and overhead.
    pub write_amplification: f64,
    /// Write amplification over time.
    pub over_time: Vec<Point>,
}

/// Rates at a record size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Record {
    /// Its size.
    pub record_bytes: u64,
    /// Rate of writes in MB/s.
    pub write_mb_per_s: f64,
    /// Rate of reads in MB/s.
    pub read_mb_per_s: f64,
}

/// The write amplification of a part of the writes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Point {
    /// Bytes written until its end, divided by the size of the device for the host.
    pub device_writes: f64,
    /// Bytes of the flash for each byte of the host.
    pub write_amplification: f64,
}

/// Evaluates `device` with each of `mixes`. The host writes `written_bytes_per_day`. `tick` is called after each kind of data.
///
/// # Errors
/// The device cannot be simulated.
pub fn evaluate(
    device: &Description,
    mixes: &[Mix],
    written_bytes_per_day: u64,
    seed: u64,
    mut tick: impl FnMut(),
) -> Result<Evaluation, String> {
    let mut data = Vec::new();
    for mix in mixes {
        data.push(data_of(device, mix, written_bytes_per_day, seed)?);
        tick();
    }
    Ok(Evaluation {
        device: device.clone(),
        flash_mb_per_s: Rates(device).flash_mb_per_s(),
        written_bytes_per_day,
        data,
        published: published::campaign(device),
    })
}

fn data_of(device: &Description, mix: &Mix, written_bytes_per_day: u64, seed: u64) -> Result<Data, String> {
    let rates = Rates(device);
    let stored = mix.stored_fraction(device);
    let (over_time, cleaning_simulated) = simulate(device, mix, seed)?;
    let life_bytes = rates.life_bytes(stored, cleaning_simulated);
    let price = device.price_usd.map(|price| price * f64::from(device.drives));
    let record = |record_bytes| Record {
        record_bytes,
        write_mb_per_s: rates.write_one_mb_per_s(stored, record_bytes),
        read_mb_per_s: rates.read_one_mb_per_s(stored, record_bytes),
    };
    let records = RECORDS_BYTES
        .into_iter()
        .filter(|bytes| *bytes >= device.unit_bytes());
    Ok(Data {
        name: mix.name().to_owned(),
        stored_fraction: stored,
        write_mb_per_s: rates.write_mb_per_s(stored, 1.0),
        write_full_mb_per_s: rates.write_mb_per_s(stored, cleaning_simulated),
        read_mb_per_s: rates.read_mb_per_s(stored),
        records: records.map(record).collect(),
        life_bytes,
        life_years: life_bytes / written_bytes_per_day as f64 / YEAR_DAYS,
        price_per_effective_gb_usd: price.map(|price| price * stored / (device.user_bytes() as f64 / 1e9)),
        price_per_written_tb_usd: price.map(|price| price / (life_bytes / 1e12)),
        cleaning_closed_form: amplification(device.space_ratio() / stored),
        cleaning_simulated,
        write_amplification: rates.write_amplification(stored, cleaning_simulated),
        over_time,
    })
}

/// Writes a small model of the device: once in order, then uniformly at random. Returns the amplification over time, and the
/// cleaning of the steady state.
fn simulate(device: &Description, mix: &Mix, seed: u64) -> Result<(Vec<Point>, f64), String> {
    let geometry = device.geometry()?.miniature(BLOCKS, UNITS_PER_BLOCK)?;
    let units = geometry.units();
    let sizes: Vec<u8> = (0..units).map(|unit| mix.granules(device, unit)).collect();
    let mut ftl = Ftl::new(geometry);
    let mut random = Random::named(seed, "writes");
    let mut points = Vec::new();
    let mut steady = Work::default();
    let writes_per_point = units / POINTS_PER_FILL;
    if writes_per_point == 0 {
        return Err(format!(
            "user_gb: expected more, for at least {POINTS_PER_FILL} units in the model of the device, found {units} units"
        ));
    }
    for number in 0..FILLS * POINTS_PER_FILL {
        let mut work = Work::default();
        for write in 0..writes_per_point {
            let unit = match number < POINTS_PER_FILL {
                true => number * writes_per_point + write,
                false => random.below(units.into()) as u32,
            };
            work += ftl.write(unit, sizes[unit as usize]);
        }
        let host = f64::from(writes_per_point) * f64::from(super::ftl::GRANULES_PER_UNIT);
        points.push(Point {
            device_writes: f64::from(number + 1) / f64::from(POINTS_PER_FILL),
            write_amplification: (work.written + work.moved) as f64 / host * device.overhead(),
        });
        if points.len() + STEADY_POINTS > (FILLS * POINTS_PER_FILL) as usize {
            steady += work;
        }
    }
    let cleaning = 1.0 + steady.moved as f64 / steady.written as f64;
    Ok((points, cleaning))
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use super::super::description_file::preset;
    use super::*;
    use flaz_data::Level;

    /// The evaluation of a preset, computed once.
    pub(in super::super) fn of(name: &str) -> Evaluation {
        static KNOWN: Mutex<BTreeMap<String, Evaluation>> = Mutex::new(BTreeMap::new());
        let mut known = KNOWN.lock().unwrap();
        known
            .entry(name.to_owned())
            .or_insert_with(|| fresh(name))
            .clone()
    }

    fn fresh(name: &str) -> Evaluation {
        let mixes = [98.0, 50.0, 0.0].map(|percent| Mix::level(Level::new(percent).unwrap()));
        evaluate(&preset(name).unwrap(), &mixes, 20_000_000_000, 1, || {}).unwrap()
    }

    #[test]
    fn simulation_and_closed_form_agree() {
        let found = of("sf1222");
        for data in &found.data {
            let ratio = data.cleaning_simulated / data.cleaning_closed_form;
            assert!((ratio - 1.0).abs() < 0.05, "{}: {ratio}", data.name);
            let first = data.over_time[0].write_amplification;
            assert!(first <= data.write_amplification * 1.01 && data.over_time.len() == 24);
        }
        let (best, worst) = (&found.data[0], &found.data[2]);
        assert!(
            (best.write_amplification - 0.14).abs() < 0.005,
            "{}",
            best.write_amplification
        );
        assert!(worst.write_amplification > 4.0 && best.life_years > 20.0 * worst.life_years);
        assert!(worst.write_full_mb_per_s < worst.write_mb_per_s / 4.0);
        assert!((worst.price_per_effective_gb_usd.unwrap() - 200.0 / 60.0).abs() < 1e-9);
    }

    #[test]
    fn a_seed_gives_the_same_report() {
        assert_eq!(of("sf1222-raw"), fresh("sf1222-raw"));
        let raw = of("sf1222-raw");
        assert_eq!(raw.data[0].stored_fraction, raw.data[2].stored_fraction);
    }
}
