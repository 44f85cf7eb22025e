//! Operations without io_uring, for systems that forbid it (usually containers). The interface is the same; each
//! operation costs a system call and a change of thread.
//!
//! Blocking threads serve files. This thread serves sockets: it tries each request at once, and then whenever `poll`
//! reports that the socket is ready.
//!
//! Invariants:
//! - every request has exactly one completion;
//! - a request on a file keeps the file open until it has ended, so nothing waits for a file that does not answer;
//! - such a file leaves threads to the others.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crossbeam_queue::SegQueue;

use crate::request::{CompletedBy, Completion, Keep, Request};
use crate::task::Shared;

/// Number of threads for files in the whole process, and so of concurrent operations.
const THREADS_MAX: usize = 64;
/// Threads that one file may occupy.
const THREADS_OF_A_FILE_MAX: usize = 48;

pub(crate) struct Threads {
    inner: RefCell<Inner>,
    board: Arc<Board>,
}

#[derive(Default)]
struct Inner {
    /// Requests on sockets that were not ready.
    waiting: Vec<(Request, u64)>,
    finished: Vec<Completion>,
    polled: Vec<libc::pollfd>,
}

/// The channel for completions from threads.
struct Board {
    done: SegQueue<Completion>,
    shared: Arc<Shared>,
}

struct Job {
    request: Request,
    user_data: u64,
    board: Arc<Board>,
    /// The file of the descriptor, which stays open.
    keep: Option<Keep>,
}

// SAFETY: the pointers of a request point to memory that the table of operations owns and that no code accesses until
// the completion; the descriptor stays open until then.
unsafe impl Send for Job {}

