"""Runs code objects on the emulator through the HIP functions of libflashwave_emu.so, as a HIP program would.

    with hip.Session("gfx942") as session:
        result = session.run(code, "kernel", grid=4, block=256, args=[array, hip.i32(n)])

or, for one launch, hip.run("gfx942", code, "kernel", grid, block, args). Arguments: arrays of NumPy are copied to the
device before and back after the launch; Buffer stays there; numbers are int32 and float32 unless they are NumPy scalars
or ctypes values; bytes are passed as they are (a structure); None is a null pointer.
"""

import ctypes
import functools
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "codeobj"))

import elf

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Code objects by a hash of all they are made of, for every clone on this machine.
CACHE = pathlib.Path(
    os.environ.get("FLASHWAVE_EMULATOR_CACHE")
    or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "flashwave" / "emulator"
)
ARCHITECTURES = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")

HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2

u8, i8, u16, i16 = ctypes.c_uint8, ctypes.c_int8, ctypes.c_uint16, ctypes.c_int16
u32, i32, u64, i64 = ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64, ctypes.c_int64
f32, f64 = ctypes.c_float, ctypes.c_double


class HipError(RuntimeError):
    """A HIP call that failed: .name (hipErrorLaunchFailure), .detail (what the emulator says)."""

    def __init__(self, call, name, detail):
        super().__init__(f"{call}: {name}: {detail}")
        self.call, self.name, self.detail = call, name, detail


class CheckFailed(AssertionError):
    """The checkers found mistakes: .reports."""

    def __init__(self, reports):
        super().__init__("the checkers report:\n" + reports)
        self.reports = reports


def wave_size(arch):
    return 64 if arch.startswith("gfx9") else 32


LIBRARY = pathlib.Path(os.environ.get("FLASHWAVE_EMU_LIBRARY", ROOT / "build" / "libflashwave_emu.so"))


