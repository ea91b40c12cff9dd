//! Tensors in the host's memory, computed on the CPU, or on another device through copies in its memory.
use std::sync::OnceLock;

use candle_core::{bail, CpuStorage, DType, Error, Layout, Result, Storage, Tensor};
use half::{bf16, f16};

use super::beside::HostBeside;
use super::spec::{Beside, Shapes, Spec, View};
use crate::{Array, Device, DeviceBuffer, Element, Exec, Gradients, Plain, Problem, TensorMut};

/// Something that is read: in place on the CPU, a copy on any other device.
enum Input<'a, T: Plain> {
    Host(&'a [T]),
    Device(DeviceBuffer<T>),
}

impl<'a, T: Plain> Input<'a, T> {
    fn new(data: &'a [T], device: Device) -> Result<Self> {
        if device == Device::cpu() {
            return Ok(Input::Host(data));
        }
        device.upload(data).map(Input::Device).map_err(Error::wrap)
    }

    fn array(&self) -> Array<'_, T> {
        match self {
            Input::Host(data) => (*data).into(),
            Input::Device(data) => data.into(),
        }
    }
}

impl<T: Element> Input<'_, T> {
    fn tensor(&self, strides: [usize; 4]) -> crate::Tensor<'_> {
        let tensor: crate::Tensor<'_> = match self {
            Input::Host(data) => (*data).into(),
            Input::Device(data) => data.into(),
        };
        tensor.strides(strides)
    }
}

/// Something that is written, without gaps, and then taken to the host.
enum Output<T: Plain> {
    Host(Vec<T>),
    Device(DeviceBuffer<T>),
}

impl<T: Element> Output<T> {
    /// Zeros: rows that belong to no sequence are not written.
    fn new(len: usize, device: Device) -> Result<Self> {
        if device == Device::cpu() {
            return Ok(Output::Host(T::zeros(len)));
        }
        device.zeros(len).map(Output::Device).map_err(Error::wrap)
    }

    fn tensor(&mut self) -> TensorMut<'_> {
        match self {
            Output::Host(data) => data.into(),
            Output::Device(data) => data.into(),
        }
    }

    fn into_vec(self) -> Result<Vec<T>> {
        match self {
            Output::Host(data) => Ok(data),
            Output::Device(data) => data.to_vec().map_err(Error::wrap),
        }
    }
}

/// The arrays of a call where the device can read them.
struct Arrays<'a> {
    seqlens_q: Option<Input<'a, i32>>,
    seqlens_k: Option<Input<'a, i32>>,
    block_table: Option<(Input<'a, i32>, usize)>,
    alibi_slopes: Option<(Input<'a, f32>, usize)>,
    bias: Option<Input<'a, f32>>,
}

impl<'a> Arrays<'a> {
    fn new(host: &'a HostBeside, device: Device) -> Result<Self> {
        fn at<'a, T: Plain>(data: &'a Option<Vec<T>>, device: Device) -> Result<Option<Input<'a, T>>> {
            data.as_deref().map(|data| Input::new(data, device)).transpose()
        }
        fn with<'a, T: Plain>(
            data: &'a Option<(Vec<T>, usize)>,
            device: Device,
        ) -> Result<Option<(Input<'a, T>, usize)>> {
            data.as_ref().map(|(data, stride)| Ok((Input::new(data, device)?, *stride))).transpose()
        }
        Ok(Arrays {
            seqlens_q: at(&host.seqlens_q, device)?,
            seqlens_k: at(&host.seqlens_k, device)?,
            block_table: with(&host.block_table, device)?,
            alibi_slopes: with(&host.alibi_slopes, device)?,
            bias: at(&host.bias, device)?,
        })
    }

    fn beside(&self, shapes: &Shapes) -> Beside<'_> {
        let (rows, columns) = (shapes.sizes.seqlen_q, shapes.sizes.seqlen_k);
        Beside {
            seqlens_q: self.seqlens_q.as_ref().map(Input::array),
            seqlens_k: self.seqlens_k.as_ref().map(Input::array),
            block_table: self.block_table.as_ref().map(|(table, stride)| (table.array(), *stride)),
            alibi_slopes: self.alibi_slopes.as_ref().map(|(slopes, stride)| (slopes.array(), *stride)),
            bias: self.bias.as_ref().map(|bias| bias.tensor([rows * columns, 0, columns, 1])),
        }
    }
}

