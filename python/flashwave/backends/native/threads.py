"""The threads of torch, lent to the library.

After a parallel region an OpenMP thread spins for milliseconds before it sleeps, and takes the core from any other
pool of threads (docs/decisions/0005-cpu-kernels-run-on-torchs-threads.md has the measurement).
"""

from __future__ import annotations

import ctypes
import functools
import re
from pathlib import Path

from ... import _library as fw

_RUNTIME = re.compile(r"/lib(gomp|omp|iomp5)[-.][^/]*$")


def openmp_library(maps: str) -> str | None:
    """The OpenMP runtime among the files that a process has mapped, torch's own if there are several."""
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if len(line.split(maxsplit=5)) == 6}
    found = sorted((path for path in paths if _RUNTIME.search(path)), key=lambda path: ("/torch" not in path, path))
    return found[0] if found else None


def _library() -> str | None:
    try:
        return openmp_library(Path("/proc/self/maps").read_text())
    except OSError:
        return None


@functools.cache
def executor() -> int | None:
    """The address of an fw_executor on torch's threads, or None: the library has its own."""
    library, address = _library(), ctypes.c_void_p()
    if library is None or fw.lib.fw_openmp_executor(library.encode(), ctypes.byref(address)):
        return None
    return address.value


def count_function() -> int | None:
    """The address of omp_get_max_threads, which says what torch.get_num_threads does, where there is one."""
    library = _library()
    if library is None:
        return None
    return ctypes.cast(ctypes.CDLL(library).omp_get_max_threads, ctypes.c_void_p).value
