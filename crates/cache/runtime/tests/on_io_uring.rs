//! The runtime suite on io_uring, or on threads if io_uring is forbidden, so that the rest of the suite runs on such a
//! machine too.

use flaz_runtime::{Backend, Config, Runtime};

#[path = "suite/mod.rs"]
mod suite;

fn runtime() -> Runtime {
    Runtime::new(Config::default()).expect("a runtime on any machine")
}

#[test]
fn io_uring_is_chosen_unless_it_is_forbidden() {
    let forbidden = Runtime::new(Config {
        backend: Backend::IoUring,
        ..Config::default()
    })
    .err();
    if let Some(error) = &forbidden {
        // The message must say what to do.
        assert!(error.to_string().contains("io_uring"), "{error}");
        eprintln!("this machine forbids io_uring: {error}");
    }
    let expected = if forbidden.is_some() {
        Backend::Threads
    } else {
        Backend::IoUring
    };
    assert_eq!(runtime().backend(), expected);
}

/// Makes `io_uring_setup` fail on this thread, as the seccomp profile of a container does.
fn forbid_io_uring() {
    let ret = |value: u32| libc::sock_filter {
        code: 0x06,
        jt: 0,
        jf: 0,
        k: value,
    }; // BPF_RET | BPF_K
    let mut filter = [
        libc::sock_filter {
            code: 0x20,
            jt: 0,
            jf: 0,
            k: 0,
        }, // BPF_LD | BPF_W | BPF_ABS: the call's number
        libc::sock_filter {
            code: 0x15,
            jt: 0,
            jf: 1,
            k: libc::SYS_io_uring_setup as u32,
        }, // BPF_JMP | BPF_JEQ
        ret(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        ret(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: both calls concern this thread only; the program and its instructions live until they return.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(
            libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program
            ),
            0
        );
    }
}

#[test]
fn threads_replace_io_uring_where_it_is_forbidden() {
    std::thread::spawn(|| {
        forbid_io_uring();
        let error = Runtime::new(Config {
            backend: Backend::IoUring,
            ..Config::default()
        })
        .err();
        let message = error.expect("it is forbidden").to_string();
        assert!(message.contains("cannot set up io_uring"), "{message}");
        assert!(
            message.contains("seccomp") || message.contains("io_uring_disabled"),
            "{message}"
        );
        let runtime = runtime();
        assert_eq!(runtime.backend(), Backend::Threads);
        assert_eq!(runtime.block_on(async { 7 }), 7);
    })
    .join()
    .expect("no panic");
}
