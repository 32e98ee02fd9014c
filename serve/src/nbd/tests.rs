//! Clients against a server, good and bad.
