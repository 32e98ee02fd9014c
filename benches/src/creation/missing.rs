//! Why a row has no time.

/// Why a row has no time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Missing {
    /// The file system cannot be made or mounted here.
    #[error("no file system: {0}")]
    FileSystem(String),
    /// It has too little space.
    #[error("{0}")]
    Space(String),
    /// The operation failed.
    #[error("{0}")]
    Failed(String),
}

impl Missing {
    /// Whether the host lacks what the row needs, which is no failure.
    pub(super) const fn is_skip(&self) -> bool {
        match self {
            Self::FileSystem(_) | Self::Space(_) => true,
            Self::Failed(_) => false,
        }
    }
}
