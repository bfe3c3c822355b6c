//! What must come after what when a trace is replayed, and who does it.
//!
//! A reader that had one access under way at a time is one strand: its accesses follow each other. One whose kernel reads ahead, or that
//! asks for several at once, is several, as many as it had under way. What its accesses waited for they wait for again: each begins when
//! all that had ended before it began have ended. Strands that were over before others began share a thread; a second strand of a reader
//! that is idle for long is over.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use anyhow::{Result, ensure};

use super::{Deed, Trace};

/// Threads at a time: more readers at once are refused.
pub const STRANDS_MAX: usize = 1_024;
/// What one reader has under way at a time; what is more waits.
const WIDTH_MAX: usize = 64;
/// What a reader asks for beside something else after so long is another strand: what several readers do now and then takes no thread of
/// each.
const IDLE_NS: u64 = 1_000_000_000;

/// Accesses that follow each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strand {
    /// Whose.
    pub reader: u32,
    /// Numbers of accesses.
    pub accesses: Vec<u32>,
    ends_ns: u64,
}

/// Who does what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// For each thread, strands one after the other.
    pub threads: Vec<Vec<Strand>>,
    /// For each access, how many of its reader's must have ended before it, in the order of their ends; and its own place in that order.
    pub needs: Vec<(u32, u32)>,
    /// For each handle, whether its opening is in the trace.
    pub opened: Vec<bool>,
    /// For each handle, its reads.
    pub reads: Vec<u32>,
}

impl Plan {
    /// Of a trace.
    ///
    /// # Errors
    /// When too many readers were busy at a time.
    pub fn of(trace: &Trace) -> Result<Plan> {
        let mut plan = Plan {
            threads: threads(strands(trace), trace),
            needs: needs(trace),
            ..Plan::default()
        };
        let count = plan.threads.len();
        ensure!(
            count <= STRANDS_MAX,
            "{count} readers were there at a time (each from its first access to its last; who asked for several things at once counts as several): {STRANDS_MAX} can be replayed. Record for less long, or fewer of them"
        );
        plan.opened = vec![false; trace.handles.len()];
        plan.reads = vec![0; trace.handles.len()];
        for access in &trace.accesses {
            let handle = access.handle as usize;
            match access.deed {
                // What is read before it was opened (a trace that was patched together) is opened by its reader.
                Deed::Open => plan.opened[handle] = plan.reads[handle] == 0,
                Deed::Read { .. } => plan.reads[handle] += 1,
                Deed::Close => {}
            }
        }
        Ok(plan)
    }
}

/// The readers' strands, in the order of their beginning.
fn strands(trace: &Trace) -> Vec<Strand> {
    let mut readers: Vec<Vec<Strand>> = vec![Vec::new(); trace.readers as usize];
    let mut all: Vec<Strand> = Vec::new();
    for (number, access) in trace.accesses.iter().enumerate() {
        let own = &mut readers[access.reader as usize];
        let free = own.iter().position(|one| one.ends_ns <= access.at_ns);
        let new = Strand {
            reader: access.reader,
            ..Strand::default()
        };
        let place = match free {
            Some(place) => {
                let idle_ns = access.at_ns - own[place].ends_ns;
                // The first stays: it is the reader itself.
                if place > 0 && idle_ns >= IDLE_NS {
                    all.push(std::mem::replace(&mut own[place], new));
                }
                place
            }
            None if own.len() < WIDTH_MAX => {
                own.push(new);
                own.len() - 1
            }
            None => {
                let ends = own.iter().enumerate().min_by_key(|(_, one)| one.ends_ns);
                ends.map_or(0, |(place, _)| place)
            }
        };
        own[place].accesses.push(number as u32);
        own[place].ends_ns = own[place].ends_ns.max(access.end_ns());
    }
    all.extend(readers.into_iter().flatten());
    all.sort_by_key(|strand| strand.accesses[0]);
    all
}

/// Strands one after the other where the one was over before the next began.
fn threads(strands: Vec<Strand>, trace: &Trace) -> Vec<Vec<Strand>> {
    let mut threads: Vec<Vec<Strand>> = Vec::new();
    let mut free: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    for strand in strands {
        let begin = trace.accesses[strand.accesses[0] as usize].at_ns;
        let place = match free.peek() {
            Some(Reverse((over, place))) if *over <= begin => {
                let place = *place;
                free.pop();
                place
            }
            _ => {
                threads.push(Vec::new());
                threads.len() - 1
            }
        };
        free.push(Reverse((strand.ends_ns, place)));
        threads[place].push(strand);
    }
    threads
}

