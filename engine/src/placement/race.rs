//! The race for each slot: who wants it how much, in integers.
//!
//! Weighted rendezvous: a member of weight `w` runs for a slot in the time `-ln(1 - u) / w`, and the fastest owns it;
//! with even `u` that gives each its share exactly. Here `u` is not drawn anew for each pair: a member goes
//! through all slots in an order of its own, and its `j`-th slot has `u` between `j` and `j + 1` of [`SLOTS`]. So
//! every member has exactly its part of short times, which halves the variance of what it wins, and those
//! slots that it may win come first: nothing is computed for the others.

use crate::limits::{RANKS, SLOTS};

use super::Member;

/// Costs are logarithms to base 2 of times, in units of 2^-24.
pub(super) const COST_UNIT_BITS: u32 = 24;

/// Rivals of a slot, on average, when there are more members: enough that practically no slot has fewer than
/// [`RANKS`], and that one which its first rivals have no room for finds another.
const RIVALS: u64 = 20;

const SLOT_BITS: usize = SLOTS.trailing_zeros() as usize;

/// The finaliser of SplitMix64: spreads every bit of `x` over all.
pub(super) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// One member's run for one slot: the cost above the place, so that the order is by cost, then by place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rival(i64);

impl Rival {
    fn new(cost: i32, place: u16) -> Self {
        Self(i64::from(cost) << u16::BITS | i64::from(place))
    }

    /// log2 of its time; the lowest wins.
    pub fn cost(self) -> i64 {
        self.0 >> u16::BITS
    }

    /// Its place in the view.
    pub fn place(self) -> u16 {
        self.0 as u16
    }
}

/// All runs that may matter.
#[derive(Debug)]
pub(super) struct Race {
    /// By slot: `rivals[slot_starts[s]..slot_starts[s + 1]]`, best first.
    slot_starts: Vec<u32>,
    rivals: Vec<Rival>,
    /// By member, best slot first: `runs[run_starts[m]..run_starts[m + 1]]`, slot and cost.
    run_starts: Vec<u32>,
    runs: Vec<(u16, i32)>,
}

impl Race {
    /// Runs the race; those of weight 0 do not take part.
    pub fn new(members: &[Member]) -> Self {
        let tables = Tables::new();
        let racing = members.iter().filter(|member| member.weight > 0).count();
        let mut depth = RIVALS;
        loop {
            let (lengths, deeper) = run_lengths(members, &tables, racing as u64, depth);
            let race = Self::run(members, &tables, &lengths);
            if race.rivals_min() >= racing.min(RANKS) {
                return race;
            }
            depth = deeper + deeper / 2;
        }
    }

    fn run(members: &[Member], tables: &Tables, lengths: &[u32]) -> Self {
        let total: usize = lengths.iter().map(|&length| length as usize).sum();
        let mut runs = Vec::with_capacity(total);
        let mut run_starts = Vec::with_capacity(members.len() + 1);
        let mut slot_starts = vec![0u32; SLOTS as usize + 1];
        for (member, &length) in members.iter().zip(lengths) {
            run_starts.push(runs.len() as u32);
            let weight_log = tables.log2(u64::from(member.weight.max(1)));
            let order = Order::new(member.id.0);
            order.visit(length, |rank, slot, within| {
                runs.push((slot, tables.log_time(rank, within) - weight_log));
                slot_starts[usize::from(slot) + 1] += 1;
            });
        }
        run_starts.push(runs.len() as u32);
        for slot in 0..SLOTS as usize {
            slot_starts[slot + 1] += slot_starts[slot];
        }
        let mut ends = slot_starts.clone();
        let mut rivals = vec![Rival::default(); runs.len()];
        for place in 0..members.len() {
            let range = run_starts[place] as usize..run_starts[place + 1] as usize;
            for &(slot, cost) in &runs[range] {
                let end = &mut ends[usize::from(slot)];
                rivals[*end as usize] = Rival::new(cost, place as u16);
                *end += 1;
            }
        }
        for pair in slot_starts.windows(2) {
            rivals[pair[0] as usize..pair[1] as usize].sort_unstable();
        }
        Self {
            slot_starts,
            rivals,
            run_starts,
            runs,
        }
    }

    fn rivals_min(&self) -> usize {
        let counts = self.slot_starts.windows(2).map(|pair| pair[1] - pair[0]);
        counts.min().unwrap_or(0) as usize
    }

