use std::ffi::CString;
use std::ptr::null;

use flashwave_sys as sys;

use crate::device::{read_text, text, Device, Stream};
use crate::error::{check, Error, Result};
use crate::problem::{checked_tensor, Problem};
use crate::tensor::{ArrayMut, RawTensor, Tensor, TensorMut};

/// How a call runs; [`Default`] is right for most.
#[derive(Clone, Debug)]
pub struct Exec {
    /// CPU: at most this many; 0: the library's default (`FLASHWAVE_NUM_THREADS`, else all cores).
    pub num_threads: usize,
    /// GPU: where the work is queued.
    pub stream: Stream,
    /// This kernel or an error; empty: the library chooses.
    pub force_kernel: String,
}

impl Default for Exec {
    fn default() -> Self {
        Exec { num_threads: 0, stream: Stream::DEFAULT, force_kernel: String::new() }
    }
}

/// What ran.
#[derive(Clone, Copy, Debug)]
pub struct Report(sys::fw_report);

impl Report {
    /// The kernel; empty if there was nothing to do.
    pub fn kernel(&self) -> &str {
        text(&self.0.kernel)
    }

    /// The device.
    pub fn device(&self) -> &str {
        text(&self.0.device)
    }

    /// Parts that the keys were cut into.
    pub fn splits(&self) -> usize {
        self.0.splits.max(0) as usize
    }

    /// CPU threads, at most.
    pub fn threads(&self) -> usize {
        self.0.threads.max(0) as usize
    }

    /// Bytes of scratch memory.
    pub fn workspace_size(&self) -> u64 {
        self.0.workspace_size
    }
}

/// How [`Problem::explain`] answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Format {
    /// For people.
    Text = sys::FW_TEXT,
    /// For programs.
    Json = sys::FW_JSON,
}

/// What a forward costs at least.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Arithmetic; masked pairs do not count.
    pub flops: f64,
    /// Bytes to be moved at least once.
    pub bytes: f64,
}

/// The gradients of a [`Problem`]: dO in, the others out. Those not asked for are not computed.
#[derive(Debug)]
pub struct Gradients<'a> {
    d_o: RawTensor,
    d_lse: Option<RawTensor>,
    dq: Option<RawTensor>,
    dk: Option<RawTensor>,
    dv: Option<RawTensor>,
    d_bias: Option<RawTensor>,
    d_sinks: Option<ArrayMut<'a, f32>>,
    d_slopes: Option<ArrayMut<'a, f32>>,
}

// SAFETY: as Problem.
unsafe impl Send for Gradients<'_> {}
unsafe impl Sync for Gradients<'_> {}

impl<'a> Gradients<'a> {
    /// The gradient of o.
    pub fn new(d_o: impl Into<Tensor<'a>>) -> Self {
        let d_o = d_o.into().raw;
        Gradients { d_o, d_lse: None, dq: None, dk: None, dv: None, d_bias: None, d_sinks: None, d_slopes: None }
    }

    /// The gradient of lse, read.
    pub fn d_lse(mut self, d_lse: impl Into<Tensor<'a>>) -> Self {
        self.d_lse = Some(d_lse.into().raw);
        self
    }

    /// Asks for the gradient of q.
    pub fn dq(mut self, dq: impl Into<TensorMut<'a>>) -> Self {
        self.dq = Some(dq.into().raw);
        self
    }

    /// Asks for the gradient of k.
    pub fn dk(mut self, dk: impl Into<TensorMut<'a>>) -> Self {
        self.dk = Some(dk.into().raw);
        self
    }

    /// Asks for the gradient of v.
    pub fn dv(mut self, dv: impl Into<TensorMut<'a>>) -> Self {
        self.dv = Some(dv.into().raw);
        self
    }

    /// Asks for the gradient of the bias, summed where it broadcasts.
    pub fn d_bias(mut self, d_bias: impl Into<TensorMut<'a>>) -> Self {
        self.d_bias = Some(d_bias.into().raw);
        self
    }

    /// Asks for the gradient of the sinks.
    pub fn d_sinks(mut self, d_sinks: impl Into<ArrayMut<'a, f32>>) -> Self {
        self.d_sinks = Some(d_sinks.into());
        self
    }

    /// Asks for the gradient of the ALiBi slopes.
    pub fn d_slopes(mut self, d_slopes: impl Into<ArrayMut<'a, f32>>) -> Self {
        self.d_slopes = Some(d_slopes.into());
        self
    }

    fn checked(&self, problem: &Problem<'_>, device: Option<Device>) -> Result<sys::fw_gradients> {
        let mut g = std::mem::MaybeUninit::uninit();
        // SAFETY: fills the whole struct.
        let mut g: sys::fw_gradients = unsafe {
            sys::fw_gradients_init(g.as_mut_ptr(), size_of::<sys::fw_gradients>());
            g.assume_init()
        };
        let a = &problem.a;
        let mut scores = problem.extents_scores();
        for (extent, stride) in scores.iter_mut().zip(problem.bias_strides()) {
            if stride == Some(0) {
                *extent = (*extent).min(1); // a sum
            }
        }
        for (name, tensor, extents, field) in [
            ("d_o", Some(self.d_o), problem.extents_q(a.dim_v), &mut g.d_o),
            ("d_lse", self.d_lse, problem.extents_q(1), &mut g.d_lse),
            ("dq", self.dq, problem.extents_q(a.dim_qk), &mut g.dq),
            ("dk", self.dk, problem.extents_k(a.dim_qk), &mut g.dk),
            ("dv", self.dv, problem.extents_k(a.dim_v), &mut g.dv),
            ("d_bias", self.d_bias, scores, &mut g.d_bias),
        ] {
            *field = checked_tensor(name, tensor, extents, device)?;
        }
        let heads = i128::from(a.heads_q);
        if let Some(d_sinks) = &self.d_sinks {
            g.d_sinks = d_sinks.array.pointer("d_sinks", heads, device)?;
        }
        if let Some(d_slopes) = &self.d_slopes {
            let rows = i128::from(a.batch - 1).max(0) * i128::from(a.alibi_batch_stride);
            g.d_slopes = d_slopes.array.pointer("d_slopes", rows + heads, device)?;
        }
        Ok(g)
    }
}

