//! The options of a command line as words, so that they can be parsed again together with those of a file.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

/// The options that a user gave, in the order of their definition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given(Vec<GivenOption>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct GivenOption {
    /// Without `--`.
    name: String,
    words: Vec<OsString>,
}

impl Given {
    /// The options of `command` in `matches`, without those of all commands.
    #[must_use]
    pub fn of(command: &Command, matches: &ArgMatches) -> Self {
        let options = command.get_arguments().filter(|arg| !arg.is_global_set());
        let given = options.filter_map(|arg| {
            let (name, id) = (arg.get_long()?, arg.get_id().as_str());
            let known = matches.ids().any(|other| other.as_str() == id);
            if !known || matches.value_source(id) != Some(ValueSource::CommandLine) {
                return None;
            }
            let words = if arg.get_action().takes_values() {
                let values = matches.get_raw_occurrences(id).into_iter().flatten();
                values
                    .map(|values| {
                        let mut word = OsString::from(format!("--{name}"));
                        for value in values {
                            word.push("=");
                            word.push(value);
                        }
                        word
                    })
                    .collect()
            } else {
                vec![OsString::from(format!("--{name}"))]
            };
            Some(GivenOption {
                name: name.to_owned(),
                words,
            })
        });
        Self(given.collect())
    }

    /// Whether an option was given.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|option| option.name == name)
    }

    /// All options, as the words of a command line.
    pub fn words(&self) -> impl Iterator<Item = OsString> + '_ {
        self.0.iter().flat_map(|option| option.words.iter().cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{self, Command as Parsed};

    #[test]
    fn given_options_become_words_again() {
        let words = [
            "--nbd=unix:/a",
            "--nbd=tcp:localhost",
            "--insecure-tcp",
            "--ublk",
            "--mode=write-back",
            "--dirty-limit=5%",
        ];
        let line = ["flaz", "serve", "-v"]
            .into_iter()
            .chain(words)
            .chain(["--", "x"]);
        let Parsed::Serve(serve) = args::parse(line).unwrap().command else {
            panic!("not serve")
        };
        let found: Vec<_> = serve.given.words().collect();
        assert_eq!(found, words.map(OsString::from));
        assert!(serve.given.has("ublk") && !serve.given.has("policy") && !serve.given.has("verbose"));
    }
}
