//! Better suggestions for a word that is not a command: commands of other levels (`detect` is `bench detect`), and words that
//! other programs use for the same.

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Words of other programs, and the command that does this here.
const SYNONYMS: &[(&str, &str)] = &[
    ("init", "create"),
    ("format", "create"),
    ("mkfs", "create"),
    ("make", "create"),
    ("start", "serve"),
    ("attach", "serve"),
    ("open", "serve"),
    ("mount", "serve"),
    ("info", "status"),
    ("show", "status"),
    ("stats", "status"),
    ("iostat", "top"),
    ("watch", "top"),
    ("monitor", "top"),
    ("config", "set"),
    ("tune", "set"),
    ("clean", "flush"),
    ("writeback", "flush"),
    ("sync", "flush"),
    ("grow", "resize"),
    ("shrink", "resize"),
    ("extend", "resize"),
    ("destroy", "detach"),
    ("delete", "detach"),
    ("uncache", "detach"),
    ("close", "stop"),
    ("shutdown", "stop"),
    ("fsck", "check"),
    ("verify", "check"),
    ("scrub", "check"),
];

/// Most single-letter changes between a word and a command that is suggested.
const CHANGES_MAX: usize = 2;

/// The same error, which suggests a command of another level if that is meant.
#[must_use]
pub fn improved(mut error: clap::Error, command: &Command) -> clap::Error {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    let has_suggestion = error.get(ContextKind::SuggestedSubcommand).is_some();
    let mut suggestions = suggestions(&word.to_lowercase(), command, has_suggestion);
    for path in &mut suggestions {
        path.insert_str(0, "flaz ");
    }
    if !suggestions.is_empty() {
        error.insert(
            ContextKind::SuggestedSubcommand,
            ContextValue::Strings(suggestions),
        );
    }
    error
}

fn suggestions(word: &str, command: &Command, has_suggestion: bool) -> Vec<String> {
    let mut paths = Vec::new();
    collect(command, "", &mut paths);
    let name = |path: &str| path.rsplit(' ').next().unwrap_or_default().to_owned();
    let same: Vec<String> = paths.iter().filter(|path| name(path) == word).cloned().collect();
    if !same.is_empty() {
        return same;
    }
    let synonyms = SYNONYMS.iter().filter(|(other, _)| *other == word);
    let synonyms: Vec<String> = synonyms.map(|(_, command)| (*command).to_owned()).collect();
    // The parser knows similar commands of its own level.
    if !synonyms.is_empty() || has_suggestion {
        return synonyms;
    }
    let nearest = paths.iter().map(|path| changes(word, &name(path))).min();
    paths.retain(|path| Some(changes(word, &name(path))) == nearest && nearest <= Some(CHANGES_MAX));
    paths
}

/// All commands as a user types them, without the hidden ones.
fn collect(command: &Command, before: &str, paths: &mut Vec<String>) {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        if inner.get_name() == "help" {
            continue;
        }
        let path = format!("{before}{}", inner.get_name());
        collect(inner, &format!("{path} "), paths);
        paths.push(path);
    }
}

/// Number of letters to insert, remove or replace (Levenshtein distance).
fn changes(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (at, letter) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (column, other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    fn suggested(word: &str) -> Vec<String> {
        suggestions(word, &Cli::command(), false)
    }

    #[test]
    fn commands_of_other_levels_are_found() {
        assert_eq!(suggested("detect"), ["bench detect"]);
        assert_eq!(suggested("detct"), ["bench detect"]);
        assert_eq!(suggested("compare"), ["bench compare"]);
        // Below `bench`, where it is none either.
        assert_eq!(suggested("status"), ["status"]);
        assert!(suggested("completely-else").is_empty());
        assert!(suggested("generate").is_empty(), "it is hidden");
        assert!(
            suggestions("detct", &Cli::command(), true).is_empty(),
            "the parser has suggested one of its own level"
        );
    }

    #[test]
    fn words_of_other_programs_name_existing_commands() {
        let command = Cli::command();
        let mut paths = Vec::new();
        collect(&command, "", &mut paths);
        for (word, meant) in SYNONYMS {
            assert!(paths.iter().any(|path| path == meant), "{meant}");
            assert!(
                !paths.iter().any(|path| path == word),
                "{word} is a command itself"
            );
            assert_eq!(suggested(word), [*meant]);
        }
    }

    #[test]
    fn changes_are_counted() {
        for (from, to, expected) in [
            ("", "", 0),
            ("ab", "", 2),
            ("detect", "detct", 1),
            ("stop", "step", 1),
            ("abc", "cab", 2),
        ] {
            assert_eq!(
                (changes(from, to), changes(to, from)),
                (expected, expected),
                "{from} {to}"
            );
        }
    }
}
