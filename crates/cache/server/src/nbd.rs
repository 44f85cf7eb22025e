//! The NBD front end: sockets, one thread that accepts connections on all of them, and the distribution of connections
//! to the threads.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;

use flaz_control::report::{FrontEndSizeReport, NbdReport};
use flaz_control::size::counted;
use flaz_nbd::limits::CONNECTIONS_MAX;
use flaz_nbd::{
    Counters, Export, Incoming, Limits, NbdAddress, Server, Service, Shutdown, Snapshot, serve_connection,
};
use flaz_runtime::{Config, Rt, Runtime};

use crate::error::HostError;
use crate::front_end::{Failed, FrontEnd, SessionThreads};
use crate::threads::watched;

/// NBD on one or more addresses.
pub(crate) struct NbdFrontEnd {
    addresses: Vec<NbdAddress>,
    /// The reserved sockets, until they are served.
    servers: std::sync::Mutex<Vec<Server>>,
    export: Arc<Export>,
    /// The counts of the connections on each thread.
    counters: Vec<Arc<Counters>>,
    shutdown: Shutdown,
}

impl NbdFrontEnd {
    /// Reserves the sockets. Clients are refused until the front end is started: a start may still be refused.
    ///
    /// # Errors
    /// A socket is in use, or cannot be created.
    pub(crate) fn bind(addresses: &[NbdAddress], export: Export, threads: u32) -> Result<Self, HostError> {
        let shutdown = Shutdown::new();
        let bind =
            |address| Ok::<_, HostError>(Server::reserve(address, Limits::default(), shutdown.clone())?);
        Ok(Self {
            addresses: addresses.to_vec(),
            servers: addresses.iter().map(bind).collect::<Result<Vec<_>, _>>()?.into(),
            export: Arc::new(export),
            counters: (0..threads).map(|_| Arc::default()).collect(),
            shutdown,
        })
    }

    /// Passes a connection to a thread.
    fn serve(&self, threads: &SessionThreads, thread: usize) -> impl Fn(Incoming) + use<> {
        let service = Service {
            export: Arc::clone(&self.export),
            limits: Limits::default(),
            counters: Arc::clone(&self.counters[thread]),
        };
        let threads = threads.clone();
        move |incoming| {
            let service = service.clone();
            let session = Box::new(move |volume| {
                Box::pin(serve_connection(incoming, volume, Rt, service))
                    as futures_util::future::LocalBoxFuture<'_, ()>
            });
            if threads.run(thread, session).is_err() {
                tracing::warn!("a connection was closed: its thread accepts no more orders");
            }
        }
    }
}

impl FrontEnd for NbdFrontEnd {
    fn name(&self) -> String {
        let addresses: Vec<_> = self.addresses.iter().map(ToString::to_string).collect();
        format!("NBD on {}", addresses.join(" "))
    }

    fn start(&self, threads: SessionThreads, failed: Failed) -> Result<Vec<JoinHandle<()>>, HostError> {
        let servers = std::mem::take(
            &mut *self
                .servers
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner),
        );
        if servers.is_empty() {
            return Ok(Vec::new());
        }
        for server in &servers {
            server.listen()?;
        }
        let deal: Vec<_> = (0..threads.count())
            .map(|thread| self.serve(&threads, thread))
            .collect();
        let body = {
            let failed = Arc::clone(&failed);
            move || {
                let runtime = match Runtime::new(Config::default()) {
                    Ok(runtime) => runtime,
                    Err(error) => return failed(error.into()),
                };
                runtime.block_on(async {
                    let next = Cell::new(0_usize);
                    let runs = servers.into_iter().map(|server| {
                        server.run(&Rt, |incoming| {
                            let turn = next.get();
                            next.set(turn + 1);
                            deal[turn % deal.len()](incoming);
                        })
                    });
                    for result in futures_util::future::join_all(runs).await {
                        if let Err(error) = result {
                            failed(error.into());
                        }
                    }
                });
            }
        };
        Ok(vec![watched("flaz-accept".to_owned(), failed, body)?])
    }

    fn stop(&self) {
        self.shutdown.stop();
    }

    fn clients(&self) -> usize {
        self.shutdown.connections()
    }

    fn cut(&self) {
        self.shutdown.cut();
    }

    fn users(&self) -> Vec<String> {
        users(self.shutdown.clients())
    }

    fn grow(&self, bytes: u64) -> Vec<FrontEndSizeReport> {
        self.export.grow(bytes);
        // The protocol has no message for it.
        let connected = self.shutdown.connections_smaller(bytes);
        let advice = (connected > 0).then(|| {
            let connections = counted(connected as u64, "connection keeps", "connections keep");
            format!("{connections} the old size: connect again")
        });
        let size_of = |address: &NbdAddress| FrontEndSizeReport {
            name: address.to_string(),
            up_to_date: advice.is_none(),
            advice: advice.clone(),
        };
        self.addresses.iter().map(size_of).collect()
    }

    fn counts(&self) -> Vec<Snapshot> {
        self.counters.iter().map(|counters| counters.snapshot()).collect()
    }

    fn report(&self) -> Vec<NbdReport> {
        let mut all = Snapshot::default();
        for thread in self.counts() {
            all += thread;
        }
        // Connections are counted for all addresses together, so only the first line shows them.
        let first = |at, count| if at == 0 { count } else { 0 };
        self.addresses
            .iter()
            .enumerate()
            .map(|(at, address)| NbdReport {
                address: address.to_string(),
                connections: first(at, all.connections_now()) as u32,
                connections_max: CONNECTIONS_MAX as u32,
                connections_total: first(at, all.connections_total),
            })
            .collect()
    }
}

/// The clients at the other end of these connections, each once.
fn users(clients: Vec<String>) -> Vec<String> {
    let mut connections: BTreeMap<String, usize> = BTreeMap::new();
    for client in clients {
        *connections.entry(client).or_default() += 1;
    }
    let user = |(client, count)| match count {
        1 => format!("NBD client {client} is connected"),
        count => format!("NBD client {client} has {count} connections"),
    };
    connections.into_iter().map(user).collect()
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_client_with_several_connections_is_named_once() {
        let clients = ["process 7 (qemu)", "10.0.0.1:80", "process 7 (qemu)"].map(str::to_owned);
        assert_eq!(
            users(clients.into()),
            [
                "NBD client 10.0.0.1:80 is connected",
                "NBD client process 7 (qemu) has 2 connections"
            ]
        );
    }

    /// A start that is refused has accepted no client: one would find its connection reset.
    #[test]
    fn clients_are_refused_before_the_front_end_starts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let addresses = [NbdAddress::Unix(path.clone())];
        let front_end = NbdFrontEnd::bind(&addresses, Export::new(0), 1).unwrap();
        let refused = UnixStream::connect(&path).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        assert!(
            NbdFrontEnd::bind(&addresses, Export::new(0), 1).is_err(),
            "it is in use"
        );
        drop(front_end);
        assert!(!path.exists());
    }
}
