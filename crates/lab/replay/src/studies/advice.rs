//! Compares what the advisor of a cache estimates for other capacities, and for other codecs, with replays of the same trace with those.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use flaz_codec::CodecChoice;
use flaz_engine::advise::{AUTO, Estimate, codecs};
use flaz_engine::policy::PolicyKind;
use flaz_engine::stats::StatsSnapshot;

use super::known::Trace;
use super::table::{Data, SHARES, replay, selected_data};
use super::{Options, Selected, StudyError};

/// Capacities for which the advisor is asked.
const MULTIPLES: [f64; 4] = [0.5, 1.0, 2.0, 4.0];

/// What a cache is replayed with: its size in uncompressed blocks, and the number of its codec.
type Cache = (u64, usize);

/// Prints the table for all selected traces, with a codec in use. With `contents`, the estimates for other codecs, too: those of
/// generated data are all alike.
///
/// # Errors
/// A trace or the file with contents cannot be read.
pub fn run(options: &Options, codec: CodecChoice, contents: Option<&Path>) -> Result<(), StudyError> {
    println!(
        "estimate (interval) / replay = error, with {codec} in use, at multiples {MULTIPLES:?} of the capacity; sample: 1 in 2^n"
    );
    let all = selected_data(contents)?;
    for selected in options.selected() {
        let Selected { name, trace } = selected?;
        let mut worst = [0.0_f64; 2];
        for data in &all {
            let study = Study {
                name: &name,
                trace: &trace,
                policy: options.policy,
                data: *data,
                codec,
                compares_codecs: contents.is_some(),
            };
            let errors = study.compare()?;
            worst = [worst[0].max(errors[0]), worst[1].max(errors[1])];
        }
        println!("{name}: the largest error of another capacity is {:.3}", worst[0]);
        if contents.is_some() {
            println!("{name}: the largest error of another codec is {:.3}", worst[1]);
        }
    }
    Ok(())
}

/// One trace with one kind of data.
struct Study<'a> {
    name: &'a str,
    trace: &'a Trace,
    policy: PolicyKind,
    data: Data,
    /// In use.
    codec: CodecChoice,
    compares_codecs: bool,
}

impl Study<'_> {
    /// Replays the trace with each size, at the multiples of the size, and with each codec; prints lines, and returns the largest errors.
    fn compare(&self) -> Result<[f64; 2], StudyError> {
        let in_use = codecs().iter().position(|codec| *codec == self.codec);
        let in_use = in_use.ok_or(StudyError::NoEstimates { codec: self.codec })?;
        let sizes = SHARES
            .iter()
            .flat_map(|share| MULTIPLES.map(|multiple| self.blocks(share * multiple)));
        let mut caches: Vec<Cache> = sizes.map(|blocks| (blocks, in_use)).collect();
        if self.compares_codecs {
            caches.extend(SHARES.iter().flat_map(|share| {
                let blocks = self.blocks(*share);
                (0..codecs().len()).map(move |codec| (blocks, codec))
            }));
        }
        caches.sort_unstable();
        caches.dedup();
        let outcomes = self.replay_all(&caches)?;
        let mut worst = [0.0_f64; 2];
        for share in SHARES {
            let own = &outcomes[&(self.blocks(share), in_use)].observed;
            let mut line = format!(
                "{:<13} {:>3.0} %  {:<5}",
                self.name,
                share * 100.0,
                self.data.name()
            );
            for multiple in MULTIPLES {
                let exact = hit_ratio(&outcomes[&(self.blocks(share * multiple), in_use)]);
                let (text, error) = cell(own.hit_ratio_at(multiple), exact);
                line += &text;
                worst[0] = worst[0].max(error);
            }
            let away = own.simulated() - own.hit_ratio();
            println!("{line}  2^{}  own {away:+.3}", own.shift);
            if !self.compares_codecs {
                continue;
            }
            let now = Some(in_use).filter(|now| *now == AUTO);
            for (number, codec) in codecs()
                .iter()
                .enumerate()
                .filter(|(number, _)| *number != in_use)
            {
                let exact = hit_ratio(&outcomes[&(self.blocks(share), number)]);
                let told = own.with_codec(number, now);
                let (text, error) = cell(told.hit_ratio, exact);
                let (factor, samples) = (told.factor, own.codecs.count());
                println!("    {codec:<7} {factor:.2}x{text}  {samples:.0} samples");
                worst[1] = worst[1].max(error);
            }
        }
        Ok(worst)
    }

    fn blocks(&self, share: f64) -> u64 {
        (self.trace.distinct as f64 * share) as u64
    }

    /// On two threads.
    fn replay_all(&self, caches: &[Cache]) -> Result<BTreeMap<Cache, StatsSnapshot>, StudyError> {
        let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || {
            while let Some(&(blocks, codec)) = caches.get(next.fetch_add(1, Ordering::Relaxed)) {
                let (references, distinct) = (&self.trace.references, self.trace.distinct as u64);
                let result = replay(
                    references,
                    distinct,
                    blocks,
                    self.data,
                    self.policy,
                    codecs()[codec],
                );
                let result = result.map(|outcome| ((blocks, codec), outcome.stats));
                results.lock().expect("no panic").push(result);
            }
        };
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(work);
            }
        });
        results.into_inner().expect("no panic").into_iter().collect()
    }
}

fn hit_ratio(stats: &StatsSnapshot) -> f64 {
    let counts = &stats.counts;
    counts.hit_blocks as f64 / (counts.hit_blocks + counts.miss_blocks) as f64
}

/// An estimate beside the replay, and its error.
fn cell(told: Estimate, exact: f64) -> (String, f64) {
    let error = told.value - exact;
    let is_within = (told.low..=told.high).contains(&exact);
    let text = format!(
        "  {:.3} ({:.3}-{:.3}) / {exact:.3} = {error:+.3}{}",
        told.value,
        told.low,
        told.high,
        if is_within { ' ' } else { '!' }
    );
    (text, error.abs())
}
