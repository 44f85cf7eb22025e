//! The machines of the paper: one or several disks and SSDs, each set a stripe.
//!
//! A device is one of [`flaz_runtime::emulate`], in the time of its environment, virtual or real: an SSD with several accesses at a time, a
//! disk that orders the requests that wait. A stripe splits a request over its members.

use std::rc::Rc;

use flaz_device::{Device, DeviceError, Env, IoBuf};
use flaz_engine::units::BLOCK_BYTES;
use flaz_runtime::emulate::{Emulated, Model};
use flaz_sim::disk::Background;

use crate::memory::Memory;

/// Bytes of a stripe on one member.
pub const CHUNK_BYTES: u64 = 64 << 10;

/// Number of disks and SSDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Name in the paper.
    pub name: &'static str,
    /// Disks of the origin.
    pub disks: u32,
    /// SSDs of the cache.
    pub ssds: u32,
    /// A disk.
    pub disk: Model,
    /// An SSD.
    pub ssd: Model,
}

impl Machine {
    /// Those of the paper.
    pub const ALL: [Self; 3] = [
        Self::of_the_paper("1D1S", 1, 1),
        Self::of_the_paper("8D2S", 8, 2),
        Self::of_the_paper("8D4S", 8, 4),
    ];

    const fn of_the_paper(name: &'static str, disks: u32, ssds: u32) -> Self {
        Self {
            name,
            disks,
            ssds,
            disk: Model::QUEUEING_HDD,
            ssd: Model::SSD,
        }
    }

    /// The origin, of at least `len` bytes.
    #[must_use]
    pub fn origin<E: Env>(&self, env: &E, len: u64, contents: &Background) -> Stripe<E> {
        Stripe::new(env, self.disk, self.disks, len, Some(contents))
    }

    /// The cache device, of at least `len` bytes.
    #[must_use]
    pub fn cache<E: Env>(&self, env: &E, len: u64) -> Stripe<E> {
        Stripe::new(env, self.ssd, self.ssds, len, None)
    }
}

/// Modelled devices whose bytes alternate. Clones are the same devices.
#[derive(Clone)]
pub struct Stripe<E> {
    members: Rc<[Emulated<Memory, E>]>,
}

/// The part of a range that one member has: contiguous there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    member: usize,
    offset: u64,
    len: u64,
}

impl<E: Env> Stripe<E> {
    fn new(env: &E, model: Model, count: u32, len: u64, contents: Option<&Background>) -> Self {
        let count = u64::from(count);
        let member_len = len.div_ceil(CHUNK_BYTES * count) * CHUNK_BYTES;
        let pages = CHUNK_BYTES / BLOCK_BYTES as u64;
        let member = |number: u64| {
            let background = contents.map(|contents| {
                let contents = contents.clone();
                let of_page = move |page: u64, bytes: &mut [u8; BLOCK_BYTES]| {
                    contents((page / pages * count + number) * pages + page % pages, bytes);
                };
                std::sync::Arc::new(of_page) as Background
            });
            Emulated::without_warning(Memory::new(member_len, background), env.clone(), model)
        };
        Self {
            members: (0..count).map(member).collect(),
        }
    }

    fn count(&self) -> u64 {
        self.members.len() as u64
    }

    /// Member and its offset of a byte.
    fn place(&self, offset: u64) -> (usize, u64) {
        let (chunk, within) = (offset / CHUNK_BYTES, offset % CHUNK_BYTES);
        let member = chunk % self.count();
        (member as usize, chunk / self.count() * CHUNK_BYTES + within)
    }

    /// Pieces of a range, in order, each within a chunk: their member, its offset, and their length.
    fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = Part> + '_ {
        let end = offset + len;
        let mut at = offset;
        std::iter::from_fn(move || {
            let next = ((at / CHUNK_BYTES + 1) * CHUNK_BYTES).min(end);
            let (member, place) = self.place(at);
            let part = Part {
                member,
                offset: place,
                len: next - at,
            };
            let more = at < end;
            at = next;
            more.then_some(part)
        })
    }

    /// What each member has of a range.
    fn parts(&self, offset: u64, len: u64) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        for piece in self.pieces(offset, len) {
            match parts.iter_mut().find(|part| part.member == piece.member) {
                Some(part) => part.len += piece.len,
                None => parts.push(piece),
            }
        }
        parts
    }

    /// Runs an operation on each part at the same time; the first error counts.
    async fn each<F: Future<Output = Result<(), DeviceError>>>(
        &self,
        parts: Vec<Part>,
        operation: impl Fn(Part) -> F,
    ) -> Result<(), DeviceError> {
        let all = futures_util::future::join_all(parts.into_iter().map(operation));
        all.await.into_iter().collect()
    }
}

impl<E: Env> Device for Stripe<E> {
    fn len(&self) -> u64 {
        self.members[0].len() * self.count()
    }

    fn alignment(&self) -> u32 {
        self.members[0].alignment()
    }

    fn has_volatile_cache(&self) -> bool {
        self.members[0].has_volatile_cache()
    }

