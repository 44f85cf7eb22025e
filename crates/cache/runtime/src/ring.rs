//! io_uring: set-up, submission and completions of one thread.
//!
//! Entries are collected in the submission queue and submitted a few at a time, or at the end of a turn, whichever
//! comes first. A full submission queue is submitted at once. If that is not possible because the completion queue is
//! full, its completions are put into `stash` and delivered with the next batch.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, opcode};

use crate::request::{Completion, Request};

/// `user_data` of completions that are ignored.
const IGNORED: u64 = u64::MAX;
/// `user_data` of the read of the eventfd with which other threads wake this one.
const WAKE: u64 = u64::MAX - 1;
/// Maximum number of completions returned at a time.
const BATCH: usize = 64;
/// Number of operations that are submitted without waiting for the end of the turn. Otherwise the device would process
/// a whole batch while the thread waits, and then wait while the thread works, so each would be idle half of the time.
/// With 32 reads in flight on a virtio disk this gains 15 %; a system call for each single operation gains nothing
/// more.
const SUBMIT_EARLY: usize = 8;
/// Attempts to submit while the kernel reports that it is out of memory or that the completion queue is full.
const SUBMIT_ATTEMPTS_MAX: u32 = 10_000;

pub(crate) struct Ring {
    inner: RefCell<Inner>,
}

struct Inner {
    uring: IoUring,
    stash: Vec<Completion>,
    /// Buffer for reads of the eventfd. The kernel writes it; its contents are not used.
    wake_counter: Box<u64>,
    wake_armed: bool,
}

/// The best set-up first; older kernels refuse flags that they do not know.
fn build(sq_entries: u32, cq_entries: u32) -> io::Result<IoUring> {
    let base = || {
        let mut builder = IoUring::builder();
        builder.setup_clamp().setup_cqsize(cq_entries).dontfork();
        builder
    };
    let mut newest = base();
    newest
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all(); // Linux 6.1
    let mut older = base();
    older.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all(); // Linux 5.19
    let refused = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    newest
        .build(sq_entries)
        .or_else(|error| {
            if refused(&error) {
                older.build(sq_entries)
            } else {
                Err(error)
            }
        })
        .or_else(|error| {
            if refused(&error) {
                base().build(sq_entries)
            } else {
                Err(error)
            }
        })
}

/// Why io_uring is not available, and what to do.
fn explain(error: &io::Error) -> io::Error {
    let setting = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let advice = match (error.raw_os_error(), setting.trim()) {
        (Some(libc::EPERM), "2") => {
            "kernel.io_uring_disabled is 2: io_uring is disabled for all processes; to enable it, run as \
             root: sysctl kernel.io_uring_disabled=0"
                .into()
        }
        (Some(libc::EPERM), "1") => "kernel.io_uring_disabled is 1: only members of the group \
            kernel.io_uring_group and CAP_SYS_ADMIN may use io_uring; to enable it for all, run as root: \
            sysctl kernel.io_uring_disabled=0"
            .into(),
        (Some(libc::EPERM | libc::EACCES), setting) => format!(
            "kernel.io_uring_disabled is '{setting}', so the container's seccomp profile or a security \
             module forbids it; allow io_uring_setup, io_uring_enter and io_uring_register there (Docker: \
             --security-opt seccomp=PROFILE)"
        ),
        (Some(libc::ENOSYS), _) => {
            "this kernel has no io_uring, or a seccomp profile hides it; Linux 5.15 or \
            later is required"
                .into()
        }
        (Some(libc::ENOMEM), _) => {
            "cannot lock memory for the rings; raise RLIMIT_MEMLOCK (ulimit -l)".into()
        }
        (Some(libc::EMFILE | libc::ENFILE), _) => {
            "too many open files; raise RLIMIT_NOFILE (ulimit -n)".into()
        }
        _ => "Linux 5.15 or later is needed".into(),
    };
    io::Error::new(error.kind(), format!("cannot set up io_uring: {error}: {advice}"))
}

