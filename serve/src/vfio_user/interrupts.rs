//! Interrupts: the device's signals, and the client's eventfds.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use paradisk_devices::{InterruptSink, MsiMessage};
use rustix::io::Errno;

use super::spec::{IRQ_INTX, IRQ_MSI, IRQ_MSIX, IRQS, IrqSet, SetIrqs};
use crate::client_socket::Received;
use crate::notifier::{Notifier, require_eventfd};

/// Maximum number of vectors: that of MSI-X.
const VECTORS: usize = paradisk_devices::pci::spec::MSIX_MAX_VECTORS as usize;
const BITS: usize = u64::BITS as usize;

/// The device's signals since they were last taken. The thread that calls the device takes them.
pub(super) struct Signals {
    vectors: [AtomicU64; VECTORS / BITS],
    any: AtomicBool,
    line: AtomicBool,
}

impl Signals {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            vectors: [const { AtomicU64::new(0) }; VECTORS / BITS],
            any: AtomicBool::new(false),
            line: AtomicBool::new(false),
        })
    }

    /// Call `each` with the vectors that were signalled.
    fn take(&self, mut each: impl FnMut(usize)) {
        // Acquire: the vectors of signals of other threads are visible.
        if !self.any.swap(false, Ordering::Acquire) {
            return;
        }
        for (first, word) in (0..).step_by(BITS).zip(&self.vectors) {
            let mut bits = word.swap(0, Ordering::Relaxed);
            while bits != 0 {
                each(first + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }
}

/// The device's end of the signals.
pub(super) struct Sink(pub(super) Arc<Signals>);

impl InterruptSink for Sink {
    /// Address and data are not needed: the client has an eventfd for each vector.
    fn route(&mut self, _vector: u16, _message: Option<MsiMessage>) {}

    fn message(&mut self, vector: u16) {
        let vector = usize::from(vector);
        if let Some(word) = self.0.vectors.get(vector / BITS) {
            word.fetch_or(1 << (vector % BITS), Ordering::Relaxed);
            self.0.any.store(true, Ordering::Release);
        }
    }

    fn line(&mut self, asserted: bool) {
        self.0.line.store(asserted, Ordering::Relaxed);
    }

    fn delivers_after_calls(&self) -> bool {
        true
    }
}

#[derive(Default)]
struct Vector {
    trigger: Option<Notifier>,
    masked: bool,
    /// Signalled while masked.
    pending: bool,
}

impl Vector {
    fn signal(&mut self) {
        if self.masked {
            self.pending = true;
        } else if let Some(trigger) = &mut self.trigger {
            trigger.signal();
        }
    }

    fn unmask(&mut self) {
        self.masked = false;
        if std::mem::take(&mut self.pending) {
            self.signal();
        }
    }
}

/// The interrupt types of a function, as configured by the client.
pub(super) struct Interrupts {
    signals: Arc<Signals>,
    intx: Option<Vector>,
    msi: Vec<Vector>,
    msix: Vec<Vector>,
    /// Unmasks the line when written. It is polled and never read.
    unmask: Option<OwnedFd>,
}

impl Interrupts {
    pub(super) fn new(signals: Arc<Signals>, intx: bool, msi: u16, msix: u16) -> Self {
        let vectors = |count: u16| (0..count).map(|_| Vector::default()).collect();
        Self {
            signals,
            intx: intx.then(Vector::default),
            msi: vectors(msi),
            msix: vectors(msix),
            unmask: None,
        }
    }

    fn vectors(&mut self, index: u32) -> &mut [Vector] {
        match index {
            IRQ_INTX => self.intx.as_mut_slice(),
            IRQ_MSI => &mut self.msi,
            IRQ_MSIX => &mut self.msix,
            _ => &mut [],
        }
    }

    /// Number of vectors; `None`: no such type.
    pub(super) fn count(&mut self, index: u32) -> Option<u32> {
        (index < IRQS).then(|| self.vectors(index).len() as u32)
    }

    /// The eventfd by which the client unmasks the line.
    pub(super) fn unmask_event(&self) -> Option<BorrowedFd<'_>> {
        self.unmask.as_ref().map(AsFd::as_fd)
    }

    /// Unmask the line, after the guest has handled its interrupt.
    pub(super) fn unmask_line(&mut self) {
        if let Some(intx) = &mut self.intx {
            intx.unmask();
        }
    }

    /// Whether a vector of MSI-X has an eventfd.
    pub(super) fn has_trigger(&self, vector: usize) -> bool {
        self.msix.get(vector).is_some_and(|vector| vector.trigger.is_some())
    }

    /// Drop all eventfds of the client.
    pub(super) fn clear(&mut self) {
        self.unmask = None;
        for vector in self.intx.iter_mut().chain(&mut self.msi).chain(&mut self.msix) {
            *vector = Vector::default();
        }
    }

    /// Execute a client's command.
    ///
    /// # Errors
    /// `EINVAL` for vectors that do not exist, invalid flags, or a number of data or descriptors that differs from the
    /// number of vectors.
    pub(super) fn set(&mut self, set: &SetIrqs, bytes: &[u8], fds: Vec<Received>) -> Result<(), Errno> {
        let flags = IrqSet::from_bits(set.flags.get()).ok_or(Errno::INVAL)?;
        let (index, start, count) = (set.index.get(), set.start.get() as usize, set.count.get() as usize);
        let data = flags & (IrqSet::DATA_NONE | IrqSet::DATA_BOOL | IrqSet::DATA_EVENTFD);
        let action = flags - data;
        let vectors = self.vectors(index);
        if count == 0 {
            // Disables the type.
            if start != 0 || flags != IrqSet::DATA_NONE | IrqSet::TRIGGER {
                return Err(Errno::INVAL);
            }
            vectors.fill_with(Vector::default);
            if index == IRQ_INTX {
                self.unmask = None;
            }
            return Ok(());
        }
        let end = start.checked_add(count).ok_or(Errno::INVAL)?;
        let vectors = vectors.get_mut(start..end).ok_or(Errno::INVAL)?;
        if data == IrqSet::DATA_EVENTFD {
            if !fds.is_empty() && fds.len() != count {
                return Err(Errno::INVAL);
            }
            let fds = fds.into_iter().map(|fd| fd.checked(require_eventfd));
            let fds = fds.collect::<Result<Vec<_>, _>>()?;
            return match (action, index) {
                (IrqSet::TRIGGER, _) => {
                    // All descriptors or none.
                    let triggers = fds.into_iter().map(Notifier::new).collect::<Result<Vec<_>, _>>();
                    let triggers =
                        triggers.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
                    let mut triggers = triggers.into_iter();
                    for vector in vectors {
                        vector.trigger = triggers.next();
                    }
                    Ok(())
                }
                (IrqSet::UNMASK, IRQ_INTX) => {
                    self.unmask = fds.into_iter().next();
                    Ok(())
                }
                _ => Err(Errno::INVAL),
            };
        }
        let chosen: &[u8] = match data {
            IrqSet::DATA_NONE => &[],
            IrqSet::DATA_BOOL => bytes.get(..count).ok_or(Errno::INVAL)?,
            _ => return Err(Errno::INVAL),
        };
        let act = match action {
            IrqSet::MASK => |vector: &mut Vector| vector.masked = true,
            IrqSet::UNMASK => Vector::unmask,
            IrqSet::TRIGGER => Vector::signal,
            _ => return Err(Errno::INVAL),
        };
        for (at, vector) in vectors.iter_mut().enumerate() {
            if chosen.get(at).is_none_or(|chosen| *chosen != 0) {
                act(vector);
            }
        }
        Ok(())
    }

    /// Signal the client's eventfds for the device's signals.
    pub(super) fn deliver(&mut self, msix: bool) {
        let vectors = if msix { &mut self.msix } else { &mut self.msi };
        self.signals.take(|vector| {
            if let Some(vector) = vectors.get_mut(vector) {
                vector.signal();
            }
        });
        if let Some(intx) = &mut self.intx
            && self.signals.line.load(Ordering::Relaxed)
            && intx.trigger.is_some()
            && !intx.masked
        {
            intx.signal();
            // Masked until the client unmasks it. If the line is still asserted then, it is signalled again.
            intx.masked = true;
        }
    }
}
