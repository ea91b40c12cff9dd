use std::ffi::{c_char, c_void, CStr, CString};
use std::fmt;
use std::marker::PhantomData;
use std::ptr::{null_mut, NonNull};
use std::sync::OnceLock;

use flashwave_sys as sys;

use crate::element::Plain;
use crate::error::{check, Error, Result};

/// A CPU or GPU. Devices live as long as the process, so this is a handle that can be copied and shared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Device {
    handle: NonNull<sys::fw_device>,
}

// SAFETY: flashwave.h: every function is safe to call from any number of threads, and devices are never freed.
unsafe impl Send for Device {}
unsafe impl Sync for Device {}

/// What is known about a [`Device`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// "cpu", "cuda:0", "hip:0", "emu:gfx942".
    pub name: String,
    /// "cpu", "cuda", "hip", "emu".
    pub kind: String,
    /// "x86-64+avx512", "sm_90", "gfx942".
    pub arch: String,
    /// The maker's name for it.
    pub description: String,
    /// Cores, multiprocessors or compute units.
    pub compute_units: i64,
    /// Its memory.
    pub memory_bytes: i64,
}

impl Device {
    /// By name: `cpu`, `cuda[:i]`, `hip[:i]`, `emu:gfxNNN`, or `auto`, the best real one.
    pub fn open(name: &str) -> Result<Device> {
        let name = CString::new(name).map_err(|_| Error::NoDevice(format!("device {name:?}: a zero in a name")))?;
        let mut handle = null_mut();
        // SAFETY: a C string and a place for the answer.
        check(unsafe { sys::fw_device_open(name.as_ptr(), &mut handle) })?;
        Ok(Device { handle: NonNull::new(handle).expect("a device was opened") })
    }

    /// The CPU, which is always there. Loads no driver.
    pub fn cpu() -> Device {
        static CPU: OnceLock<Device> = OnceLock::new();
        *CPU.get_or_init(|| Device::open("cpu").expect("there always is a CPU"))
    }

    /// The real devices of this machine, the CPU first. Emulated ones open by name only.
    pub fn all() -> Vec<Device> {
        // SAFETY: asks for a number.
        let count = unsafe { sys::fw_device_count() };
        let open = |index| {
            let mut handle = null_mut();
            // SAFETY: a place for the answer.
            check(unsafe { sys::fw_device_at(index, &mut handle) }).ok()?;
            NonNull::new(handle).map(|handle| Device { handle })
        };
        (0..count).filter_map(open).collect()
    }

    /// What is known about it.
    pub fn info(&self) -> DeviceInfo {
        let info = self.query();
        DeviceInfo {
            name: text(&info.name).into(),
            kind: text(&info.kind).into(),
            arch: text(&info.arch).into(),
            description: text(&info.description).into(),
            compute_units: info.compute_units,
            memory_bytes: info.memory_bytes,
        }
    }

    /// The names of the kernels it could run, in the order they are tried.
    pub fn kernels(&self) -> Vec<String> {
        // SAFETY: null past the end, else a string that is never freed.
        let name = |index| unsafe {
            let name = sys::fw_kernel_name(self.as_raw(), index);
            (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
        };
        (0..).map_while(name).collect()
    }

    /// Waits for everything queued on the stream.
    pub fn synchronize(&self, stream: Stream) -> Result<()> {
        // SAFETY: whoever made the stream promised that it is one of this device.
        check(unsafe { sys::fw_device_synchronize(self.as_raw(), stream.0) })
    }

    /// Memory with `len` zeros.
    pub fn zeros<T: Plain>(&self, len: usize) -> Result<DeviceBuffer<T>> {
        let mut buffer = self.uninitialised(len)?;
        let zeros = vec![0u8; buffer.bytes().min(1 << 20)];
        let mut done = 0;
        while done < buffer.bytes() {
            let part = zeros.len().min(buffer.bytes() - done);
            // SAFETY: `part` bytes from `done` on are in the buffer.
            unsafe { buffer.copy_in(done, zeros.as_ptr().cast(), part)? };
            done += part;
        }
        self.synchronize(Stream::DEFAULT)?; // the copies read `zeros`
        Ok(buffer)
    }

    /// Memory with a copy of `data`.
    pub fn upload<T: Plain>(&self, data: &[T]) -> Result<DeviceBuffer<T>> {
        let mut buffer = self.uninitialised(data.len())?;
        buffer.copy_from(data)?;
        Ok(buffer)
    }

    /// What launches since the last call cost, as JSON: emulated devices only (`docs/devices.md`).
    pub fn counters(&self) -> Result<String> {
        let call = |buffer: *mut c_char, capacity, needed: &mut usize| {
            // SAFETY: writes at most `capacity` bytes.
            check(unsafe { sys::fw_device_counters(self.as_raw(), buffer, capacity, needed) })
        };
        read_text(call)
    }

    /// The C handle.
    pub fn as_raw(&self) -> *mut sys::fw_device {
        self.handle.as_ptr()
    }

    pub(crate) fn is_cpu(&self) -> bool {
        *self == Device::cpu()
    }

    fn query(&self) -> sys::fw_device_info {
        // SAFETY: all fields are numbers, for which 0 is a value.
        let mut info: sys::fw_device_info = unsafe { std::mem::zeroed() };
        info.struct_size = size_of::<sys::fw_device_info>() as u32;
        // SAFETY: a device and a struct that says how large it is.
        check(unsafe { sys::fw_device_query(self.as_raw(), &mut info) }).expect("a device can be asked");
        info
    }

    fn uninitialised<T: Plain>(&self, len: usize) -> Result<DeviceBuffer<T>> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| Error::OutOfMemory(format!("{len} elements")))?;
        let mut data = null_mut();
        // SAFETY: a place for the answer.
        check(unsafe { sys::fw_device_alloc(self.as_raw(), bytes, &mut data) })?;
        Ok(DeviceBuffer { device: *self, data, len, element: PhantomData })
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", text(&self.query().name))
    }
}

