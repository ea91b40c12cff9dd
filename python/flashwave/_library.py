"""The C ABI (include/flashwave/flashwave.h) through ctypes: structs, functions, devices, errors. Needs no torch."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import sys
import warnings
from collections.abc import Callable, Iterator
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

from .errors import BY_STATUS, FlashwaveError, NoDevice

F16, BF16, F32 = 1, 2, 3
CAUSAL, DETERMINISTIC, ROTARY_INTERLEAVED, ACCUMULATE, POSITIONS, FILL_UNUSED = 1, 2, 4, 32, 64, 128
NO_SLOW_PATH = 1  # of fw_exec.flags
ALLOCATE = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_size_t)  # fw_exec.allocate
UNSUPPORTED = 2


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
        ("dropout_state", c_void_p),
        ("position_q", c_int64),
        ("position_k", c_int64),
        ("dropout_first", c_int64),
        ("dropout_heads", c_int64),
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


class Merging(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("batch", c_int64),
        ("seqlen", c_int64),
        ("heads", c_int64),
        ("dim", c_int64),
        ("o", Tensor),
        ("lse", Tensor),
        ("o_part", Tensor),
        ("lse_part", Tensor),
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
        ("allocate", c_void_p),
        ("allocate_context", c_void_p),
        ("flags", c_uint32),
        ("reserved", c_uint32),
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


def _places() -> Iterator[Path]:
    """Where the library may lie: inside the package; in the build folder of a source tree; in an installed package
    beside an editable install, whose Python files lie elsewhere.
    """
    here = Path(__file__).resolve().parent
    yield here / "lib" / NAME
    yield here.parents[1] / "build" / NAME
    for folder in sys.path:
        yield Path(folder) / "flashwave" / "lib" / NAME


NAME = "libflashwave.so"
path: Path | None = None  # of the library that is loaded


def beside(name: str) -> Path | None:
    """A file of that name in the folder of the library, if there is one."""
    return None if path is None or not (path.parent / name).exists() else path.parent / name


def _open() -> tuple[ctypes.CDLL | None, str]:
    """The library, or None and why not. FLASHWAVE_LIBRARY names the file; one that cannot be loaded is an error."""
    global path
    named = os.environ.get("FLASHWAVE_LIBRARY")
    places = [Path(named)] if named else [place for place in _places() if place.exists()]
    if not places:
        here = Path(__file__).resolve().parent
        return None, f"no {NAME} in {here / 'lib'} (installed package) or {here.parents[1] / 'build'} (`make build`)"
    try:
        library, path = ctypes.CDLL(str(places[0])), places[0]
    except OSError as error:
        if named:
            raise ImportError(f"flashwave: FLASHWAVE_LIBRARY={named} cannot be loaded: {error}") from error
        return None, f"{places[0]} cannot be loaded: {error}"
    return library, ""


def _load() -> tuple[ctypes.CDLL | None, str]:
    library, reason = _open()
    if library is None:
        warnings.warn(
            f"flashwave: {reason}; PyTorch operations compute every attention, which is slow. FLASHWAVE_LIBRARY names "
            "the library if it lies elsewhere.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None, reason
    # Structs are passed by address (c_void_p): callers keep prepared ones and only change pointers in them.
    signatures = {
        "fw_attention_init": (None, [c_void_p, c_size_t]),
        "fw_gradients_init": (None, [c_void_p, c_size_t]),
        "fw_exec_init": (None, [c_void_p, c_size_t]),
        "fw_forward": (c_int32, [c_void_p, c_void_p, c_void_p]),
        "fw_backward": (c_int32, [c_void_p, c_void_p, c_void_p, c_void_p]),
        "fw_workspace_size": (c_int32, [c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_size_t)]),
        "fw_rotary": (c_int32, [c_void_p, c_void_p, c_void_p]),
        "fw_merging_init": (None, [c_void_p, c_size_t]),
        "fw_merge": (c_int32, [c_void_p, c_void_p, c_void_p]),
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
        "fw_build_note": (c_char_p, [c_int32]),
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
    return library, ""


lib, why_no_library = _load()


def error_of(status: int) -> FlashwaveError:
    """The exception for a failed call of this thread."""
    return BY_STATUS.get(status, FlashwaveError)(lib.fw_last_error().decode())


def check(status: int) -> None:
    if status:
        raise error_of(status)


def version() -> str:
    if lib is not None:
        return lib.fw_version_string().decode()
    try:
        return importlib.metadata.version("flashwave")
    except importlib.metadata.PackageNotFoundError:
        return "0.0.0"


# ------------------------------------------------------------------------------------------------------------ devices

_devices: dict[str, int] = {}


def device(name: str) -> int:
    """The handle of a library device: "cpu", "cuda[:i]", "hip[:i]", "emu:gfxNNN", "auto"."""
    if lib is None:
        raise NoDevice(why_no_library)
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
    for index in range(0 if lib is None else lib.fw_device_count()):
        handle = c_void_p()
        check(lib.fw_device_at(index, ctypes.byref(handle)))
        assert handle.value is not None
        found.append(query(handle.value))
    return found


def _listed(function: Callable[..., bytes | None], *arguments: int) -> list[str]:
    """What a function says of 0, 1, 2 and so on."""
    names: list[str] = []
    while (name := function(*arguments, len(names))) is not None:
        names.append(name.decode())
    return names


def kernels(handle: int) -> list[str]:
    """Names of the kernels the device could run, in the order they are tried."""
    return _listed(lib.fw_kernel_name, handle)


def build_notes() -> list[str]:
    """For each maker of GPUs, which ones the library has kernels for, or why for none."""
    return [] if lib is None else _listed(lib.fw_build_note)


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


def new_merging() -> Merging:
    merging = Merging()
    lib.fw_merging_init(ctypes.addressof(merging), ctypes.sizeof(merging))
    return merging


def new_exec() -> Exec:
    exec_ = Exec()
    lib.fw_exec_init(ctypes.addressof(exec_), ctypes.sizeof(exec_))
    return exec_
