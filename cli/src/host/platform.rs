//! The bundle of adapters that production cores run on.

use std::marker::PhantomData;

use forebay_engine::client::Reply;
use forebay_engine::ports::{NoDevice, NoTransport, Origin, Platform, Solo};

use super::clock::MonotonicClock;
use super::rng::SplitMix;

/// A node on its own, without a disk: `O` is its origin (in production `S3Origin`), `R` answers
/// its readers.
#[derive(Debug)]
pub struct HostPlatform<R, O>(PhantomData<fn(R, O)>);

impl<R: Reply, O: Origin + 'static> Platform for HostPlatform<R, O> {
    type Device = NoDevice;
    type Transport = NoTransport;
    type Origin = O;
    type Membership = Solo;
    type Clock = MonotonicClock;
    type Rng = SplitMix;
    type Reply = R;
}
