//! Tensors in NVIDIA memory, on candle's own stream.
use std::ffi::c_void;

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, SyncOnDrop};
use candle_core::cuda_backend::{CudaDType, CudaDevice};
use candle_core::op::BackpropOp;
use candle_core::{bail, CudaStorage, DType, Error, Layout, Result, Shape, Storage, StorageRef, Tensor};
use half::{bf16, f16};

use super::beside::{alibi_batch_stride, HostBeside};
use super::host::Forward;
use super::spec::{Beside, Shapes, Spec, View};
use crate::{Array, Device, Element, Exec, Gradients, Plain, Problem, Stream, TensorMut};

trait CudaElement: Element + CudaDType + DeviceRepr {}
impl<T: Element + CudaDType + DeviceRepr> CudaElement for T {}

/// Memory that is read. Candle is told so, on the stream, when this is dropped.
struct Read<'a> {
    address: u64,
    len: usize,
    _until_queued: SyncOnDrop<'a>,
}

impl<'a> Read<'a> {
    fn new<T: CudaDType + DeviceRepr + 'static>(
        name: &str,
        storage: &'a CudaStorage,
        view: View,
        stream: &'a CudaStream,
    ) -> Result<Self> {
        let Ok(slice) = storage.as_cuda_slice::<T>() else {
            bail!("{name} must have the dtype of q, got {:?}", storage.dtype())
        };
        let (address, until_queued) = slice.device_ptr(stream);
        let address = address + (view.offset * size_of::<T>()) as u64;
        Ok(Read { address, len: view.span, _until_queued: until_queued })
    }

    fn tensor<T: Element>(&self, strides: [usize; 4]) -> crate::Tensor<'_> {
        // SAFETY: candle's memory of that many elements, which it keeps until work queued on its stream is done.
        let tensor = unsafe { crate::Tensor::from_raw(self.address as *mut c_void, self.len, T::DTYPE) };
        tensor.strides(strides)
    }

    fn array<T: Plain>(&self) -> Array<'_, T> {
        // SAFETY: as above. The values of indices are the caller's promise, as in candle-flash-attn.
        unsafe { Array::from_raw(self.address as *const T, self.len) }
    }
}

/// A small tensor of a call, and its storage while it is used.
struct Small<'a> {
    storage: StorageRef<'a>,
    view: View,
    dtype: DType,
}

impl<'a> Small<'a> {
    fn new(tensor: &'a Tensor) -> Self {
        let (storage, layout) = tensor.storage_and_layout();
        let view = View { offset: layout.start_offset(), span: layout.shape().elem_count(), strides: [0; 4] };
        Small { storage, view, dtype: tensor.dtype() }
    }

    fn read(&'a self, name: &str, stream: &'a CudaStream) -> Result<Read<'a>> {
        let Storage::Cuda(storage) = &*self.storage else { bail!("{name} must be a cuda tensor") };
        match self.dtype {
            DType::U32 => Read::new::<u32>(name, storage, self.view, stream),
            DType::I32 => Read::new::<i32>(name, storage, self.view, stream),
            _ => Read::new::<f32>(name, storage, self.view, stream),
        }
    }
}

/// The small tensors, contiguous and on the device.
struct SmallTensors {
    seqlens_q: Option<Tensor>,
    seqlens_k: Option<Tensor>,
    block_table: Option<Tensor>,
    alibi_slopes: Option<(Tensor, usize)>,
    bias: Option<Tensor>,
}

impl SmallTensors {
    fn new(spec: &Spec, shapes: &Shapes, device: &CudaDevice) -> Result<Self> {
        let ragged = spec.ragged.as_ref();
        let alibi_slopes = match &spec.alibi_slopes {
            Some(slopes) => Some((slopes.contiguous()?, alibi_batch_stride(slopes, shapes)?)),
            None => None,
        };
        // The mask of ranges is made on the host, which waits for the device.
        let ranges = spec.paged().is_some_and(|paged| paged.mm_prefix_ranges.is_some());
        let host = if ranges { HostBeside::of(spec, shapes)?.bias } else { None };
        let there = &candle_core::Device::Cuda(device.clone());
        Ok(SmallTensors {
            seqlens_q: ragged.map(|ragged| ragged.seqlens_q.contiguous()).transpose()?,
            seqlens_k: ragged.map(|ragged| ragged.seqlens_k.contiguous()).transpose()?,
            block_table: spec.paged().map(|paged| paged.block_table.contiguous()).transpose()?,
            alibi_slopes,
            bias: host.map(|bias| Tensor::from_vec(bias.clone(), bias.len(), there)).transpose()?,
        })
    }

