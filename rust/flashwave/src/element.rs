use flashwave_sys as sys;
use half::vec::HalfBitsVecExt;
use half::{bf16, f16};

mod sealed {
    pub trait Sealed {}
}

/// Plain numbers that device memory can hold: any bytes are a value.
pub trait Plain: sealed::Sealed + Copy + Send + Sync + 'static {
    /// `len` zeros, from memory that the system hands out cleared where that is possible.
    fn zeros(len: usize) -> Vec<Self>;
}

/// The numbers that can be attended to.
pub trait Element: Plain {
    /// Its type.
    const DTYPE: DType;
}

/// A type of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum DType {
    /// IEEE half precision.
    F16 = sys::FW_F16,
    /// bfloat16.
    BF16 = sys::FW_BF16,
    /// IEEE single precision.
    F32 = sys::FW_F32,
}

macro_rules! plain {
    ($($number:ty),*) => {$(
        impl sealed::Sealed for $number {}
        impl Plain for $number {
            fn zeros(len: usize) -> Vec<Self> {
                vec![0 as $number; len]
            }
        }
    )*};
}
plain!(u8, i32, u32, f32);

macro_rules! half_precision {
    ($($number:ty = $dtype:ident),*) => {$(
        impl sealed::Sealed for $number {}
        impl Plain for $number {
            fn zeros(len: usize) -> Vec<Self> {
                vec![0u16; len].reinterpret_into()
            }
        }
        impl Element for $number {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}
half_precision!(f16 = F16, bf16 = BF16);

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}
