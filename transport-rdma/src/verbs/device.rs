//! Devices, their ports, and the addresses of those.

use std::ffi::CStr;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::rc::Rc;

use super::abi::*;
use super::checked;
use super::library::Library;
use crate::{Gid, GidEntry, GidKind, LinkLayer, Mtu, PortAddress, PortInfo, VerbsError};

/// The library, loaded.
#[derive(Clone, Copy)]
pub struct Verbs(&'static Library);

/// An RDMA device of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name, such as `mlx5_0`.
    pub name: String,
    /// Its number, unique in the world (of an emulated device: of the interface below it).
    pub guid: u64,
}

impl Verbs {
    /// Loads the library at the first call.
    ///
    /// # Errors
    /// [`VerbsError::Load`] where it is missing, or older than rdma-core 33.
    pub fn load() -> Result<Verbs, VerbsError> {
        Library::get().map(Verbs)
    }

    /// The devices of this machine; none is no error.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError> {
        let list = DeviceList::new(self.0)?;
        Ok(list.iter().map(|device| list.info(device)).collect())
    }

    /// Opens a device for this thread.
    ///
    /// # Errors
    /// [`VerbsError::NoDevice`] when there is none of this name.
    pub fn open(&self, name: &str) -> Result<Device, VerbsError> {
        let list = DeviceList::new(self.0)?;
        let Some(device) = list.iter().find(|device| list.info(*device).name == name) else {
            return Err(no_device(name, &list));
        };
        let object = || format!("RDMA device {name}");
        // SAFETY: the device is of the list, which lives.
        let context = unsafe { (self.0.ibv_open_device)(device.as_ptr()) };
        let Some(context) = NonNull::new(context) else {
            return Err(call_failed(
                "ibv_open_device",
                object(),
                "; may this user open /dev/infiniband?",
            ));
        };
        // From here on the context is closed when something fails.
        let mut opened = DeviceShared {
            library: self.0,
            context,
            name: name.to_owned(),
            node: KernelNode::of(name),
            limits: ibv_device_attr::zeroed(),
        };
        // SAFETY: the context is open; the structure is the one that the function fills.
        let returned = unsafe { (self.0.ibv_query_device)(context.as_ptr(), &mut opened.limits) };
        checked(returned).map_err(|why| call_failed_with("ibv_query_device", object(), why, ""))?;
        let device = Device(Rc::new(opened));
        if let Some(fd) = device.events_fd() {
            super::completion::set_nonblocking(fd)
                .map_err(|why| call_failed_with("fcntl", object(), why, ""))?;
        }
        Ok(device)
    }
}

fn no_device(name: &str, list: &DeviceList) -> VerbsError {
    let names: Vec<_> = list.iter().map(|device| list.info(device).name).collect();
    let present = if names.is_empty() {
        String::from("none")
    } else {
        names.join(", ")
    };
    VerbsError::NoDevice {
        name: name.to_owned(),
        present,
    }
}

/// With the error of the thread's last call.
pub(super) fn call_failed(call: &'static str, object: String, advice: &'static str) -> VerbsError {
    call_failed_with(call, object, io::Error::last_os_error(), advice)
}

pub(super) fn call_failed_with(
    call: &'static str,
    object: String,
    source: io::Error,
    advice: &'static str,
) -> VerbsError {
    VerbsError::Call {
        call,
        object,
        source,
        advice,
    }
}

/// The library's list of devices; freed when dropped.
struct DeviceList {
    library: &'static Library,
    /// None where the kernel has no RDMA at all.
    first: Option<NonNull<*mut ibv_device>>,
    count: usize,
}

impl DeviceList {
    fn new(library: &'static Library) -> Result<DeviceList, VerbsError> {
        let mut count = 0;
        // SAFETY: the function writes the number of devices to the place that it is given.
        let first = unsafe { (library.ibv_get_device_list)(&mut count) };
        match NonNull::new(first) {
            Some(first) => Ok(DeviceList {
                library,
                first: Some(first),
                count: usize::try_from(count).unwrap_or(0),
            }),
            // A kernel without RDMA.
            None if io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) => {
                Ok(DeviceList {
                    library,
                    first: None,
                    count: 0,
                })
            }
            None => Err(call_failed(
                "ibv_get_device_list",
                String::from("this machine"),
                "",
            )),
        }
    }

    fn iter(&self) -> impl Iterator<Item = NonNull<ibv_device>> {
        let devices = match self.first {
            // SAFETY: the list has `count` entries, and lives as long as `self`; nobody writes to it.
            Some(first) => unsafe { std::slice::from_raw_parts(first.as_ptr(), self.count) },
            None => &[],
        };
        devices.iter().filter_map(|device| NonNull::new(*device))
    }

    /// Of a device of this list.
    fn info(&self, device: NonNull<ibv_device>) -> DeviceInfo {
        // SAFETY: the device is of this list, which lives.
        let name = unsafe { (self.library.ibv_get_device_name)(device.as_ptr()) };
        // SAFETY: the name is a field of the device, and ends with a zero byte.
        let name = unsafe { CStr::from_ptr(name) };
        // SAFETY: as for the name.
        let guid = unsafe { (self.library.ibv_get_device_guid)(device.as_ptr()) };
        DeviceInfo {
            name: name.to_string_lossy().into_owned(),
            guid: u64::from_be(guid),
        }
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        if let Some(first) = self.first {
            // SAFETY: the list is of `ibv_get_device_list` and not freed yet; devices that were opened from it
            // hold references of their own.
            unsafe { (self.library.ibv_free_device_list)(first.as_ptr()) };
        }
    }
}

