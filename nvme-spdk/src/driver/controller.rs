//! An attached controller and its namespaces.

use std::ffi::{CString, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use super::bus_error::{Guard, while_attaching, whole_pages};
use crate::disarm;
use crate::error::Loss;
use crate::ffi;
use crate::fingerprint::Fingerprint;
use crate::watch::{Still, Watch};

/// Entries of a queue: more than any queue pair here has operations.
const QUEUE_SIZE_MAX: u32 = 2_048;
/// How long a target may take to answer a connection. SPDK's own half second is too short for one on a busy machine.
const CONNECT_US_MAX: u64 = 10_000_000;
/// Where a PCI device's command register is, in its configuration.
const PCI_COMMAND: u32 = 4;
/// What registers read as that cannot be read.
const ONES: u32 = u32::MAX;
/// Namespaces that are looked at when a wrong one was asked for.
const NAMESPACES_SHOWN: usize = 64;

/// How a controller is attached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectOptions {
    /// A command that takes longer means that the controller hangs.
    pub(crate) timeout: Duration,
    /// Bytes of a PCI device's registers, doorbells among them.
    pub(crate) registers_bytes: usize,
}

/// An attached controller. Belongs to the thread that attached it, which polls its admin queue and detaches it; others make and
/// end queue pairs, in which SPDK polls the admin queue as well, and look at namespaces.
#[derive(Debug)]
pub(crate) struct RawController {
    ctrlr: NonNull<ffi::Ctrlr>,
    /// What SPDK's timeout callback points to.
    watch: Arc<Watch>,
    /// Of a PCI device. It goes when this is detached.
    _guard: Option<Guard>,
}

// SAFETY: SPDK guards what several threads do with a controller by a lock of the controller (making and freeing queue pairs,
// the admin queue, failing it). What it does not guard is what a queue pair's owner does, and `QueuePair` is not `Send`.
unsafe impl Send for RawController {}
// SAFETY: as above. Which namespaces there are SPDK keeps in a tree without a lock: those functions want a `Still`, which only one
// thread at a time has, and within which the admin queue is polled.
unsafe impl Sync for RawController {}

/// Attaches; blocks for as long as that takes. None when SPDK cannot, which it tells in its own log.
///
/// # Errors
/// When the transport id cannot be parsed.
pub(crate) fn connect(
    transport_id: &str,
    options: &ConnectOptions,
    watch: &Arc<Watch>,
) -> Result<Option<RawController>, ()> {
    let text = CString::new(transport_id).map_err(drop)?;
    let mut trid = ffi::TransportId {
        trstring: [0; 33],
        trtype: 0,
        adrfam: 0,
        traddr: [0; 257],
        trsvcid: [0; 33],
        subnqn: [0; 224],
        priority: 0,
    };
    // SAFETY: `trid` is SPDK's structure, as `build.rs` has compared, and zeroed, as the function wants it; `text` ends in
    // zero.
    if unsafe { ffi::spdk_nvme_transport_id_parse(&mut trid, text.as_ptr()) } != 0 {
        return Err(());
    }
    let mut opts = controller_opts();
    let known = ffi::ctrlr_opts_bytes();
    // SAFETY: `known` is the length of SPDK's structure, and `opts` is no shorter, which `build.rs` has compared.
    unsafe { ffi::spdk_nvme_ctrlr_get_default_ctrlr_opts(&mut opts, known) };
    // It is told by the engine, once, and not for each command.
    opts.disable_error_logging = 1;
    // As many as the controller takes.
    opts.io_queue_size = QUEUE_SIZE_MAX;
    opts.fabrics_connect_timeout_us = CONNECT_US_MAX;
    // SAFETY: both structures were filled by SPDK, and live until the call has returned.
    let ctrlr = while_attaching(|| unsafe { ffi::spdk_nvme_connect(&trid, &opts, known) });
    let Some(ctrlr) = NonNull::new(ctrlr) else {
        return Ok(None);
    };
    let controller = RawController {
        ctrlr,
        watch: watch.clone(),
        _guard: guard(ctrlr, options.registers_bytes),
    };
    controller.watch_for(options.timeout);
    Ok(Some(controller))
}

/// Keeps bus errors at a PCI device's registers from ending the process.
fn guard(ctrlr: NonNull<ffi::Ctrlr>, registers_bytes: usize) -> Option<Guard> {
    // SAFETY: the controller is attached; null for what is no PCI device.
    let registers = unsafe { ffi::spdk_nvme_ctrlr_get_registers(ctrlr.as_ptr()) } as usize;
    let range = registers..registers.checked_add(whole_pages(registers_bytes))?;
    // SAFETY: SPDK has mapped the device's first range, where its registers begin, until it is detached, which the guard outlives by no access;
    // nobody but SPDK and this module accesses it, as registers.
    (registers != 0).then(|| unsafe { Guard::new(range) })?
}