    /// Who runs for a slot, best first.
    pub fn rivals(&self, slot: u16) -> &[Rival] {
        let slot = usize::from(slot);
        &self.rivals[self.slot_starts[slot] as usize..self.slot_starts[slot + 1] as usize]
    }

    /// What a member runs for: slots and costs.
    pub fn runs(&self, place: u16) -> &[(u16, i32)] {
        let place = usize::from(place);
        &self.runs[self.run_starts[place] as usize..self.run_starts[place + 1] as usize]
    }
}

/// How many slots each member runs for so that a slot has `depth` rivals on average, and the depth at which
/// the times had to be cut for that.
fn run_lengths(members: &[Member], tables: &Tables, racing: u64, depth: u64) -> (Vec<u32>, u64) {
    let total: u128 = members.iter().map(|member| u128::from(member.weight)).sum();
    let mut cut = depth;
    loop {
        let length = |member: &Member| {
            if racing <= depth && member.weight > 0 {
                return SLOTS;
            }
            let time = (u128::from(member.weight) * u128::from(cut)) << TIME_UNIT_BITS;
            let time = time.checked_div(total).unwrap_or(0);
            tables.ranks_before(u64::try_from(time).unwrap_or(u64::MAX))
        };
        let lengths: Vec<u32> = members.iter().map(length).collect();
        let sum: u64 = lengths.iter().map(|&length| u64::from(length)).sum();
        if sum >= racing.min(depth) * u64::from(SLOTS) {
            return (lengths, cut);
        }
        cut += cut.div_ceil(8);
    }
}

/// The order in which a member goes through all slots: an affine bijection over the bits of a slot's number.
///
/// Its first 2^k slots, and each 2^k after them, lie one in each 2^k-th of all slots: so its cores, which have
/// contiguous ranges, get their even part.
struct Order {
    first: u16,
    /// What to add (xor) after rank `j`, by the number of ones at the end of `j`.
    steps: [u16; SLOT_BITS],
    seed: u64,
}

impl Order {
    fn new(id: u64) -> Self {
        let seed = mix(id.wrapping_add(GOLDEN));
        let mut state = seed;
        let mut draw = || {
            state = state.wrapping_add(GOLDEN);
            mix(state) as u16
        };
        let mut steps = [0u16; SLOT_BITS];
        // `reduced[k]` has its highest bit at the k-th place from the top: the steps are independent, and
        // the first k of them are so in the k highest bits.
        let mut reduced = [0u16; SLOT_BITS];
        for k in 0..SLOT_BITS {
            let pivot = |k: usize| 1u16 << (SLOT_BITS - 1 - k);
            let mut step;
            loop {
                step = draw();
                let mut rest = step;
                for (earlier, vector) in reduced.iter().enumerate().take(k) {
                    if rest & pivot(earlier) != 0 {
                        rest ^= vector;
                    }
                }
                if rest & pivot(k) != 0 {
                    reduced[k] = rest;
                    break;
                }
            }
            steps[k] = step;
        }
        let first = draw();
        Self { first, steps, seed }
    }

    /// Tells rank, slot and a number that says where between this rank and the next its `u` lies, for the
    /// first `length` slots.
    fn visit(&self, length: u32, mut each: impl FnMut(u32, u16, u16)) {
        let mut slot = self.first;
        for rank in 0..length.min(SLOTS) {
            let within = mix(self.seed ^ u64::from(rank + 1).wrapping_mul(GOLDEN)) as u16;
            each(rank, slot, within);
            slot ^= self.steps[(rank.trailing_ones() as usize).min(SLOT_BITS - 1)];
        }
    }
}

/// Times are in units of 2^-44.
const TIME_UNIT_BITS: u32 = 44;
const LOG_BITS: u32 = 12;

/// Logarithms, built from integer divisions and squarings only: the same on every machine.
struct Tables {
    /// `-ln(1 - j / SLOTS)`, for j from 0 to `SLOTS`; the last one, which is infinite, is only large.
    times: Vec<u64>,
    /// `log2(1 + i / 2^LOG_BITS)` in units of a cost.
    logs: Vec<u32>,
}

impl Tables {
    fn new() -> Self {
        let logs = (0..=1u64 << LOG_BITS).map(|i| log2_digits((1 << LOG_BITS) + i));
        let mut times = Vec::with_capacity(SLOTS as usize + 1);
        let mut time = 0;
        for left in (1..=u64::from(SLOTS)).rev() {
            times.push(time);
            time += ln_step(left);
        }
        times.push(time);
        Self {
            times,
            logs: logs.collect(),
        }
    }

