"""Arrays of any library as `structs`' tensors: NumPy's, and those that offer their memory through DLPack."""

from __future__ import annotations

import ctypes
from typing import Any, Optional

import numpy as np

from ..backends.native.structs import dtype_name
from ..errors import InvalidArgument

try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = None

FLOATS = ("float16", "bfloat16", "float32", "float64")
# By DLPack's type code and bits.
_KINDS = {
    (0, 32): "int32",
    (0, 64): "int64",
    (2, 16): "float16",
    (2, 32): "float32",
    (2, 64): "float64",
    (4, 16): "bfloat16",
}
_HOST_MEMORY = (1, 3, 11)  # of the CPU; pinned by CUDA; pinned by ROCm


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class View:
    """Memory with a shape. A bfloat16 that NumPy does not know is held as uint16."""

    device = "cpu"

    def __init__(self, array: np.ndarray, dtype: str, owner: Any = None, copied: bool = False) -> None:
        self.array = array
        self.dtype = dtype
        self.owner = owner  # what must live as long as the memory
        self.copied = copied  # what is written here does not reach the caller

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def dim(self) -> int:
        return self.array.ndim

    def stride(self, dim: Optional[int] = None) -> Any:
        strides = tuple([stride // self.array.itemsize for stride in self.array.strides])
        return strides if dim is None else strides[dim]

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def numel(self) -> int:
        return self.array.size

    def element_size(self) -> int:
        return self.array.itemsize

    def tolist(self) -> list:
        return self.array.tolist()

    def is_contiguous(self) -> bool:
        return self.array.flags.c_contiguous

    def contiguous(self) -> View:
        return View(np.ascontiguousarray(self.array), self.dtype)


def storage(dtype: str) -> np.dtype:
    """NumPy's type for an element, which need not know how to compute with it."""
    if dtype == "bfloat16":
        return np.dtype(np.uint16 if bfloat16 is None else bfloat16)
    return np.dtype(dtype)


def empty(shape: tuple[int, ...], dtype: str) -> View:
    return View(np.empty(shape, storage(dtype)), dtype)


def _of_numpy(name: str, array: np.ndarray) -> View:
    if not array.dtype.isnative:
        raise InvalidArgument(f"{name} must be in the byte order of this machine, got {array.dtype.str}")
    copied = any(stride < 0 or stride % array.itemsize for stride in array.strides)
    return View(np.ascontiguousarray(array) if copied else array, dtype_name(array.dtype), copied=copied)


def _of_dlpack(name: str, exporter: Any) -> View:
    device_type = int(exporter.__dlpack_device__()[0])
    if device_type not in _HOST_MEMORY:
        raise InvalidArgument(f"{name} must be in the memory of the CPU, got DLPack device type {device_type}")
    # Not renamed to "used_dltensor": the capsule still owns the memory, and the view owns the capsule.
    capsule = exporter.__dlpack__()
    tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    dtype = _KINDS.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise InvalidArgument(
            f"{name} must hold {', '.join(_KINDS.values())}, "
            f"got DLPack type code {tensor.code} of {tensor.bits} bits, {tensor.lanes} lanes"
        )
    shape = tuple(tensor.shape[: tensor.ndim])
    element = storage(dtype)
    if 0 in shape:
        return View(np.empty(shape, element), dtype, capsule)
    if tensor.strides:
        strides = tuple(tensor.strides[: tensor.ndim])
    else:  # absent: without gaps
        strides = tuple([int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))])
    if min(strides, default=0) < 0:
        raise InvalidArgument(f"{name} must have no negative strides, got {strides}")
    extent = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides))
    memory = (ctypes.c_char * (extent * element.itemsize)).from_address(tensor.data + tensor.byte_offset)
    array = np.ndarray(shape, element, memory, strides=[stride * element.itemsize for stride in strides])
    return View(array, dtype, capsule)


def view(name: str, value: Any) -> View:
    """The memory of an array; of a list or a number, that of a new NumPy array."""
    if isinstance(value, np.ndarray):
        return _of_numpy(name, value)
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        return _of_dlpack(name, value)
    return _of_numpy(name, np.asarray(value))


def check_writeable(name: str, given: View) -> None:
    if not given.array.flags.writeable:
        raise InvalidArgument(f"{name} must be writeable")
    if given.copied:
        raise InvalidArgument(f"{name}, which is written to, must have no negative strides and no split elements")


def indices(name: str, value: Any) -> Optional[View]:
    """Lengths, offsets and tables, as the library reads them: int32 without gaps."""
    if value is None:
        return None
    given = view(name, value)
    if not given.dtype.startswith(("int", "uint")):
        raise InvalidArgument(f"{name} must hold integers, got {given.dtype}")
    array = np.ascontiguousarray(given.array, np.int32)
    if array.dtype != given.array.dtype and not np.array_equal(array, given.array):
        raise InvalidArgument(f"{name} must fit into int32")
    return View(array, "int32", given.owner)


def as_float32(given: View) -> View:
    array = given.array
    if given.dtype == "bfloat16" and array.dtype == np.uint16:  # its bits are the upper half of a float32's
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return View(np.ascontiguousarray(array, np.float32), "float32", given.owner)


def float32(name: str, value: Any) -> Optional[View]:
    """Small parameters of the score, which the library takes as float32."""
    if value is None:
        return None
    given = view(name, value)
    if given.dtype not in FLOATS:
        raise InvalidArgument(f"{name} must hold floating-point numbers, got {given.dtype}")
    return as_float32(given)
