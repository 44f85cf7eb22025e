//! The driver: all targets in turn for ever, or those that the arguments select.
//!
//! ```text
//! flaz-fuzz                        all targets in turn, until one fails
//! flaz-fuzz TARGET                 one target, until it fails
//! flaz-fuzz TARGET --seed N        one seed
//! flaz-fuzz TARGET --keep N NAME   writes the input of a seed into the corpus, as NAME
//! flaz-fuzz TARGET FILE...         these inputs
//! flaz-fuzz --starts DIR           writes initial inputs into DIR/TARGET
//! ```

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use flaz_fuzz::driver::{corpus_dir, kept, run, seeded, starts};
use flaz_fuzz::{TARGETS, Target};

/// How long a target runs before the next one.
const TURN: Duration = Duration::from_secs(20);
const USAGE: &str = "usage: flaz-fuzz [TARGET [--seed N | --keep N NAME | FILE...] | --starts DIR]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match drive(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn drive(arguments: &[&str]) -> Result<(), Box<dyn Error>> {
    match arguments {
        [] => endless(&TARGETS),
        ["--starts", dir] => write_starts(Path::new(dir)),
        [name, rest @ ..] => {
            let target = TARGETS.iter().find(|target| target.name == *name);
            let Some(target) = target else {
                let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
                return Err(format!("no target '{name}', there are: {}\n{USAGE}", names.join(", ")).into());
            };
            match rest {
                [] => endless(std::slice::from_ref(target)),
                ["--seed", seed] => {
                    run(target, seeded(target, std::iter::once(seed.parse()?)));
                    Ok(())
                }
                ["--keep", seed, name] => {
                    let (_, data) = seeded(target, std::iter::once(seed.parse()?))
                        .next()
                        .ok_or("no input")?;
                    Ok(fs::write(corpus_dir(target).join(name), data)?)
                }
                files => {
                    for file in files {
                        let data = fs::read(file).map_err(|error| format!("{file}: {error}"))?;
                        run(target, std::iter::once(((*file).to_owned(), data)));
                    }
                    println!("{}: {} inputs, no failure", target.name, files.len());
                    Ok(())
                }
            }
        }
    }
}

/// First the stored inputs, then new seeds, in turn.
fn endless(targets: &[Target]) -> Result<(), Box<dyn Error>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let mut seed = now.as_secs() << 24;
    for target in targets {
        run(target, kept(target).unwrap_or_default().into_iter());
    }
    loop {
        for target in targets {
            let begin = Instant::now();
            let seeds = (seed..).take_while(|_| begin.elapsed() < TURN);
            let count = run(target, seeded(target, seeds));
            println!("{}: {count} inputs from seed {seed} on, no failure", target.name);
            seed += count;
        }
    }
}

fn write_starts(dir: &Path) -> Result<(), Box<dyn Error>> {
    for target in &TARGETS {
        let dir = dir.join(target.name);
        fs::create_dir_all(&dir)?;
        for (number, data) in starts(target).iter().enumerate() {
            fs::write(dir.join(format!("start-{number:02}")), data)?;
        }
    }
    Ok(())
}