/// As many threads as candle's own kernels take, where that was chosen; else the library's default.
fn exec() -> &'static Exec {
    static EXEC: OnceLock<Exec> = OnceLock::new();
    EXEC.get_or_init(|| {
        let chosen = |name| std::env::var(name).ok().and_then(|value| value.parse().ok());
        let num_threads = if std::env::var_os("FLASHWAVE_NUM_THREADS").is_some() {
            0
        } else {
            chosen("RAYON_NUM_THREADS").unwrap_or(0)
        };
        Exec { num_threads, ..Exec::default() }
    })
}

trait HostElement: Element + candle_core::WithDType {
    fn slice(storage: &CpuStorage) -> Option<&[Self]>;
    fn storage(data: Vec<Self>) -> CpuStorage;
}

macro_rules! host_element {
    ($($number:ty = $variant:ident),*) => {$(
        impl HostElement for $number {
            fn slice(storage: &CpuStorage) -> Option<&[Self]> {
                match storage {
                    CpuStorage::$variant(data) => Some(data),
                    _ => None,
                }
            }
            fn storage(data: Vec<Self>) -> CpuStorage {
                CpuStorage::$variant(data)
            }
        }
    )*};
}
host_element!(f16 = F16, bf16 = BF16, f32 = F32);

fn part<'a, T: HostElement>(name: &str, storage: &'a CpuStorage, view: View) -> Result<&'a [T]> {
    let Some(data) = T::slice(storage) else {
        let dtype = candle_core::backend::BackendStorage::dtype(storage);
        bail!("{name} must have the dtype of q, {:?}, got {dtype:?}", <T as Element>::DTYPE)
    };
    Ok(&data[view.offset..view.offset + view.span])
}

/// q, k and v of a call.
pub(super) type Inputs<'a> = [(&'a CpuStorage, &'a Layout); 3];

/// o and, if it is wanted, lse.
pub(super) fn forward(
    spec: &Spec,
    device: Device,
    inputs: Inputs<'_>,
    want_lse: bool,
) -> Result<(CpuStorage, Shapes, Option<Tensor>)> {
    match candle_core::backend::BackendStorage::dtype(inputs[0].0) {
        DType::F16 => forward_as::<f16>(spec, device, inputs, want_lse),
        DType::BF16 => forward_as::<bf16>(spec, device, inputs, want_lse),
        DType::F32 => forward_as::<f32>(spec, device, inputs, want_lse),
        dtype => bail!("q must be f16, bf16 or f32, got {dtype:?}"),
    }
}

fn forward_as<T: HostElement>(
    spec: &Spec,
    device: Device,
    [(q, q_l), (k, k_l), (v, v_l)]: Inputs<'_>,
    want_lse: bool,
) -> Result<(CpuStorage, Shapes, Option<Tensor>)> {
    let shapes = spec.shapes(q_l, k_l, v_l)?;
    let host = HostBeside::of(spec, &shapes)?;
    let arrays = Arrays::new(&host, device)?;
    let q = Input::new(part::<T>("q", q, shapes.q)?, device)?;
    let k = Input::new(part::<T>("k", k, shapes.k)?, device)?;
    let v = Input::new(part::<T>("v", v, shapes.v)?, device)?;
    let mut o = Output::<T>::new(shapes.o.elem_count(), device)?;
    let mut lse = want_lse.then(|| Output::<f32>::new(shapes.lse.elem_count(), device)).transpose()?;
    {
        let (q, k, v) = (q.tensor(shapes.q.strides), k.tensor(shapes.k.strides), v.tensor(shapes.v.strides));
        let mut problem = Problem::new(shapes.sizes, q, k, v, o.tensor());
        if let Some(lse) = &mut lse {
            problem = problem.lse(lse.tensor().strides(shapes.lse_strides));
        }
        let mut problem = spec.configure(problem, &shapes, &arrays.beside(&shapes));
        problem.forward_with(&device, exec()).map_err(Error::wrap)?;
    }
    let lse = match lse {
        Some(lse) => Some(Tensor::from_vec(lse.into_vec()?, &shapes.lse, &candle_core::Device::Cpu)?),
        None => None,
    };
    Ok((T::storage(o.into_vec()?), shapes, lse))
}