impl Threads {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let board = Board {
            done: SegQueue::new(),
            shared,
        };
        Self {
            inner: RefCell::default(),
            board: Arc::new(board),
        }
    }

    pub(crate) fn push(&self, request: Request, user_data: u64, keep: Option<Keep>) {
        if request.completed_by() != CompletedBy::Peer {
            pool().push(Job {
                request,
                user_data,
                board: Arc::clone(&self.board),
                keep,
            });
            return;
        }
        let mut inner = self.inner.borrow_mut();
        match perform(request) {
            result if result == -libc::EAGAIN => inner.waiting.push((request, user_data)),
            result => inner.finished.push((user_data, result)),
        }
    }

    /// Cancels a request on a socket. Requests on files run to their end.
    pub(crate) fn cancel(&self, user_data: u64) {
        let mut inner = self.inner.borrow_mut();
        if let Some(at) = inner
            .waiting
            .iter()
            .position(|(_, waiting)| *waiting == user_data)
        {
            inner.waiting.swap_remove(at);
            inner.finished.push((user_data, -libc::ECANCELED));
        }
    }

    /// Checks the sockets, and waits at most for `timeout` if nothing else is complete.
    pub(crate) fn wait(&self, timeout: Option<Duration>) {
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        let idle = inner.finished.is_empty() && self.board.done.is_empty();
        let timeout = if idle { timeout } else { Some(Duration::ZERO) };
        let eventfd = self.board.shared.eventfd().as_raw_fd();
        inner.polled.clear();
        inner.polled.push(libc::pollfd {
            fd: eventfd,
            events: libc::POLLIN,
            revents: 0,
        });
        inner
            .polled
            .extend(inner.waiting.iter().map(|(request, _)| readiness(request)));
        let time = timeout.map(|timeout| libc::timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the list and its length belong together, `time` is null or lives until the call ends, and there is no
        // signal mask.
        let ready = unsafe {
            let count = inner.polled.len() as libc::nfds_t;
            libc::ppoll(inner.polled.as_mut_ptr(), count, time, std::ptr::null())
        };
        if ready <= 0 {
            return; // nothing, or a signal
        }
        if inner.polled[0].revents != 0 {
            // It is readable, so this does not block; the value of the counter is not used.
            let _ = rustix::io::read(self.board.shared.eventfd(), &mut [0u8; 8]);
        }
        let (waiting, finished) = (&mut inner.waiting, &mut inner.finished);
        let mut polled = inner.polled[1..].iter();
        waiting.retain(|(request, user_data)| {
            let events = polled.next().map_or(0, |polled| polled.revents);
            if events == 0 {
                return true;
            }
            let result = match (perform(*request), request) {
                // A listener that was shut down: a call that may wait says so, one that may not never does.
                (result, Request::Accept { .. })
                    if result == -libc::EAGAIN && events & libc::POLLHUP != 0 =>
                {
                    -libc::EINVAL
                }
                (result, _) if result == -libc::EAGAIN => return true,
                (result, _) => result,
            };
            finished.push((*user_data, result));
            false
        });
    }

    /// Checks the sockets without waiting.
    pub(crate) fn poll(&self) {
        if !self.inner.borrow().waiting.is_empty() {
            self.wait(Some(Duration::ZERO));
        }
    }

    pub(crate) fn completions(&self, out: &mut Vec<Completion>) {
        out.append(&mut self.inner.borrow_mut().finished);
        while let Some(completion) = self.board.done.pop() {
            out.push(completion);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code that may panic runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Job {
    fn run(self) {
        let result = perform(self.request);
        let Self {
            user_data,
            board,
            keep,
            ..
        } = self;
        // Whoever waits for the result may then expect that the file is closed.
        drop(keep);
        board.done.push((user_data, result));
        board.shared.rouse();
    }
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Running jobs, by descriptor.
    running: HashMap<RawFd, usize>,
    idle: usize,
    threads: usize,
}

impl Queue {
    /// The first job whose file may occupy another thread.
    fn next(&mut self) -> Option<Job> {
        let at = self.jobs.iter().position(|job| self.may_run(job))?;
        let job = self.jobs.remove(at)?;
        *self.running.entry(file_of(&job.request)).or_default() += 1;
        Some(job)
    }

    fn may_run(&self, job: &Job) -> bool {
        let running = self.running.get(&file_of(&job.request));
        running.is_none_or(|running| *running < THREADS_OF_A_FILE_MAX)
    }

    fn ended(&mut self, fd: RawFd) {
        let running = self.running.get_mut(&fd).expect("it was running");
        *running -= 1;
        if *running == 0 {
            self.running.remove(&fd);
        }
    }
}

#[derive(Default)]
struct Pool {
    queue: Mutex<Queue>,
    arrived: Condvar,
}

fn pool() -> &'static Pool {
    static POOL: OnceLock<Pool> = OnceLock::new();
    POOL.get_or_init(Pool::default)
}

impl Pool {
    fn push(&'static self, job: Job) {
        let mut queue = lock(&self.queue);
        let may_run = queue.may_run(&job);
        queue.jobs.push_back(job);
        if !may_run {
            // A thread that is done with one of the file's takes it.
            return;
        }
        if queue.idle >= queue.jobs.len() || queue.threads >= THREADS_MAX {
            self.arrived.notify_one();
            return;
        }
        queue.threads += 1;
        let first = queue.threads == 1;
        drop(queue);
        let name = String::from("flaz-io");
        if let Err(error) = std::thread::Builder::new().name(name).spawn(move || self.serve()) {
            assert!(!first, "cannot start a thread for I/O: {error}");
            // The existing threads do the work.
            lock(&self.queue).threads -= 1;
            self.arrived.notify_one();
        }
    }

    fn serve(&self) {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(job) = queue.next() {
                let fd = file_of(&job.request);
                drop(queue);
                job.run();
                queue = lock(&self.queue);
                queue.ended(fd);
            } else {
                queue.idle += 1;
                queue = self.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
            }
        }
    }
}

/// The descriptor of a request that threads serve.
fn file_of(request: &Request) -> RawFd {
    match *request {
        Request::Read { fd, .. }
        | Request::Write { fd, .. }
        | Request::DataSync { fd }
        | Request::Fallocate { fd, .. }
        | Request::Command { fd, .. } => fd,
        Request::Accept { .. } | Request::Recv { .. } | Request::Send { .. } | Request::SendMsg { .. } => {
            unreachable!("sockets are not served by threads")
        }
    }
}

/// The events that `poll` waits for.
fn readiness(request: &Request) -> libc::pollfd {
    let (fd, events) = match *request {
        Request::Accept { fd } | Request::Recv { fd, .. } => (fd, libc::POLLIN),
        Request::Send { fd, .. } | Request::SendMsg { fd, .. } => (fd, libc::POLLOUT),
        Request::Read { .. }
        | Request::Write { .. }
        | Request::DataSync { .. }
        | Request::Fallocate { .. }
        | Request::Command { .. } => {
            unreachable!("files are served by threads")
        }
    };
    libc::pollfd {
        fd,
        events,
        revents: 0,
    }
}

/// Executes a request: returns a count, or a negative error number. Blocks for files, but not for sockets.
fn perform(request: Request) -> i32 {
    // SAFETY: pointers and lengths in a request describe memory that the table of operations owns until the
    // completion; vectors and messages likewise.
    let result = unsafe {
        match request {
            Request::Read { fd, ptr, len, offset } => {
                libc::pread(fd, ptr.cast(), len as usize, offset.cast_signed())
            }
            Request::Write {
                fd,
                ptr,
                len,
                offset,
                stable,
            } => {
                let vector = libc::iovec {
                    iov_base: ptr.cast_mut().cast(),
                    iov_len: len as usize,
                };
                let flags = if stable { libc::RWF_DSYNC } else { 0 };
                libc::pwritev2(fd, &raw const vector, 1, offset.cast_signed(), flags)
            }
            Request::DataSync { fd } => libc::fdatasync(fd) as isize,
            Request::Fallocate {
                fd,
                mode,
                offset,
                len,
            } => libc::fallocate(fd, mode, offset.cast_signed(), len.cast_signed()) as isize,
            Request::Accept { fd } => {
                // A connection that `poll` reported may be gone: then this must not wait.
                let flags = libc::fcntl(fd, libc::F_GETFL);
                libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
                libc::accept4(fd, std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC) as isize
            }
            Request::Recv { fd, ptr, len } => libc::recv(fd, ptr.cast(), len as usize, libc::MSG_DONTWAIT),
            Request::Send { fd, ptr, len } => libc::send(
                fd,
                ptr.cast(),
                len as usize,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            ),
            Request::SendMsg { fd, msg } => libc::sendmsg(fd, msg, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL),
            // Only io_uring can send it.
            Request::Command { .. } => return -libc::EOPNOTSUPP,
        }
    };
    if result < 0 {
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        // An interrupted call on a socket is retried after the next `poll`.
        let again = (request.completed_by() == CompletedBy::Peer) && errno == libc::EINTR;
        return if again { -libc::EAGAIN } else { -errno };
    }
    // Requests are at most 1 GiB.
    i32::try_from(result).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;

    use flaz_device::{Env, IoBuf};
    use futures_util::FutureExt;

    use super::*;
    use crate::config::{Backend, Config};
    use crate::executor::{Rt, Runtime};
    use crate::op::Op;
    use crate::op_table::Payload;

    /// More than a pipe takes.
    const BYTES: usize = 128 << 10;

    /// More operations hang than there are threads, and are dropped. Dropping them does not block, another file is still served, and the
    /// hung file stays open until they end.
    #[test]
    fn a_file_that_does_not_answer_holds_up_nothing() {
        let runtime = Runtime::new(Config {
            backend: Backend::Threads,
            ..Config::default()
        });
        runtime.expect("nothing is needed for it").block_on(async {
            let (reader, writer) = std::io::pipe().expect("a pipe");
            let pipe = Arc::new(OwnedFd::from(writer));
            let write = || {
                let buf = IoBuf::zeroed(BYTES);
                let request = Request::Write {
                    fd: pipe.as_raw_fd(),
                    ptr: buf.as_ptr(),
                    len: BYTES as u32,
                    // Where a pipe is written.
                    offset: u64::MAX,
                    stable: false,
                };
                Op::on_file(request, Payload::Buf(buf), &pipe)
            };
            const WRITES: usize = 2 * THREADS_MAX;
            for _ in 0..WRITES {
                assert!(write().now_or_never().is_none(), "it does not end");
            }
            assert_eq!(Arc::strong_count(&pipe), 1 + WRITES);
            let other = Arc::new(File::open("/proc/self/exe").expect("it exists"));
            let sync = Request::DataSync {
                fd: other.as_raw_fd(),
            };
            let (_, result) = Op::on_file(sync, Payload::None, &other).await;
            assert_eq!((result, Arc::strong_count(&other)), (0, 1));
            drop(reader);
            while Arc::strong_count(&pipe) > 1 {
                Rt.sleep(Duration::from_millis(1)).await;
            }
        });
    }
}
