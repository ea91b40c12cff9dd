#!/usr/bin/env python3
"""Checks on the object files and the library of a build that no run of the program can make.

    check_objects.py CHECK --objects FILE --library FILE --soname NAME --machine x86_64|aarch64

FILE of --objects lists the library's object files, one per line. CHECK is one of
  weak-functions   kernel objects define no function the linker may merge with another object's copy of it: it would
                   keep one copy, perhaps the AVX-512 one, for every CPU
  load-time-code   kernel objects run nothing when the library is loaded: that would be before CPUID is asked
  baseline         only the kernel objects of an instruction set use it; on aarch64 nothing is newer than ARMv8.0-A
  spills           the micro-kernels' inner loops keep their vectors in registers
  tiles            tile registers are configured before they are used, released on every way out, and never put on the
                   stack; where vectors run beside tile products, they stay in registers too
  exports          the library exports fw_*, run_mha_rocm and run_mha_rocm_0_11 alone and needs nothing but the C and C++ runtime
"""

import argparse
import collections
import os
import re
import sys

import disassembly

# Kernel objects by instruction set; every other object must run on any CPU of its kind.
AVX2, AVX512, ZEN4, AMX = "avx2.cpp.o", "avx512.cpp.o", "zen4.cpp.o", "amx.cpp.o"
NEON, PORTABLE = "neon.cpp.o", "portable.cpp.o"
KERNELS = {"x86_64": {AVX2, AVX512, ZEN4, AMX, PORTABLE}, "aarch64": {NEON, PORTABLE}}
ARMV8_0 = "generic"  # what LLVM calls it
MIN_FMAS = 12  # a loop with at least so many vector multiply-adds is worth a look

_FMA = re.compile(r"^(vfn?m(add|sub)\d{3}ps|vdpbf16ps|fmla)$")
_ACCUMULATE = ("vfmadd231ps", "vdpbf16ps")  # register += a * b
_BF16 = re.compile(r"^v(dpbf16ps|cvtne2?ps2?bf16)")
_BY_LANE = re.compile(r"^v\d+\.4s, v\d+\.4s, v\d+\.s\[\d\]$")  # of fmla: a polynomial has no reason for it
_WIDE = re.compile(r"%[yz]mm\d|\bv\d+\.4s")
_VECTOR = re.compile(r"%[xyz]mm\d|\b[qvds]\d")
_AVX512_ONLY = re.compile(r"%zmm\d|%k[0-7]\b|%[xy]mm(1[6-9]|[23]\d)\b")
_TILE = re.compile(r"^(tile(load|store|zero)|tdp|tcmm)|^(ld|st)tilecfg$|^tilerelease$")
_TILE_DATA = re.compile(r"^(tile(load|store|zero)|tdp|tcmm)")
_TILE_PRODUCT = "tdp"
_BESIDE_PRODUCTS = "vscalefps"  # the last step of the exponential that runs beside tile products
_RUNTIME_LIBRARIES = re.compile(r"^(lib(c|m|dl|pthread|stdc\+\+|gcc_s)\.so|ld-linux)")
_RUNTIME_VERSIONS = re.compile(r"@(GLIBC|GLIBCXX|CXXABI|GCC)_")
_OPTIONAL = {"__gmon_start__", "_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__cxa_finalize"}


def name_of(path):
    return os.path.basename(path)


def kernel_objects(options):
    kernels = KERNELS[options.machine]
    found = {name_of(path): path for path in options.objects if name_of(path) in kernels}
    missing = kernels - set(found)
    if missing:
        raise SystemExit("not among the objects: " + " ".join(sorted(missing)))
    return found


def weak_functions(path):
    """Defined weak functions of one object (llvm-nm's type W; V, weak data, holds no code)."""
    lines = disassembly.output_of(disassembly.tool("nm"), "--format=posix", "--defined-only", path).splitlines()
    return [line.split()[0] for line in lines if len(line.split()) > 1 and line.split()[1] == "W"]


def load_time_sections(path):
    lines = disassembly.output_of(disassembly.tool("readelf"), "--sections", "--wide", path).splitlines()
    return sorted(
        {m.group(0) for line in lines for m in [re.search(r"\.(init_array|ctors|preinit_array)\S*", line)] if m}
    )


def is_avx(instruction):
    if instruction.mnemonic in ("vzeroupper", "vzeroall"):
        return True
    return (
        instruction.mnemonic.startswith("v")
        and bool(_VECTOR.search(instruction.operands))
        or bool(re.search(r"%[yz]mm\d|%k[0-7]\b", instruction.operands))
    )


def is_tile(instruction):
    return bool(_TILE.match(instruction.mnemonic))


def foreign_instructions(path, forbidden, cpu=None):
    """(function, instruction) for the first forbidden instruction of each function."""
    found = []
    for function in disassembly.functions(path, cpu):
        first = next((i for i in function.instructions if forbidden(i)), None)
        if first:
            found.append((function.name, first))
    return found