@functools.cache
def library():
    lib = ctypes.CDLL(str(LIBRARY))
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    integer, text = ctypes.c_int, ctypes.c_char_p
    signatures = {
        "hipInit": (integer, [ctypes.c_uint]),
        "hipSetDevice": (integer, [integer]),
        "hipMalloc": (integer, [ctypes.POINTER(pointer), size]),
        "hipFree": (integer, [pointer]),
        "hipMemcpy": (integer, [pointer, pointer, size, integer]),
        "hipDeviceSynchronize": (integer, []),
        "hipModuleLoadData": (integer, [ctypes.POINTER(pointer), pointer]),
        "hipModuleUnload": (integer, [pointer]),
        "hipModuleGetFunction": (integer, [ctypes.POINTER(pointer), pointer, text]),
        "hipModuleGetGlobal": (integer, [ctypes.POINTER(pointer), ctypes.POINTER(size), pointer, text]),
        "hipModuleLaunchKernel": (integer, [pointer] + [ctypes.c_uint] * 7 + [pointer] * 3),
        "hipGetErrorName": (text, [integer]),
        "fwemu_open": (integer, [text, ctypes.POINTER(integer)]),
        "fwemu_set_option": (integer, [text, text]),
        "fwemu_last_error": (text, []),
        "fwemu_reports": (size, [pointer, size]),
        "fwemu_report_count": (size, []),
        "fwemu_clear_reports": (None, []),
        "fwemu_counters_json": (size, [integer, pointer, size]),
        "fwemu_reset_counters": (None, [integer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def call(name, *arguments):
    lib = library()
    status = getattr(lib, name)(*arguments)
    if status != 0:
        detail = (lib.fwemu_last_error() or b"").decode(errors="replace")
        raise HipError(name, lib.hipGetErrorName(status).decode(), detail)


def text_of(function, *arguments):
    """What a function that fills (buffer, capacity) says."""
    needed = function(*arguments, None, 0)
    buffer = ctypes.create_string_buffer(needed + 1)
    function(*arguments, ctypes.cast(buffer, ctypes.c_void_p), needed + 1)
    return buffer.value.decode(errors="replace")


def set_option(name, value):
    call("fwemu_set_option", name.encode(), str(value).encode())


class Buffer:
    """Memory on the device; .address is what a kernel gets."""

    def __init__(self, content):
        self.content = content  # an array of NumPy, or a number of bytes
        self.bytes = content if isinstance(content, int) else content.nbytes
        address = ctypes.c_void_p()
        call("hipMalloc", ctypes.byref(address), max(self.bytes, 1))
        self.address = address.value
        if not isinstance(content, int):
            self.put(content)

    def put(self, array):
        assert array.flags["C_CONTIGUOUS"] and array.nbytes <= self.bytes
        if array.nbytes:
            call("hipMemcpy", self.address, array.ctypes.data, array.nbytes, HOST_TO_DEVICE)

    def get_into(self, array):
        if array.nbytes:
            call("hipMemcpy", array.ctypes.data, self.address, array.nbytes, DEVICE_TO_HOST)
        return array

    def get(self):
        return self.get_into(self.content.copy())

    def free(self):
        if self.address is not None:
            call("hipFree", self.address)
            self.address = None


def three(shape):
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return shape + (1,) * (3 - len(shape))


class Session:
    """One architecture, its modules and its memory. Everything is freed at the end of the with statement."""

    def __init__(self, arch, **options):
        """options: those of flashwave_emu.h (seed=1, reverse=1, count=1, ...)."""
        self.arch = arch
        self.options = {
            "check": "report",
            "checks": "all",
            "strict": 0,
            "order": "waves",
            "seed": 0,
            "reverse": 0,
            "count": 0,
        }
        self.options.update(options)
        self.modules, self.functions, self.buffers = {}, {}, []
        index = ctypes.c_int()
        call("fwemu_open", arch.encode(), ctypes.byref(index))
        self.device = index.value

    def __enter__(self):
        self.activate()
        return self

    def activate(self):
        call("hipSetDevice", self.device)
        for name, value in self.options.items():
            set_option(name, value)

    def __exit__(self, *error):
        for buffer in self.buffers:
            buffer.free()
        for module, _ in self.modules.values():
            call("hipModuleUnload", module)

    def load(self, code):
        if code not in self.modules:
            module = ctypes.c_void_p()
            keep = ctypes.create_string_buffer(code, len(code))
            call("hipModuleLoadData", ctypes.byref(module), ctypes.cast(keep, ctypes.c_void_p))
            self.modules[code] = (module, keep)
        return self.modules[code][0]

    def function(self, code, name):
        key = (code, name)
        if key not in self.functions:
            function = ctypes.c_void_p()
            call("hipModuleGetFunction", ctypes.byref(function), self.load(code), name.encode())
            self.functions[key] = function
        return self.functions[key]

    def variable(self, code, name):
        """Address and size of a global variable."""
        address, size = ctypes.c_void_p(), ctypes.c_size_t()
        call("hipModuleGetGlobal", ctypes.byref(address), ctypes.byref(size), self.load(code), name.encode())
        return address.value, size.value

    def buffer(self, content):
        self.buffers.append(Buffer(content))
        return self.buffers[-1]

    def run(self, code, kernel, grid, block, args, shared=0, check=True):
        """Launches and waits; arrays among args are then up to date. check: reports of the checkers are an error.

        Returns the reports as text.
        """
        function = self.function(code, kernel)
        temporary, storage = [], []
        for argument in args:
            storage.append(self._stored(argument, temporary))
        pointers = (ctypes.c_void_p * max(len(storage), 1))(*[ctypes.addressof(s) for s in storage])
        lib = library()
        lib.fwemu_clear_reports()
        try:
            call("hipModuleLaunchKernel", function, *three(grid), *three(block), shared, None, pointers, None)
            call("hipDeviceSynchronize")
            for buffer in temporary:
                buffer.get_into(buffer.content)
        finally:
            for buffer in temporary:
                buffer.free()
        reports = text_of(lib.fwemu_reports) if lib.fwemu_report_count() else ""
        if check and reports:
            raise CheckFailed(reports)
        return reports

    def _stored(self, argument, temporary):
        if argument is None:
            return ctypes.c_void_p(0)
        if isinstance(argument, Buffer):
            return ctypes.c_void_p(argument.address)
        if isinstance(argument, bytes):
            return ctypes.create_string_buffer(argument, len(argument))
        if isinstance(argument, ctypes._SimpleCData):
            return argument
        if isinstance(argument, bool):
            return ctypes.c_uint8(argument)
        if isinstance(argument, int):
            return ctypes.c_int32(argument)
        if isinstance(argument, float):
            return ctypes.c_float(argument)
        if getattr(argument, "ndim", None) == 0:  # a scalar of NumPy
            return ctypes.create_string_buffer(argument.tobytes(), argument.nbytes)
        temporary.append(Buffer(argument))
        return ctypes.c_void_p(temporary[-1].address)

    def counters(self):
        return json.loads(text_of(library().fwemu_counters_json, self.device))

    def reset_counters(self):
        library().fwemu_reset_counters(self.device)


def run(arch, code, kernel, grid, block, args, check=True, **options):
    with Session(arch, **options) as session:
        return session.run(code, kernel, grid, block, args, check=check)


# --- code objects ----------------------------------------------------------------------------------------------------


@functools.cache
def tool(name):
    """clang-22 rather than whatever clang is."""
    for candidate in (name + "-22", name):
        try:
            subprocess.run([candidate, "--version"], capture_output=True, check=True)
            return candidate
        except (OSError, subprocess.CalledProcessError):
            continue
    raise RuntimeError(f"{name}-22 is not installed")


def cached(key, suffix, make):
    """The bytes make(path) writes, kept under a name that is a hash of key."""
    path = CACHE / (hashlib.sha256(key.encode()).hexdigest()[:24] + suffix)
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.stem}.{os.getpid()}{suffix}")
        make(part)
        part.rename(path)
    return path


@functools.cache
def clang_version():
    return subprocess.run([tool("clang"), "--version"], capture_output=True, text=True, check=True).stdout


def compile_kernels(source, arch, opt, flags=()):
    """A .hip file (a path, or the text of one) as a code object, compiled when it or a header beside it is new."""
    if isinstance(source, pathlib.Path):
        folder = source.parent
        text = source.read_text() + "".join(p.read_text() for p in sorted(folder.glob("*.h")))
    else:
        folder, text = None, source
    options = ["-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", f"--offload-arch={arch}", "-nogpulib",
               "-nogpuinc", f"-{opt}", *flags]  # fmt: skip

    def make(path):
        given = [str(source)] if folder else ["-"]
        done = subprocess.run(
            [tool("clang"), *options, *given, "-o", str(path)],
            input=None if folder else source.encode(),
            capture_output=True,
        )
        if done.returncode:
            raise RuntimeError(f"clang {' '.join(options)}:\n{done.stderr.decode()}")

    return cached("\0".join([clang_version(), *options, text]), ".hsaco", make).read_bytes()


def metadata_of(code, kernel):
    """What the code object's metadata say of one kernel, as text."""
    path = CACHE / f"notes.{os.getpid()}.hsaco"
    CACHE.mkdir(parents=True, exist_ok=True)
    path.write_bytes(code)
    try:
        notes = subprocess.run([tool("llvm-readelf"), "--notes", str(path)], capture_output=True, text=True, check=True)
    finally:
        path.unlink()
    for block in re.split(r"\n  - ", notes.stdout):
        if re.search(rf"^\s*\.name:\s+'?{re.escape(kernel)}'?$", block, re.M):
            return block
    raise KeyError(kernel)


def argument_kinds(code, kernel):
    """The kinds of a kernel's arguments: global_buffer, by_value, hidden_..."""
    return re.findall(r"\.value_kind:\s+(\S+)", metadata_of(code, kernel))


def largest_workgroup(code, kernel):
    """How many work-items a workgroup may have."""
    return int(re.search(r"\.max_flat_workgroup_size:\s+(\d+)", metadata_of(code, kernel))[1])


def only(code, kernel):
    """The code object without the other kernels: their code is not read any more, which is most of a load's time."""
    changed, own = bytearray(code), None
    for symbol in elf.symbols(code):
        if symbol.name == kernel:
            own = symbol
        elif symbol.name.endswith(".kd") and symbol.name != kernel + ".kd":
            symbol.undefine(changed)
    if own is None:
        raise KeyError(kernel)
    for section in elf.sections(code):
        if section.flags & elf.HAS_CODE:
            section.place(changed, own.value, own.value - section.address + section.offset, own.size)
    return bytes(changed)
