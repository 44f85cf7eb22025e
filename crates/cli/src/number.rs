//! Parser of whole numbers within limits.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Maximum of options for a number of threads.
pub const THREADS_MAX: u32 = 1024;

/// Parses a whole number within `bounds`. The message says what was expected; the option parser adds what was found.
pub fn whole<T>(
    bounds: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        text.parse()
            .ok()
            .filter(|number| bounds.contains(number))
            .ok_or_else(|| match bounds.end().to_string() {
                // Without a limit but that of the machine, which is told only to who exceeds it.
                end if end == u64::MAX.to_string() && !is_long(text) => {
                    format!("expected a whole number of at least {}", bounds.start())
                }
                end => format!("expected a whole number from {} to {end}", bounds.start()),
            })
    }
}

/// Whether it may be a number beyond 64 bits.
fn is_long(text: &str) -> bool {
    text.len() >= 20 && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;

    #[test]
    fn limits_are_enforced_and_reported() {
        let threads = whole(NonZeroUsize::MIN..=NonZeroUsize::new(8).unwrap());
        assert_eq!(threads("8").map(NonZeroUsize::get), Ok(8));
        for text in ["0", "9", "-1", "x", "", "1.5", "99999999999999999999"] {
            assert_eq!(
                threads(text),
                Err("expected a whole number from 1 to 8".to_owned()),
                "{text}"
            );
        }
        let unlimited = whole(1..=u64::MAX);
        assert_eq!(
            unlimited("0"),
            Err("expected a whole number of at least 1".to_owned())
        );
    }
}
