use flaz_engine::settings::Settings;

use super::*;
use crate::settings::budget_text;

#[test]
fn definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_and_option_has_help() {
    let cli = Cli::command();
    let bench = cli
        .find_subcommand("bench")
        .expect("bench is a command")
        .get_subcommands();
    for command in cli.get_subcommands().chain(bench) {
        assert!(command.get_about().is_some(), "{}", command.get_name());
        for arg in command.get_arguments() {
            assert!(
                arg.get_help().is_some(),
                "{} {}",
                command.get_name(),
                arg.get_id()
            );
        }
    }
}

#[test]
fn defaults_match_the_manual() {
    let cli = Cli::try_parse_from(["flaz", "serve", "c"]).unwrap();
    let Command::Serve(serve) = cli.command else {
        panic!("not serve")
    };
    assert!(serve.settings().is_empty());
    let help = Cli::command()
        .find_subcommand("serve")
        .expect("a command")
        .clone()
        .render_long_help();
    let Settings {
        mode,
        policy,
        codec: _,
        sequential_cutoff,
        dirty_percent,
        strict_flush,
        write_budget,
    } = Settings::default();
    let help = help.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    for default in [
        mode.to_string(),
        policy.to_string(),
        sequential_cutoff.to_string(),
        dirty_percent.to_string(),
        strict_flush.to_string(),
        budget_text(write_budget),
    ] {
        assert!(help.contains(&format!("else {default}]")), "{default}");
    }
    assert_eq!(serve.device_timeout, flaz_device::deadline::TIMEOUT_DEFAULT);
    let cli = Cli::try_parse_from(["flaz", "create", "c", "--origin", "o"]).unwrap();
    let Command::Create(create) = cli.command else {
        panic!("not create")
    };
    assert_eq!(
        (create.codec, create.extent_size, create.force),
        (CodecChoice::Auto, 64 << 10, false)
    );
}

#[test]
fn negative_zstd_levels_need_no_quoting() {
    let cli = Cli::try_parse_from(["flaz", "create", "c", "--origin", "o", "--codec", "zstd:-7"]).unwrap();
    let Command::Create(create) = cli.command else {
        panic!("not create")
    };
    assert_eq!(create.codec.to_string(), "zstd:-7");
}
