//! What a device tells unasked: of its ports, and of what was made from it.

use std::io;
use std::os::fd::BorrowedFd;

use super::abi::*;
use super::checked;
use super::device::{Device, call_failed_with};
use crate::VerbsError;
use crate::events::DeviceEvent;

impl Device {
    /// Readable when [`Device::next_event`] has something; none of a device that tells nothing.
    pub fn events_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the context is open as long as `self` lives; the library set the field when it opened it.
        let fd = unsafe { self.0.context.as_ref() }.async_fd;
        // SAFETY: the descriptor is open as long as the context, which the result borrows.
        (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// The next event; none when there is none now. Does not wait.
    ///
    /// # Errors
    /// [`VerbsError::Call`] when the device is gone.
    pub fn next_event(&self) -> Result<Option<DeviceEvent>, VerbsError> {
        if self.events_fd().is_none() {
            return Ok(None);
        }
        let library = self.0.library;
        loop {
            let mut told = ibv_async_event::zeroed();
            // SAFETY: the context is open, and the structure is the one that the function fills.
            let returned =
                unsafe { (library.ibv_get_async_event)(self.0.context.as_ptr(), &mut told) };
            if let Err(why) = checked(returned) {
                match why.kind() {
                    io::ErrorKind::WouldBlock => return Ok(None),
                    io::ErrorKind::Interrupted => continue,
                    _ => {
                        let object = format!("RDMA device {}", self.0.name);
                        return Err(call_failed_with("ibv_get_async_event", object, why, ""));
                    }
                }
            }
            let event = understood(&told);
            // SAFETY: acknowledged once. What it names exists: the kernel drops the events of what is destroyed, and that
            // happens on this thread only, which has not been elsewhere since it took the event. So none is ever
            // unacknowledged when its queue pair is destroyed, which would wait for it.
            unsafe { (library.ibv_ack_async_event)(&mut told) };
            return Ok(Some(event));
        }
    }
}

fn understood(told: &ibv_async_event) -> DeviceEvent {
    let [a, b, c, d, ..] = told.element.0;
    let (port, address) = (
        i32::from_ne_bytes([a, b, c, d]),
        u64::from_ne_bytes(told.element.0),
    );
    DeviceEvent::of(told.event_type, port, address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_is_a_port_or_an_address() {
        let mut told = ibv_async_event::zeroed();
        told.event_type = 10;
        // What the library leaves in the upper half is of no port.
        told.element.0 = [0xff; 8];
        told.element.0[..4].copy_from_slice(&2i32.to_ne_bytes());
        assert_eq!(understood(&told), DeviceEvent::Port { port: 2, kind: 10 });
        told.event_type = 1;
        told.element.0 = 0x7f00_1234_5678_u64.to_ne_bytes();
        let address = 0x7f00_1234_5678;
        assert_eq!(understood(&told), DeviceEvent::QueuePair { address });
    }
}
