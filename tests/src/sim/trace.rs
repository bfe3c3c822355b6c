//! The event hash: everything that happens in a run, folded into 64 bits in order.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use forebay_engine::ports::Time;
use parking_lot::Mutex;

use super::rng::mix;

/// Lines kept to be shown with a failure.
const TAIL_LINES: usize = 60;

/// The one trace of a simulated world; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Trace(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    hash: u64,
    events: u64,
    print: bool,
    tail: VecDeque<String>,
}

impl Trace {
    /// A trace that also prints every event when `print` is set.
    pub fn new(print: bool) -> Self {
        Self(Arc::new(Mutex::new(State {
            print,
            ..State::default()
        })))
    }

    /// Folds one event in. Its text is the event: what the text does not say is not compared.
    pub fn event(&self, at: Time, text: fmt::Arguments<'_>) {
        let line = format!("{:>14} {text}", at.0);
        let mut state = self.0.lock();
        // Eight bytes at a time, the length last: no two texts fold the same way by padding.
        let mut hash = state.hash;
        for piece in line.as_bytes().chunks(8) {
            let mut word = [0u8; 8];
            word[..piece.len()].copy_from_slice(piece);
            hash = mix(hash.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_add(1);
        }
        state.hash = mix(hash ^ line.len() as u64);
        state.events += 1;
        if state.print {
            println!("{line}");
        }
        if state.tail.len() == TAIL_LINES {
            state.tail.pop_front();
        }
        state.tail.push_back(line);
    }

    /// The hash of all events so far.
    pub fn hash(&self) -> u64 {
        self.0.lock().hash
    }

    /// How many events there were.
    pub fn events(&self) -> u64 {
        self.0.lock().events
    }

    /// The last events, oldest first.
    pub fn tail(&self) -> Vec<String> {
        self.0.lock().tail.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash_of(lines: &[(u64, &str)]) -> u64 {
        let trace = Trace::default();
        lines
            .iter()
            .for_each(|(at, text)| trace.event(Time(*at), format_args!("{text}")));
        trace.hash()
    }

    #[test]
    fn order_time_and_text_all_count() {
        let whole = hash_of(&[(1, "a"), (2, "b")]);
        assert_eq!(whole, hash_of(&[(1, "a"), (2, "b")]));
        for other in [
            &[(2, "b"), (1, "a")][..],
            &[(1, "a"), (3, "b")],
            &[(1, "a")],
            &[(1, "a"), (2, "c")],
        ] {
            assert_ne!(whole, hash_of(other));
        }
    }
}
