//! Enums whose values have one name in campaign files, results and options.

/// Defines such an enum: `ALL`, `name()`, and the JSON and TOML form by name.
macro_rules! words {
    (
        $(#[$meta:meta])*
        pub enum $type:ident {
            $($(#[$value_meta:meta])* $value:ident => $name:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $type {
            $($(#[$value_meta])* #[serde(rename = $name)] $value,)+
        }

        impl $type {
            /// All values.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// The name of this value.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)+
                }
            }
        }
    };
}

pub(crate) use words;
