//! Task slots, their wakers, and the inbox for wakes from other threads.
//!
//! A slot keeps its waker for ever: a new task in a reused slot allocates only its future. A stale waker of the earlier
//! task may then wake the new one unnecessarily, which every future must tolerate anyway.
//!
//! Invariant: `queued` is true exactly while the slot is in the run queue or in the inbox, so neither can contain a
//! slot twice, and only one list at a time uses the intrusive link of the inbox.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering, fence};
use std::task::{Wake, Waker};

/// Maximum number of tasks in a runtime: a guard against unlimited spawning, not a tuning value.
pub(crate) const TASKS_MAX: usize = 1 << 20;
/// Slot number of the future given to `block_on`.
pub(crate) const MAIN: u32 = u32::MAX;

/// The part of a runtime that other threads may access.
pub(crate) struct Shared {
    /// Wakes from other threads: a stack linked through [`TaskWaker::next`], or [`closed`].
    inbox: AtomicPtr<TaskWaker>,
    /// The runtime is about to wait in the kernel, or is waiting: write the eventfd after a push.
    sleeping: AtomicBool,
    eventfd: OwnedFd,
}

/// Marks the inbox of a runtime that has ended. Never dereferenced.
fn closed() -> *mut TaskWaker {
    ptr::without_provenance_mut(1)
}

impl Shared {
    pub(crate) fn new(eventfd: OwnedFd) -> Self {
        Self {
            inbox: AtomicPtr::new(ptr::null_mut()),
            sleeping: AtomicBool::new(false),
            eventfd,
        }
    }

    pub(crate) fn eventfd(&self) -> &OwnedFd {
        &self.eventfd
    }

    fn push(&self, task: Arc<TaskWaker>) {
        let node = Arc::into_raw(task).cast_mut();
        let mut head = self.inbox.load(Ordering::Relaxed);
        loop {
            if head == closed() {
                // SAFETY: `node` came from `Arc::into_raw` above and was not published.
                drop(unsafe { Arc::from_raw(node) });
                return;
            }
            // SAFETY: `node` is a live Arc; its link belongs to the thread that set `queued`, which is this one.
            unsafe { (*node).next.store(head, Ordering::Relaxed) };
            match self
                .inbox
                .compare_exchange_weak(head, node, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        self.rouse();
    }

    /// Ends the sleep of the runtime's thread, if it sleeps. The caller has already written what the thread is to see.
    pub(crate) fn rouse(&self) {
        // Pairs with the fence in `prepare_sleep`: either this thread sees `sleeping`, or the sleeper sees the push.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::AcqRel) {
            // The only possible failures are a full counter (EAGAIN does not occur on a blocking eventfd) and EINTR; a
            // full counter also wakes.
            while let Err(rustix::io::Errno::INTR) = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes()) {}
        }
    }

    /// Moves the inbox to `ready`, in the order of arrival.
    pub(crate) fn drain(&self, ready: &mut impl Extend<u32>) {
        if self.inbox.load(Ordering::Relaxed).is_null() {
            return;
        }
        self.take(ptr::null_mut(), ready);
    }

    /// Refuses further wakes and drops those in the inbox.
    pub(crate) fn close(&self) {
        self.take(closed(), &mut Vec::new());
    }

    fn take(&self, replacement: *mut TaskWaker, ready: &mut impl Extend<u32>) {
        let mut head = self.inbox.swap(replacement, Ordering::AcqRel);
        let mut reversed: *mut TaskWaker = ptr::null_mut();
        while !head.is_null() && head != closed() {
            // SAFETY: nodes in the list are live Arcs that `push` leaked, and the swap gave the list to this thread.
            let next = unsafe { (*head).next.load(Ordering::Relaxed) };
            // SAFETY: as above.
            unsafe { (*head).next.store(reversed, Ordering::Relaxed) };
            reversed = head;
            head = next;
        }
        while !reversed.is_null() {
            // SAFETY: `push` leaked exactly this Arc; the list holds each node once.
            let task = unsafe { Arc::from_raw(reversed) };
            reversed = task.next.load(Ordering::Relaxed);
            ready.extend([task.slot]);
        }
    }

    /// Announces sleep. False if a wake has arrived in the meantime: then the thread must not sleep.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let idle = self.inbox.load(Ordering::Relaxed).is_null();
        if !idle {
            self.sleeping.store(false, Ordering::Relaxed);
        }
        idle
    }

    pub(crate) fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }
}

thread_local! {
    /// The run queue of this thread's runtime.
    static HERE: RefCell<Option<Rc<RunQueue>>> = const { RefCell::new(None) };
}

