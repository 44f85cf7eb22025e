//! What of the process is in memory: program, stacks, heap.
//!
//! The kernel counts resident pages as anonymous ones and those of files. Anonymous are the heap, the stacks, and data of the
//! program that was changed since it was loaded. The latter is counted once, because that takes a walk over all pages; stacks are
//! looked at each time, because they are small. The heap is the rest.

use std::fs;
use std::io;
use std::sync::OnceLock;

const PAGE_BYTES: usize = 4096;
/// Stacks of threads are at most this large; a larger mapping has something else behind the stack.
const STACK_BYTES_MAX: usize = 2 << 20;
/// Heaps of threads begin at multiples of this, and stacks behind a page that may not be touched.
const HEAP_ALIGNMENT: usize = 64 << 20;

/// Resident memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// All of it, as the kernel counts it (`VmRSS`).
    pub total_bytes: u64,
    /// Program and libraries, their data, and memory shared with the kernel.
    pub program_bytes: u64,
    /// Stacks of all threads.
    pub stack_bytes: u64,
    /// Address space of the stacks.
    pub stack_bytes_max: u64,
    /// The rest: the allocator's.
    pub heap_bytes: u64,
}

/// The resident memory of this process.
///
/// # Errors
/// `/proc` cannot be read.
pub fn resident() -> io::Result<Resident> {
    static DATA: OnceLock<u64> = OnceLock::new();
    let status = fs::read_to_string("/proc/self/status")?;
    let data_bytes = match DATA.get() {
        Some(bytes) => *bytes,
        None => *DATA.get_or_init(|| data_in(&fs::read_to_string("/proc/self/smaps").unwrap_or_default())),
    };
    let stacks = stacks_in(&fs::read_to_string("/proc/self/maps")?);
    let stack_bytes = stacks.iter().map(|&(start, len)| in_memory(start, len)).sum();
    let of = |name| kib_of(&status, name).unwrap_or(0) << 10;
    Ok(Resident {
        total_bytes: of("VmRSS:"),
        program_bytes: of("RssFile:") + of("RssShmem:") + data_bytes,
        stack_bytes,
        stack_bytes_max: stacks.iter().map(|&(_, len)| len as u64).sum(),
        heap_bytes: of("RssAnon:").saturating_sub(data_bytes + stack_bytes),
    })
}

/// The number behind `name`, at the start of a line.
fn kib_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// A line of `/proc/self/maps`: start, end, permissions, and whether it belongs to a file or has another name.
struct Mapping<'a> {
    start: usize,
    end: usize,
    permissions: &'a str,
    of_file: bool,
    name: &'a str,
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        let (start, end) = (address(start)?, address(end)?);
        let permissions = words.next()?;
        let inode = words.nth(2)?;
        Some(Self {
            start,
            end,
            permissions,
            of_file: inode != "0",
            name: words.next().unwrap_or_default(),
        })
    }
}

/// Start and length of the stacks: of the main thread, and of those that have a page below that may not be touched.
fn stacks_in(maps: &str) -> Vec<(usize, usize)> {
    let mut guard_end = None;
    let mut stacks = Vec::new();
    for mapping in maps.lines().filter_map(Mapping::parse) {
        let (is_anonymous, len) = (
            !mapping.of_file && mapping.name.is_empty(),
            mapping.end - mapping.start,
        );
        let is_guarded = guard_end == Some(mapping.start) && mapping.start % HEAP_ALIGNMENT != 0;
        if mapping.name == "[stack]" || is_anonymous && is_guarded && mapping.permissions.starts_with("rw") {
            stacks.push((mapping.start, len.min(STACK_BYTES_MAX)));
        }
        let is_guard = is_anonymous && mapping.permissions.starts_with("---") && len == PAGE_BYTES;
        guard_end = is_guard.then_some(mapping.end);
    }
    stacks
}