fn controller_opts() -> ffi::CtrlrOpts {
    // SAFETY: numbers and arrays of numbers, for which zeros are values.
    unsafe { std::mem::zeroed() }
}

impl RawController {
    fn watch_for(&self, timeout: Duration) {
        let micros = u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX);
        let arg = Arc::as_ptr(&self.watch).cast_mut().cast();
        // SAFETY: the controller is attached. The callback gets `arg`, which lives until `detach` has returned, or for ever
        // when this is leaked.
        unsafe {
            ffi::spdk_nvme_ctrlr_register_timeout_callback(
                self.ctrlr.as_ptr(),
                micros,
                micros,
                timed_out,
                arg,
            );
        }
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::Ctrlr {
        self.ctrlr.as_ptr()
    }

    /// Polls the admin queue: keep-alives, events, timeouts. Only by the thread that attached it. False when the controller
    /// is lost.
    pub(crate) fn poll_admin(&self, _: &Still) -> bool {
        // What is under way may still end: the kernel waits until this program lets go.
        if self.is_unplugged() {
            return false;
        }
        // SAFETY: the controller is attached, and one thread alone calls this.
        unsafe { ffi::spdk_nvme_ctrlr_process_admin_completions(self.ctrlr.as_ptr()) >= 0 }
    }

    /// Whether the kernel wants a PCI device back, because it is taken out.
    pub(crate) fn is_unplugged(&self) -> bool {
        // SAFETY: the controller is attached; null for what is no PCI device.
        let device = unsafe { ffi::spdk_nvme_ctrlr_get_pci_device(self.ctrlr.as_ptr()) };
        // SAFETY: SPDK's device of an attached controller, which is there until that is detached.
        !device.is_null() && unsafe { ffi::spdk_pci_device_is_removed(device) != 0 }
    }

    /// A step towards a PCI device that reaches memory no more: it is switched off, and its right to reach memory by itself is taken, for as
    /// long as it is attached. Every command of it fails from then on. True when both were seen: whatever it was given, it reads
    /// and writes nothing any more. Never waits: ask again, and say whether it has had [`disarm::IDLE_WAIT`]. Only by the thread that
    /// attached it.
    pub(crate) fn disarm(&self, overdue: bool) -> bool {
        let ctrlr = self.ctrlr.as_ptr();
        // SAFETY: the controller is attached; null for what is no PCI device.
        let device = unsafe { ffi::spdk_nvme_ctrlr_get_pci_device(ctrlr) };
        // SAFETY: as above.
        let registers = unsafe { ffi::spdk_nvme_ctrlr_get_registers(ctrlr) };
        if device.is_null() || registers.is_null() {
            return false;
        }
        // SAFETY: as above. Each poll of it ends with an error from now on: nothing would ever be answered, and SPDK submits nothing.
        unsafe { ffi::spdk_nvme_ctrlr_fail(ctrlr) };
        let attached = Attached {
            ctrlr,
            device,
            registers,
        };
        disarm::step(&attached, overdue)
    }

    /// Shuts it down and gives it back, which may take seconds. No queue pair of it is left: each holds a share of what
    /// holds this.
    pub(crate) fn detach(self) {
        // SAFETY: attached, and never used again, since `self` is gone afterwards.
        unsafe { ffi::spdk_nvme_detach(self.ctrlr.as_ptr()) };
    }

    /// Vendor's names for it.
    pub(crate) fn identity(&self) -> Identity {
        // SAFETY: the controller is attached.
        let data = unsafe { ffi::spdk_nvme_ctrlr_get_data(self.ctrlr.as_ptr()) };
        // SAFETY: SPDK's data of an attached controller, which begins as declared and stays until it is detached; null is
        // told.
        match unsafe { data.as_ref() } {
            Some(data) => Identity {
                model: text(&data.mn),
                serial: text(&data.sn),
            },
            None => Identity::default(),
        }
    }

