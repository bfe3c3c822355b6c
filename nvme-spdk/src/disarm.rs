//! How a PCI controller is made to reach memory no more, one step at a time.

use std::time::Duration;

/// After so long the right to reach memory is taken from a controller that does not say that it is idle: by PCI it may write
/// nothing then.
pub(crate) const IDLE_WAIT: Duration = Duration::from_secs(1);

/// The bit of a device's PCI command register that has it answer at its registers.
const ANSWERS: u16 = 1 << 1;
/// The bit that lets it begin transfers.
const BUS_MASTER: u16 = 1 << 2;
/// The bit of a controller's configuration that has it work.
const ENABLE: u32 = 1;
/// The bit of its status that says that it does.
const READY: u32 = 1;

/// What is read and written of a controller. Nothing is read from one that is not there, nor from one that answers with ones.
pub(crate) trait Registers {
    /// The command register in its PCI configuration.
    fn command(&self) -> Option<u16>;
    /// Whether it was written.
    fn set_command(&self, value: u16) -> bool;
    /// Its NVMe configuration (CC).
    fn configuration(&self) -> Option<u32>;
    fn set_configuration(&self, value: u32);
    /// Its NVMe status (CSTS).
    fn status(&self) -> Option<u32>;
}

/// One step. True when it was seen to be idle and to have no right to reach memory: whatever it was given, it reads and writes nothing any
/// more. `overdue`: it has had [`IDLE_WAIT`] to become idle.
pub(crate) fn step(controller: &impl Registers, overdue: bool) -> bool {
    // First, since one that does not answer here must not be touched at its registers: that may be a bus error.
    let Some(command) = controller.command() else {
        return false;
    };
    let idle = command & ANSWERS != 0 && is_idle(controller);
    if !idle && !overdue {
        return false;
    }
    has_lost_the_bus(controller, command) && idle
}

/// Switches it off; whether it has said that it is idle since. The specification: it has deleted its queues then, and what it was doing has
/// ended.
fn is_idle(controller: &impl Registers) -> bool {
    let Some(now) = controller.configuration() else {
        return false;
    };
    if now & ENABLE != 0 {
        controller.set_configuration(now & !ENABLE);
    }
    controller
        .status()
        .is_some_and(|status| status & READY == 0)
}

/// Whether that was seen. The answer to the last read comes behind all that it has written before.
fn has_lost_the_bus(controller: &impl Registers, command: u16) -> bool {
    controller.set_command(command & !BUS_MASTER)
        && controller
            .command()
            .is_some_and(|now| now & BUS_MASTER == 0)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// A controller that becomes idle after so many looks at its status.
    struct Fake {
        command: Cell<Option<u16>>,
        configuration: Cell<Option<u32>>,
        looks_left: Cell<Option<u32>>,
        done: RefCell<Vec<&'static str>>,
    }

    impl Fake {
        fn new(looks_left: Option<u32>) -> Self {
            Self {
                command: Cell::new(Some(0x0406)),
                configuration: Cell::new(Some(0x0046_0001)),
                looks_left: Cell::new(looks_left),
                done: RefCell::default(),
            }
        }

        fn note(&self, what: &'static str) {
            self.done.borrow_mut().push(what);
        }
    }

    impl Registers for Fake {
        fn command(&self) -> Option<u16> {
            self.note("command?");
            self.command.get()
        }

        fn set_command(&self, value: u16) -> bool {
            self.note("command!");
            self.command.set(Some(value));
            true
        }

        fn configuration(&self) -> Option<u32> {
            self.note("configuration?");
            self.configuration.get()
        }

        fn set_configuration(&self, value: u32) {
            self.note("configuration!");
            self.configuration.set(Some(value));
        }

        fn status(&self) -> Option<u32> {
            self.note("status?");
            let enabled = self.configuration.get()? & ENABLE;
            Some(match self.looks_left.get() {
                Some(0) if enabled == 0 => 0,
                left => {
                    self.looks_left.set(left.map(|left| left.saturating_sub(1)));
                    READY
                }
            })
        }
    }

    #[test]
    fn it_is_switched_off_before_the_bus_is_taken_and_both_are_seen() {
        let fake = Fake::new(Some(2));
        assert!(!step(&fake, false) && !step(&fake, false));
        assert_eq!(fake.command.get(), Some(0x0406), "it may end what it does");
        assert!(step(&fake, false));
        assert_eq!(fake.command.get(), Some(0x0402));
        assert_eq!(fake.configuration.get(), Some(0x0046_0000));
        let done = fake.done.borrow();
        let once = ["command?", "configuration?", "configuration!", "status?"];
        assert_eq!(done[..4], once);
        let written = |what| done.iter().filter(|one| **one == what).count();
        assert_eq!((written("configuration!"), written("command!")), (1, 1));
        assert_eq!(done[done.len() - 2..], ["command!", "command?"]);
    }

    #[test]
    fn one_that_never_says_that_it_is_idle_loses_the_bus_and_is_not_trusted() {
        let fake = Fake::new(None);
        assert!(!step(&fake, false));
        assert_eq!(fake.command.get(), Some(0x0406));
        assert!(!step(&fake, true));
        assert_eq!(fake.command.get(), Some(0x0402));
        fake.looks_left.set(Some(0));
        assert!(step(&fake, true), "it did after all");
    }

    #[test]
    fn registers_of_one_that_does_not_answer_are_not_touched() {
        let away = Fake::new(Some(0));
        away.command.set(None);
        assert!(!step(&away, true));
        assert_eq!(*away.done.borrow(), ["command?"]);
        let closed = Fake::new(Some(0));
        closed.command.set(Some(BUS_MASTER));
        assert!(!step(&closed, false) && !step(&closed, true));
        assert_eq!(
            closed.command.get(),
            Some(0),
            "the bus is taken all the same"
        );
        let touched = closed.done.borrow();
        assert!(
            touched.iter().all(|one| one.starts_with("command")),
            "{touched:?}"
        );
    }

    #[test]
    fn ones_are_no_idle_controller() {
        let ones = Fake::new(Some(0));
        ones.configuration.set(None);
        assert!(!step(&ones, false) && !step(&ones, true));
    }

    #[test]
    fn a_bus_that_is_not_given_up_counts_for_nothing() {
        struct Keeps(Fake);
        impl Registers for Keeps {
            fn command(&self) -> Option<u16> {
                self.0.command()
            }
            fn set_command(&self, _: u16) -> bool {
                true
            }
            fn configuration(&self) -> Option<u32> {
                self.0.configuration()
            }
            fn set_configuration(&self, value: u32) {
                self.0.set_configuration(value);
            }
            fn status(&self) -> Option<u32> {
                self.0.status()
            }
        }
        let keeps = Keeps(Fake::new(Some(0)));
        assert!(!step(&keeps, false) && !step(&keeps, true));
    }
}
