//! Which of a port's GIDs packets have, as the kernel's connection manager chose it.

use std::fs;

use crate::inventory::Rail;

/// What the kernel calls an entry that only version 1 of RoCE uses.
const V1: &str = "IB/RoCE v1";

/// What is wrong with entry `took` having been chosen for a rail, if something is.
pub(crate) fn wrong(rail: &Rail, took: u8) -> Option<String> {
    let Rail {
        device,
        port,
        gid_index,
        ..
    } = rail;
    if took == *gid_index {
        return None;
    }
    let path = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/types/{took}");
    told(rail, took, fs::read_to_string(path).ok()?.trim())
}

/// The same, of an entry of that kind.
fn told(rail: &Rail, took: u8, kind: &str) -> Option<String> {
    let Rail {
        device,
        port,
        gid_index,
        ..
    } = rail;
    (kind == V1 && took != *gid_index).then(|| {
        format!(
            "{device} port {port}: the kernel takes GID {took} (RoCE v1, which no router passes) for connections, not {gid_index}: \
             `cma_roce_mode -d {device} -p {port} -m 2`, or --rdma-gid-index {gid_index} on every node"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_version_one_is_told() {
        let rail = Rail {
            device: "mlx5_0".into(),
            port: 1,
            gid_index: 3,
            gid: None,
            forces_gid: false,
            ip: [10, 0, 0, 1].into(),
            node: None,
            marking: Default::default(),
        };
        let text = told(&rail, 2, "IB/RoCE v1").unwrap();
        for part in [
            "mlx5_0 port 1",
            "GID 2",
            "not 3",
            "cma_roce_mode -d mlx5_0 -p 1 -m 2",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        // Another entry of the same version: an address that came and went.
        assert_eq!(told(&rail, 5, "RoCE v2"), None);
        assert_eq!(told(&rail, 3, "IB/RoCE v1"), None, "as it was asked for");
        assert_eq!(wrong(&rail, 2), None, "nothing is known of it");
    }
}
