//! `flaz serve`: converts options to a call of [`flaz_server::serve`].

use std::path::PathBuf;

use flaz_control::place::{self, Places};
use flaz_control::{ControlError, chain};
use flaz_nbd::NbdAddress;
use flaz_server::{BlockDeviceSpec, DriverSpec, ServeError, ServeSpec, Watch, default_directory, identify};
use uuid::Uuid;

use super::output;
use crate::args::{NBD_ADDRESSES_MAX, NbdDevice, ServeArgs};
use crate::error::Failure;

/// Runs `flaz serve`.
///
/// # Errors
/// The daemon could not start, failed while running, or could not stop cleanly.
pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    check_addresses(args)?;
    let failed = |error| failure(args, error);
    // Before anything is opened, so that a signal during the start is a clean stop.
    let watch = Watch::start(has_block_device(args)).map_err(failed)?;
    let uuid = identify(&args.cache).map_err(Failure::host("serve", &args.cache))?;
    let places = Places::of_process();
    places.remove_stale_sockets();
    let directory = places.daemon_directory();
    if args.control.is_none() || args.nbd.is_empty() {
        place::prepare_directory(&directory)?;
    }
    let control = args
        .control
        .clone()
        .unwrap_or_else(|| place::control_socket(&directory, &uuid));
    let spec = spec(args, &uuid, place::nbd_socket(&directory, &uuid));
    flaz_server::serve(&spec, &control, watch, || announce(&spec)).map_err(failed)
}

fn failure(args: &ServeArgs, error: ServeError) -> Failure {
    match error {
        ServeError::Serve(error) => Failure::host("serve", &args.cache)(error),
        ServeError::Stop(error) => Failure::host("stopping", &args.cache)(error),
        ServeError::Control(ControlError::InUse { path }) if args.control.is_none() => Failure::Served {
            cache: args.cache.clone(),
            control: path,
        },
        ServeError::Control(error) => error.into(),
        ServeError::System { what, source } => Failure::system(what)(source),
    }
}

/// Tells scripts that clients can connect.
fn announce(spec: &ServeSpec) {
    let device = spec
        .device
        .iter()
        .map(|device| device.path().display().to_string());
    let addresses: Vec<_> = device.chain(spec.nbd.iter().map(ToString::to_string)).collect();
    // A script that has read the line may have closed the pipe; the daemon continues.
    if let Err(failure) = output::print(&format!("ready: {}\n", addresses.join(" "))) {
        tracing::debug!("{}", chain(&failure));
    }
}

fn check_addresses(args: &ServeArgs) -> Result<(), Failure> {
    if args.nbd.len() > NBD_ADDRESSES_MAX {
        return Err(Failure::Usage(format!(
            "serve: --nbd is given {} times: the maximum is {NBD_ADDRESSES_MAX}",
            args.nbd.len()
        )));
    }
    for (at, address) in args.nbd.iter().enumerate() {
        if args.nbd[..at].contains(address) {
            return Err(Failure::Usage(format!("serve: --nbd {address} is given twice")));
        }
        address
            .check_insecure(args.insecure_tcp)
            .map_err(|error| Failure::Usage(format!("serve: --nbd {error}")))?;
    }
    check_sockets(args)?;
    if let Some(address) = &args.metrics {
        address
            .check_insecure(args.insecure_tcp)
            .map_err(|error| Failure::Usage(format!("serve: --metrics {error}")))?;
    }
    Ok(())
}

/// Refuses one socket for two purposes.
fn check_sockets(args: &ServeArgs) -> Result<(), Failure> {
    let nbd = args.nbd.iter().map(|address| ("--nbd", address));
    let metrics = args.metrics.iter().map(|address| ("--metrics", address.socket()));
    let sockets = nbd.chain(metrics).filter_map(|(option, address)| match address {
        NbdAddress::Unix(path) => Some((option, path.as_path())),
        NbdAddress::Tcp { .. } => None,
    });
    let control = args.control.iter().map(|path| ("--control", path.as_path()));
    // Another path to the same socket is found by the one who binds it second.
    let mut seen: Vec<(&str, PathBuf)> = Vec::new();
    for (option, path) in sockets.chain(control) {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        if let Some((other, _)) = seen.iter().find(|(_, seen)| *seen == absolute) {
            return Err(Failure::Usage(format!(
                "serve: {other} and {option} name the same socket, {}: use another path for one of them",
                path.display()
            )));
        }
        seen.push((option, absolute));
    }
    Ok(())
}

fn has_block_device(args: &ServeArgs) -> bool {
    args.ublk.is_some() || args.nbd_device.is_some()
}

fn block_device(args: &ServeArgs, uuid: &Uuid) -> Option<BlockDeviceSpec> {
    let driver = match (&args.ublk, &args.nbd_device) {
        (Some(_), _) => {
            let queues = args.ublk_queues.map(|number| number as u16);
            let depth = args.ublk_depth.map(|number| number as u16);
            DriverSpec::Ublk { queues, depth }
        }
        (None, Some(Some(NbdDevice::Number(number)))) => DriverSpec::Nbd {
            number: Some(*number),
        },
        (None, Some(_)) => DriverSpec::Nbd { number: None },
        (None, None) => return None,
    };
    Some(BlockDeviceSpec {
        name: args.device_name().unwrap_or_else(|| uuid.to_string()),
        block_bytes: args.block_size,
        keep: args.keep_device,
        driver,
    })
}

fn spec(args: &ServeArgs, uuid: &Uuid, nbd_default: PathBuf) -> ServeSpec {
    let nbd = if args.nbd.is_empty() && has_block_device(args) {
        Vec::new()
    } else if args.nbd.is_empty() {
        vec![NbdAddress::Unix(nbd_default)]
    } else {
        args.nbd.clone()
    };
    ServeSpec {
        cache: args.cache.clone(),
        origin: args.origin.clone(),
        nbd,
        device: block_device(args, uuid),
        name: args.name.clone(),
        metrics: args.metrics.clone(),
        settings: args.settings(),
        threads: args.threads,
        index_memory: args.index_memory,
        discard_cache: args.discard_cache,
        discard_dirty: args.discard_dirty,
        after_crash: args.after_crash,
        device_timeout: (!args.device_timeout.is_zero()).then_some(args.device_timeout),
        state_dir: args.state_dir.clone().or_else(default_directory),
        read_only: args.read_only,
        emulate_origin: args.emulate_origin,
        emulate_cache: args.emulate_cache,
    }
}
