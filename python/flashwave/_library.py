"""The C ABI (include/flashwave/flashwave.h) through ctypes: structs, functions, devices, errors. Needs no torch."""

from __future__ import annotations

import ctypes
import os
from ctypes import (
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any

from .errors import BY_STATUS, FlashwaveError

F16, BF16, F32 = 1, 2, 3
CAUSAL, DETERMINISTIC, ROTARY_INTERLEAVED = 1, 2, 4
UNSUPPORTED, WORKSPACE_TOO_SMALL = 2, 5


class Tensor(Structure):
    _fields_ = [("data", c_void_p), ("stride", c_int64 * 4), ("dtype", c_int32), ("reserved", c_int32)]


class Attention(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("batch", c_int64),
        ("seqlen_q", c_int64),
        ("seqlen_k", c_int64),
        ("heads_q", c_int64),
        ("heads_k", c_int64),
        ("dim_qk", c_int64),
        ("dim_v", c_int64),
        ("total_q", c_int64),
        ("total_k", c_int64),
        ("batch_k", c_int64),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("cu_seqlens_q", c_void_p),
        ("cu_seqlens_k", c_void_p),
        ("seqused_k", c_void_p),
        ("leftpad_k", c_void_p),
        ("cache_batch_idx", c_void_p),
        ("block_table", c_void_p),
        ("block_table_stride", c_int64),
        ("page_size", c_int64),
        ("seqlen_new", c_int64),
        ("k_new", Tensor),
        ("v_new", Tensor),
        ("rotary_cos", Tensor),
        ("rotary_sin", Tensor),
        ("rotary_seqlen", c_int64),
        ("rotary_dim", c_int64),
        ("window_left", c_int64),
        ("window_right", c_int64),
        ("softmax_scale", c_float),
        ("softcap", c_float),
        ("alibi_slopes", c_void_p),
        ("alibi_batch_stride", c_int64),
        ("sinks", c_void_p),
        ("bias", Tensor),
        ("dropout_p", c_float),
        ("num_splits", c_int32),
        ("dropout_seed", c_uint64),
        ("dropout_offset", c_uint64),
        ("probs", Tensor),
    ]


class Gradients(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("d_o", Tensor),
        ("d_lse", Tensor),
        ("dq", Tensor),
        ("dk", Tensor),
        ("dv", Tensor),
        ("d_bias", Tensor),
        ("d_sinks", c_void_p),
        ("d_slopes", c_void_p),
    ]


class Report(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("splits", c_int32),
        ("device", c_char * 32),
        ("kernel", c_char * 64),
        ("tile_q", c_int32),
        ("tile_k", c_int32),
        ("threads", c_int32),
        ("reserved", c_int32),
        ("workspace_size", c_uint64),
    ]


class Exec(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("num_threads", c_int32),
        ("stream", c_void_p),
        ("workspace", c_void_p),
        ("workspace_size", c_size_t),
        ("force_kernel", c_char_p),
        ("executor", c_void_p),
        ("report", c_void_p),
    ]


class DeviceInfo(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("index", c_int32),
        ("name", c_char * 32),
        ("kind", c_char * 16),
        ("arch", c_char * 32),
        ("description", c_char * 128),
        ("compute_units", c_int64),
        ("memory_bytes", c_int64),
    ]


class Cost(Structure):
    _fields_ = [("struct_size", c_uint32), ("reserved", c_uint32), ("flops", c_double), ("bytes", c_double)]


def _library_path() -> Path:
    """FLASHWAVE_LIBRARY, else the library inside the package, else the build folder of a source tree."""
    named = os.environ.get("FLASHWAVE_LIBRARY")
    if named:
        return Path(named)
    here = Path(__file__).resolve().parent
    packaged, built = here / "lib" / "libflashwave.so", here.parents[1] / "build" / "libflashwave.so"
    for path in (packaged, built):
        if path.exists():
            return path
    raise ImportError(
        f"flashwave: no libflashwave.so at {packaged} (installed package) or {built} (source tree: run `make build`); "
        "FLASHWAVE_LIBRARY names another place"
    )


def _load() -> ctypes.CDLL:
    path = _library_path()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"flashwave: {path} cannot be loaded: {error}") from error
    # Structs are passed by address (c_void_p): callers keep prepared ones and only change pointers in them.
    signatures = {
        "fw_attention_init": (None, [c_void_p, c_size_t]),
        "fw_gradients_init": (None, [c_void_p, c_size_t]),
        "fw_exec_init": (None, [c_void_p, c_size_t]),
        "fw_forward": (c_int32, [c_void_p, c_void_p, c_void_p]),
        "fw_backward": (c_int32, [c_void_p, c_void_p, c_void_p, c_void_p]),
        "fw_workspace_size": (c_int32, [c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_size_t)]),
        "fw_explain": (
            c_int32,
            [c_void_p, c_void_p, c_void_p, c_void_p, c_int32, c_char_p, c_size_t, POINTER(c_size_t)],
        ),
        "fw_problem_cost": (c_int32, [c_void_p, c_void_p, c_void_p, c_void_p]),
        "fw_device_count": (c_int32, []),
        "fw_device_at": (c_int32, [c_int32, POINTER(c_void_p)]),
        "fw_device_open": (c_int32, [c_char_p, POINTER(c_void_p)]),
        "fw_device_query": (c_int32, [c_void_p, c_void_p]),
        "fw_device_alloc": (c_int32, [c_void_p, c_size_t, POINTER(c_void_p)]),
        "fw_device_free": (c_int32, [c_void_p, c_void_p]),
        "fw_device_copy": (c_int32, [c_void_p, c_void_p, c_void_p, c_size_t, c_int32, c_void_p]),
        "fw_device_synchronize": (c_int32, [c_void_p, c_void_p]),
        "fw_openmp_executor": (c_int32, [c_char_p, POINTER(c_void_p)]),
        "fw_kernel_name": (c_char_p, [c_void_p, c_int32]),
        "fw_version_string": (c_char_p, []),
        "fw_status_name": (c_char_p, [c_int32]),
        "fw_last_error": (c_char_p, []),
        "fw_set_num_threads": (c_int32, [c_int32]),
        "fw_get_num_threads": (c_int32, []),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


