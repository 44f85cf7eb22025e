//! A host that keeps the records of a cache: durably, at once or after a delay, or not at all.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::Env;
use flaz_engine::host_record::{HostRecord, HostRecords, NotedOrigin};
use flaz_sim::SimEnv;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;

/// A host's records.
#[derive(Default)]
pub struct Host {
    memory: Cell<Option<HostRecord>>,
    ticket: Cell<u64>,
    /// It keeps no records, and returns none.
    pub broken: Cell<bool>,
    /// It reports each record as failed, although it is written.
    pub unsure: Cell<bool>,
    /// Longest time that writing a record takes.
    pub takes: Cell<Duration>,
    /// Number of recorded fences.
    pub noted_fenced: Cell<u32>,
}

impl Host {
    pub fn remembering(memory: Option<HostRecord>) -> Rc<Self> {
        Rc::new(Self {
            memory: Cell::new(memory),
            ..Self::default()
        })
    }

    pub fn memory(&self) -> Option<HostRecord> {
        self.memory.get()
    }

    fn change(&self, change: impl FnOnce(&mut HostRecord)) -> bool {
        if self.broken.get() {
            return false;
        }
        let mut memory = self.memory.get().unwrap_or_default();
        change(&mut memory);
        self.memory.set(Some(memory));
        !self.unsure.get()
    }
}

/// The host as seen by the engine.
pub struct Notes {
    host: Rc<Host>,
    env: SimEnv,
}

impl Notes {
    pub fn of(host: &Rc<Host>, env: &SimEnv) -> Rc<Self> {
        Rc::new(Self {
            host: Rc::clone(host),
            env: env.clone(),
        })
    }

    async fn take_a_while(&self) {
        let longest = self.host.takes.get().as_micros() as u64;
        if longest > 0 {
            let us = self.env.random_u64() % longest;
            self.env.sleep(Duration::from_micros(us)).await;
        }
    }
}

impl HostRecords for Notes {
    fn recall(&self) -> LocalBoxFuture<'_, Option<HostRecord>> {
        async { self.host.memory.get().filter(|_| !self.host.broken.get()) }.boxed_local()
    }

    fn note(&self, new: HostRecord) -> LocalBoxFuture<'_, bool> {
        async move {
            self.take_a_while().await;
            self.host.ticket.set(0);
            self.host.change(|memory| *memory = new)
        }
        .boxed_local()
    }

    fn note_dirty(&self, dirty: bool, generation: u64) -> LocalBoxFuture<'_, bool> {
        async move {
            self.take_a_while().await;
            self.host.change(|memory| {
                memory.generation = generation;
                memory.dirty = dirty;
            })
        }
        .boxed_local()
    }

    fn note_origin(&self, ticket: u64, origin: NotedOrigin) -> LocalBoxFuture<'_, bool> {
        async move {
            self.take_a_while().await;
            if ticket < self.host.ticket.get() {
                return true;
            }
            if self.host.memory.get().is_some_and(|memory| memory.stopped) {
                return false;
            }
            let noted = self.host.change(|memory| memory.origin = Some(origin));
            if noted {
                self.host.ticket.set(ticket);
            }
            noted
        }
        .boxed_local()
    }

    fn note_stopped(&self, origin: Option<NotedOrigin>) -> LocalBoxFuture<'_, bool> {
        async move {
            self.take_a_while().await;
            self.host.change(|memory| {
                memory.stopped = true;
                memory.origin = origin;
            })
        }
        .boxed_local()
    }

    fn note_fenced(&self) -> LocalBoxFuture<'_, bool> {
        async {
            self.take_a_while().await;
            let noted = self.host.change(|memory| memory.fenced = true);
            self.host
                .noted_fenced
                .set(self.host.noted_fenced.get() + u32::from(noted));
            noted
        }
        .boxed_local()
    }
}