/// An `fw_exec` and what it points to.
struct RawExec {
    exec: sys::fw_exec,
    _force_kernel: Option<CString>,
}

impl Exec {
    fn raw(&self, report: *mut sys::fw_report) -> Result<RawExec> {
        let mut exec = std::mem::MaybeUninit::uninit();
        // SAFETY: fills the whole struct.
        let mut exec: sys::fw_exec = unsafe {
            sys::fw_exec_init(exec.as_mut_ptr(), size_of::<sys::fw_exec>());
            exec.assume_init()
        };
        exec.num_threads = i32::try_from(self.num_threads).unwrap_or(i32::MAX);
        exec.stream = self.stream.0;
        exec.report = report;
        let force_kernel = if self.force_kernel.is_empty() {
            None
        } else {
            let name = CString::new(self.force_kernel.as_str());
            Some(name.map_err(|_| Error::invalid("force_kernel: a zero in a name"))?)
        };
        exec.force_kernel = force_kernel.as_ref().map_or(null(), |name| name.as_ptr());
        Ok(RawExec { exec, _force_kernel: force_kernel })
    }
}

fn empty_report() -> sys::fw_report {
    // SAFETY: all fields are numbers, for which 0 is a value.
    let mut report: sys::fw_report = unsafe { std::mem::zeroed() };
    report.struct_size = size_of::<sys::fw_report>() as u32;
    report
}

pub(crate) fn cost_of(device: Device, a: &sys::fw_attention) -> Result<Cost> {
    let struct_size = size_of::<sys::fw_cost>() as u32;
    let mut cost = sys::fw_cost { struct_size, reserved: 0, flops: 0.0, bytes: 0.0 };
    // SAFETY: tensors are not touched; index arrays were checked to be long enough.
    check(unsafe { sys::fw_problem_cost(device.as_raw(), a, null(), &mut cost) })?;
    Ok(Cost { flops: cost.flops, bytes: cost.bytes })
}

impl Problem<'_> {
    /// Computes o, and lse if it was asked for. On a GPU it returns when the work is queued.
    pub fn forward(&mut self, device: &Device) -> Result<Report> {
        self.forward_with(device, &Exec::default())
    }

    /// The same, with a stream, a number of threads or a kernel of one's own choice.
    pub fn forward_with(&mut self, device: &Device, exec: &Exec) -> Result<Report> {
        let a = self.checked(Some(*device), true)?;
        let mut report = empty_report();
        let raw = exec.raw(&mut report)?;
        // SAFETY: all memory is borrowed, long enough for its strides, and the device's.
        check(unsafe { sys::fw_forward(device.as_raw(), &a, &raw.exec) })?;
        Ok(Report(report))
    }

    /// Computes the gradients that are asked for from o and lse, which a forward gave.
    pub fn backward(&self, device: &Device, gradients: &mut Gradients<'_>) -> Result<Report> {
        self.backward_with(device, gradients, &Exec::default())
    }

    /// The same, with a stream, a number of threads or a kernel of one's own choice.
    pub fn backward_with(&self, device: &Device, gradients: &mut Gradients<'_>, exec: &Exec) -> Result<Report> {
        let a = self.checked(Some(*device), false)?;
        let g = gradients.checked(self, Some(*device))?;
        let mut report = empty_report();
        let raw = exec.raw(&mut report)?;
        // SAFETY: as in forward_with.
        check(unsafe { sys::fw_backward(device.as_raw(), &a, &g, &raw.exec) })?;
        Ok(Report(report))
    }

    /// Which kernel a forward would run on the device, and why not each one before it. Memory is not touched.
    pub fn explain(&self, device: &Device, format: Format) -> Result<String> {
        let a = self.checked(None, false)?;
        read_text(|buffer, capacity, needed| {
            // SAFETY: writes at most `capacity` bytes; pointers in `a` only count as present.
            check(unsafe {
                sys::fw_explain(device.as_raw(), &a, null(), null(), format as i32, buffer, capacity, needed)
            })
        })
    }

    /// Bytes of scratch memory a forward would take on the device.
    pub fn workspace_size(&self, device: &Device) -> Result<usize> {
        let a = self.checked(None, false)?;
        let mut bytes = 0;
        // SAFETY: pointers in `a` only count as present.
        check(unsafe { sys::fw_workspace_size(device.as_raw(), &a, null(), null(), &mut bytes) })?;
        Ok(bytes)
    }

    /// What a forward costs. Index arrays are read if they lie in the host's memory.
    pub fn cost(&self, device: &Device) -> Result<Cost> {
        cost_of(*device, &self.checked(Some(*device), false)?)
    }
}