def busy_loops(path):
    """[(loop, is it a micro-kernel's, its instructions that move vectors to or from the stack)]

    A micro-kernel's loop accumulates products. Loops that evaluate polynomials (exp, tanh) also consist of multiply-adds,
    but of another form; there a constant that is read from the stack costs nothing.
    """
    found = []
    for function in disassembly.functions(path):
        bases = ["%rsp", "sp"] + (["%rbp", "x29"] if disassembly.uses_frame_pointer(function) else [])
        on_stack = re.compile(r"[(\[](%s)[,)\]]" % "|".join(bases))
        for loop in disassembly.innermost_loops(function):
            fmas = [i for i in loop.instructions if _FMA.match(i.mnemonic) and _WIDE.search(i.operands)]
            if len(fmas) < MIN_FMAS:
                continue
            # One that takes its operand from the stack may be an accumulation whose register was spilled.
            accumulations = [
                i for i in fmas if i.mnemonic in _ACCUMULATE or _BY_LANE.match(i.operands) or on_stack.search(i.operands)
            ]
            spills = [i for i in loop.instructions if _VECTOR.search(i.operands) and on_stack.search(i.operands)]
            found.append((loop, len(accumulations) >= MIN_FMAS, spills))
    return found


def check_weak_functions(options):
    return [
        "%s: %s is weak; make it static, of an unnamed namespace, or always inlined" % (name, symbol)
        for name, path in kernel_objects(options).items()
        for symbol in weak_functions(path)
    ]


def check_load_time_code(options):
    return [
        "%s: has %s" % (name, section)
        for name, path in kernel_objects(options).items()
        for section in load_time_sections(path)
    ]


def check_baseline(options):
    kernel_objects(options)
    problems, cpu = [], None
    for path in options.objects:
        if name_of(path) == AMX:
            continue
        if options.machine == "aarch64":
            forbidden, cpu = lambda i: i.mnemonic == "<unknown>", ARMV8_0
        elif name_of(path) == ZEN4:
            forbidden = is_tile
        elif name_of(path) == AVX512:
            forbidden = lambda i: is_tile(i) or _BF16.match(i.mnemonic)
        elif name_of(path) == AVX2:
            forbidden = lambda i: _AVX512_ONLY.search(i.operands) or is_tile(i)
        else:
            forbidden = lambda i: is_avx(i) or is_tile(i)
        for function, instruction in foreign_instructions(path, forbidden, cpu):
            problems.append("%s: %s: %s %s" % (name_of(path), function, instruction.mnemonic, instruction.operands))
    print("%d objects looked at" % len(options.objects))
    return problems


def check_spills(options):
    objects, problems = kernel_objects(options), []
    for name in (AVX2, AVX512, ZEN4, NEON):
        if name not in objects:
            continue
        loops = busy_loops(objects[name])
        micro_kernels = [(loop, spills) for loop, accumulates, spills in loops if accumulates]
        others = [spills for _, accumulates, spills in loops if not accumulates]
        print(
            "%s: %d micro-kernel loops; %d other loops of %d or more multiply-adds, %d of them use the stack"
            % (name, len(micro_kernels), len(others), MIN_FMAS, sum(1 for spills in others if spills))
        )
        if not micro_kernels:
            problems.append("%s: no micro-kernel loop found; has the code or the compiler changed?" % name)
        for loop, spills in micro_kernels:
            for i in spills:
                problems.append("%s: %s+0x%x: %s %s" % (name, loop.function, i.address, i.mnemonic, i.operands))
    return problems


def tile_problems(function, uses_tiles):
    """(what is wrong with the use of tiles in one function, whether it uses them as its caller configured them).

    uses_tiles(i) says whether an instruction, perhaps a call, works on tiles. Follows every path twice: from the entry to
    the first such instruction or ldtilecfg, and from each ldtilecfg to tilerelease or the end.
    """
    flow = disassembly.Flow(function)
    inherits, problems = False, []
    for i in flow.reachable(0, stop=lambda i: i.mnemonic == "ldtilecfg"):
        inherits = inherits or uses_tiles(i)
    for start, instruction in enumerate(function.instructions):
        if instruction.mnemonic != "ldtilecfg":
            continue
        for i in flow.reachable(start + 1, stop=lambda i: i.mnemonic == "tilerelease"):
            if i.mnemonic.startswith("ret") or flow.leaves(i):
                problems.append("%s+0x%x leaves without tilerelease" % (function.name, i.address))
            if i.mnemonic == "ldtilecfg":
                problems.append("%s+0x%x configures tiles twice" % (function.name, i.address))
    return problems, inherits


def tiles_on_stack(function):
    """Instructions that move a tile to or from the stack frame, directly or by a register that points into it."""
    found, pointers = [], {"%rsp"}
    for i in function.instructions:
        if _TILE_DATA.match(i.mnemonic) and any("(%s" % register in i.operands for register in pointers):
            found.append(i)
        written = re.search(r"(%r\w+)$", i.operands)
        if written and written.group(1) != "%rsp":
            address = i.mnemonic.startswith("lea") and re.search(r"\((%rsp)[,)]", i.operands)
            copied = i.mnemonic.startswith("mov") and i.operands.startswith("%rsp,")
            (pointers.add if address or copied else pointers.discard)(written.group(1))
    return found