    async fn read_at(&self, offset: u64, mut buf: IoBuf) -> (IoBuf, Result<(), DeviceError>) {
        let parts = self.parts(offset, buf.len() as u64);
        if let [part] = parts[..] {
            return self.members[part.member].read_at(part.offset, buf).await;
        }
        let reads = parts
            .iter()
            .map(|part| self.members[part.member].read_at(part.offset, IoBuf::new(part.len as usize)));
        let mut read = Vec::new();
        for (data, result) in futures_util::future::join_all(reads).await {
            if let Err(error) = result {
                return (buf, Err(error));
            }
            read.push(data);
        }
        let mut at = 0;
        for piece in self.pieces(offset, buf.len() as u64) {
            let number = parts.iter().position(|part| part.member == piece.member);
            let number = number.expect("each piece is in a part");
            let from = (piece.offset - parts[number].offset) as usize;
            let len = piece.len as usize;
            buf[at..at + len].copy_from_slice(&read[number][from..from + len]);
            at += len;
        }
        (buf, Ok(()))
    }

    async fn write_at(&self, offset: u64, buf: IoBuf, fua: bool) -> (IoBuf, Result<(), DeviceError>) {
        let parts = self.parts(offset, buf.len() as u64);
        if let [part] = parts[..] {
            return self.members[part.member].write_at(part.offset, buf, fua).await;
        }
        let mut data: Vec<IoBuf> = parts.iter().map(|part| IoBuf::new(part.len as usize)).collect();
        let mut at = 0;
        for piece in self.pieces(offset, buf.len() as u64) {
            let number = parts.iter().position(|part| part.member == piece.member);
            let number = number.expect("each piece is in a part");
            let to = (piece.offset - parts[number].offset) as usize;
            let len = piece.len as usize;
            data[number][to..to + len].copy_from_slice(&buf[at..at + len]);
            at += len;
        }
        let writes = (parts.iter().zip(data))
            .map(|(part, data)| self.members[part.member].write_at(part.offset, data, fua));
        let results = futures_util::future::join_all(writes).await;
        let result = results.into_iter().try_for_each(|(_, result)| result);
        (buf, result)
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        let flushes = self.members.iter().map(Device::flush);
        let all = futures_util::future::join_all(flushes).await;
        all.into_iter().collect()
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.each(self.parts(offset, len), |part| {
            self.members[part.member].discard(part.offset, part.len)
        })
        .await
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        may_unmap: bool,
        fua: bool,
    ) -> Result<(), DeviceError> {
        self.each(self.parts(offset, len), |part| {
            self.members[part.member].write_zeroes(part.offset, part.len, may_unmap, fua)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use flaz_device::Env;
    use flaz_sim::Sim;

    use super::*;

    fn numbered() -> Background {
        Arc::new(|block, bytes: &mut [u8; BLOCK_BYTES]| bytes.fill(block as u8))
    }

    #[test]
    fn a_stripe_has_the_bytes_in_order() {
        let sim = Sim::new(1);
        let env = sim.env();
        let stripe = Machine::ALL[1].origin(&env, 16 << 20, &numbered());
        assert_eq!(stripe.len(), 16 << 20);
        sim.block_on(async {
            let offset = 3 * CHUNK_BYTES - 8192;
            let (data, result) = stripe.read_at(offset, IoBuf::new(40 << 12)).await;
            result.expect("read");
            for (number, block) in data.chunks_exact(BLOCK_BYTES).enumerate() {
                let expected = (offset / 4096 + number as u64) as u8;
                assert!(block.iter().all(|byte| *byte == expected), "block {number}");
            }
            let mut new = IoBuf::zeroed(20 << 12);
            for (number, block) in new.chunks_exact_mut(BLOCK_BYTES).enumerate() {
                block.fill(100 + number as u8);
            }
            let (new, result) = stripe.write_at(60 << 12, new, false).await;
            result.expect("written");
            let (back, result) = stripe.read_at(60 << 12, IoBuf::new(20 << 12)).await;
            result.expect("read");
            assert_eq!(&back[..], &new[..]);
        });
    }

    #[test]
    fn members_work_at_the_same_time() {
        let sim = Sim::new(1);
        let env = sim.env();
        let took = |machine: Machine| {
            let stripe = machine.origin(&env, 512 << 20, &numbered());
            sim.block_on(async {
                let before = env.now();
                // Of eight different members, and too far apart for one to wait until the next one passes under the head.
                let chunks = (0..8).map(|number| number * 1001);
                let reads = chunks.map(|chunk| stripe.read_at(chunk * CHUNK_BYTES, IoBuf::new(4096)));
                futures_util::future::join_all(reads).await;
                env.now().since(before)
            })
        };
        // A seek and up to a turn, and seven of them one after another.
        let ms = Duration::from_millis;
        let (one, eight) = (took(Machine::ALL[0]), took(Machine::ALL[1]));
        assert!(one > 7 * ms(5), "{one:?}");
        assert!(eight > ms(4) && eight < ms(25), "{eight:?}");
    }
}