    /// A namespace by its number, or the first. What there is, when it is not there.
    ///
    /// # Errors
    /// The numbers of those that are there.
    pub(crate) fn namespace(
        &self,
        number: Option<u32>,
        still: &Still,
    ) -> Result<RawNamespace, Vec<u32>> {
        let wanted = number.unwrap_or_else(|| self.next_namespace(None, still));
        let ns = match is_active(self.ctrlr, wanted, still) {
            // SAFETY: the controller is attached. It would make one up for a number that is not there.
            true => unsafe { ffi::spdk_nvme_ctrlr_get_ns(self.ctrlr.as_ptr(), wanted) },
            false => std::ptr::null_mut(),
        };
        match NonNull::new(ns) {
            Some(ns) => Ok(RawNamespace {
                ns,
                ctrlr: self.ctrlr,
                number: wanted,
            }),
            None => {
                let first = self.next_namespace(None, still);
                let all = std::iter::successors(Some(first), |last| {
                    Some(self.next_namespace(Some(*last), still))
                });
                Err(all
                    .take_while(|number| *number != 0)
                    .take(NAMESPACES_SHOWN)
                    .collect())
            }
        }
    }

    /// The next that is there; 0 for none.
    fn next_namespace(&self, after: Option<u32>, _: &Still) -> u32 {
        match after {
            // SAFETY: the controller is attached, and nobody changes its tree of namespaces: `Still`.
            None => unsafe { ffi::spdk_nvme_ctrlr_get_first_active_ns(self.ctrlr.as_ptr()) },
            // SAFETY: as above; any number may be given.
            Some(last) => unsafe {
                ffi::spdk_nvme_ctrlr_get_next_active_ns(self.ctrlr.as_ptr(), last)
            },
        }
    }
}

/// The parts of an attached PCI controller that [`disarm`] reads and writes, on the thread that attached it.
struct Attached {
    ctrlr: *mut ffi::Ctrlr,
    device: *mut ffi::PciDevice,
    registers: *mut ffi::Registers,
}

impl disarm::Registers for Attached {
    fn command(&self) -> Option<u16> {
        let mut value = 0;
        // SAFETY: SPDK's device of an attached controller; the register is two bytes, as `value` is.
        let failed =
            unsafe { ffi::spdk_pci_device_cfg_read16(self.device, &mut value, PCI_COMMAND) };
        (failed == 0 && value != u16::MAX).then_some(value)
    }

    fn set_command(&self, value: u16) -> bool {
        // SAFETY: as above. Nothing else in this process writes that register while the device is attached.
        unsafe { ffi::spdk_pci_device_cfg_write16(self.device, value, PCI_COMMAND) == 0 }
    }

    fn configuration(&self) -> Option<u32> {
        // SAFETY: the controller is attached.
        Some(unsafe { ffi::spdk_nvme_ctrlr_get_regs_cc(self.ctrlr) }).filter(|now| *now != ONES)
    }

    fn set_configuration(&self, value: u32) {
        // SAFETY: a place within the registers of an attached controller, which SPDK has mapped, or what was put there when they went away;
        // aligned as declared.
        let configuration = unsafe { &raw mut (*self.registers).cc };
        // SAFETY: as above. SPDK writes this register only within calls of the thread that this is.
        unsafe { configuration.write_volatile(value) };
    }

    fn status(&self) -> Option<u32> {
        // SAFETY: as above.
        Some(unsafe { ffi::spdk_nvme_ctrlr_get_regs_csts(self.ctrlr) }).filter(|now| *now != ONES)
    }
}

/// What SPDK calls when a command has taken too long: within a poll of that queue pair's owner, or, for the admin queue, of
/// whoever waits for it.
unsafe extern "C" fn timed_out(
    arg: *mut c_void,
    ctrlr: *mut ffi::Ctrlr,
    _qpair: *mut ffi::Qpair,
    _cid: u16,
) {
    // SAFETY: `arg` is the controller's `Watch`, see `watch_for`.
    let watch = unsafe { &*arg.cast::<Watch>() };
    watch.lost.lose(Loss::TimedOut(watch.timeout()));
    // Also one that was lost before for another reason: what it has would never come back.
    watch.want_disarmed();
    // SAFETY: SPDK gives its own controller. From now on each poll of it ends with an error, also the one that SPDK itself
    // would wait for without end when a queue pair is deleted. It may be called within a callback: it sets a state.
    unsafe { ffi::spdk_nvme_ctrlr_fail(ctrlr) };
}

/// What a controller says it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) model: String,
    pub(crate) serial: String,
}

fn text(bytes: &[u8]) -> String {
    let ascii = String::from_utf8_lossy(bytes);
    ascii
        .trim_matches(|c: char| c == '\0' || c.is_whitespace())
        .to_owned()
}

/// Whether an attached controller has a namespace of that number now.
fn is_active(ctrlr: NonNull<ffi::Ctrlr>, number: u32, _: &Still) -> bool {
    // SAFETY: the controller is attached, and nobody changes its tree of namespaces: `Still`. Any number may be asked for.
    number != 0 && unsafe { ffi::spdk_nvme_ctrlr_is_active_ns(ctrlr.as_ptr(), number) } != 0
}

