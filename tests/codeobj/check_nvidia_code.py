#!/usr/bin/env python3
"""Checks that the machine code of NVIDIA GPUs is what the lists of kernels say: each row has its function in every file
compiled from its source whose target can run it, and no file has functions of another one; and the plain kernels of
kernels/ampere keep everything in registers. No GPU is needed.

    check_nvidia_code.py FOLDER     which holds SOURCE_TARGET for cubins (sm_90) and SOURCE_TARGET.ptx (compute_80)
"""

import pathlib
import re
import struct
import sys

import kernel_lists


def rows():
    """source -> {name: least compute capability}."""
    found, least = {}, kernel_lists.nvidia_isa()
    for row in kernel_lists.rows("nvidia"):
        found.setdefault(row.source, {})[row.name] = least[row.isa]
    return found


class Cubin:
    """A 64-bit ELF file of NVIDIA's: `functions`, names of the global ones, and `frames`, bytes of stack by name."""

    SYMBOLS, FUNCTION = 2, 0x12  # SHT_SYMTAB; STB_GLOBAL, STT_FUNC
    SIZED, FRAME_SIZE = 4, 0x11  # of an attribute in .nv.info: its format, its kind (symbol, bytes)

    def __init__(self, data):
        self.data = data
        offset = struct.unpack_from("<Q", data, 40)[0]
        size, count, names = struct.unpack_from("<HHH", data, 58)
        sections = [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * size) for i in range(count)]
        self.symbols, self.functions, self.frames = [], set(), {}
        for _, kind, _, _, offset, length, link, _, _, entry in sections:
            for at in range(offset, offset + length, entry) if kind == self.SYMBOLS else ():
                name, info = struct.unpack_from("<IB", data, at)
                self.symbols.append(self._string(sections[link][4] + name))
                if info == self.FUNCTION:
                    self.functions.add(self.symbols[-1])
        for name, _, _, _, offset, length, *_ in sections:
            if self._string(sections[names][4] + name) == ".nv.info":
                self._read_attributes(offset, offset + length)

    def _string(self, at):
        return self.data[at : self.data.index(b"\0", at)].decode()

    def _read_attributes(self, at, end):
        while at < end:
            form, kind, size = struct.unpack_from("<BBH", self.data, at)
            if (form, kind) == (self.SIZED, self.FRAME_SIZE):
                symbol, frame = struct.unpack_from("<II", self.data, at + 4)
                self.frames[self.symbols[symbol]] = frame
            at += 4 + (size if form == self.SIZED else 0)


def functions_and_frames(path):
    if path.suffix == ".ptx":
        return set(re.findall(r"\.entry (\w+)\(", path.read_text())), {}
    cubin = Cubin(path.read_bytes())
    return cubin.functions, cubin.frames


def must_not_spill(name, target):
    """Plain kernels, on the GPUs they are for: compute capability 9.0 has a backward of its own."""
    return re.match(rf"ampere_(fwd{'|bwd' if target < 90 else ''})_b?f16_", name) and not name.endswith("_modified")


def main():
    folder, faults, checked = pathlib.Path(sys.argv[1]), [], 0
    for source, kernels in sorted(rows().items()):
        files = [p for p in folder.iterdir() if re.fullmatch(rf"{source}_(sm_\d+a?|compute_\d+\.ptx)", p.name)]
        if not files:
            faults.append(f"{source}: no file was compiled from it")
        for path in files:
            target = int(re.search(r"_(\d+)a?(\.ptx)?$", path.name).group(1))
            # The code for compute_75 serves sm_75 alone where there is one for compute_80; generic code is compiled once.
            wanted = {name for name, least in kernels.items() if least <= target}
            there, frames = functions_and_frames(path)
            faults += [f"{path.name}: {name} is missing" for name in sorted(wanted - there)]
            faults += [f"{path.name}: {name} is not of {source}" for name in sorted(there - set(kernels))]
            plain = [name for name in wanted if must_not_spill(name, target) and path.suffix != ".ptx"]
            faults += [f"{path.name}: {name} has no known stack" for name in plain if name not in frames]
            faults += [f"{path.name}: {name} spills {frames[name]} bytes" for name in plain if frames.get(name)]
            checked += len(wanted)
    for fault in faults:
        print(fault)
    print(f"{checked} functions checked, {len(faults)} faults")
    return 1 if faults or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
