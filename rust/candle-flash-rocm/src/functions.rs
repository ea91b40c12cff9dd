//! candle-flash-attn's functions, on the chosen device.
use candle_core::{Result, Tensor};

use crate::device::device;
use crate::op::{NAME, VARLEN_NAME};

/// What the operations of the functions are called.
trait Named {
    const NAME: &'static str;
}
impl Named for flashwave::candle::FlashAttn {
    const NAME: &'static str = NAME;
}
impl Named for flashwave::candle::FlashAttnVarLen {
    const NAME: &'static str = VARLEN_NAME;
}
fn name_of<Op: Named>(_: &Op) -> &'static str {
    Op::NAME
}

flashwave::flash_attn_functions!(|op, q, k, v| op.apply_named(&device()?, name_of(&op), [q, k, v]));
