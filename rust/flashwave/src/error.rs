use std::ffi::CStr;
use std::fmt;

use flashwave_sys as sys;

/// What went wrong, in the library's words: each kind holds the message, which names the argument and the rule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// An argument breaks a rule.
    InvalidArgument(String),
    /// A valid problem, but no kernel of this device, or not the forced one, takes it.
    Unsupported(String),
    /// The device's name is unknown, or its driver or hardware is not there.
    NoDevice(String),
    /// The host or the device has not enough memory.
    OutOfMemory(String),
    /// The workspace that was given is too small.
    WorkspaceTooSmall(String),
    /// The device's driver reported an error.
    Device(String),
    /// A fault of the library itself.
    Internal(String),
}

/// A `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The message alone.
    pub fn message(&self) -> &str {
        match self {
            Error::InvalidArgument(message)
            | Error::Unsupported(message)
            | Error::NoDevice(message)
            | Error::OutOfMemory(message)
            | Error::WorkspaceTooSmall(message)
            | Error::Device(message)
            | Error::Internal(message) => message,
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Error::InvalidArgument(message.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for Error {}

/// The status of a call that has just been made on this thread.
pub(crate) fn check(status: sys::fw_status) -> Result<()> {
    if status == sys::FW_OK {
        return Ok(());
    }
    // SAFETY: a string that lives until this thread's next call.
    let message = unsafe { CStr::from_ptr(sys::fw_last_error()) }.to_string_lossy().into_owned();
    Err(match status {
        sys::FW_INVALID_ARGUMENT => Error::InvalidArgument(message),
        sys::FW_UNSUPPORTED => Error::Unsupported(message),
        sys::FW_NO_DEVICE => Error::NoDevice(message),
        sys::FW_OUT_OF_MEMORY => Error::OutOfMemory(message),
        sys::FW_WORKSPACE_TOO_SMALL => Error::WorkspaceTooSmall(message),
        sys::FW_DEVICE_ERROR => Error::Device(message),
        _ => Error::Internal(message),
    })
}
