"""Takes waits and barriers away, one at a time, and demands that the checkers notice.

    mutation.py [--arch A,B] [--opt O1,O3] [--kernel NAME,...] [--jobs N] [--list]

Each s_waitcnt*, s_wait_*cnt* and s_barrier* of a kernel becomes an s_nop. The kernel must then be reported, unless the
instruction is never executed in this run (a trap in its place stays silent) or waits.py proves it redundant on every
path that is taken in this run (a branch is taken if one to a trap instead does not stay silent).
"""

import argparse
import multiprocessing
import os
import pathlib
import struct
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import hip  # noqa: E402
import waits  # noqa: E402

S_NOP = 0xBF800000
# s_trap 2: SOPP opcode 18 on gfx9, 16 on gfx11 and later.
S_TRAP = {"gfx9": 0xBF920002, "gfx1": 0xBF900002}

F16, F32, I32 = np.float16, np.float32, np.int32


def draw(*shape):
    return np.random.default_rng(1).standard_normal(shape)


def gemm(arch):
    a, b = (draw(32, 64).astype(F16), draw(64, 32).astype(F16))
    return (2, 2), hip.wave_size(arch), [a, b, np.zeros((32, 32), F32), 32, 64]


def gemm_plain(arch):
    return (1, 1), 256, [draw(16, 48).astype(F32), draw(48, 16).astype(F32), np.zeros((16, 16), F32), 16, 48]


def softmax(arch):
    return 1, 256, [draw(600).astype(F32), np.zeros(600, F32), 600]


def softmax_short(arch):
    return 1, hip.wave_size(arch), [draw(40).astype(F32), np.zeros(40, F32), 40]


def transpose(arch):
    return (2, 2), (32, 8), [draw(45, 40).astype(F32), np.zeros((40, 45), F32), 45, 40]


def scan(arch):
    return 1, 256, [np.arange(256, dtype=I32), np.zeros(256, I32)]


def scan_exclusive(arch):
    return 1, 256, [np.arange(512, dtype=np.int64), np.zeros(512, np.int64)]


def attention(d, keys):
    def arguments(arch):
        q, k, v = (draw(1, n, d).astype(F16) for n in (80, keys, keys))
        return (2, 1), 4 * hip.wave_size(arch), [q, k, v, np.zeros_like(q), np.zeros((1, 80), F32), 80, keys, d**-0.5]

    return arguments


KERNELS = {  # kernel: (file, launches...)
    "gemm_f32": ("gemm", gemm_plain),
    "gemm_f16": ("gemm", gemm),
    "gemm_bf16": ("gemm", gemm),
    "softmax": ("softmax", softmax, softmax_short),
    "transpose": ("shared", transpose),
    "scan": ("shared", scan),
    "scan_exclusive": ("shared", scan_exclusive),
    "attention_64": ("attention", attention(64, 90), attention(64, 5)),
    "attention_64_causal": ("attention", attention(64, 90), attention(64, 5)),
    "attention_128": ("attention", attention(128, 90), attention(128, 5)),
}


def patched(code, line, word):
    changed = bytearray(code)
    changed[line.offset : line.offset + 4] = struct.pack("<I", word)
    assert struct.unpack_from("<I", code, line.offset)[0] == line.words[0]
    return bytes(changed)


def reports_of(arch, code, kernel, launches, **options):
    """What runs say: reports and errors; empty if all is well."""
    with hip.Session(arch, **options) as session:
        for launch in launches:
            grid, block, args = launch(arch)
            try:
                said = session.run(code, kernel, grid, block, args, check=False)
            except hip.HipError as error:
                said = str(error)
            if said:
                return said
    return ""


def never_taken(arch, code, kernel, launches, lines):
    """Indices of the conditional branches that never jump in these runs. A trap is put behind the end of the kernel."""
    ends = [i for i, line in enumerate(lines) if line.name == "s_endpgm"]
    spare = next((line for line in lines[ends[-1] + 1 :] if line.name in ("s_nop", "s_code_end")), None)
    if spare is None:
        return frozenset()
    trapped = patched(code, spare, S_TRAP[arch[:4]])
    quiet = set()
    for i, line in enumerate(lines[: ends[-1]]):
        if line.name.startswith("s_cbranch_"):
            jump = (spare.address - line.address - 4) // 4
            said = reports_of(
                arch, patched(trapped, line, line.words[0] & 0xFFFF0000 | jump & 0xFFFF), kernel, launches
            )
            if "trap" not in said:
                quiet.add(i)
    return frozenset(quiet)


def mutate(job):
    """One kernel: (kernel, arch, opt, mutants, noticed, excused [(line, why)], missed [line])."""
    arch, opt, kernel = job
    file, *launches = KERNELS[kernel]
    code = hip.compile_kernels(HERE / "kernels" / f"{file}.hip", arch, opt)
    clean = reports_of(arch, code, kernel, launches)
    if clean:
        return (*job, 0, 0, [], [f"unchanged: {clean}"])
    lines = waits.kernel_lines(waits.disassemble(code, arch), kernel)
    noticed, excused, missed, count, quiet = 0, [], [], 0, None
    for at, line in enumerate(lines):
        wait = waits.is_wait(line)
        if not (wait or waits.is_barrier(line)):
            continue
        count += 1
        said = reports_of(arch, patched(code, line, S_NOP), kernel, launches)
        if not said:  # an order of the waves in which the mistake shows
            said = reports_of(arch, patched(code, line, S_NOP), kernel, launches, seed=1)
        where = f"{line.address:#x} {line.text}"
        if said:
            noticed += 1
        elif "trap" not in reports_of(arch, patched(code, line, S_TRAP[arch[:4]]), kernel, launches):
            excused.append((where, "never executed"))
        else:
            redundant = waits.wait_is_redundant if wait else waits.barrier_is_redundant
            if redundant(lines, at, arch):
                excused.append((where, "redundant"))
                continue
            quiet = never_taken(arch, code, kernel, launches, lines) if quiet is None else quiet
            if redundant(lines, at, arch, quiet):
                excused.append((where, "redundant on the paths taken"))
            else:
                missed.append(where)
    return (*job, count, noticed, excused, missed)


def jobs_for(architectures, levels, kernels):
    return [(arch, opt, kernel) for arch in architectures for opt in levels for kernel in kernels]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--arch", default=",".join(hip.ARCHITECTURES))
    parser.add_argument("--opt", default="O1,O3")
    parser.add_argument("--kernel", default=",".join(KERNELS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--list", action="store_true", help="name the waits and barriers that may go unnoticed")
    options = parser.parse_args()
    os.environ["FLASHWAVE_EMU_THREADS"] = "1"
    total = caught = excused_total = 0
    failed = passed = 0
    jobs = jobs_for(options.arch.split(","), options.opt.split(","), options.kernel.split(","))
    with multiprocessing.Pool(options.jobs) as pool:
        for arch, opt, kernel, count, noticed, excused, missed in pool.imap_unordered(mutate, jobs):
            total, caught, excused_total = total + count, caught + noticed, excused_total + len(excused)
            verdict = "ok" if not missed and count else "FAILED"
            numbers = f"{noticed} noticed, {len(excused)} harmless, {len(missed)} missed"
            print(f"{arch} {opt} {kernel}: {count} mutants, {numbers}: {verdict}", flush=True)
            if options.list:
                for where, why in excused:
                    print(f"    {where}: {why}")
            for where in missed:
                print(f"    MISSED {where}")
            passed, failed = passed + (verdict == "ok"), failed + (verdict != "ok")
    print(f"{total} mutants: {caught} noticed, {excused_total} harmless, {total - caught - excused_total} missed")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
