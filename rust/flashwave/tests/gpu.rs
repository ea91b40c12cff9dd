//! A GPU through device memory: raw pointers, buffers and streams, against the CPU.
//!
//! `FLASHWAVE_TEST_DEVICE` names it (`cuda:0`, `hip:0`); without, it is an emulated gfx942.
use flashwave::{Device, DeviceBuffer, Element, Exec, Gradients, Problem, Sizes, Stream, Tensor, TensorMut};
use half::{bf16, f16};

fn gpu() -> Device {
    let name = std::env::var("FLASHWAVE_TEST_DEVICE").unwrap_or_else(|_| "emu:gfx942".to_string());
    Device::open(&name).unwrap()
}

trait Number: Element {
    const TOLERANCE: f32;
    fn narrow(x: f32) -> Self;
    fn wide(self) -> f32;
}

macro_rules! number {
    ($($number:ty: $tolerance:literal),*) => {$(
        impl Number for $number {
            const TOLERANCE: f32 = $tolerance;
            fn narrow(x: f32) -> Self {
                <$number>::from_f32(x)
            }
            fn wide(self) -> f32 {
                self.to_f32()
            }
        }
    )*};
}
number!(f16: 2e-3, bf16: 1.6e-2);

impl Number for f32 {
    const TOLERANCE: f32 = 2e-5;
    fn narrow(x: f32) -> Self {
        x
    }
    fn wide(self) -> f32 {
        self
    }
}

fn numbers<T: Number>(n: usize, seed: usize) -> Vec<T> {
    (0..n).map(|i| T::narrow(1.7 * ((i * 7 + seed * 131 + i * i % 97) as f32).sin())).collect()
}

fn assert_close<T: Number>(got: &[T], wanted: &[T], times: f32) {
    let close = |(got, wanted): (&T, &T)| (got.wide() - wanted.wide()).abs() <= times * T::TOLERANCE;
    assert_eq!(got.len(), wanted.len());
    assert!(got.iter().zip(wanted).all(close));
}

const SIZES: Sizes = Sizes { batch: 2, seqlen_q: 40, seqlen_k: 70, heads_q: 4, heads_k: 2, dim_qk: 64, dim_v: 64 };

/// o, lse, dq, dk, dv of a causal problem; the tensors are raw pointers, and the work is queued on `stream`.
fn everything<T: Number>(device: Device, stream: Stream) -> [Vec<T>; 5] {
    let rows = |s: usize, h: usize| SIZES.batch * s * h;
    let (q_rows, k_rows) = (rows(SIZES.seqlen_q, SIZES.heads_q), rows(SIZES.seqlen_k, SIZES.heads_k));
    let input = |n, seed| device.upload(&numbers::<T>(n, seed)).unwrap();
    let poison = |n| device.upload(&vec![T::narrow(f32::NAN); n]).unwrap();
    let (q, k, v) = (input(q_rows * 64, 1), input(k_rows * 64, 2), input(k_rows * 64, 3));
    let (d_o, o) = (input(q_rows * 64, 4), poison(q_rows * 64));
    let lse = device.upload(&vec![f32::NAN; q_rows]).unwrap();
    let (dq, dk, dv) = (poison(q_rows * 64), poison(k_rows * 64), poison(k_rows * 64));
    fn read<T: Element>(x: &DeviceBuffer<T>) -> Tensor<'_> {
        // SAFETY: memory of the device that computes, alive until the stream was waited for.
        unsafe { Tensor::from_raw(x.as_ptr(), x.len(), T::DTYPE) }
    }
    fn write<T: Element>(x: &DeviceBuffer<T>) -> TensorMut<'_> {
        // SAFETY: as above; nothing else touches it meanwhile.
        unsafe { TensorMut::from_raw(x.as_ptr(), x.len(), T::DTYPE) }
    }
    let exec = Exec { stream, ..Exec::default() };
    let mut problem = Problem::new(SIZES, read(&q), read(&k), read(&v), write(&o)).lse(write(&lse)).causal(true);
    let report = problem.forward_with(&device, &exec).unwrap();
    assert_eq!(report.device(), device.info().name);
    let problem = Problem::of_forward(SIZES, read(&q), read(&k), read(&v), read(&o), read(&lse)).causal(true);
    let mut gradients = Gradients::new(read(&d_o)).dq(write(&dq)).dk(write(&dk)).dv(write(&dv));
    problem.backward_with(&device, &mut gradients, &exec).unwrap();
    device.synchronize(stream).unwrap();
    let lse = lse.to_vec().unwrap().into_iter().map(T::narrow).collect();
    let [o, dq, dk, dv] = [&o, &dq, &dk, &dv].map(|x| x.to_vec().unwrap());
    [o, lse, dq, dk, dv]
}

