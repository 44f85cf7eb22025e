//! Paths in suggested commands, quoted for the shell.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A path as one word of a shell command, which the user can copy from a message.
///
/// A path of plain characters stays as it is. Others are put into single quotes, or into `$'..'` (bash, zsh, POSIX 2024) if
/// they contain control characters or are not UTF-8. A path that begins with a minus sign, which would be read as an option,
/// gets `./` in front.
#[must_use]
pub fn quoted(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let prefix: &[u8] = if bytes.first() == Some(&b'-') { b"./" } else { b"" };
    let bytes = [prefix, bytes].concat();
    let is_plain = |&byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+,:@%=".contains(&byte);
    match String::from_utf8(bytes) {
        Ok(text) if !text.is_empty() && text.as_bytes().iter().all(is_plain) => text,
        Ok(text) if !text.chars().any(char::is_control) => format!("'{}'", text.replace('\'', r"'\''")),
        Ok(text) => escaped(text.as_bytes()),
        Err(error) => escaped(error.as_bytes()),
    }
}

fn escaped(bytes: &[u8]) -> String {
    let mut text = String::from("$'");
    for &byte in bytes {
        match byte {
            b'\'' | b'\\' => {
                text.push('\\');
                text.push(char::from(byte));
            }
            b' '..=b'~' => text.push(char::from(byte)),
            // Octal: three digits at most, while a hexadecimal escape may continue into the text.
            _ => text.push_str(&format!("\\{byte:03o}")),
        }
    }
    text.push('\'');
    text
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::process::Command;

    use super::*;

    const PATHS: [&[u8]; 10] = [
        b"/dev/nvme0n1p3",
        b"my cache.img",
        b"it's $HOME; rm -rf *",
        b"-rf",
        b"~",
        b"a\nb\tc",
        b"caf\xc3\xa9",
        b"\xff\xfe1'\\x",
        b"\"`!#&|<>()[]{}?^",
        b"",
    ];

    #[test]
    fn plain_paths_stay_as_they_are() {
        assert_eq!(
            quoted(Path::new("/dev/disk/by-id/x_1:0-part2")),
            "/dev/disk/by-id/x_1:0-part2"
        );
        assert_eq!(quoted(Path::new("my cache.img")), "'my cache.img'");
        assert_eq!(quoted(Path::new("-f")), "./-f");
    }

    #[test]
    fn a_shell_reads_the_same_path() {
        let has_bash = Command::new("bash").arg("--version").output().is_ok();
        if !has_bash {
            eprintln!("skipped: bash is not installed");
            return;
        }
        for path in PATHS {
            let word = quoted(Path::new(OsStr::from_bytes(path)));
            let command = format!("printf %s {word}");
            let output = Command::new("bash").args(["-c", &command]).output().unwrap();
            let expected = if path == b"-rf" { b"./-rf" } else { path };
            assert_eq!(output.stdout, expected, "{command}");
        }
    }
}
