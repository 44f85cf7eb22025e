//! Write data: buffers cut as the volume requires.

use flaz_device::IoBuf;
use flaz_engine::volume::{Segments, segment_lens};

/// Buffers for `len` bytes at `offset`. `front` becomes their first bytes.
pub(super) fn segments(offset: u64, len: u32, front: &[u8]) -> Segments {
    let mut front = front;
    segment_lens(offset, u64::from(len))
        .map(|segment_len| {
            let mut segment = IoBuf::new(segment_len);
            let (now, later) = front.split_at(front.len().min(segment_len));
            segment[..now.len()].copy_from_slice(now);
            front = later;
            segment
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_cut_at_stripes_and_the_front_is_filled() {
        let front: Vec<u8> = (0..10).collect();
        let segments = segments((1 << 20) - 4, 20, &front);
        assert_eq!(
            segments.iter().map(|segment| segment.len()).collect::<Vec<_>>(),
            [4, 16]
        );
        assert_eq!(segments[0][..], front[..4]);
        assert_eq!(segments[1][..6], front[4..]);
    }
}