    /// Calls `body` with all of them, held until it has queued its work.
    fn with<R>(&self, shapes: &Shapes, stream: &CudaStream, body: impl FnOnce(&Beside<'_>) -> Result<R>) -> Result<R> {
        let seqlens_q = self.seqlens_q.as_ref().map(Small::new);
        let seqlens_k = self.seqlens_k.as_ref().map(Small::new);
        let table = self.block_table.as_ref().map(Small::new);
        let slopes = self.alibi_slopes.as_ref().map(|(slopes, _)| Small::new(slopes));
        let bias = self.bias.as_ref().map(Small::new);
        let seqlens_q = seqlens_q.as_ref().map(|small| small.read("seqlens_q", stream)).transpose()?;
        let seqlens_k = seqlens_k.as_ref().map(|small| small.read("seqlens_k", stream)).transpose()?;
        let table = table.as_ref().map(|small| small.read("block_table", stream)).transpose()?;
        let slopes = slopes.as_ref().map(|small| small.read("alibi_slopes", stream)).transpose()?;
        let bias = bias.as_ref().map(|small| small.read("bias", stream)).transpose()?;
        let blocks = self.block_table.as_ref().map_or(0, |table| table.dims()[1]);
        let slopes_stride = self.alibi_slopes.as_ref().map_or(0, |(_, stride)| *stride);
        let (rows, columns) = (shapes.sizes.seqlen_q, shapes.sizes.seqlen_k);
        body(&Beside {
            seqlens_q: seqlens_q.as_ref().map(Read::array),
            seqlens_k: seqlens_k.as_ref().map(Read::array),
            block_table: table.as_ref().map(|table| (table.array(), blocks)),
            alibi_slopes: slopes.as_ref().map(|slopes| (slopes.array(), slopes_stride)),
            bias: bias.as_ref().map(|bias| bias.tensor::<f32>([rows * columns, 0, columns, 1])),
        })
    }
}

/// flashwave's device and settings for candle's stream.
fn place(stream: &CudaStream) -> Result<(Device, Exec)> {
    let device = Device::open(&format!("cuda:{}", stream.context().ordinal())).map_err(Error::wrap)?;
    // SAFETY: candle's stream lives as long as its device, and candle orders its own work on it.
    let stream = unsafe { Stream::from_raw(stream.cu_stream().cast()) };
    Ok((device, Exec { stream, ..Exec::default() }))
}

fn written<'a, T: CudaElement, S: DevicePtrMut<T>>(
    slice: &'a mut S,
    len: usize,
    stream: &'a CudaStream,
) -> (TensorMut<'a>, SyncOnDrop<'a>) {
    let (address, until_queued) = slice.device_ptr_mut(stream);
    // SAFETY: allocated with that many elements, and kept by candle until work queued on its stream is done.
    (unsafe { TensorMut::from_raw(address as *mut c_void, len, T::DTYPE) }, until_queued)
}

fn finished<T: CudaElement>(
    slice: candle_core::cuda_backend::cudarc::driver::CudaSlice<T>,
    shape: &Shape,
    device: &CudaDevice,
) -> Tensor {
    let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(slice, device.clone()));
    Tensor::from_storage(storage, shape, BackpropOp::none(), false)
}

/// q, k and v of a call.
pub(super) type Inputs<'a> = [(&'a CudaStorage, &'a Layout); 3];

/// o and, if it is wanted, lse.
pub(super) fn forward(
    spec: &Spec,
    inputs: Inputs<'_>,
    want_lse: bool,
) -> Result<(CudaStorage, Shapes, Option<Tensor>)> {
    match inputs[0].0.dtype() {
        DType::F16 => forward_as::<f16>(spec, inputs, want_lse),
        DType::BF16 => forward_as::<bf16>(spec, inputs, want_lse),
        DType::F32 => forward_as::<f32>(spec, inputs, want_lse),
        dtype => bail!("q must be f16, bf16 or f32, got {dtype:?}"),
    }
}

