//! The bundle of adapters that production cores run on.

use std::marker::PhantomData;

use forebay_engine::client::Reply;
use forebay_engine::ports::{BlockDevice, Origin, Platform};

use super::clock::MonotonicClock;
use super::medium::HostDevice;
use super::peers::{HostMembership, HostTransport};
use super::rng::SplitMix;

/// A node, on its own or in a group: `O` is its origin (in production `S3Origin`), `R` answers its readers, `D` is
/// its disks' queue pairs.
#[derive(Debug)]
pub struct HostPlatform<R, O, D = HostDevice>(PhantomData<fn(R, O, D)>);

impl<R, O, D> Platform for HostPlatform<R, O, D>
where
    R: Reply,
    O: Origin + 'static,
    D: BlockDevice + 'static,
{
    type Device = D;
    type Transport = HostTransport;
    type Origin = O;
    type Membership = HostMembership;
    type Clock = MonotonicClock;
    type Rng = SplitMix;
    type Reply = R;
}
