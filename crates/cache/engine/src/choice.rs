//! Settings whose values are chosen by name.
//!
//! [`Choice`] lists the values of one setting with their names. The command line, `flaz set`, the control protocol and the
//! reports all read and print such a value by it, so a name is defined once and means the same everywhere.

/// A setting whose values have names.
pub trait Choice: Copy + 'static {
    /// Name of the setting.
    const SETTING: &'static str;
    /// All values, the default first.
    const ALL: &'static [Self];

    /// The name of this value.
    fn name(self) -> &'static str;
}

/// A text that is the name of no value. The message has neither the name of the setting nor the text: whoever reports it knows both.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected one of {expected}")]
pub struct UnknownChoice {
    /// Names of all values, separated by commas.
    pub expected: String,
}

/// The value that `text` names.
///
/// # Errors
/// `text` is the name of no value.
pub fn parse<T: Choice>(text: &str) -> Result<T, UnknownChoice> {
    let found = T::ALL.iter().copied().find(|value| value.name() == text);
    found.ok_or_else(|| UnknownChoice {
        expected: T::ALL
            .iter()
            .map(|value| value.name())
            .collect::<Vec<_>>()
            .join(", "),
    })
}

/// Implements [`Choice`] for an enum, and text and JSON form by its names.
macro_rules! choice {
    ($type:ident, $setting:literal, { $($value:ident => $name:literal),+ $(,)? }) => {
        impl $type {
            /// All values, the default first.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// The name of this value.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name),+
                }
            }
        }

        impl $crate::choice::Choice for $type {
            const SETTING: &'static str = $setting;
            const ALL: &'static [Self] = &Self::ALL;

            fn name(self) -> &'static str {
                self.name()
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::choice::UnknownChoice;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                $crate::choice::parse(text)
            }
        }

        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "enum": [$($name),+] })
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'_, str>>::deserialize(deserializer)?;
                let unknown = |why| serde::de::Error::custom(format_args!("{} '{text}': {why}", $setting));
                text.parse()
                    .map_err(|why: $crate::choice::UnknownChoice| unknown(why))
            }
        }
    };
}

pub(crate) use choice;