fn forward_as<T: CudaElement + candle_core::cuda_backend::cudarc::driver::ValidAsZeroBits>(
    spec: &Spec,
    [(q, q_l), (k, k_l), (v, v_l)]: Inputs<'_>,
    want_lse: bool,
) -> Result<(CudaStorage, Shapes, Option<Tensor>)> {
    let shapes = spec.shapes(q_l, k_l, v_l)?;
    let candle_device = q.device().clone();
    let stream = candle_device.cuda_stream();
    let (device, exec) = place(&stream)?;
    let small = SmallTensors::new(spec, &shapes, &candle_device)?;
    let (len, lse_len) = (shapes.o.elem_count(), shapes.lse.elem_count());
    // Zeros: rows that belong to no sequence are not written.
    let mut o = candle_device.alloc_zeros::<T>(len)?;
    let mut lse = want_lse.then(|| candle_device.alloc_zeros::<f32>(lse_len)).transpose()?;
    small.with(&shapes, &stream, |beside| {
        let q = Read::new::<T>("q", q, shapes.q, &stream)?;
        let k = Read::new::<T>("k", k, shapes.k, &stream)?;
        let v = Read::new::<T>("v", v, shapes.v, &stream)?;
        let (out, _o) = written::<T, _>(&mut o, len, &stream);
        let lse = lse.as_mut().map(|lse| written::<f32, _>(lse, lse_len, &stream));
        let (q, k) = (q.tensor::<T>(shapes.q.strides), k.tensor::<T>(shapes.k.strides));
        let mut problem = Problem::new(shapes.sizes, q, k, v.tensor::<T>(shapes.v.strides), out);
        let mut _lse = None;
        if let Some((tensor, until_queued)) = lse {
            problem = problem.lse(tensor.strides(shapes.lse_strides));
            _lse = Some(until_queued);
        }
        let mut problem = spec.configure(problem, &shapes, beside);
        problem.forward_with(&device, &exec).map_err(Error::wrap)?;
        Ok(())
    })?;
    let lse = lse.map(|lse| finished(lse, &shapes.lse, &candle_device));
    Ok((CudaStorage::wrap_cuda_slice(o, candle_device), shapes, lse))
}

/// dq, dk and dv of tensors in the device's memory.
pub(super) fn backward(spec: &Spec, device: &CudaDevice, tensors: &Forward<'_>) -> Result<[Tensor; 3]> {
    match tensors.q.dtype() {
        DType::F16 => backward_as::<f16>(spec, device, tensors),
        DType::BF16 => backward_as::<bf16>(spec, device, tensors),
        DType::F32 => backward_as::<f32>(spec, device, tensors),
        dtype => bail!("q must be f16, bf16 or f32, got {dtype:?}"),
    }
}

fn backward_as<T: CudaElement + candle_core::cuda_backend::cudarc::driver::ValidAsZeroBits>(
    spec: &Spec,
    candle_device: &CudaDevice,
    tensors: &Forward<'_>,
) -> Result<[Tensor; 3]> {
    let shapes = spec.shapes(tensors.q.layout(), tensors.k.layout(), tensors.v.layout())?;
    let stream = candle_device.cuda_stream();
    let (device, exec) = place(&stream)?;
    let small = SmallTensors::new(spec, &shapes, candle_device)?;
    let mut outputs = Vec::new();
    for tensor in [tensors.q, tensors.k, tensors.v] {
        outputs.push(candle_device.alloc_zeros::<T>(tensor.elem_count())?);
    }
    let [dq, dk, dv] = &mut outputs[..] else { unreachable!("three were pushed") };
    let guards = [tensors.q, tensors.k, tensors.v, tensors.o, tensors.d_o, tensors.lse].map(Tensor::storage_and_layout);
    small.with(&shapes, &stream, |beside| {
        let input = |i: usize, name: &str| match &*guards[i].0 {
            Storage::Cuda(storage) => Read::new::<T>(name, storage, View::of(guards[i].1), &stream),
            _ => bail!("{name} must be a cuda tensor"),
        };
        let (q, k, v) = (input(0, "q")?, input(1, "k")?, input(2, "v")?);
        let (o, d_o) = (input(3, "the result")?, input(4, "the gradient")?);
        let Storage::Cuda(lse) = &*guards[5].0 else { bail!("lse must be a cuda tensor") };
        let lse = Read::new::<f32>("lse", lse, View::of(guards[5].1), &stream)?;
        let problem = Problem::of_forward(
            shapes.sizes,
            q.tensor::<T>(shapes.q.strides),
            k.tensor::<T>(shapes.k.strides),
            v.tensor::<T>(shapes.v.strides),
            o.tensor::<T>(View::of(guards[3].1).strides),
            lse.tensor::<f32>(shapes.lse_strides),
        );
        let problem = spec.configure(problem, &shapes, beside);
        let (dq, _dq) = written::<T, _>(dq, tensors.q.elem_count(), &stream);
        let (dk, _dk) = written::<T, _>(dk, tensors.k.elem_count(), &stream);
        let (dv, _dv) = written::<T, _>(dv, tensors.v.elem_count(), &stream);
        let d_o = d_o.tensor::<T>(View::of(guards[4].1).strides);
        let mut gradients = Gradients::new(d_o).dq(dq).dk(dk).dv(dv);
        problem.backward_with(&device, &mut gradients, &exec).map_err(Error::wrap)?;
        Ok(())
    })?;
    drop(guards);
    let mut shapes = [tensors.q, tensors.k, tensors.v].into_iter().map(Tensor::shape);
    let mut outputs = outputs.into_iter();
    let mut next = || finished(outputs.next().unwrap(), shapes.next().unwrap(), candle_device);
    Ok([next(), next(), next()])
}
