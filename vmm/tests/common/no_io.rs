//! Methods of test devices that serve doorbells only.

/// The methods of [`IoDevice`](paradisk_devices::IoDevice) of a device that has no requests in flight.
macro_rules! no_io {
    () => {
        fn completion_events(&self) -> Vec<std::os::fd::BorrowedFd<'_>> {
            Vec::new()
        }

        fn on_completions(&mut self, _: paradisk_devices::Time) {}

        fn before_sleep(&mut self, _: paradisk_devices::Time) -> paradisk_devices::Sleep {
            paradisk_devices::Sleep::Forever
        }

        fn reset(&mut self, _: paradisk_devices::Time) {}

        fn set_coalescing(&mut self, _: paradisk_devices::Coalescing) {}
    };
}
pub(crate) use no_io;