/// Anonymous bytes of mappings of files, and of the zeroed data behind them.
fn data_in(smaps: &str) -> u64 {
    let (mut bytes, mut file_end, mut of_program) = (0, None, false);
    for line in smaps.lines() {
        if let Some(kib) = line.strip_prefix("Anonymous:") {
            let kib = kib
                .trim()
                .strip_suffix("kB")
                .and_then(|kib| kib.trim().parse().ok());
            bytes += if of_program { kib.unwrap_or(0) } else { 0_u64 } << 10;
        } else if let Some(mapping) = Mapping::parse(line) {
            let follows = file_end == Some(mapping.start) && mapping.name.is_empty();
            of_program = mapping.of_file || follows;
            file_end = mapping.of_file.then_some(mapping.end);
        }
    }
    bytes
}

/// Bytes of a range that are in memory; 0 if it is no longer mapped.
fn in_memory(start: usize, len: usize) -> u64 {
    let mut pages = vec![0_u8; len.div_ceil(PAGE_BYTES)];
    // SAFETY: the kernel writes one byte for each page of the range to `pages`, and touches nothing else. The range is only an
    // address to it; it may have been unmapped.
    let result = unsafe { libc::mincore(start as *mut libc::c_void, len, pages.as_mut_ptr()) };
    if result != 0 {
        return 0;
    }
    (pages.iter().filter(|page| **page & 1 != 0).count() * PAGE_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    const MAPS: &str = "\
560000000000-560000100000 r--p 00000000 fe:01 4711                       /usr/bin/flaz
560000100000-560000900000 r-xp 00100000 fe:01 4711                       /usr/bin/flaz
560000900000-560000980000 r--p 00900000 fe:01 4711                       /usr/bin/flaz
560000980000-5600009a0000 rw-p 00980000 fe:01 4711                       /usr/bin/flaz
5600009a0000-5600009b0000 rw-p 00000000 00:00 0
560001000000-560001100000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000021000 rw-p 00000000 00:00 0
7f0000021000-7f0003fff000 ---p 00000000 00:00 0
7f0003fff000-7f0004000000 ---p 00000000 00:00 0
7f0004000000-7f0004021000 rw-p 00000000 00:00 0
7f0010000000-7f0010001000 ---p 00000000 00:00 0
7f0010001000-7f0010201000 rw-p 00000000 00:00 0
7f0010201000-7f0010202000 ---p 00000000 00:00 0
7f0010202000-7f0010702000 rw-p 00000000 00:00 0
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
";

    #[test]
    fn stacks_are_behind_a_guard_and_heaps_are_none() {
        let expected = [
            (0x7f00_1000_1000, 2 << 20),
            (0x7f00_1020_2000, 2 << 20),
            (0x7ffd_0000_0000, 0x21000),
        ];
        assert_eq!(stacks_in(MAPS), expected);
        assert_eq!(stacks_in("7f00-7e00\nnonsense\n\n"), []);
    }

    #[test]
    fn changed_data_of_files_counts_as_program() {
        let smaps: String = (MAPS.lines())
            .map(|line| format!("{line}\nRss:  64 kB\nAnonymous:   8 kB\nVmFlags: rd wr\n"))
            .collect();
        // Four mappings of the file, and the zeroed data behind.
        assert_eq!(data_in(&smaps), 5 * (8 << 10));
        assert_eq!(kib_of("VmPeak: 9 kB\nVmRSS:\t  300 kB\n", "VmRSS:"), Some(300));
    }

    /// Other tests run in the same process, so the differences are large.
    #[test]
    fn the_parts_of_this_process_are_its_resident_memory() {
        let before = resident().expect("readable");
        assert!(before.program_bytes > 0 && before.stack_bytes > 0, "{before:?}");
        assert!(before.stack_bytes <= before.stack_bytes_max);
        let sum = before.program_bytes + before.stack_bytes + before.heap_bytes;
        assert!(
            sum.abs_diff(before.total_bytes) <= before.total_bytes / 10,
            "{before:?}"
        );
        let large = black_box(vec![1_u8; 200 << 20]);
        let after = resident().expect("readable");
        assert!(after.heap_bytes >= before.heap_bytes + (100 << 20), "{after:?}");
        drop(large);
        let deep = std::thread::spawn(|| {
            let stack = black_box([1_u8; 256 << 10]);
            (resident().expect("readable").stack_bytes, stack[7])
        });
        assert!(deep.join().expect("ends").0 >= 256 << 10);
    }
}
