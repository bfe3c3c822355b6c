//! Content that is a function of (seed, offset): huge objects that cost no memory.

use std::sync::OnceLock;

/// Words of eight bytes in one page of content.
const PAGE_WORDS: usize = 512;
/// Bytes of one page of content.
const PAGE_BYTES: u64 = (PAGE_WORDS * 8) as u64;

fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// One page of noise that every page of content is derived from, so that making content costs
/// about as much as copying it.
fn noise() -> &'static [u64; PAGE_WORDS] {
    static NOISE: OnceLock<[u64; PAGE_WORDS]> = OnceLock::new();
    NOISE.get_or_init(|| std::array::from_fn(|n| mix(n as u64)))
}

/// Fills `buf` with the content of a synthetic object of `seed` from byte `offset`.
///
/// Two pages (4 KiB) of one object, or the same page of objects with different seeds, differ in
/// every word; so do two words of one page. Bytes from a wrong place or a wrong object are seen.
pub fn synthetic_bytes(seed: u64, offset: u64, buf: &mut [u8]) {
    let mut offset = offset;
    let mut rest = buf;
    while !rest.is_empty() {
        let at = (offset % PAGE_BYTES) as usize;
        let take = rest.len().min(PAGE_BYTES as usize - at);
        let (piece, tail) = rest.split_at_mut(take);
        fill_within_page(mix(mix(seed) ^ (offset / PAGE_BYTES)), at, piece);
        offset += take as u64;
        rest = tail;
    }
}

fn fill_within_page(page: u64, at: usize, piece: &mut [u8]) {
    let noise = noise();
    let head = (8 - at % 8) % 8;
    let head = head.min(piece.len());
    for (n, byte) in piece[..head].iter_mut().enumerate() {
        *byte = (noise[(at + n) / 8] ^ page).to_le_bytes()[(at + n) % 8];
    }
    let first_word = (at + head) / 8;
    let words = piece[head..].chunks_exact_mut(8);
    for (bytes, word) in words.zip(&noise[first_word.min(PAGE_WORDS)..]) {
        bytes.copy_from_slice(&(word ^ page).to_le_bytes());
    }
    let done = head + (piece.len() - head) / 8 * 8;
    for n in done..piece.len() {
        piece[n] = (noise[(at + n) / 8] ^ page).to_le_bytes()[(at + n) % 8];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_gives_the_same_bytes() {
        let mut whole = vec![0; 3 * PAGE_BYTES as usize + 5];
        synthetic_bytes(7, 0, &mut whole);
        for (start, len) in [
            (0, 1),
            (1, 7),
            (3, 9),
            (4090, 12),
            (4096, 4096),
            (5, 8200),
            (4099, 2),
        ] {
            let mut part = vec![0; len];
            synthetic_bytes(7, start as u64, &mut part);
            assert_eq!(part, whole[start..start + len], "from {start}, {len} bytes");
        }
    }

    #[test]
    fn seeds_and_pages_differ() {
        let page = |seed, n: u64| {
            let mut bytes = [0; PAGE_BYTES as usize];
            synthetic_bytes(seed, n * PAGE_BYTES, &mut bytes);
            bytes
        };
        let (a, b, c) = (page(1, 0), page(1, 1), page(2, 0));
        for (x, y) in [(&a, &b), (&a, &c)] {
            assert!(x.chunks(8).zip(y.chunks(8)).all(|(x, y)| x != y));
        }
    }
}
