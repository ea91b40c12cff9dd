"""The lists of kernels (kernels/registry.def) as the library reads them: through the C preprocessor.

kernel_lists.py          prints the rows of all GPUs, one a line
"""

import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLUMNS = "source name isa op dtypes dim_qk dim_v seqlen_q seqlen_k tile_q tile_k threads lds_bytes features needs work".split()
NUMBERS = "dim_qk dim_v seqlen_q seqlen_k tile_q tile_k threads lds_bytes".split()
# Each line that is wanted, on a line of its own.
READER = """
#include "kernels/abi/features.h"
#define FW_AMD_GPU(...) @FW_AMD_GPU __VA_ARGS__@
#define FW_NVIDIA_GPUS(...) @FW_NVIDIA_GPUS __VA_ARGS__@
#define FW_AMD_KERNEL(source, name, isa, op, dtypes, dim_qk, dim_v, seqlen_q, seqlen_k, tile_q, tile_k, threads, ...) \
  @FW_AMD_KERNEL source, name, isa, op, dtypes, dim_qk, dim_v, seqlen_q, seqlen_k, tile_q, tile_k, threads, 0, __VA_ARGS__@
#define FW_NVIDIA_KERNEL(...) @FW_NVIDIA_KERNEL __VA_ARGS__@
#include "kernels/registry.def"
"""


@functools.cache
def _lines(root=ROOT):
    named = os.environ.get("CXX", "clang++-22").split()[-1]
    compiler = next(filter(None, map(shutil.which, (named, "clang++", "c++", "g++"))), None)
    if compiler is None:
        raise SystemExit("kernel_lists: no C++ compiler to read kernels/registry.def with")
    command = [compiler, "-E", "-P", "-std=c++20", "-x", "c++", f"-I{root}", "-"]
    text = subprocess.run(command, input=READER, check=True, capture_output=True, text=True).stdout
    found = re.findall(r"@(FW_\w+) ([^@]*)@", text)
    if not found:
        raise SystemExit("kernel_lists: kernels/registry.def has no lines")
    return [(kind, [" ".join(cell.split()) for cell in cells.split(",")]) for kind, cells in found]


class Row:
    """One kernel of a GPU: its columns by name."""

    def __init__(self, maker, cells):
        self.maker = maker
        for column, cell in zip(COLUMNS, cells, strict=True):
            setattr(self, column, int(cell) if column in NUMBERS else cell)
        self.modified = self.name.endswith("_modified")  # takes score modifiers


def rows(maker):
    """Those of "amd" or "nvidia", in the order of trial."""
    return [Row(maker, cells) for kind, cells in _lines() if kind == f"FW_{maker.upper()}_KERNEL"]


def amd_gpus():
    """The AMD GPUs that are compiled for: name -> names of the instruction sets they have."""
    gpus = (cells for kind, cells in _lines() if kind == "FW_AMD_GPU")
    return {name: {"kIsaAmd", *isa.split(" | ")} for name, code, _, isa in gpus if name == code}


def nvidia_isa():
    """Instruction set -> the least compute capability that has it."""
    return {cells[0]: int(cells[1]) for kind, cells in _lines() if kind == "FW_NVIDIA_GPUS"}


def main():
    for maker in ("amd", "nvidia"):
        for row in rows(maker):
            print(maker, *(getattr(row, column) for column in COLUMNS), sep="\t")


if __name__ == "__main__":
    sys.exit(main())