lib = _load()


def error_of(status: int) -> FlashwaveError:
    """The exception for a failed call of this thread."""
    return BY_STATUS.get(status, FlashwaveError)(lib.fw_last_error().decode())


def check(status: int) -> None:
    if status:
        raise error_of(status)


def version() -> str:
    return lib.fw_version_string().decode()


# ------------------------------------------------------------------------------------------------------------ devices

_devices: dict[str, int] = {}


def device(name: str) -> int:
    """The handle of a library device: "cpu", "cuda[:i]", "hip[:i]", "emu:gfxNNN", "auto"."""
    handle = _devices.get(name)
    if handle is None:
        found = c_void_p()
        check(lib.fw_device_open(name.encode(), ctypes.byref(found)))
        assert found.value is not None
        handle = _devices[name] = found.value
    return handle


def query(handle: int) -> dict[str, Any]:
    """What the library knows of a device."""
    info = DeviceInfo(struct_size=ctypes.sizeof(DeviceInfo))
    check(lib.fw_device_query(handle, ctypes.byref(info)))
    names = [name for name, _ in DeviceInfo._fields_ if name != "struct_size"]
    facts = {name: getattr(info, name) for name in names}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in facts.items()}


def devices() -> list[dict[str, Any]]:
    """The real devices of this machine; the first is always the CPU."""
    found = []
    for index in range(lib.fw_device_count()):
        handle = c_void_p()
        check(lib.fw_device_at(index, ctypes.byref(handle)))
        assert handle.value is not None
        found.append(query(handle.value))
    return found


def kernels(handle: int) -> list[str]:
    """Names of the kernels the device could run, in the order they are tried."""
    names: list[str] = []
    while True:
        name = lib.fw_kernel_name(handle, len(names))
        if name is None:
            return names
        names.append(name.decode())


def explain(
    handle: int,
    attention: Attention,
    gradients: Gradients | None = None,
    exec_: Exec | None = None,
    json: bool = False,
) -> str:
    """Which kernel would run, and why each one before it would not."""
    parts = [None if part is None else ctypes.addressof(part) for part in (attention, gradients, exec_)]
    needed = c_size_t()
    check(lib.fw_explain(handle, *parts, int(json), None, 0, ctypes.byref(needed)))
    buffer = ctypes.create_string_buffer(needed.value)
    check(lib.fw_explain(handle, *parts, int(json), buffer, needed.value, None))
    return buffer.value.decode()


# ------------------------------------------------------------------------------------------------------------ structs


def new_attention() -> Attention:
    attention = Attention()
    lib.fw_attention_init(ctypes.addressof(attention), ctypes.sizeof(attention))
    return attention


def new_gradients() -> Gradients:
    gradients = Gradients()
    lib.fw_gradients_init(ctypes.addressof(gradients), ctypes.sizeof(gradients))
    return gradients


def new_exec() -> Exec:
    exec_ = Exec()
    lib.fw_exec_init(ctypes.addressof(exec_), ctypes.sizeof(exec_))
    return exec_
