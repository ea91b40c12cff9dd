#!/usr/bin/env python3
"""Checks what the compiler made of the kernels of AMD GPUs, from the metadata of the code objects alone: no GPU, no run.

    check_code_objects.py --tool flashwave-emu --folder FOLDER [--table]

FOLDER holds SOURCE_ARCH.co for each (kernel file, architecture). The lists of kernels say which there must be. --table prints the registers, LDS and occupancy of each kernel as Markdown.
"""

import argparse
import pathlib
import re
import subprocess
import sys

import elf
import kernel_lists

ARGUMENT_BYTES = 1192  # sizeof(GpuArguments)
EMULATED = ("gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")  # the tool reads no others

# Kernels that may keep scalars in lanes of vector registers ("SGPR spills"), and at most how many: outside of the matrix
# loop, in the stage that modifies scores, and in the epilogue. No kernel may spill vector registers, and none but the
# slow path may have scratch memory. First pattern that matches "ARCH NAME" wins; the others may spill nothing.
SCALARS_IN_LANES = [
    (r"^gfx90a cdna_fwd_\w*_modified$", 3),
    (r"^gfx908 cdna1_fwd_\w*_modified$", 3),
    # Since lengths are held to the tensors, and the next loop chosen in gaps; 36 while a bias was read by a switch for each
    # number, with an eighth more instructions than by its type (kernels/cdna/NOTES-backward.md).
    (r"^gfx90a cdna_bwd_\w*_modified$", 41),
    (r" cdna1?_bwd_\w*_modified$", 32),
    (r" cdna_bwd_head_", 16),  # between the kernels that it is made of
    (r" cdna_bwd_dkdv_\w*_d192", 12),
    (r"^gfx90[8a] cdna_bwd_d(bias|slopes)$", 4),  # at the start and the end of a tile, none in between
    (r"^gfx908 cdna1_bwd_dq_", 3),
    (r"^gfx90a cdna_bwd_dkdv_bf16_d256_", 6),  # one, and two below, since the next loop is chosen in gaps of this one
    (r"^gfx90a cdna_bwd_(dkdv|dq)_", 5),
    (r"^gfx9(42|50) cdna_bwd_dkdv_\w*_d256_", 2),
    (r" amd_generic_", 300),
]
GENERIC_SCRATCH = 128  # bytes a lane, with waves of 32

# The least waves that must fit on a SIMD: what the kernel's schedule counts on. First pattern that matches
# "ARCH NAME" wins.
PLANNED_WAVES = [
    (r"^gfx9(0a|42|50) cdna_fwd_\w*_d(64|96|128)_", 2),  # 8 waves on 4 SIMDs
    (r"^gfx1100 rdna3_fwd_\w*_d(64|96|128)_", 4),
    (r"^gfx1(100 rdna3|201 rdna4)_bwd_(head_)?b?f16_d(64|128)_", 5),  # 10 waves on 2 SIMDs
    (r"^gfx1(100 rdna3|201 rdna4)_bwd_", 4),  # 8
    (r"^gfx1201 rdna4_fwd_\w*_modified$", 4),
    (r"^gfx1201 rdna4_fwd_\w*_d(64|128)_", 8),
    (r"^gfx908 amd_tiny_\w*_d(64|128)_k2$", 4),  # half the registers
    (r" amd_tiny_\w*_d(64|128)_k2$", 8),
    (r"", 1),
]


class Kernel:
    """What `flashwave-emu info` says of one kernel."""

    def __init__(self, name, text):
        def number(pattern):
            found = re.search(pattern, text)
            if not found:
                raise SystemExit(f"{name}: the tool does not say {pattern}")
            return int(found.group(1))

        self.name = name
        self.threads = number(r"workgroups of at most (\d+)")
        self.vgprs = number(r"VGPRs (\d+)")
        self.agprs = number(r"AGPRs (\d+)")
        self.sgprs = number(r"SGPRs (\d+)")
        self.spills = number(r"spills: (\d+) VGPRs")
        self.scalar_spills = number(r"spills: \d+ VGPRs, (\d+) SGPRs")
        self.lds = number(r"LDS (\d+) bytes")
        self.scratch = number(r"scratch (\d+) bytes")
        self.waves = number(r"occupancy: (\d+) of")
        self.argument_bytes = number(r"arguments: (\d+) bytes")