/// An open device. Clones are the same; it is closed when the last thing made from it is gone.
#[derive(Clone)]
pub struct Device(pub(super) Rc<DeviceShared>);

pub(super) struct DeviceShared {
    pub library: &'static Library,
    pub context: NonNull<ibv_context>,
    pub name: String,
    node: KernelNode,
    pub limits: ibv_device_attr,
}

/// The kernel's own entry of a device, by which one that was removed is told from another of its name.
struct KernelNode {
    path: PathBuf,
    /// Device and inode of the entry when the device was opened; none where it could not be seen.
    seen: Option<(u64, u64)>,
}

impl KernelNode {
    fn of(name: &str) -> KernelNode {
        let path = Path::new("/sys/class/infiniband").join(name);
        let seen = KernelNode::look(&path).ok();
        KernelNode { path, seen }
    }

    fn look(path: &Path) -> io::Result<(u64, u64)> {
        let entry = std::fs::metadata(path)?;
        Ok((entry.dev(), entry.ino()))
    }

    /// The kernel answers `EIO` to every call on a device that was removed; before a device's entry in sysfs goes, everything
    /// that was made from the device has been destroyed.
    fn is_destroyed(&self, returned: io::Result<()>) -> io::Result<()> {
        match returned {
            Err(why) if why.raw_os_error() == Some(libc::EIO) && self.is_gone() => Ok(()),
            returned => returned,
        }
    }

    fn is_gone(&self) -> bool {
        match (self.seen, KernelNode::look(&self.path)) {
            (Some(seen), Ok(now)) => seen != now,
            (Some(_), Err(error)) => error.kind() == io::ErrorKind::NotFound,
            (None, _) => false,
        }
    }
}

impl Device {
    /// Its name, such as `mlx5_0`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// How many ports it has; the first is number 1.
    pub fn ports(&self) -> u8 {
        self.0.limits.phys_port_cnt
    }

    /// READs that a queue pair may have under way towards a peer.
    pub fn reads_under_way_max(&self) -> u8 {
        let device = self
            .0
            .limits
            .max_qp_rd_atom
            .min(self.0.limits.max_qp_init_rd_atom);
        u8::try_from(device.max(0))
            .unwrap_or(u8::MAX)
            .min(crate::limits::READS_UNDER_WAY_MAX)
    }

    /// Pieces of memory that one piece of work may name.
    pub fn elements_max(&self) -> u32 {
        u32::try_from(self.0.limits.max_sge).unwrap_or(1).max(1)
    }

    /// Completions that one queue has room for.
    pub fn completions_max(&self) -> u32 {
        u32::try_from(self.0.limits.max_cqe).unwrap_or(0)
    }

    /// Asks the device about a port.
    pub fn port(&self, port: u8) -> Result<PortInfo, VerbsError> {
        let mut told = ibv_port_attr::zeroed();
        // SAFETY: the context is open. The function fills an older, shorter form of this structure.
        let returned =
            unsafe { (self.0.library.ibv_query_port)(self.0.context.as_ptr(), port, &mut told) };
        checked(returned)
            .map_err(|why| call_failed_with("ibv_query_port", self.part(port), why, ""))?;
        Ok(PortInfo {
            port,
            active: told.state == IBV_PORT_ACTIVE,
            active_mtu: Mtu::from_code(told.active_mtu),
            lid: told.lid,
            link_layer: match u32::from(told.link_layer) {
                IBV_LINK_LAYER_INFINIBAND => LinkLayer::InfiniBand,
                IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
                _ => LinkLayer::Unknown(told.link_layer),
            },
            gids: u32::try_from(told.gid_tbl_len).unwrap_or(0),
        })
    }