impl Ring {
    /// # Errors
    /// io_uring is not available; the message says why and what to do.
    pub(crate) fn new(sq_entries: u32, cq_entries: u32) -> io::Result<Self> {
        let uring = build(sq_entries, cq_entries).map_err(|error| explain(&error))?;
        let params = uring.params();
        if !params.is_feature_ext_arg() || !params.is_feature_nodrop() {
            let message = "io_uring of this kernel is too old (no timed wait); Linux 5.15 or later is \
                required";
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        let inner = Inner {
            uring,
            stash: Vec::new(),
            wake_counter: Box::new(0),
            wake_armed: false,
        };
        Ok(Self {
            inner: RefCell::new(inner),
        })
    }

    /// Queues a request; the kernel sees it at the next submission.
    pub(crate) fn push(&self, request: Request, user_data: u64) {
        let mut inner = self.inner.borrow_mut();
        inner.push(&entry(request).user_data(user_data));
        if request.may_be_early() {
            inner.submit_early();
        }
    }

    /// Requests the cancellation of an operation. It completes in any case.
    pub(crate) fn cancel(&self, user_data: u64) {
        let entry = opcode::AsyncCancel::new(user_data).build().user_data(IGNORED);
        self.inner.borrow_mut().push(&entry);
    }

    /// Submits all queued requests.
    pub(crate) fn submit_all(&self) {
        let mut inner = self.inner.borrow_mut();
        if !inner.uring.submission().is_empty() {
            inner.flush();
        }
    }

    /// Submits all queued requests and runs deferred work of the kernel; makes no system call if there is neither.
    pub(crate) fn submit_and_poll(&self) {
        let mut inner = self.inner.borrow_mut();
        let queue = inner.uring.submission();
        let needed = !queue.is_empty() || queue.taskrun() || queue.cq_overflow();
        drop(queue);
        if needed {
            inner.flush();
        }
    }

    /// Makes a write to the eventfd end the next wait.
    pub(crate) fn arm_wake(&self, eventfd: &OwnedFd) {
        let mut inner = self.inner.borrow_mut();
        if !inner.wake_armed {
            inner.wake_armed = true;
            let target: *mut u64 = &raw mut *inner.wake_counter;
            let read = opcode::Read::new(Fd(eventfd.as_raw_fd()), target.cast(), 8);
            inner.push(&read.build().user_data(WAKE));
        }
    }

    /// Submits all queued requests and waits for a completion, at most for `timeout`.
    pub(crate) fn submit_and_wait(&self, timeout: Option<Duration>) {
        let mut inner = self.inner.borrow_mut();
        if !inner.stash.is_empty() {
            return inner.flush();
        }
        let result = match timeout {
            None => inner.uring.submit_and_wait(1),
            Some(timeout) => {
                let time = Timespec::from(timeout);
                inner
                    .uring
                    .submitter()
                    .submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
        };
        match result.map_err(|error| (error.raw_os_error(), error)) {
            Ok(_) | Err((Some(libc::ETIME | libc::EINTR), _)) => {}
            // Nothing was submitted. The caller takes completions, which makes space, and tries again.
            Err((Some(libc::EBUSY | libc::EAGAIN | libc::ENOMEM), _)) => {}
            Err((_, error)) => panic!("io_uring_enter failed: {error}"),
        }
    }

    /// Returns completions, at most one batch, without those of the eventfd.
    pub(crate) fn completions(&self, out: &mut Vec<Completion>) {
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        out.append(&mut inner.stash);
        let mut woken = false;
        for completion in inner.uring.completion().take(BATCH) {
            match completion.user_data() {
                IGNORED => {}
                WAKE => woken = true,
                user_data => out.push((user_data, completion.result())),
            }
        }
        if woken {
            inner.wake_armed = false;
        }
    }

    /// Cancels the read of the eventfd, at the end of the runtime.
    pub(crate) fn cancel_wake(&self) {
        if self.wake_armed() {
            self.cancel(WAKE);
        }
    }

    pub(crate) fn wake_armed(&self) -> bool {
        self.inner.borrow().wake_armed
    }

    /// Leaks the memory of the eventfd's read: the last resort at the end of the runtime.
    pub(crate) fn leak(&self) {
        let counter = std::mem::take(&mut self.inner.borrow_mut().wake_counter);
        Box::leak(counter);
    }
}

impl Inner {
    fn push(&mut self, entry: &Entry) {
        loop {
            // SAFETY: memory that the entry points to is owned by the table of operations (or, for the
            // eventfd, by `wake_counter`) until the completion has been taken.
            if unsafe { self.uring.submission().push(entry) }.is_ok() {
                return;
            }
            self.flush();
        }
    }

    /// Submits the queued requests if there are many, so that the device starts while this thread continues.
    fn submit_early(&mut self) {
        let queued = self.uring.submission().len();
        if queued >= SUBMIT_EARLY {
            // SAFETY: no argument is passed, and entries are valid as said in `push`.
            let result = unsafe {
                self.uring
                    .submitter()
                    .enter::<libc::sigset_t>(queued as u32, 0, 0, None)
            };
            // After an error the requests are still queued; the next regular submission handles the error.
            drop(result);
        }
    }

    /// Submits all queued requests and runs deferred work of the kernel, without waiting.
    fn flush(&mut self) {
        for _ in 0..SUBMIT_ATTEMPTS_MAX {
            let queued = self.uring.submission().len();
            // SAFETY: no argument is passed, and entries are valid as said in `push`.
            let result = unsafe {
                self.uring.submitter().enter::<libc::sigset_t>(
                    queued as u32,
                    0,
                    EnterFlags::GETEVENTS.bits(),
                    None,
                )
            };
            match result.map_err(|error| (error.raw_os_error(), error)) {
                Ok(submitted) if submitted >= queued => return,
                Ok(_) | Err((Some(libc::EINTR), _)) => {}
                Err((Some(libc::EBUSY | libc::EAGAIN | libc::ENOMEM), _)) => {
                    self.put_completions_aside();
                    std::thread::yield_now();
                }
                Err((_, error)) => panic!("io_uring_enter failed: {error}"),
            }
        }
        panic!("the kernel accepted no I/O operation in {SUBMIT_ATTEMPTS_MAX} attempts: out of memory");
    }

    fn put_completions_aside(&mut self) {
        let mut woken = false;
        for completion in self.uring.completion() {
            match completion.user_data() {
                IGNORED => {}
                WAKE => woken = true,
                user_data => self.stash.push((user_data, completion.result())),
            }
        }
        if woken {
            self.wake_armed = false;
        }
    }
}

fn entry(request: Request) -> Entry {
    match request {
        Request::Read { fd, ptr, len, offset } => opcode::Read::new(Fd(fd), ptr, len).offset(offset).build(),
        Request::Write {
            fd,
            ptr,
            len,
            offset,
            stable,
        } => {
            let flags = if stable { libc::RWF_DSYNC } else { 0 };
            opcode::Write::new(Fd(fd), ptr, len)
                .offset(offset)
                .rw_flags(flags)
                .build()
        }
        Request::DataSync { fd } => opcode::Fsync::new(Fd(fd)).flags(FsyncFlags::DATASYNC).build(),
        Request::Fallocate {
            fd,
            mode,
            offset,
            len,
        } => opcode::Fallocate::new(Fd(fd), len)
            .offset(offset)
            .mode(mode)
            .build(),
        Request::Accept { fd } => opcode::Accept::new(Fd(fd), std::ptr::null_mut(), std::ptr::null_mut())
            .flags(libc::SOCK_CLOEXEC)
            .build(),
        Request::Recv { fd, ptr, len } => opcode::Recv::new(Fd(fd), ptr, len).build(),
        Request::Send { fd, ptr, len } => opcode::Send::new(Fd(fd), ptr, len)
            .flags(libc::MSG_NOSIGNAL | libc::MSG_WAITALL)
            .build(),
        Request::SendMsg { fd, msg } => {
            let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32;
            opcode::SendMsg::new(Fd(fd), msg).flags(flags).build()
        }
        Request::Command { fd, op, bytes, .. } => opcode::UringCmd16::new(Fd(fd), op).cmd(bytes).build(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::command::Submission;

    fn queued_after(commands: usize, submission: Submission) -> Option<usize> {
        let ring = Ring::new(64, 128)
            .inspect_err(|error| eprintln!("skipped: {error}"))
            .ok()?;
        let null = File::open("/dev/null").expect("there is one");
        for number in 0..commands {
            let request = Request::Command {
                fd: null.as_raw_fd(),
                op: 0,
                bytes: [0; 16],
                submission,
            };
            ring.push(request, number as u64);
        }
        let queued = ring.inner.borrow_mut().uring.submission().len();
        ring.submit_all();
        Some(queued)
    }

    #[test]
    fn commands_that_belong_together_wait_for_the_end_of_the_turn() {
        let commands = 3 * SUBMIT_EARLY;
        assert!(queued_after(commands, Submission::Together).is_none_or(|queued| queued == commands));
        assert!(queued_after(commands, Submission::Soon).is_none_or(|queued| queued < SUBMIT_EARLY));
    }
}