def rows():
    """source -> its rows."""
    found = {}
    for row in kernel_lists.rows("amd"):
        found.setdefault(row.source, []).append(row)
    return found


def kernels_of(tool, path):
    text = subprocess.run([tool, "info", str(path)], check=True, capture_output=True, text=True).stdout
    parts = re.split(r"^kernel (\S+)$", text, flags=re.M)[1:]
    return {name: Kernel(name, body) for name, body in zip(parts[::2], parts[1::2])}


def functions_of(path, kernels):
    """Functions that kernels call instead of containing them: with the registers and the waits of a call."""
    named = {s.name for s in elf.symbols(path.read_bytes()) if s.kind == elf.FUNCTION}
    return sorted(named - set(kernels))


def planned_waves(arch, name):
    return next(waves for pattern, waves in PLANNED_WAVES if re.search(pattern, f"{arch} {name}"))


def faults(arch, kernel, threads):
    if kernel.threads != threads:
        yield f"is compiled for workgroups of {kernel.threads}, its row says {threads}"
    if kernel.argument_bytes != ARGUMENT_BYTES:
        yield f"takes {kernel.argument_bytes} bytes of arguments instead of {ARGUMENT_BYTES}"
    scratch = GENERIC_SCRATCH if kernel.name.startswith("amd_generic_") else 0
    if kernel.spills or kernel.scratch > scratch:
        yield f"spills {kernel.spills} registers, {kernel.scratch} bytes of scratch"
    scalars = next((most for pattern, most in SCALARS_IN_LANES if re.search(pattern, f"{arch} {kernel.name}")), 0)
    if kernel.scalar_spills > scalars:
        yield f"keeps {kernel.scalar_spills} scalars in lanes, {scalars} are allowed"
    if kernel.waves < planned_waves(arch, kernel.name):
        yield f"fits {kernel.waves} waves on a SIMD, planned are {planned_waves(arch, kernel.name)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tool", required=True)
    parser.add_argument("--folder", required=True, type=pathlib.Path)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()

    bad, checked, table = [], 0, []
    listed, gpus = rows(), kernel_lists.amd_gpus()
    for path in sorted(options.folder.glob("*.co")):
        source, arch = path.stem.rsplit("_", 1)
        if source not in listed:
            bad.append(f"{path.name}: no list names a kernel of {source}")
            continue
        if arch not in EMULATED:
            continue
        there = kernels_of(options.tool, path)
        bad += [f"{path.name}: calls {function}" for function in functions_of(path, there)]
        for row in listed[source]:
            if row.isa not in gpus[arch]:
                continue
            if row.name not in there:
                bad.append(f"{arch} {row.name}: is not in {path.name}")
                continue
            kernel = there.pop(row.name)
            checked += 1
            bad += [f"{arch} {row.name}: {fault}" for fault in faults(arch, kernel, row.threads)]
            table.append((arch, kernel))
        bad += [f"{arch} {name}: is in {path.name}, but no list names it" for name in there]
    if options.table:
        print(
            "| GPU | Kernel | VGPRs | AGPRs | SGPRs | LDS, bytes | work-items | waves a SIMD |\n|---|---|---|---|---|---|---|---|"
        )
        for arch, k in table:
            print(f"| {arch} | `{k.name}` | {k.vgprs} | {k.agprs} | {k.sgprs} | {k.lds} | {k.threads} | {k.waves} |")
        return 0
    for line in bad:
        print(line)
    print(f"{checked} kernels, {len(bad)} problems")
    return bool(bad) or checked == 0


if __name__ == "__main__":
    sys.exit(main())
