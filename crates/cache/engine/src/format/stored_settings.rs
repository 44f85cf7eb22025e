//! The settings in a superblock: those that were chosen for the cache. Zero means that a setting was not chosen.

use std::num::{NonZeroU32, NonZeroU64};

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::FormatError;
use crate::policy::PolicyKind;
use crate::settings::{DIRTY_PERCENT_MAX, Mode, StoredSettings, StrictFlush};
use crate::write_budget::{DWPD_THOUSANDTHS_MAX, WriteBudget};

const WHAT: &str = "superblock";

/// The bytes of [`StoredSettings`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawSettings {
    mode: u8,
    policy: u8,
    strict_flush: u8,
    dirty_percent: u8,
    /// The kind of the write budget. Its number is elsewhere in the superblock.
    budget_kind: u8,
    reserved: [u8; 3],
    /// One more than the bytes.
    sequential_cutoff: U64,
}

const _: () = assert!(size_of::<RawSettings>() == 16);

impl RawSettings {
    /// # Errors
    /// [`FormatError::Field`]: a value that would be refused when read back.
    pub(super) fn of(settings: &StoredSettings) -> Result<Self, FormatError> {
        let cutoff = settings
            .sequential_cutoff
            .map_or(Some(0), |bytes| bytes.checked_add(1));
        let cutoff =
            cutoff.ok_or_else(|| FormatError::field(WHAT, "sequential cut-off", "below 16 EiB", u64::MAX))?;
        Ok(Self {
            mode: settings.mode.map_or(0, number_of_mode),
            policy: settings.policy.map_or(0, number_of_policy),
            strict_flush: settings.strict_flush.map_or(0, number_of_flush),
            dirty_percent: checked_percent(settings.dirty_percent.unwrap_or(0))?,
            budget_kind: settings.write_budget.map_or(0, |budget| match budget {
                WriteBudget::None => 1,
                WriteBudget::BytesPerDay(_) => 2,
                WriteBudget::DwpdThousandths(_) => 3,
            }),
            reserved: [0; 3],
            sequential_cutoff: U64::new(cutoff),
        })
    }

    /// `budget`: the number of the write budget.
    ///
    /// # Errors
    /// [`FormatError::Field`]: a number that means nothing.
    pub(super) fn parse(&self, budget: u64) -> Result<StoredSettings, FormatError> {
        let percent = checked_percent(self.dirty_percent)?;
        Ok(StoredSettings {
            mode: chosen(&Mode::ALL, number_of_mode, self.mode, "mode", "0 to 4")?,
            policy: chosen(
                &PolicyKind::ALL,
                number_of_policy,
                self.policy,
                "policy",
                "0 to 3",
            )?,
            strict_flush: chosen(
                &StrictFlush::ALL,
                number_of_flush,
                self.strict_flush,
                "strict flush",
                "0 to 3",
            )?,
            dirty_percent: (percent > 0).then_some(percent),
            sequential_cutoff: self.sequential_cutoff.get().checked_sub(1),
            write_budget: checked_budget(self.budget_kind, budget)?,
        })
    }
}

/// The number of a write budget, for a field of its own.
pub(super) fn budget_number(budget: Option<WriteBudget>) -> u64 {
    match budget {
        None | Some(WriteBudget::None) => 0,
        Some(WriteBudget::BytesPerDay(bytes)) => bytes.get(),
        Some(WriteBudget::DwpdThousandths(thousandths)) => u64::from(thousandths.get()),
    }
}

fn checked_budget(kind: u8, number: u64) -> Result<Option<WriteBudget>, FormatError> {
    let dwpd = || {
        let thousandths = u32::try_from(number).ok()?;
        NonZeroU32::new(thousandths).filter(|_| thousandths <= DWPD_THOUSANDTHS_MAX)
    };
    let found = match (kind, number) {
        (0, 0) => return Ok(None),
        (1, 0) => Some(WriteBudget::None),
        (2, bytes) => NonZeroU64::new(bytes).map(WriteBudget::BytesPerDay),
        (3, _) => dwpd().map(WriteBudget::DwpdThousandths),
        _ => None,
    };
    found.map(Some).ok_or_else(|| {
        let expected =
            format!("kind 0 or 1 with 0, 2 with bytes, or 3 with 1 to {DWPD_THOUSANDTHS_MAX} thousandths");
        FormatError::field(
            WHAT,
            "write budget",
            expected,
            format!("kind {kind} with {number}"),
        )
    })
}

