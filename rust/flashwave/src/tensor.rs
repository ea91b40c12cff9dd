//! Borrowed memory as the library sees it: an address, strides, and how far it reaches.
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::null_mut;

use flashwave_sys as sys;

use crate::device::{Device, DeviceBuffer};
use crate::element::{DType, Element, Plain};
use crate::error::{Error, Result};

/// Where memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Host,
    Device(Device),
    /// Somebody promised that it is right.
    Promised,
}

impl Place {
    pub(crate) fn check(self, name: &str, device: Device) -> Result<()> {
        let right = match self {
            Place::Host => device.is_cpu(),
            Place::Device(owner) => owner == device,
            Place::Promised => true,
        };
        if right {
            return Ok(());
        }
        let lies = match self {
            Place::Device(owner) => owner.info().name,
            _ => "the host".to_string(),
        };
        Err(Error::invalid(format!("{name} lies in the memory of {lies}, but {} is to compute", device.info().name)))
    }
}

/// A tensor that is read: borrowed memory with strides.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    pub(crate) raw: RawTensor,
    memory: PhantomData<&'a ()>,
}

/// A tensor that is written (or read and written).
#[derive(Debug)]
pub struct TensorMut<'a> {
    pub(crate) raw: RawTensor,
    memory: PhantomData<&'a mut ()>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RawTensor {
    data: *mut c_void,
    len: usize,
    dtype: DType,
    pub(crate) strides: Option<[usize; 4]>,
    pub(crate) place: Place,
}

impl RawTensor {
    /// The library's view of it as (a, b, c, d) of these extents, which must lie inside of the memory.
    pub(crate) fn view(&self, name: &str, extents: [i64; 4]) -> Result<sys::fw_tensor> {
        let mut stride = [1i64; 4];
        match self.strides {
            Some(strides) => {
                for (to, from) in stride.iter_mut().zip(strides) {
                    *to = i64::try_from(from).map_err(|_| Error::invalid(format!("{name}: a stride of {from}")))?;
                }
            }
            None => {
                for i in (0..3).rev() {
                    stride[i] = stride[i + 1].saturating_mul(extents[i + 1].max(1));
                }
            }
        }
        let empty = extents.contains(&0);
        let reach = extents.iter().zip(stride).map(|(&extent, stride)| i128::from(extent - 1) * i128::from(stride));
        let needed = if empty { 0 } else { reach.sum::<i128>() + 1 };
        if needed > self.len as i128 {
            let len = self.len;
            return Err(Error::invalid(format!(
                "{name} has {len} elements, but with sizes {extents:?} and strides {stride:?} it reaches {needed}"
            )));
        }
        Ok(sys::fw_tensor { data: self.data, stride, dtype: self.dtype as i32, reserved: 0 })
    }
}

macro_rules! constructors {
    ($tensor:ident, $slice:ty, $buffer:ty, $pointer:ident) => {
        impl<'a> $tensor<'a> {
            /// Memory of the host.
            pub fn from_slice<T: Element>(data: $slice) -> Self {
                let raw = RawTensor {
                    data: data.$pointer().cast_mut().cast(),
                    len: data.len(),
                    dtype: T::DTYPE,
                    strides: None,
                    place: Place::Host,
                };
                Self { raw, memory: PhantomData }
            }

            /// Memory of a device.
            pub fn from_buffer<T: Element>(data: $buffer) -> Self {
                let raw = RawTensor {
                    data: data.as_ptr(),
                    len: data.len(),
                    dtype: T::DTYPE,
                    strides: None,
                    place: Place::Device(data.device()),
                };
                Self { raw, memory: PhantomData }
            }

            /// Any memory of `len` elements.
            ///
            /// # Safety
            /// It must lie where the device that computes can reach it, be valid for `'a` as a reference to it would
            /// have to be, and until what was queued with it is done.
            pub unsafe fn from_raw(data: *mut c_void, len: usize, dtype: DType) -> Self {
                let raw = RawTensor { data, len, dtype, strides: None, place: Place::Promised };
                Self { raw, memory: PhantomData }
            }

            /// Elements from one index to the next, in the order of the field it is given for: mostly (batch, row, head,
            /// dim), of which the last must be 1. Without this, the tensor has no gaps.
            pub fn strides(mut self, strides: [usize; 4]) -> Self {
                self.raw.strides = Some(strides);
                self
            }
        }

        impl<'a, T: Element> From<$slice> for $tensor<'a> {
            fn from(data: $slice) -> Self {
                Self::from_slice(data)
            }
        }

        impl<'a, T: Element> From<$buffer> for $tensor<'a> {
            fn from(data: $buffer) -> Self {
                Self::from_buffer(data)
            }
        }
    };
}
constructors!(Tensor, &'a [T], &'a DeviceBuffer<T>, as_ptr);
constructors!(TensorMut, &'a mut [T], &'a mut DeviceBuffer<T>, as_ptr);

