use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn block(number: u32) -> BlockId {
    BlockId {
        object: ObjectId(u128::from(number / 4) << 64 | 0x5eed),
        index: number % 4,
    }
}

fn extent(number: u32, first_page: u16, pages: u16, page: u16) -> Extent {
    Extent {
        block: block(number),
        first_page,
        pages,
        place: Place::new(3, 17, page),
        stamp: 0,
        pinned: false,
        short_bytes: 0,
        given_to: 0,
    }
}

fn kept(index: &mut DiskIndex, extent: Extent) -> bool {
    index.insert(extent, &mut |_| {})
}

#[test]
fn a_place_keeps_device_and_region_apart() {
    let place = Place::new(63, (1 << REGION_BITS) - 1, 9);
    assert_eq!(
        (place.device(), place.region(), place.page),
        (63, (1 << REGION_BITS) - 1, 9)
    );
    assert_eq!(Place::new(0, 5, 9).device(), 0);
}

#[test]
fn the_extent_with_the_most_pages_from_there_is_found_and_of_equals_the_newest() {
    let mut index = DiskIndex::new(16);
    assert!(kept(&mut index, extent(1, 0, 16, 1)));
    assert!(kept(&mut index, extent(1, 8, 24, 2)));
    assert!(kept(&mut index, extent(2, 0, 64, 3)));
    let found = |index: &DiskIndex, page| index.find(block(1), page).map(|e| e.place.page);
    assert_eq!(
        [0, 7, 8, 31, 32].map(|page| found(&index, page)),
        [Some(1), Some(1), Some(2), Some(2), None]
    );
    assert!(kept(&mut index, extent(1, 4, 28, 4)));
    assert_eq!(found(&index, 9), Some(4), "it enclosed the second");
    assert_eq!(index.extents(block(1)).count(), 2);
}

#[test]
fn a_full_index_refuses_but_what_is_enclosed_makes_room() {
    let mut index = DiskIndex::new(2);
    assert!(kept(&mut index, extent(1, 0, 4, 1)));
    assert!(kept(&mut index, extent(1, 8, 4, 2)));
    let before: Vec<Extent> = index.iter().collect();
    assert!(!kept(&mut index, extent(2, 0, 4, 3)));
    assert_eq!(index.iter().collect::<Vec<_>>(), before);
    let mut removed = Vec::new();
    assert!(index.insert(extent(1, 0, 12, 4), &mut |e| removed.push(e)));
    assert_eq!(removed, [extent(1, 8, 4, 2), extent(1, 0, 4, 1)]);
    assert_eq!(index.len(), 1);
}

#[test]
fn memory_stays_below_its_bound_at_every_size() {
    for entries_max in [4096usize, (1 << 16) + 1, 100_000, 1 << 17] {
        let mut index = DiskIndex::new(entries_max);
        for number in 0..entries_max as u32 {
            let mut extent = extent(0, 0, 1, 1);
            extent.block.object = ObjectId(u128::from(number).wrapping_mul(u128::MAX / 0x9e37));
            assert!(kept(&mut index, extent));
        }
        assert_eq!(index.len(), entries_max);
        let each = index.memory_bytes().div_ceil(entries_max);
        assert!(
            each + GHOST_BYTES <= DISK_ENTRY_BYTES,
            "{entries_max}: {each}"
        );
    }
}

#[test]
fn chains_stay_short() {
    let mut index = DiskIndex::new(1 << 16);
    for number in 0..1u32 << 16 {
        // Blocks of few objects: the index alone must spread them.
        let mut extent = extent(0, 0, 1, 1);
        extent.block = BlockId {
            object: ObjectId(u128::from(number % 3) * 0x1234_5678_9abc_def0_0fed_cba9),
            index: number / 3,
        };
        assert!(kept(&mut index, extent));
    }
    let some = |id: u32| (id != 0).then_some(id);
    let length =
        |first: u32| std::iter::successors(some(first), |id| some(index.entry(*id).next)).count();
    let lengths = (0..index.buckets_len).map(|bucket| length(index.head(bucket)));
    assert!(lengths.max().unwrap() <= 12);
}

/// The index as plain lists, newest first.
#[derive(Default)]
struct Model {
    blocks: BTreeMap<BlockId, Vec<Extent>>,
    entries_max: usize,
}

impl Model {
    fn len(&self) -> usize {
        self.blocks.values().map(Vec::len).sum()
    }

    fn of(&mut self, block: BlockId) -> &mut Vec<Extent> {
        self.blocks.entry(block).or_default()
    }

    fn insert(&mut self, extent: Extent) -> (bool, Vec<Extent>) {
        let inside =
            |other: &Extent| other.first_page >= extent.first_page && other.end() <= extent.end();
        let list = self.of(extent.block);
        let removed = list.extract_if(.., |other| inside(other)).collect();
        let fits = self.len() < self.entries_max;
        if fits {
            self.of(extent.block).insert(0, extent);
        }
        (fits, removed)
    }