fn checked_percent(percent: u8) -> Result<u8, FormatError> {
    if percent > DIRTY_PERCENT_MAX {
        let expected = format!("at most {DIRTY_PERCENT_MAX}");
        return Err(FormatError::field(WHAT, "dirty limit", expected, percent));
    }
    Ok(percent)
}

/// The value of a number; `None` for 0.
fn chosen<T: Copy>(
    all: &[T],
    number_of: fn(T) -> u8,
    number: u8,
    field: &'static str,
    expected: &str,
) -> Result<Option<T>, FormatError> {
    if number == 0 {
        return Ok(None);
    }
    let found = all.iter().copied().find(|value| number_of(*value) == number);
    found
        .map(Some)
        .ok_or_else(|| FormatError::field(WHAT, field, expected, number))
}

fn number_of_mode(mode: Mode) -> u8 {
    match mode {
        Mode::WriteThrough => 1,
        Mode::WriteBack => 2,
        Mode::WriteAround => 3,
        Mode::PassThrough => 4,
    }
}

fn number_of_policy(policy: PolicyKind) -> u8 {
    match policy {
        PolicyKind::S3Fifo => 1,
        PolicyKind::SecondTouch => 2,
        PolicyKind::Fifo => 3,
    }
}

fn number_of_flush(strict_flush: StrictFlush) -> u8 {
    match strict_flush {
        StrictFlush::Auto => 1,
        StrictFlush::Always => 2,
        StrictFlush::Never => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_reads_back_alone() {
        let mut all = vec![StoredSettings::default()];
        all.extend(Mode::ALL.map(|mode| StoredSettings {
            mode: Some(mode),
            ..StoredSettings::default()
        }));
        all.extend(PolicyKind::ALL.map(|policy| StoredSettings {
            policy: Some(policy),
            ..StoredSettings::default()
        }));
        all.extend(StrictFlush::ALL.map(|strict_flush| StoredSettings {
            strict_flush: Some(strict_flush),
            ..StoredSettings::default()
        }));
        all.extend([0, 1, 4 << 20, u64::MAX - 1].map(|bytes| StoredSettings {
            sequential_cutoff: Some(bytes),
            ..StoredSettings::default()
        }));
        all.extend([1, DIRTY_PERCENT_MAX].map(|percent| StoredSettings {
            dirty_percent: Some(percent),
            ..StoredSettings::default()
        }));
        let budgets = [
            WriteBudget::None,
            WriteBudget::BytesPerDay(NonZeroU64::MAX),
            WriteBudget::DwpdThousandths(NonZeroU32::MIN),
        ];
        all.extend(budgets.map(|budget| StoredSettings {
            write_budget: Some(budget),
            ..StoredSettings::default()
        }));
        for settings in all {
            let raw = RawSettings::of(&settings).expect("valid");
            assert_eq!(raw.parse(budget_number(settings.write_budget)), Ok(settings));
        }
    }

    #[test]
    fn numbers_that_mean_nothing_are_refused() {
        for (at, number, field) in [
            (0, 5, "mode"),
            (1, 4, "policy"),
            (2, 4, "strict flush"),
            (3, 51, "dirty limit"),
            (4, 4, "write budget"),
            // A number of bytes is missing.
            (4, 2, "write budget"),
            (4, 3, "write budget"),
        ] {
            let mut bytes = [0; 16];
            bytes[at] = number;
            let raw = RawSettings::read_from_bytes(&bytes).expect("16 bytes");
            let error = raw.parse(0).expect_err("no such number").to_string();
            assert!(
                error.contains(field) && error.contains(&number.to_string()),
                "{error}"
            );
        }
        for settings in [
            StoredSettings {
                dirty_percent: Some(51),
                ..StoredSettings::default()
            },
            StoredSettings {
                sequential_cutoff: Some(u64::MAX),
                ..StoredSettings::default()
            },
        ] {
            assert!(RawSettings::of(&settings).is_err(), "{settings:?}");
        }
    }
}