impl<'a, T: Element> From<&'a Vec<T>> for Tensor<'a> {
    fn from(data: &'a Vec<T>) -> Self {
        Self::from_slice(data)
    }
}

impl<'a, T: Element> From<&'a mut Vec<T>> for TensorMut<'a> {
    fn from(data: &'a mut Vec<T>) -> Self {
        Self::from_slice(data)
    }
}

/// An array of numbers beside the tensors: lengths, slopes, ...
#[derive(Clone, Copy, Debug)]
pub struct Array<'a, T: Plain> {
    pub(crate) data: *mut T,
    pub(crate) len: usize,
    pub(crate) place: Place,
    memory: PhantomData<&'a [T]>,
}

impl<T: Plain> Array<'_, T> {
    /// Any memory of `len` elements.
    ///
    /// # Safety
    /// As [`Tensor::from_raw`]. Indices must obey the rules of `docs/errors.md`: on a GPU, where others are read back and
    /// checked before a call, nobody looks at these.
    pub unsafe fn from_raw(data: *const T, len: usize) -> Self {
        Array { data: data.cast_mut(), len, place: Place::Promised, memory: PhantomData }
    }

    /// The address, if the array has `needed` elements and lies where the device can read it.
    pub(crate) fn pointer(&self, name: &str, needed: i128, device: Option<Device>) -> Result<*mut T> {
        if let Some(device) = device {
            self.place.check(name, device)?;
        }
        if needed > self.len as i128 {
            return Err(Error::invalid(format!("{name} has {} elements, {needed} are needed", self.len)));
        }
        Ok(self.data)
    }
}

impl<'a, T: Plain> From<&'a [T]> for Array<'a, T> {
    fn from(data: &'a [T]) -> Self {
        Array { data: data.as_ptr().cast_mut(), len: data.len(), place: Place::Host, memory: PhantomData }
    }
}

impl<'a, T: Plain> From<&'a Vec<T>> for Array<'a, T> {
    fn from(data: &'a Vec<T>) -> Self {
        data.as_slice().into()
    }
}

impl<'a, T: Plain, const N: usize> From<&'a [T; N]> for Array<'a, T> {
    fn from(data: &'a [T; N]) -> Self {
        data.as_slice().into()
    }
}

impl<'a, T: Plain> From<&'a DeviceBuffer<T>> for Array<'a, T> {
    fn from(data: &'a DeviceBuffer<T>) -> Self {
        let place = Place::Device(data.device());
        Array { data: data.as_ptr().cast(), len: data.len(), place, memory: PhantomData }
    }
}

/// An array that is written.
#[derive(Debug)]
pub struct ArrayMut<'a, T: Plain> {
    pub(crate) array: Array<'a, T>,
    memory: PhantomData<&'a mut [T]>,
}

impl<'a, T: Plain> From<&'a mut [T]> for ArrayMut<'a, T> {
    fn from(data: &'a mut [T]) -> Self {
        let array = Array { data: data.as_mut_ptr(), len: data.len(), place: Place::Host, memory: PhantomData };
        ArrayMut { array, memory: PhantomData }
    }
}

impl<'a, T: Plain> From<&'a mut DeviceBuffer<T>> for ArrayMut<'a, T> {
    fn from(data: &'a mut DeviceBuffer<T>) -> Self {
        ArrayMut { array: (&*data).into(), memory: PhantomData }
    }
}

pub(crate) const ABSENT: sys::fw_tensor = sys::fw_tensor { data: null_mut(), stride: [0; 4], dtype: 0, reserved: 0 };