/// See [`Plan::needs`].
fn needs(trace: &Trace) -> Vec<(u32, u32)> {
    let mut ends: Vec<Vec<(u64, u32)>> = vec![Vec::new(); trace.readers as usize];
    for (number, access) in trace.accesses.iter().enumerate() {
        if access.deed != Deed::Close {
            ends[access.reader as usize].push((access.end_ns(), number as u32));
        }
    }
    let mut needs = vec![(0, 0); trace.accesses.len()];
    for own in &mut ends {
        own.sort_unstable();
        for (place, (_, number)) in own.iter().enumerate() {
            needs[*number as usize].1 = place as u32;
        }
    }
    for (number, access) in trace.accesses.iter().enumerate() {
        let own = &ends[access.reader as usize];
        needs[number].0 = own.partition_point(|(end, _)| *end <= access.at_ns) as u32;
    }
    needs
}

#[cfg(test)]
mod tests {
    use forebay_cli::trace::format::Record;

    use super::super::tests::{of, read, timed};
    use super::*;

    #[test]
    fn what_was_at_the_same_time_is_again_and_what_waited_waits() -> Result<()> {
        let trace = of(&[
            Record::File {
                size_bytes: 1 << 20,
                name: None,
            },
            Record::Handle { file: 0 },
            Record::Open(timed(0, 5, 0, 0)),
            // Two at once, then one that came after both; and one reader more, after all of that.
            read(timed(10, 20, 0, 0), 0, 1),
            read(timed(15, 5, 0, 0), 1, 1),
            read(timed(40, 5, 0, 0), 2, 1),
            read(timed(50, 5, 1, 0), 3, 1),
            Record::Close(timed(60, 1, 2, 0)),
            Record::End {
                elapsed_ns: 100,
                accesses: 6,
            },
        ])?;
        let plan = Plan::of(&trace)?;
        let of_threads: Vec<Vec<(u32, Vec<u32>)>> = plan
            .threads
            .iter()
            .map(|thread| {
                let strands = thread.iter();
                strands
                    .map(|one| (one.reader, one.accesses.clone()))
                    .collect()
            })
            .collect();
        assert_eq!(
            of_threads,
            [
                vec![(0, vec![0, 1, 3]), (2, vec![5])],
                vec![(0, vec![2]), (1, vec![4])]
            ]
        );
        // The second read ends before the first.
        assert_eq!(plan.needs[..4], [(0, 0), (1, 2), (1, 1), (3, 3)]);
        assert_eq!((&plan.opened[..], &plan.reads[..]), (&[true][..], &[4][..]));
        Ok(())
    }

    /// Readers that each have two reads under way for an instant, one reader after the other, take no second thread of each.
    #[test]
    fn what_is_idle_for_long_takes_no_thread() -> Result<()> {
        const READERS: u32 = 700;
        let mut records = vec![
            Record::File {
                size_bytes: 1,
                name: None,
            },
            Record::Handle { file: 0 },
        ];
        for round in 0..2 {
            for reader in 0..READERS {
                let at = (u64::from(round * READERS + reader)) * 10_000_000;
                for begin in [at, at + 10] {
                    records.push(read(timed(begin, 1_000, reader, 0), 0, 1));
                }
            }
        }
        records.push(Record::End {
            elapsed_ns: 1 << 40,
            accesses: u64::from(READERS) * 4,
        });
        let plan = Plan::of(&of(&records)?)?;
        assert_eq!(plan.threads.len(), READERS as usize + 1);
        let strands = plan.threads.iter().flatten();
        let accesses: usize = strands.map(|strand| strand.accesses.len()).sum();
        assert_eq!(accesses, READERS as usize * 4);
        Ok(())
    }

    #[test]
    fn no_thread_waits_for_what_comes_after_it() -> Result<()> {
        let mut records = vec![
            Record::File {
                size_bytes: 1 << 20,
                name: None,
            },
            Record::Handle { file: 0 },
        ];
        let mut rng = crate::load::Rng(7);
        let mut at = 0;
        let mut met = 0;
        for _ in 0..2_000 {
            at += rng.next() % 40;
            let reader = (rng.next() % 20).min(met) as u32;
            met = met.max(u64::from(reader) + 1);
            records.push(read(timed(at, rng.next() % 200, reader, 0), 0, 1));
        }
        records.push(Record::End {
            elapsed_ns: at,
            accesses: 2_000,
        });
        let trace = of(&records)?;
        let plan = Plan::of(&trace)?;
        // Threads do their accesses in order: whatever an access needs has a smaller number.
        let mut seen = 0;
        for thread in &plan.threads {
            let numbers = thread.iter().flat_map(|strand| &strand.accesses);
            let numbers: Vec<u32> = numbers.copied().collect();
            assert!(numbers.is_sorted(), "{numbers:?}");
            seen += numbers.len();
        }
        assert_eq!(seen, 2_000);
        for (number, access) in trace.accesses.iter().enumerate() {
            let before = trace.accesses.iter().enumerate();
            let before = before.filter(|(_, one)| one.reader == access.reader);
            for (other, one) in before {
                let waits = plan.needs[number].0 > plan.needs[other].1;
                assert!(!waits || other < number, "{number} waits for {other}");
                assert_eq!(waits, one.end_ns() <= access.at_ns);
            }
        }
        Ok(())
    }
}
