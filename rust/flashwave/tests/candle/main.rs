//! candle's functions against attention composed of candle's own operations.
#![cfg(feature = "candle")]

mod arguments;
mod decoder;
mod functions;
mod gradients;
mod plain;
