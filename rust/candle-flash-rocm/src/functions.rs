//! candle-flash-attn's functions, on the chosen device.
use candle_core::{Result, Tensor};

use crate::device::device;

flashwave::flash_attn_functions!(|op, q, k, v| op.apply_on(&device()?, q, k, v));
