//! What is looked up and encoded on the way of a read, each by itself.

use std::hint::black_box;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use forebay_engine::disk::geometry::Geometry;
use forebay_engine::disk::layout::LogId;
use forebay_engine::disk::{DeviceSeat, DeviceShared, DiskConfig};
use forebay_engine::identity::{BlockId, ObjectId, Slot};
use forebay_engine::placement::{Member, Placement, View};
use forebay_engine::ports::{Class, FetchStatus, PeerFetch, PeerId, Time};
use forebay_engine::wire::header::{Answer, Ask, Request};

use super::Work;
use crate::disk::driver::{Clock, Driver};
use crate::disk::load::{self, Blocks};
use crate::disk::memory::MemoryDevice;

const MEMBERS: u64 = 16;
const CAPACITY_BYTES: u64 = 256 << 20;
const ARENA_BYTES: usize = 32 << 20;
const BLOCKS: Blocks = Blocks {
    count: 8_192,
    len_bytes: 4 << 10,
};

/// Work that has nothing but a function to call.
struct Each<S, F>(S, F);

impl<S, F: Fn(&mut S, u64) -> bool> Work for Each<S, F> {
    fn operate(&mut self, count: u64) -> Result<()> {
        let Each(state, each) = self;
        let right = (0..count).filter(|number| each(state, *number)).count();
        ensure!(
            right as u64 == count,
            "{right} of {count} came out as they should"
        );
        Ok(())
    }
}

struct Tier {
    driver: Driver<MemoryDevice>,
    ids: Vec<BlockId>,
}

pub(super) fn disk_index(_: &FilePath) -> Result<Box<dyn Work>> {
    let geometry = Geometry::choose(CAPACITY_BYTES, 1)?;
    let shared = Arc::new(DeviceShared::new("memory".to_owned(), geometry, LogId(1)));
    let config = DiskConfig {
        core: 0,
        cores: 1,
        entries_max: 2 * BLOCKS.count as usize,
        tables_bytes_max: 1 << 20,
        write_bytes_max: ARENA_BYTES / 2,
        incarnation: 1,
        read_timeout: Duration::from_secs(3600),
        verify: true,
    };
    let mut driver = Driver::new(ARENA_BYTES, Clock::Manual(Time(1)), config, |_| {
        let bytes = geometry.offset_bytes(geometry.regions);
        let device = MemoryDevice::new(bytes as usize);
        Ok((DeviceSeat { device, shared }, None))
    })?;
    driver.recover()?;
    load::fill(&mut driver, BLOCKS, ARENA_BYTES / 4)?;
    let ids = (0..BLOCKS.count).map(Blocks::id).collect();
    let look = |tier: &mut Tier, number: u64| {
        // Far from the one before.
        let at = number.wrapping_mul(4_099) % BLOCKS.count;
        let id = tier.ids[at as usize];
        tier.driver.disk().extent(black_box(id), 0).is_some()
    };
    Ok(Box::new(Each(Tier { driver, ids }, look)))
}

pub(super) fn placement(_: &FilePath) -> Result<Box<dyn Work>> {
    let member = |id| Member {
        id: PeerId(id),
        weight: 10,
        cores: 4,
        addresses: [([127, 0, 0, 1], 1).into()].into(),
    };
    let placement = Placement::new(View::new((1..=MEMBERS).map(member).collect()));
    let look = |placement: &mut Placement, number: u64| {
        let slot = Slot::of_stripe(ObjectId(0x5eed), black_box(number << 24));
        black_box(placement.owner(slot)).is_some()
    };
    Ok(Box::new(Each(placement, look)))
}

pub(super) fn wire(_: &FilePath) -> Result<Box<dyn Work>> {
    let both = |fetch: &mut PeerFetch, number: u64| {
        fetch.offset = number << 12;
        let request = Request {
            tag: number,
            remaining_us: 1_000_000,
            ask: Ask::Fetch(*fetch),
        };
        let asked = Request::decode(&black_box(request.encode()));
        let answer = Answer {
            tag: number,
            status: FetchStatus::Bytes,
            len_bytes: fetch.len_bytes,
            checksums: 1,
        };
        let answered = Answer::decode(&black_box(answer.encode()));
        asked == Ok(request) && answered == Ok(answer)
    };
    let fetch = PeerFetch {
        object: ObjectId(0x5eed),
        size_bytes: 1 << 50,
        offset: 0,
        len_bytes: 4 << 10,
        want_bytes: 4 << 10,
        class: Class::Demand,
        view: 1,
        cached_only: false,
        forwarded: false,
        verify: false,
    };
    Ok(Box::new(Each(fetch, both)))
}