/// A queue of a GPU: the caller's, or the default one. The CPU has only the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(pub(crate) *mut c_void);

// SAFETY: a handle that is only passed to functions which are safe from every thread.
unsafe impl Send for Stream {}
unsafe impl Sync for Stream {}

impl Stream {
    /// The device's default stream, which this crate's copies use too.
    pub const DEFAULT: Stream = Stream(null_mut());

    /// A `hipStream_t` or `CUstream`.
    ///
    /// # Safety
    /// It must be a stream of the device it is used with, and live until what is queued on it is done. The caller orders
    /// that work with everything else that touches the same memory: other streams, copies of [`DeviceBuffer`], and the
    /// end of the borrows of a [`Problem`](crate::Problem).
    pub unsafe fn from_raw(stream: *mut c_void) -> Stream {
        Stream(stream)
    }

    /// The C handle.
    pub fn as_raw(&self) -> *mut c_void {
        self.0
    }
}

/// Memory of a device, freed when dropped.
pub struct DeviceBuffer<T: Plain> {
    device: Device,
    data: *mut c_void,
    len: usize,
    element: PhantomData<T>,
}

// SAFETY: owns its memory; writing needs &mut.
unsafe impl<T: Plain> Send for DeviceBuffer<T> {}
unsafe impl<T: Plain> Sync for DeviceBuffer<T> {}

impl<T: Plain> DeviceBuffer<T> {
    /// Where it lies.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device's address, null if it is empty.
    pub fn as_ptr(&self) -> *mut c_void {
        self.data
    }

    /// Overwrites the whole buffer, after what is queued on the default stream.
    pub fn copy_from(&mut self, data: &[T]) -> Result<()> {
        self.check_len("data", data.len())?;
        // SAFETY: both have that many bytes; `data` is there until the copy has been made.
        unsafe { self.copy_in(0, data.as_ptr().cast(), self.bytes())? };
        self.device.synchronize(Stream::DEFAULT)
    }

    /// Reads the whole buffer, after what is queued on the default stream.
    pub fn copy_to(&self, data: &mut [T]) -> Result<()> {
        self.check_len("data", data.len())?;
        let (device, bytes) = (self.device.as_raw(), self.bytes());
        let to = data.as_mut_ptr().cast();
        // SAFETY: both have that many bytes, and any bytes are a T.
        check(unsafe { sys::fw_device_copy(device, to, self.data, bytes, sys::FW_DEVICE_TO_HOST, null_mut()) })?;
        self.device.synchronize(Stream::DEFAULT)
    }

    /// A copy of the whole buffer on the host.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut data = T::zeros(self.len);
        self.copy_to(&mut data)?;
        Ok(data)
    }

    fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    fn check_len(&self, name: &str, len: usize) -> Result<()> {
        if len == self.len {
            return Ok(());
        }
        Err(Error::invalid(format!("{name} has {len} elements, the buffer {}", self.len)))
    }

    /// # Safety
    /// `bytes` can be read at `from` until the default stream was waited for, and lie in the buffer from `at` on.
    unsafe fn copy_in(&mut self, at: usize, from: *const c_void, bytes: usize) -> Result<()> {
        let to = self.data.wrapping_byte_add(at);
        // SAFETY: promised by the caller.
        check(unsafe { sys::fw_device_copy(self.device.as_raw(), to, from, bytes, sys::FW_HOST_TO_DEVICE, null_mut()) })
    }
}

impl<T: Plain> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        // SAFETY: allocated by this device and not freed yet. Drivers wait for what still uses it. A failure to free is
        // not worth a panic.
        unsafe { sys::fw_device_free(self.device.as_raw(), self.data) };
    }
}

impl<T: Plain> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({:?}, {} elements)", self.device, self.len)
    }
}

/// A field of a C struct that holds text.
pub(crate) fn text(field: &[c_char]) -> &str {
    // SAFETY: c_char and u8 are alike.
    let bytes = unsafe { std::slice::from_raw_parts(field.as_ptr().cast::<u8>(), field.len()) };
    CStr::from_bytes_until_nul(bytes).ok().and_then(|text| text.to_str().ok()).unwrap_or_default()
}

/// Text from a function that writes at most `capacity` bytes and says how many it needs.
pub(crate) fn read_text(call: impl Fn(*mut c_char, usize, &mut usize) -> Result<()>) -> Result<String> {
    let (mut buffer, mut needed) = (Vec::new(), 0);
    call(null_mut(), 0, &mut needed)?;
    while buffer.len() < needed {
        buffer.resize(needed, 0u8);
        call(buffer.as_mut_ptr().cast(), buffer.len(), &mut needed)?;
    }
    let text = CStr::from_bytes_until_nul(&buffer).map(|text| text.to_string_lossy().into_owned());
    Ok(text.unwrap_or_default())
}
