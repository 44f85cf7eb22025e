//! The emulated device delays the operations of the real one, for all its clones together.

use flaz_device::{Device, Env, IoBuf};
use flaz_runtime::Rt;
use flaz_runtime::emulate::{Emulated, Model};
use flaz_runtime::file::{FileDevice, OpenMode};
use futures_util::FutureExt;
use futures_util::future::join_all;
use std::time::Duration;

use crate::runtime;

fn device(model: Model) -> (tempfile::NamedTempFile, Emulated<FileDevice, Rt>) {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).expect("scratch file");
    file.as_file().set_len(4 << 20).expect("scratch file");
    let device = FileDevice::open(file.path(), OpenMode::default()).expect("open");
    (file, Emulated::new(device, Rt, model))
}

#[test]
fn emulated_operations_return_data_in_model_time() {
    let (_file, device) = device(Model::HDD);
    runtime().block_on(async {
        let before = Rt.now();
        let mut data = IoBuf::zeroed(4096);
        data.fill(7);
        device.write_at(1 << 20, data, false).await.1.expect("write");
        let (buf, result) = device.read_at(1 << 20, IoBuf::new(4096)).await;
        result.expect("read");
        assert!(buf.iter().all(|byte| *byte == 7));
        let took = Rt.now().since(before);
        assert!(
            took >= Duration::from_micros(2 * 12_600),
            "two accesses in {took:?}"
        );
        assert!(
            device.read_at(1, IoBuf::new(1)).await.1.is_err(),
            "errors come through"
        );
        device.flush().await.expect("flush");
        device.discard(0, 4096).await.expect("discard");
        device
            .write_zeroes(1 << 20, 4096, true, false)
            .await
            .expect("zero");
    });
}

/// Clones on two threads share one actuator: together they take as long as one after the other.
#[test]
fn clones_on_several_threads_are_one_device() {
    let model = Model {
        latency: Duration::from_millis(5),
        ..Model::HDD
    };
    let (_file, device) = device(model);
    let before = Rt.now();
    let threads: Vec<_> = (0..2u64)
        .map(|thread| {
            let device = device.clone();
            std::thread::spawn(move || {
                runtime().block_on(async {
                    let offsets = (0..5u64).map(|number| (thread << 20) + (4 - number) * 65_536);
                    let reads = join_all(offsets.map(|at| device.read_at(at, IoBuf::new(4096)))).await;
                    assert!(reads.into_iter().all(|(_, result)| result.is_ok()));
                });
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no panic");
    }
    let took = Rt.now().since(before);
    assert!(
        took >= Duration::from_millis(50),
        "ten accesses of 5 ms in {took:?}"
    );
}

/// A request that is dropped, while it is served or while it waits, does not stop the others of an elevator.
#[test]
fn a_dropped_request_leaves_the_elevator() {
    let model = Model {
        latency: Duration::from_millis(6),
        ..Model::QUEUEING_HDD
    };
    let (_file, device) = device(model);
    runtime().block_on(async {
        let read = |number: u64| device.read_at(number * 397 % 1024 * 4096, IoBuf::new(4096));
        let before = Rt.now();
        {
            let mut dropped: Vec<_> = (0..8).map(|number| Box::pin(read(number))).collect();
            for request in &mut dropped {
                assert!(request.as_mut().now_or_never().is_none());
            }
        }
        let reads = join_all((8..24).map(read)).await;
        assert!(reads.into_iter().all(|(_, result)| result.is_ok()));
        assert!(Rt.now().since(before) > Duration::from_millis(16));
    });
}
