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
        #[cfg(feature = "spdk")]
        Kind::Device if scenario.word("on") == "spdk" => {
            Box::new(crate::layers::spdk_device::SpdkSide::new(scenario, plan)?)
        }
        #[cfg(not(feature = "spdk"))]
        Kind::Device if scenario.word("on") == "spdk" => anyhow::bail!(
            "on=spdk: this forebay-perf was built without SPDK: cargo build --release --features forebay-perf/spdk builds with it, where pkg-config \
             finds spdk_nvme and spdk_env_dpdk"
        ),
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::run::Run;

    #[test]
    fn a_device_of_spdk_takes_a_name_and_leave_to_overwrite_it() {
        let scenario = "device:on=spdk".parse().expect("it is one");
        let mut plan = Plan {
            run: Run {
                short: true,
                dir: "/nowhere".into(),
                rdma: Default::default(),
                nvme: Default::default(),
            },
            repeats: 1,
            span: Duration::from_secs(1),
            warm_up: Duration::from_secs(1),
            seed: 1,
            ceilings: false,
        };
        let refused = |plan: &Plan| match forebay(&scenario, plan) {
            Ok(_) => panic!("it is not refused"),
            Err(error) => format!("{error:#}"),
        };
        let (unnamed, unmeant, garbled) = match cfg!(feature = "spdk") {
            true => ("--spdk-device", "LOST", "pci:nonsense"),
            false => ("without SPDK", "without SPDK", "without SPDK"),
        };
        assert!(refused(&plan).contains(unnamed), "{}", refused(&plan));
        plan.run.nvme.spdk = Some("pci:0000:5e:00.0".to_owned());
        assert!(refused(&plan).contains(unmeant), "{}", refused(&plan));
        plan.run.nvme.overwrite = true;
        plan.run.nvme.spdk = Some("pci:nonsense".to_owned());
        assert!(refused(&plan).contains(garbled), "{}", refused(&plan));
    }
}
