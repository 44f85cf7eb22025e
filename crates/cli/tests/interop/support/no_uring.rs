//! A kernel that refuses io_uring, as the seccomp profile of a container does.

/// Makes `io_uring_setup` fail on this thread, and in programs that it starts from now on.
pub fn forbid() {
    let op = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let mut filter = [
        // The call's number.
        op(0x20, 0, 0),                                            // BPF_LD | BPF_W | BPF_ABS
        op(0x15, 1, libc::SYS_io_uring_setup as u32),              // BPF_JMP | BPF_JEQ
        op(0x06, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32), // BPF_RET
        op(0x06, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: both calls concern this thread only; the program and its instructions live until they return.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            )
    };
    assert_eq!(refused, 0, "system calls can be filtered");
}
