//! The cycles-per-I/O meter.
