//! One operation as a future. Memory that the kernel uses is in the [table](crate::op_table).

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::config::Backend;
use crate::op_table::{Abandoned, Payload, Progress};
use crate::request::{CompletedBy, Keep, Request};
use crate::state::{Core, current};

enum Stage {
    /// Not submitted yet. The file stays open until the operation has ended.
    New(Request, Payload, Option<Keep>),
    /// Submitted, possibly completed, but not polled since.
    Entered(u32),
    Finished,
}

/// One operation. Returns the payload with the kernel's result: a count, or a negative error number.
#[must_use = "an operation is submitted when it is first polled"]
pub(crate) struct Op {
    core: Rc<Core>,
    stage: Stage,
}

impl Op {
    /// An operation on this thread's runtime.
    ///
    /// # Panics
    /// Outside a runtime.
    pub(crate) fn new(request: Request, payload: Payload) -> Self {
        Self {
            core: current(),
            stage: Stage::New(request, payload, None),
        }
    }

    /// The same for an operation on a file, which must not be closed meanwhile. io_uring sees to that.
    ///
    /// # Panics
    /// Outside a runtime.
    pub(crate) fn on_file(
        request: Request,
        payload: Payload,
        file: &Arc<impl Send + Sync + 'static>,
    ) -> Self {
        let core = current();
        let keep = (core.driver.backend() == Backend::Threads).then(|| Arc::clone(file) as Keep);
        Self {
            core,
            stage: Stage::New(request, payload, keep),
        }
    }
}

impl Future for Op {
    type Output = (Payload, i32);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        match std::mem::replace(&mut this.stage, Stage::Finished) {
            Stage::New(request, payload, keep) => {
                let entered = this
                    .core
                    .ops
                    .borrow_mut()
                    .insert(payload, request.completed_by(), cx.waker());
                match entered {
                    Ok(index) => {
                        this.stage = Stage::Entered(index);
                        this.core.driver.push(request, u64::from(index), keep);
                    }
                    Err(payload) => this.stage = Stage::New(request, payload, keep),
                }
                Poll::Pending
            }
            Stage::Entered(index) => {
                let progress = this.core.ops.borrow_mut().poll(index, cx.waker());
                match progress {
                    Progress::Done(payload, result) => Poll::Ready((payload, result)),
                    Progress::Pending { stale } => {
                        drop(stale);
                        this.stage = Stage::Entered(index);
                        Poll::Pending
                    }
                }
            }
            Stage::Finished => panic!("an operation was polled after it had ended"),
        }
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        let Stage::Entered(index) = self.stage else { return };
        let abandoned = self.core.ops.borrow_mut().abandon(index);
        match abandoned {
            Abandoned::Leaked => {}
            Abandoned::Done(payload, result) => payload.dispose(result),
            Abandoned::Pending { waker, by } => {
                drop(waker);
                if by == CompletedBy::Peer {
                    self.core.driver.cancel(u64::from(index));
                }
                // The owner may close the descriptor next, and its number may then mean another file: the kernel must
                // have taken its own reference before.
                self.core.driver.submit_all();
            }
        }
    }
}