/// dq, dk and dv of tensors in the host's memory.
pub(super) fn backward(spec: &Spec, device: Device, tensors: &Forward<'_>) -> Result<[Tensor; 3]> {
    match tensors.q.dtype() {
        DType::F16 => backward_as::<f16>(spec, device, tensors),
        DType::BF16 => backward_as::<bf16>(spec, device, tensors),
        DType::F32 => backward_as::<f32>(spec, device, tensors),
        dtype => bail!("q must be f16, bf16 or f32, got {dtype:?}"),
    }
}

/// What a backward starts from: the tensors of a forward, and the gradient of its output.
pub(super) struct Forward<'a> {
    pub q: &'a Tensor,
    pub k: &'a Tensor,
    pub v: &'a Tensor,
    pub o: &'a Tensor,
    pub lse: &'a Tensor,
    pub d_o: &'a Tensor,
}

fn backward_as<T: HostElement>(spec: &Spec, device: Device, tensors: &Forward<'_>) -> Result<[Tensor; 3]> {
    let shapes = spec.shapes(tensors.q.layout(), tensors.k.layout(), tensors.v.layout())?;
    let host = HostBeside::of(spec, &shapes)?;
    let arrays = Arrays::new(&host, device)?;
    let guards = [
        ("q", tensors.q),
        ("k", tensors.k),
        ("v", tensors.v),
        ("the result", tensors.o),
        ("lse", tensors.lse),
        ("the gradient", tensors.d_o),
    ]
    .map(|(name, tensor)| (name, tensor.storage_and_layout()));
    fn input<'a, T: HostElement>(
        (name, (storage, layout)): &'a (&str, (candle_core::StorageRef<'_>, &Layout)),
        device: Device,
    ) -> Result<Input<'a, T>> {
        let Storage::Cpu(storage) = &**storage else { bail!("{name} must be a cpu tensor") };
        Input::new(part::<T>(name, storage, View::of(layout))?, device)
    }
    let [q, k, v, o, _, d_o] = guards.each_ref();
    let (q, k, v) = (input::<T>(q, device)?, input::<T>(k, device)?, input::<T>(v, device)?);
    let (o, d_o) = (input::<T>(o, device)?, input::<T>(d_o, device)?);
    let lse = input::<f32>(&guards[4], device)?;
    let count = |tensor: &Tensor| tensor.elem_count();
    let mut dq = Output::<T>::new(count(tensors.q), device)?;
    let mut dk = Output::<T>::new(count(tensors.k), device)?;
    let mut dv = Output::<T>::new(count(tensors.v), device)?;
    {
        let (o_view, d_o_view) = (View::of(tensors.o.layout()), View::of(tensors.d_o.layout()));
        let problem = Problem::of_forward(
            shapes.sizes,
            q.tensor(shapes.q.strides),
            k.tensor(shapes.k.strides),
            v.tensor(shapes.v.strides),
            o.tensor(o_view.strides),
            lse.tensor(shapes.lse_strides),
        );
        let problem = spec.configure(problem, &shapes, &arrays.beside(&shapes));
        let mut gradients =
            Gradients::new(d_o.tensor(d_o_view.strides)).dq(dq.tensor()).dk(dk.tensor()).dv(dv.tensor());
        problem.backward_with(&device, &mut gradients, exec()).map_err(Error::wrap)?;
    }
    let cpu = &candle_core::Device::Cpu;
    Ok([
        Tensor::from_vec(dq.into_vec()?, tensors.q.shape(), cpu)?,
        Tensor::from_vec(dk.into_vec()?, tensors.k.shape(), cpu)?,
        Tensor::from_vec(dv.into_vec()?, tensors.v.shape(), cpu)?,
    ])
}