    /// An entry of a port's table of GIDs; `None` when it is not in use.
    pub fn gid(&self, port: u8, index: u8) -> Result<Option<GidEntry>, VerbsError> {
        let mut told = ibv_gid_entry::zeroed();
        // SAFETY: the context is open; the length is that of the structure that is filled.
        let returned = unsafe {
            (self.0.library._ibv_query_gid_ex)(
                self.0.context.as_ptr(),
                u32::from(port),
                u32::from(index),
                &mut told,
                0,
                size_of::<ibv_gid_entry>(),
            )
        };
        match checked(returned) {
            Ok(()) => {}
            // What the kernel says of an empty entry.
            Err(why) if why.raw_os_error() == Some(libc::ENODATA) => return Ok(None),
            Err(why) => {
                let object = format!("{}, GID {index}", self.part(port));
                return Err(call_failed_with("ibv_query_gid_ex", object, why, ""));
            }
        }
        let kind = match told.gid_type {
            IBV_GID_TYPE_IB => GidKind::InfiniBand,
            IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
            IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
            other => GidKind::Unknown(other),
        };
        let entry = GidEntry {
            index,
            gid: Gid(told.gid.0),
            kind,
            interface_index: told.ndev_ifindex,
        };
        Ok((!entry.gid.is_empty()).then_some(entry))
    }

    /// A port's address for connections by one of its GIDs.
    ///
    /// # Errors
    /// [`VerbsError::Unusable`] when the port is down or the GID is not in use.
    pub fn port_address(&self, port: u8, gid_index: u8) -> Result<PortAddress, VerbsError> {
        let unusable = |what: String| VerbsError::Unusable {
            object: self.part(port),
            what,
        };
        let info = self.port(port)?;
        if !info.active {
            return Err(unusable(
                "it is down: set its link up, or name another port".into(),
            ));
        }
        let Some(mtu) = info.active_mtu else {
            return Err(unusable("its MTU is none that Forebay knows".into()));
        };
        let Some(entry) = self.gid(port, gid_index)? else {
            return Err(unusable(format!(
                "GID {gid_index} is not in use: give the interface an address, or name another"
            )));
        };
        Ok(PortAddress {
            port,
            lid: info.lid,
            gid_index,
            gid: entry.gid,
            mtu,
        })
    }

    /// Whether a port has a GID, in whichever place; looked for at `index` first.
    pub fn has_gid(&self, port: u8, index: u8, gid: Gid) -> Result<bool, VerbsError> {
        let info = self.port(port)?;
        let is_it = |there: Gid| there.is_of_port(gid, info.link_layer);
        let is_at = |index| Ok(self.gid(port, index)?.is_some_and(|entry| is_it(entry.gid)));
        if is_at(index)? {
            return Ok(true);
        }
        let count = u8::try_from(info.gids).unwrap_or(u8::MAX);
        for index in 0..count {
            if is_at(index)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What errors call a port.
    fn part(&self, port: u8) -> String {
        format!("RDMA device {}, port {port}", self.0.name)
    }
}

impl DeviceShared {
    /// Of a call that destroys something: whether it is gone, also when the kernel says that it could not.
    pub(super) fn is_destroyed(&self, returned: io::Result<()>) -> io::Result<()> {
        self.node.is_destroyed(returned)
    }

    /// The provider's functions. The header's inline functions read them at each call, and so does this crate.
    pub(super) fn operations(&self) -> &ibv_context_ops {
        // SAFETY: the context is open as long as `self` lives; the provider wrote the table when it was opened.
        let context = unsafe { self.context.as_ref() };
        &context.ops
    }
}

impl Drop for DeviceShared {
    fn drop(&mut self) {
        // SAFETY: all that was made from the device held it, and is gone; so the context is used no more.
        let returned = unsafe { (self.library.ibv_close_device)(self.context.as_ptr()) };
        if let Err(why) = checked(returned) {
            tracing::warn!(device = self.name, "RDMA device could not be closed: {why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_went_or_is_another_ones_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rxe0");
        let node = |path: &Path| KernelNode {
            path: path.to_owned(),
            seen: KernelNode::look(path).ok(),
        };
        assert!(!node(&path).is_gone(), "never seen: nothing is known");
        std::fs::create_dir(&path).unwrap();
        let seen = node(&path);
        assert!(!seen.is_gone());
        let failed = |number| Err(io::Error::from_raw_os_error(number));
        // Of a device that is there it failed, whatever the number.
        assert!(seen.is_destroyed(failed(libc::EIO)).is_err());
        std::fs::create_dir(dir.path().join("other")).unwrap();
        std::fs::remove_dir(&path).unwrap();
        assert!(seen.is_gone());
        assert!(seen.is_destroyed(failed(libc::EIO)).is_ok());
        assert!(seen.is_destroyed(failed(libc::EBUSY)).is_err());
        assert!(seen.is_destroyed(Ok(())).is_ok());
        std::fs::rename(dir.path().join("other"), &path).unwrap();
        assert!(seen.is_gone(), "another of its name");
    }
}