    fn find(&mut self, block: BlockId, page: u16) -> Option<Extent> {
        let mut best: Option<Extent> = None;
        for extent in self.of(block) {
            let covers = extent.first_page <= page && u32::from(page) < extent.end();
            if covers && best.is_none_or(|best| extent.end() > best.end()) {
                best = Some(*extent);
            }
        }
        best
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(Extent),
    Remove(u32, usize),
    RemoveBlock(u32),
    RemoveDevice(u8),
    SetStamp(u32, usize, u8),
    Pin(u32, bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let number = 0..12u32;
    let inserted = (
        number.clone(),
        0..20u16,
        1..12u16,
        (0..3u8, 0..4u32, 1..9u16),
        any::<u8>(),
        any::<bool>(),
    )
        .prop_map(|(number, first_page, pages, place, stamp, pinned)| Extent {
            block: block(number),
            first_page,
            pages,
            place: Place::new(place.0, place.1, place.2),
            stamp,
            pinned,
            // Any: they only have to come back as they were.
            short_bytes: u16::from(stamp) << 4,
            given_to: u16::from(stamp) * 257,
        });
    let step = prop_oneof![
        8 => inserted.prop_map(Step::Insert),
        2 => (number.clone(), 0..4usize).prop_map(|(n, i)| Step::Remove(n, i)),
        1 => number.clone().prop_map(Step::RemoveBlock),
        1 => (0..3u8).prop_map(Step::RemoveDevice),
        2 => (number.clone(), 0..4usize, any::<u8>()).prop_map(|(n, i, s)| Step::SetStamp(n, i, s)),
        1 => (number, any::<bool>()).prop_map(|(n, p)| Step::Pin(n, p)),
    ];
    proptest::collection::vec(step, 1..120)
}

fn apply(index: &mut DiskIndex, model: &mut Model, step: &Step) {
    let mut removed = Vec::new();
    match step {
        Step::Insert(extent) => {
            let (fits, expected) = model.insert(*extent);
            assert_eq!(index.insert(*extent, &mut |e| removed.push(e)), fits);
            assert_eq!(removed, expected);
        }
        Step::Remove(number, nth) => {
            let list = model.of(block(*number));
            if let Some(extent) = list.get(*nth).copied() {
                // What one key names goes together.
                let same =
                    |e: &Extent| e.first_page == extent.first_page && e.place == extent.place;
                list.retain(|e| !same(e));
                let gone = index.remove(extent.block, extent.first_page, extent.place);
                assert!(gone.is_some_and(|e| same(&e)));
            }
        }
        Step::RemoveBlock(number) => {
            let expected = std::mem::take(model.of(block(*number)));
            index.remove_block(block(*number), &mut |e| removed.push(e));
            assert_eq!(removed, expected);
        }
        Step::RemoveDevice(device) => {
            let on = |e: &Extent| e.place.device() == *device;
            let lists = model.blocks.values_mut();
            let gone: usize = lists
                .map(|list| list.extract_if(.., |e| on(e)).count())
                .sum();
            index.remove_where(on, &mut |e| removed.push(e));
            assert!(removed.len() == gone && removed.iter().all(on));
        }
        Step::SetStamp(number, nth, stamp) => {
            if let Some(extent) = model.of(block(*number)).get_mut(*nth) {
                let named = (extent.block, extent.first_page, extent.place);
                let found = index.get(named.0, named.1, named.2).unwrap();
                if found == *extent {
                    extent.stamp = *stamp;
                    assert!(index.set_stamp(named.0, named.1, named.2, *stamp));
                }
            }
        }
        Step::Pin(number, pinned) => {
            index.pin(block(*number), *pinned);
            let list = model.of(block(*number)).iter_mut();
            list.for_each(|e| e.pinned = *pinned);
        }
    }
}

proptest! {
    #[test]
    fn it_does_what_plain_lists_do(steps in steps(), entries_max in 1..40usize) {
        let mut index = DiskIndex::new(entries_max);
        let mut model = Model { entries_max, ..Model::default() };
        for step in &steps {
            apply(&mut index, &mut model, step);
            prop_assert_eq!(index.len(), model.len());
            let pinned = model.blocks.values().flatten().filter(|e| e.pinned).count();
            prop_assert_eq!(index.pinned(), pinned);
            prop_assert_eq!(index.iter().count(), model.len());
        }
        for number in 0..12 {
            let listed: Vec<Extent> = index.extents(block(number)).collect();
            prop_assert_eq!(&listed, model.of(block(number)));
            for page in 0..34 {
                prop_assert_eq!(index.find(block(number), page), model.find(block(number), page));
            }
        }
    }
}

/// Reclaim writes an extent again, and drops the old one before or after.
#[test]
fn what_moves_during_a_walk_is_not_passed_over() {
    let mut index = DiskIndex::new(64);
    for number in 0..20 {
        assert!(kept(&mut index, extent(number, 0, 8, 1)));
    }
    let (mut from, mut found) = (Some(0), Vec::new());
    for turn in 0.. {
        let Some(at) = from else { break };
        from = index.blocks_from(at, 4, |block| found.push(block));
        // Another entry is free than the one that was theirs.
        let (first, other) = (turn % 20, (turn * 7 + 3) % 20);
        for number in [first, other] {
            index.remove_block(block(number), &mut |_| {});
        }
        for number in [first, other] {
            assert!(kept(&mut index, extent(number, 0, 8, 2)));
        }
    }
    found.sort();
    let mut all: Vec<BlockId> = (0..20).map(block).collect();
    all.sort();
    assert_eq!(found, all);
}

#[test]
fn each_block_is_found_once_in_a_walk_and_marked_as_a_whole() {
    let mut index = DiskIndex::new(64);
    for number in 0..20 {
        assert!(kept(&mut index, extent(number, 0, 8, 1)));
        assert!(kept(&mut index, extent(number, 8, 8, 2)));
    }
    index.remove_block(block(3), &mut |_| {});
    let (mut from, mut found) = (Some(0), Vec::new());
    while let Some(at) = from {
        from = index.blocks_from(at, 7, |block| found.push(block));
    }
    found.sort();
    let all = (0..20).filter(|number| *number != 3).map(block);
    let mut all: Vec<BlockId> = all.collect();
    all.sort();
    assert_eq!(found, all);
    index.set_given(block(5), 9);
    assert!(index.extents(block(5)).all(|extent| extent.given_to == 9));
    assert!(index.extents(block(6)).all(|extent| extent.given_to == 0));
}
