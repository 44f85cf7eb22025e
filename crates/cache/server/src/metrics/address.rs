//! Addresses of metrics: `unix:PATH` or `tcp:HOST:PORT`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use flaz_nbd::NbdAddress;

/// Where metrics are offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsAddress(NbdAddress);

/// Metrics were to be offered to other machines without the option that allows it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0}: metrics on an address that other machines may reach are refused, because they name devices and files to anyone; use \
     tcp:127.0.0.1:PORT or unix:PATH, or --insecure-tcp if the network is trusted"
)]
pub struct InsecureMetrics(MetricsAddress);

impl MetricsAddress {
    /// Accepts Unix sockets and loopback addresses always, and others only with the option.
    ///
    /// # Errors
    /// [`InsecureMetrics`].
    pub fn check_insecure(&self, insecure_tcp: bool) -> Result<(), InsecureMetrics> {
        let is_local = match &self.0 {
            NbdAddress::Unix(_) => true,
            NbdAddress::Tcp { host, .. } => {
                host == "localhost" || host.parse().is_ok_and(|number: IpAddr| number.is_loopback())
            }
        };
        if is_local || insecure_tcp {
            Ok(())
        } else {
            Err(InsecureMetrics(self.clone()))
        }
    }

    /// The address to listen on.
    #[must_use]
    pub fn socket(&self) -> &NbdAddress {
        &self.0
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for MetricsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const EXPECTED: &str = "expected unix:PATH or tcp:HOST:PORT, for example tcp:127.0.0.1:9750";
        let address: NbdAddress = text.parse().map_err(|error| match error {
            flaz_nbd::address::AddressError::Scheme(_) => EXPECTED.to_owned(),
            error => format!("{error}; {EXPECTED}"),
        })?;
        // NBD has a default port.
        let has_port = match &address {
            NbdAddress::Unix(_) => true,
            NbdAddress::Tcp { port, .. } => text.ends_with(&format!(":{port}")),
        };
        if has_port {
            Ok(Self(address))
        } else {
            Err(format!("the port is missing; {EXPECTED}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for text in [
            "unix:/run/flaz/m.sock",
            "tcp:127.0.0.1:9750",
            "tcp:[::1]:9750",
            "tcp:localhost:10809",
        ] {
            let address: MetricsAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        for text in [
            "9750",
            "unix:",
            "tcp:localhost",
            "tcp:[::1]",
            "tcp:h:0",
            "tcp::9750",
            "http://localhost:9750",
        ] {
            let error = text.parse::<MetricsAddress>().unwrap_err();
            assert!(
                error.contains("expected unix:PATH or tcp:HOST:PORT"),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn addresses_of_the_network_need_the_option() {
        let check = |text: &str, insecure| text.parse::<MetricsAddress>().unwrap().check_insecure(insecure);
        for local in [
            "unix:m",
            "tcp:127.0.0.1:1",
            "tcp:127.9.9.9:1",
            "tcp:[::1]:1",
            "tcp:localhost:1",
        ] {
            assert_eq!(check(local, false), Ok(()), "{local}");
        }
        for open in [
            "tcp:0.0.0.0:1",
            "tcp:[::]:1",
            "tcp:10.0.0.1:1",
            "tcp:localhost.example:1",
        ] {
            let error = check(open, false).unwrap_err().to_string();
            assert!(
                error.contains("--insecure-tcp") && error.contains(open),
                "{error}"
            );
            assert_eq!(check(open, true), Ok(()), "{open}");
        }
    }
}
