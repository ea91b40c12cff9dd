#!/usr/bin/env python3
"""Checks that the machine code of NVIDIA GPUs is what the lists of kernels say: each row has its function in every file
compiled from its source whose target can run it, and no file has functions of another one. No GPU is needed.

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


def functions_of_cubin(data):
    """Names of the global functions of a 64-bit ELF file."""
    section_offset = struct.unpack_from("<Q", data, 40)[0]
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, section_offset + i * size) for i in range(count)]
    names = set()
    for _, kind, _, _, offset, length, link, _, _, entry in sections:
        if kind != 2:  # SHT_SYMTAB
            continue
        strings = sections[link][4]
        for at in range(offset, offset + length, entry):
            name, info = struct.unpack_from("<IB", data, at)
            if info == 0x12:  # STB_GLOBAL, STT_FUNC
                names.add(data[strings + name : data.index(b"\0", strings + name)].decode())
    return names


def functions(path):
    if path.suffix == ".ptx":
        return set(re.findall(r"\.entry (\w+)\(", path.read_text()))
    return functions_of_cubin(path.read_bytes())


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
            there = functions(path)
            faults += [f"{path.name}: {name} is missing" for name in sorted(wanted - there)]
            faults += [f"{path.name}: {name} is not of {source}" for name in sorted(there - set(kernels))]
            checked += len(wanted)
    for fault in faults:
        print(fault)
    print(f"{checked} functions checked, {len(faults)} faults")
    return 1 if faults or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