def check_tiles(options):
    path = kernel_objects(options)[AMX]
    functions = disassembly.functions(path)
    by_address = {f.instructions[0].address: f for f in functions if f.instructions}
    problems, inheriting, callers = [], set(), {}
    for f in functions:
        for i in f.instructions:
            callee = by_address.get(disassembly.target(i)) if i.mnemonic.startswith("call") else None
            if callee:
                callers.setdefault(callee.name, set()).add(f.name)

    def uses_tiles(i):
        callee = by_address.get(disassembly.target(i)) if i.mnemonic.startswith("call") else None
        return bool(_TILE_DATA.match(i.mnemonic)) or (callee is not None and callee.name in inheriting)

    grown = True
    while grown:  # until no more functions turn out to rely on their callers
        judged = [(f, *tile_problems(f, uses_tiles)) for f in functions]
        found = {f.name for f, _, inherits in judged if inherits}
        grown, inheriting = found != inheriting, found
    problems += [problem for _, found, _ in judged for problem in found]
    visible = {line.split()[0] for line in global_functions(path)}
    for f in functions:
        if f.name in inheriting and (f.name in visible or f.name not in callers):
            problems.append("%s uses tiles that nobody configured" % f.name)
        products = [i for i in f.instructions if i.mnemonic.startswith(_TILE_PRODUCT)]
        beside = products and any(i.mnemonic == _BESIDE_PRODUCTS for i in f.instructions)
        for i in tiles_on_stack(f):
            problems.append("%s+0x%x: a tile on the stack: %s %s" % (f.name, i.address, i.mnemonic, i.operands))
        for i in f.instructions:
            if beside and "(%rsp" in i.operands and _WIDE.search(i.operands):
                problems.append("%s+0x%x: %s %s" % (f.name, i.address, i.mnemonic, i.operands))
    configured = sum(1 for f in functions for i in f.instructions if i.mnemonic == "ldtilecfg")
    interleaved = sum(
        1
        for f in functions
        if any(i.mnemonic.startswith(_TILE_PRODUCT) for i in f.instructions)
        and any(i.mnemonic == _BESIDE_PRODUCTS for i in f.instructions)
    )
    products = collections.Counter(i.mnemonic for f in functions for i in f.instructions if i.mnemonic.startswith("tdp"))
    print(
        "%s: %d places configure tiles, %d functions rely on them, %d have vectors beside tile products; %s"
        % (AMX, configured, len(inheriting), interleaved, " ".join("%d %s" % (n, p) for p, n in sorted(products.items())))
    )
    if not configured or not interleaved:
        problems.append("no tiles found; has the code or the compiler changed?")
    return ["%s: %s" % (AMX, problem) for problem in problems]


def global_functions(path):
    lines = disassembly.output_of(disassembly.tool("nm"), "--format=posix", "--defined-only", "--extern-only", path)
    return [line for line in lines.splitlines() if len(line.split()) > 1 and line.split()[1] == "T"]


def check_exports(options):
    problems = []
    nm = [disassembly.tool("nm"), "--dynamic", "--format=posix"]
    exported = [line.split()[0] for line in disassembly.output_of(*nm, "--defined-only", options.library).splitlines()]
    problems += ["exports " + symbol for symbol in exported if not re.match(r"(fw_\w+|run_mha_rocm(_0_11)?)(@|$)", symbol)]
    if not exported:
        problems.append("exports nothing")
    for line in disassembly.output_of(*nm, "--undefined-only", options.library).splitlines():
        symbol = line.split()[0]
        if symbol.split("@")[0] not in _OPTIONAL and not _RUNTIME_VERSIONS.search(symbol):
            problems.append("needs %s, which is not of the C or C++ runtime" % symbol)
    dynamic = disassembly.output_of(disassembly.tool("readelf"), "--dynamic-table", options.library)
    needed = re.findall(r"\(NEEDED\)\s+Shared library: \[(.+)\]", dynamic)
    problems += ["needs " + library for library in needed if not _RUNTIME_LIBRARIES.match(library)]
    soname = re.findall(r"\(SONAME\)\s+Library soname: \[(.+)\]", dynamic)
    if soname != [options.soname]:
        problems.append("soname is %s, not %s" % (soname, options.soname))
    print("%d symbols exported; needs %s" % (len(exported), " ".join(needed)))
    return ["%s: %s" % (name_of(options.library), problem) for problem in problems]


CHECKS = {
    "weak-functions": check_weak_functions,
    "load-time-code": check_load_time_code,
    "baseline": check_baseline,
    "spills": check_spills,
    "tiles": check_tiles,
    "exports": check_exports,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", choices=sorted(CHECKS))
    parser.add_argument("--objects", required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--soname", required=True)
    parser.add_argument("--machine", choices=sorted(KERNELS), default="x86_64")
    options = parser.parse_args()
    with open(options.objects) as file:
        options.objects = [line.strip() for line in file if line.strip()]
    problems = CHECKS[options.check](options)
    for problem in problems:
        print(problem)
    print("%s: %s" % (options.check, "%d problems" % len(problems) if problems else "ok"))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
