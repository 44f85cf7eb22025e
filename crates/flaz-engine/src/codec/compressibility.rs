//! Two cheap looks at a block before a codec gets it.

/// The byte that the whole block consists of, if there is one. Costs almost nothing on other blocks.
#[must_use]
pub fn single_value(block: &[u8]) -> Option<u8> {
    let first = *block.first()?;
    let word = u64::from_ne_bytes([first; 8]);
    let (head, _) = block.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
    if block.len() >= 8 && u64::from_ne_bytes(*head) != word {
        return None;
    }
    let mut chunks = block.chunks_exact(64);
    for chunk in &mut chunks {
        if chunk.iter().fold(0, |differing, byte| differing | (byte ^ first)) != 0 {
            return None;
        }
    }
    chunks
        .remainder()
        .iter()
        .all(|byte| *byte == first)
        .then_some(first)
}

/// dummy
#[must_use]
pub fn looks_incompressible(_block: &[u8]) -> bool {
    false
}