fn compare<T: Number>(device: Device, stream: Stream) {
    let there = everything::<T>(device, stream);
    let here = everything::<T>(Device::cpu(), Stream::DEFAULT);
    assert_close(&there[0], &here[0], 1.0);
    assert_close(&there[1], &here[1], 4.0); // of numbers around 5
    for i in 2..5 {
        assert_close(&there[i], &here[i], 4.0); // sums of dozens of products
    }
}

#[test]
fn forward_and_backward_by_raw_pointers() {
    compare::<f16>(gpu(), Stream::DEFAULT);
    compare::<bf16>(gpu(), Stream::DEFAULT);
    compare::<f32>(gpu(), Stream::DEFAULT);
}

/// One query against a cache in pages, as when tokens are generated.
#[test]
fn decoding_from_pages() {
    let device = gpu();
    let sizes = Sizes { batch: 3, seqlen_q: 1, seqlen_k: 64, ..SIZES };
    let (pages, page_size) = (14, 16);
    let q = numbers::<bf16>(3 * 4 * 64, 1);
    let cache = |seed| numbers::<bf16>(pages * page_size * 2 * 64, seed);
    let (k, v) = (cache(2), cache(3));
    let (table, used) = ([3i32, 0, 13, 5, 1, 2, 99, 99, 7, 8, 9, 10], [64i32, 20, 47]);
    let run = |device: Device| {
        let [q, k, v] = [&q, &k, &v].map(|x| device.upload(x).unwrap());
        let (table, used) = (device.upload(&table).unwrap(), device.upload(&used).unwrap());
        let mut o = device.upload(&[bf16::NAN; 3 * 4 * 64]).unwrap();
        let problem = Problem::new(sizes, &q, &k, &v, &mut o).seqused_k(&used).causal(true);
        problem.block_table(&table, 4, page_size, pages).forward(&device).unwrap();
        o.to_vec().unwrap()
    };
    assert_close(&run(device), &run(Device::cpu()), 1.0);
}

/// A stream of the caller's.
#[test]
fn streams_of_the_driver() {
    let device = gpu();
    if device.info().kind != "cuda" {
        return; // the emulator's streams are all alike
    }
    device.zeros::<f32>(1).unwrap(); // makes the context
    let stream = cuda::stream();
    // SAFETY: a stream of the primary context, which the library uses, and nothing else is queued on it.
    compare::<bf16>(device, unsafe { Stream::from_raw(stream) });
}

mod cuda {
    use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
    use std::ptr::null_mut;

    extern "C" {
        fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
        fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    }

    const RTLD_NOW: c_int = 2;
    const NON_BLOCKING: c_uint = 1;

    fn symbol(name: &CStr) -> *mut c_void {
        // SAFETY: C strings.
        let found = unsafe { dlsym(dlopen(c"libcuda.so.1".as_ptr(), RTLD_NOW), name.as_ptr()) };
        assert!(!found.is_null(), "{name:?}");
        found
    }

    /// In the primary context of the first GPU.
    pub fn stream() -> *mut c_void {
        // SAFETY: the signatures of NVIDIA's driver.
        unsafe {
            type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
            type SetCurrent = unsafe extern "C" fn(*mut c_void) -> c_int;
            type Create = unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int;
            let retain: Retain = std::mem::transmute(symbol(c"cuDevicePrimaryCtxRetain"));
            let set_current: SetCurrent = std::mem::transmute(symbol(c"cuCtxSetCurrent"));
            let create: Create = std::mem::transmute(symbol(c"cuStreamCreate"));
            let (mut context, mut stream) = (null_mut(), null_mut());
            assert_eq!(retain(&mut context, 0), 0);
            assert_eq!(set_current(context), 0);
            assert_eq!(create(&mut stream, NON_BLOCKING), 0);
            stream
        }
    }
}