/// A namespace of a controller that is attached: whoever has one keeps its controller, or is only asked by the thread that
/// attached it, before it detaches it (`Watch::around`).
#[derive(Debug)]
pub(crate) struct RawNamespace {
    ns: NonNull<ffi::Ns>,
    ctrlr: NonNull<ffi::Ctrlr>,
    number: u32,
}

// SAFETY: only plain numbers of it are read, and SPDK's structure stays where it is until the controller is detached.
unsafe impl Send for RawNamespace {}
// SAFETY: as above.
unsafe impl Sync for RawNamespace {}

impl RawNamespace {
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The same one.
    pub(crate) fn again(&self) -> Self {
        Self {
            ns: self.ns,
            ctrlr: self.ctrlr,
            number: self.number,
        }
    }

    /// Whether it is there.
    pub(crate) fn is_active(&self, still: &Still) -> bool {
        is_active(self.ctrlr, self.number, still)
    }

    pub(super) fn ns(&self) -> *mut ffi::Ns {
        self.ns.as_ptr()
    }

    pub(super) fn ctrlr(&self) -> *mut ffi::Ctrlr {
        self.ctrlr.as_ptr()
    }

    /// Bytes of data in a sector.
    pub(crate) fn sector_bytes(&self, _: &Still) -> u32 {
        // SAFETY: the namespace's controller is attached.
        unsafe { ffi::spdk_nvme_ns_get_sector_size(self.ns()) }
    }

    /// Bytes of metadata with each sector.
    pub(crate) fn metadata_bytes(&self, _: &Still) -> u32 {
        // SAFETY: as above.
        unsafe { ffi::spdk_nvme_ns_get_md_size(self.ns()) }
    }

    /// Bytes in all.
    pub(crate) fn capacity_bytes(&self, still: &Still) -> u64 {
        // SAFETY: as above.
        let sectors = unsafe { ffi::spdk_nvme_ns_get_num_sectors(self.ns()) };
        sectors.saturating_mul(self.sector_bytes(still).into())
    }

    /// The largest transfer of one command; SPDK splits what is larger.
    pub(crate) fn transfer_bytes_max(&self, _: &Still) -> u32 {
        // SAFETY: as above.
        unsafe { ffi::spdk_nvme_ns_get_max_io_xfer_size(self.ns()) }
    }

    fn flags(&self, _: &Still) -> u32 {
        // SAFETY: as above.
        unsafe { ffi::spdk_nvme_ns_get_flags(self.ns()) }
    }

    /// Whether there is a cache to flush; otherwise what was written is on stable media.
    pub(crate) fn can_flush(&self, still: &Still) -> bool {
        self.flags(still) & ffi::NS_FLUSH_SUPPORTED != 0
    }

    /// Whether ranges can be given back.
    pub(crate) fn can_discard(&self, still: &Still) -> bool {
        self.flags(still) & ffi::NS_DEALLOCATE_SUPPORTED != 0
    }

    /// A copy, since SPDK exchanges it.
    fn data(&self, _: &Still) -> Option<ffi::NsData> {
        // SAFETY: the namespace's controller is attached.
        let data = unsafe { ffi::spdk_nvme_ns_get_data(self.ns()) };
        // SAFETY: SPDK's data of this namespace, which begins as declared; null is told. Nobody exchanges it meanwhile:
        // `Still`.
        unsafe { data.as_ref() }.copied()
    }

    /// Whether it takes no writes.
    pub(crate) fn is_write_protected(&self, still: &Still) -> bool {
        self.data(still)
            .is_some_and(|data| data.nsattr & ffi::NSATTR_WRITE_PROTECTED != 0)
    }

    /// What it is now.
    pub(crate) fn fingerprint(&self, still: &Still) -> Fingerprint {
        let data = self.data(still);
        // SAFETY: the namespace's controller is attached.
        let uuid = unsafe { ffi::spdk_nvme_ns_get_uuid(self.ns()) };
        // SAFETY: within SPDK's data of this namespace, as in `data`; null is told.
        let uuid = unsafe { uuid.as_ref() };
        Fingerprint {
            sector_bytes: self.sector_bytes(still),
            metadata_bytes: self.metadata_bytes(still),
            capacity_bytes: self.capacity_bytes(still),
            nguid: data.map_or([0; 16], |data| data.nguid),
            eui64: data.map_or([0; 8], |data| data.eui64),
            uuid: uuid.map_or([0; 16], |uuid| uuid.raw),
        }
    }
}
