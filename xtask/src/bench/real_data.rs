//! Real files as data.

use std::path::PathBuf;

/// Real files of this machine, concatenated, in 4 KiB blocks; at most `bytes`.
pub fn real_data(bytes: usize) -> Vec<u8> {
    let mut data = Vec::with_capacity(bytes);
    let mut folders: Vec<PathBuf> = ["/usr/lib", "/usr/share", "/usr/bin"].map(PathBuf::from).to_vec();
    let mut at = 0;
    while at < folders.len() && data.len() < bytes {
        let Ok(entries) = std::fs::read_dir(&folders[at]) else {
            at += 1;
            continue;
        };
        let mut entries: Vec<_> = entries.flatten().collect();
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                // A single huge file must not be the whole data.
                Ok(kind) if kind.is_file() && entry.metadata().is_ok_and(|m| m.len() <= 16 << 20) => {
                    if let Ok(mut file) = std::fs::read(entry.path()) {
                        file.resize(file.len().next_multiple_of(4096), 0);
                        data.extend_from_slice(&file);
                    }
                }
                _ => {}
            }
            if data.len() >= bytes {
                break;
            }
        }
        at += 1;
    }
    data.resize(bytes, 0);
    data
}