/// Tasks of a runtime that are ready to run.
pub(crate) struct RunQueue {
    pub(crate) shared: Arc<Shared>,
    pub(crate) ready: RefCell<VecDeque<u32>>,
}

impl RunQueue {
    /// Creates the run queue of this thread's runtime.
    ///
    /// # Panics
    /// If the thread already has one.
    pub(crate) fn install(shared: Arc<Shared>) -> Rc<Self> {
        let queue = Rc::new(Self {
            shared,
            ready: RefCell::default(),
        });
        HERE.with_borrow_mut(|here| {
            assert!(here.is_none(), "this thread already has a runtime");
            *here = Some(Rc::clone(&queue));
        });
        queue
    }

    /// The runtime of this thread has ended.
    pub(crate) fn uninstall() {
        HERE.with_borrow_mut(Option::take);
    }
}

/// Queues a task if its runtime is that of this thread.
fn push_ready_here(shared: &Arc<Shared>, slot: u32) -> bool {
    HERE.try_with(|here| match &*here.borrow() {
        Some(queue) if Arc::ptr_eq(&queue.shared, shared) => {
            queue.ready.borrow_mut().push_back(slot);
            true
        }
        _ => false,
    })
    .unwrap_or(false)
}

/// The data of a task's waker.
pub(crate) struct TaskWaker {
    slot: u32,
    queued: AtomicBool,
    next: AtomicPtr<TaskWaker>,
    shared: Arc<Shared>,
}

impl TaskWaker {
    pub(crate) fn new(slot: u32, shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self {
            slot,
            queued: AtomicBool::new(false),
            next: AtomicPtr::new(ptr::null_mut()),
            shared,
        })
    }

    /// Called when the slot has left its queue, before its future is polled: later wakes queue it again.
    pub(crate) fn dequeued(&self) {
        // A read-modify-write, so that the poll sees what a waker wrote before it found `queued` set.
        self.queued.swap(false, Ordering::AcqRel);
    }

    fn enqueue(this: &Arc<Self>) {
        if this.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        if !push_ready_here(&this.shared, this.slot) {
            this.shared.push(Arc::clone(this));
        }
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        Self::enqueue(&self);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        Self::enqueue(self);
    }
}

pub(crate) type TaskFuture = Pin<Box<dyn Future<Output = ()>>>;

/// A slot's contents, taken out of the table while its future is polled.
pub(crate) struct Body {
    pub(crate) task: Arc<TaskWaker>,
    pub(crate) waker: Waker,
    pub(crate) future: Option<TaskFuture>,
}

/// All tasks of a runtime.
#[derive(Default)]
pub(crate) struct TaskTable {
    slots: Vec<Option<Body>>,
    free: Vec<u32>,
    /// Bytes of all futures.
    future_bytes: usize,
}

impl TaskTable {
    /// Stores a future; the caller then queues the slot with the returned waker.
    ///
    /// # Panics
    /// With more than [`TASKS_MAX`] tasks.
    pub(crate) fn insert(&mut self, future: TaskFuture, shared: &Arc<Shared>) -> Waker {
        self.future_bytes += size_of_val(&*future);
        if let Some(slot) = self.free.pop() {
            let body = self.slots[slot as usize]
                .as_mut()
                .expect("a free slot is not being polled");
            body.future = Some(future);
            return body.waker.clone();
        }
        let slot = self.slots.len();
        assert!(
            slot < TASKS_MAX,
            "{TASKS_MAX} tasks in one runtime: the number of tasks grows without limit"
        );
        let task = TaskWaker::new(slot as u32, Arc::clone(shared));
        let waker = Waker::from(Arc::clone(&task));
        self.slots.push(Some(Body {
            task,
            waker: waker.clone(),
            future: Some(future),
        }));
        waker
    }

    pub(crate) fn take(&mut self, slot: u32) -> Option<Body> {
        self.slots.get_mut(slot as usize)?.take()
    }

    /// Puts a polled slot back; if its task has ended, whose future had `ended` bytes, it is free for the next one.
    pub(crate) fn put_back(&mut self, slot: u32, body: Body, ended: Option<usize>) {
        if let Some(bytes) = ended {
            self.future_bytes -= bytes;
            self.free.push(slot);
        }
        self.slots[slot as usize] = Some(body);
    }

    /// Memory of the tasks and their slots, without what futures have on the heap.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.future_bytes
            + self.slots.capacity() * size_of::<Option<Body>>()
            + self.slots.len() * size_of::<TaskWaker>()
            + self.free.capacity() * size_of::<u32>()
    }

    /// Removes all slots, at the end of the runtime.
    pub(crate) fn take_all(&mut self) -> Vec<Option<Body>> {
        self.free.clear();
        self.future_bytes = 0;
        std::mem::take(&mut self.slots)
    }
}
