//! Which sides a scenario has: Forebay's, and peers'.

use anyhow::Result;

use crate::layers::device::DeviceSide;
use crate::layers::engine::EngineSide;
use crate::layers::origin::OriginSide;
use crate::layers::transport::TransportSide;
use crate::patterns::Work;
use crate::patterns::side::MountSide;
use crate::plan::Plan;
use crate::scenario::{Kind, Scenario};
use crate::side::Side;
use crate::targets::forebay::ForebayMount;
use crate::targets::group::GroupMount;

/// Forebay's side of a scenario.
///
/// # Errors
/// When it cannot be measured here.
pub fn forebay(scenario: &Scenario, plan: &Plan) -> Result<Box<dyn Side>> {
    let work = || Work::open(scenario);
    Ok(match scenario.kind() {
        Kind::Device => Box::new(DeviceSide::new(scenario, plan)),
        Kind::Transport => Box::new(TransportSide::new(scenario, plan)),
        Kind::Engine => Box::new(EngineSide::new(scenario, plan)),
        Kind::Origin => Box::new(OriginSide::new(scenario, plan)),
        Kind::Group => {
            let target = Box::new(GroupMount::new(scenario, plan));
            Box::new(MountSide::forebay(target, work()?, plan))
        }
        _ => {
            let target = Box::new(ForebayMount::new(scenario, plan));
            Box::new(MountSide::forebay(target, work()?, plan))
        }
    })
}
