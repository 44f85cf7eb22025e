//! Writes generated data to a file or a pipe.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::thread;
use std::time::{Duration, Instant};

use crate::generator::Generator;
use crate::pool::FillSpeed;

/// Bytes generated and written at a time: one piece per thread.
const PIECE_BYTES: u64 = 4 << 20;
/// Maximum number of generating threads.
const THREADS_MAX: usize = 64;

/// Writes `size_bytes` bytes of data from offset 0 to `out`; `progress` receives the number of bytes written. Returns
/// the time spent on generating, summed over all threads, without writing.
///
/// # Errors
/// The error of `out`; a reader that closed the pipe is [`io::ErrorKind::BrokenPipe`].
pub fn write(
    generator: &Generator,
    size_bytes: u64,
    threads: NonZeroUsize,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64),
) -> io::Result<FillSpeed> {
    let threads = threads.get().min(THREADS_MAX);
    let piece_bytes = PIECE_BYTES.max(generator.spec().chunk_bytes);
    let mut buffer = vec![0; (piece_bytes * threads as u64).min(size_bytes.max(1)) as usize];
    let mut speed = FillSpeed {
        bytes: 0,
        elapsed: Duration::ZERO,
        threads: 1,
    };
    let mut at = 0;
    while at < size_bytes {
        let len = (size_bytes - at).min(buffer.len() as u64) as usize;
        let batch = &mut buffer[..len];
        thread::scope(|scope| {
            let workers: Vec<_> = batch
                .chunks_mut(piece_bytes as usize)
                .enumerate()
                .map(|(number, piece)| {
                    let offset = at + number as u64 * piece_bytes;
                    scope.spawn(move || {
                        let began = Instant::now();
                        generator.fill(offset, piece);
                        began.elapsed()
                    })
                })
                .collect();
            for worker in workers {
                // Passes a panic of the generator on.
                speed.elapsed += worker
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            }
        });
        out.write_all(batch)?;
        at += len as u64;
        speed.bytes = at;
        progress(at);
    }
    out.flush()?;
    Ok(speed)
}
