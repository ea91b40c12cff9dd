use std::sync::RwLock;

use candle_core::{Error, Result};
use flashwave::Device;

static CHOSEN: RwLock<Option<Device>> = RwLock::new(None);

/// The device that computes: what [`set_device`] said last, else `FLASHWAVE_CANDLE_DEVICE`, else `hip:0`.
pub fn device() -> Result<Device> {
    if let Some(device) = *CHOSEN.read().unwrap() {
        return Ok(device);
    }
    let name = std::env::var("FLASHWAVE_CANDLE_DEVICE").ok().filter(|name| !name.is_empty());
    Device::open(name.as_deref().unwrap_or("hip:0")).map_err(Error::wrap)
}

/// Chooses the device for all later calls of this process, by flashwave's name for it.
pub fn set_device(name: &str) -> Result<()> {
    let device = Device::open(name).map_err(Error::wrap)?;
    *CHOSEN.write().unwrap() = Some(device);
    Ok(())
}