    /// log2 of the time of a run, before weight: `within` 2^-16-ths of the way from `rank` to the next.
    fn log_time(&self, rank: u32, within: u16) -> i32 {
        let (from, to) = (self.times[rank as usize], self.times[rank as usize + 1]);
        let within = 2 * u64::from(within) + 1;
        self.log2(from + (((to - from) * within) >> 17))
    }

    /// log2 of an integer that is not 0, in units of a cost. Off by less than two units.
    fn log2(&self, value: u64) -> i32 {
        let zeros = value.leading_zeros();
        let whole = (63 - zeros) << COST_UNIT_BITS;
        let digits = (value << zeros) << 1;
        let at = (digits >> (64 - LOG_BITS)) as usize;
        let rest = (digits << LOG_BITS) >> 32;
        let (low, high) = (self.logs[at], self.logs[at + 1]);
        let part = (u64::from(high - low) * rest) >> 32;
        (whole + low + part as u32) as i32
    }

    /// The number of ranks that begin before `time`.
    fn ranks_before(&self, time: u64) -> u32 {
        let begins = &self.times[..SLOTS as usize];
        begins.partition_point(|&begin| begin < time) as u32
    }
}

/// `ln(left / (left - 1))` as `2 atanh(1 / (2 left - 1))`, off by less than one unit for each term. Where that is
/// infinite, 2: no one cares how late the last slot of an order is.
fn ln_step(left: u64) -> u64 {
    if left == 1 {
        return 2 << TIME_UNIT_BITS;
    }
    let x = 2 * left - 1;
    let mut power = (2 << TIME_UNIT_BITS) / x;
    let (mut sum, mut odd) = (0, 1);
    while power > 0 {
        sum += power / odd;
        power /= x * x;
        odd += 2;
    }
    sum
}

/// log2 of `value / 2^LOG_BITS`, which lies from 1 to 2, in units of a cost, digit by digit: squaring a number
/// doubles its logarithm.
fn log2_digits(value: u64) -> u32 {
    if value == 2 << LOG_BITS {
        return 1 << COST_UNIT_BITS;
    }
    let mut y = u128::from(value) << (62 - LOG_BITS);
    let mut log = 0;
    for _ in 0..COST_UNIT_BITS {
        y = (y * y) >> 62;
        log <<= 1;
        if y >= 1 << 63 {
            y >>= 1;
            log |= 1;
        }
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The claim of the decision record: a cost is off by less than four units, so the odds of one member
    /// against another by less than 2 x 10^-7.
    #[test]
    fn costs_are_close_to_the_logarithms_that_they_stand_for() {
        let tables = Tables::new();
        let unit = f64::from(1u32 << COST_UNIT_BITS);
        for value in (0..64).flat_map(|bit| [1u64 << bit, (1 << bit) | 0x5a5a_1234 >> (bit % 31)]) {
            let off = (value as f64).log2() * unit - f64::from(tables.log2(value));
            assert!((-0.5..2.5).contains(&off), "log2({value}) is off by {off}");
        }
        for rank in 1..SLOTS - 1 {
            let exact = -(-f64::from(rank) / f64::from(SLOTS)).ln_1p();
            let time = tables.times[rank as usize] as f64 / (1u64 << TIME_UNIT_BITS) as f64;
            let off = (time / exact).log2() * unit;
            assert!(off.abs() < 1.0, "the time of rank {rank} is off by {off}");
        }
    }

    #[test]
    fn an_order_holds_each_slot_once_and_spreads_over_the_cores() {
        for id in [0, 1, 77, u64::MAX] {
            let mut slots = Vec::new();
            Order::new(id).visit(SLOTS, |_, slot, _| slots.push(slot));
            for bits in 1..=8 {
                for chunk in slots.chunks(1 << bits).take(64) {
                    let mut ranges: Vec<u16> =
                        chunk.iter().map(|slot| slot >> (16 - bits)).collect();
                    ranges.sort_unstable();
                    assert!(
                        ranges.iter().copied().eq(0..1 << bits),
                        "id {id}: {ranges:?}"
                    );
                }
            }
            slots.sort_unstable();
            assert!(slots.into_iter().eq(0..=u16::MAX), "id {id}");
        }
    }
}
