"""Differential fuzz: random programs (programs.py) on the host and on the emulated GPUs must give the same bits.

    differential.py COUNT [--first SEED] [--arch A,B] [--opt O0,O3] [--batch N] [--jobs N]

One translation unit holds a batch of programs, so that compilers are started seldom.
"""

import argparse
import ctypes
import multiprocessing
import os
import pathlib
import subprocess
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import programs  # noqa: E402

import hip  # noqa: E402

FLAGS = ["-w", "-ffp-contract=off", "-fwrapv", "-std=c++20"]
# Without this option the host keeps results of half-precision arithmetic wider than they are.
HOST_FLAGS = ["-O1", "-mavx2", "-mfma", "-mf16c", "-Xclang", "-ffloat16-excess-precision=none", "-shared", "-fPIC"]


def inputs():
    """What every program gets: ordinary values, and those at which mistakes are made."""
    draw = np.random.default_rng(20240607)
    n = programs.ITEMS
    ints = draw.integers(-(2**31), 2**31, n) >> draw.integers(0, 31, n)
    ints[:6] = [0, 1, -1, 2**31 - 1, -(2**31), 0x55AA1234]
    longs = draw.integers(-(2**63), 2**63 - 1, n) >> draw.integers(0, 63, n)
    longs[6:11] = [0, 1, -1, 2**63 - 1, -(2**63)]

    def floats(dtype, shift):
        info = np.finfo(dtype)
        values = (draw.standard_normal(n) * np.exp2(draw.integers(-8, 8, n).astype(float))).astype(dtype)
        special = [
            0.0,
            -0.0,
            np.inf,
            -np.inf,
            np.nan,
            info.max,
            info.tiny,
            info.smallest_subnormal,
            -info.tiny,
            1.0,
            -1.0,
        ]
        values[shift : shift + len(special)] = special
        return values

    return [
        ints.astype(np.int32),
        longs.astype(np.int64),
        floats(np.float16, 12),
        floats(np.float32, 40),
        floats(np.float64, 70),
    ]


def unit(seeds):
    return programs.PREAMBLE + "\n".join(programs.Program(seed).source() for seed in seeds)


def host_results(seeds):
    text = unit(seeds)

    def make(path):
        done = subprocess.run(
            [hip.tool("clang++"), *HOST_FLAGS, *FLAGS, "-x", "c++", "-", "-o", str(path)],
            input=text.encode(),
            capture_output=True,
        )
        if done.returncode:
            raise RuntimeError(done.stderr.decode())

    library = ctypes.CDLL(str(hip.cached("\0".join([hip.clang_version(), *HOST_FLAGS, *FLAGS, text]), ".so", make)))
    given, results = inputs(), {}
    for seed in seeds:
        out = np.zeros((programs.ITEMS, programs.OUTPUTS), np.uint64)
        getattr(library, f"program_{seed}")(*[ctypes.c_void_p(a.ctypes.data) for a in [*given, out]])
        results[seed] = out
    return results


def check(arch, opt, seeds, expected=None):
    """Runs a batch; returns what went wrong, as text."""
    expected = expected or host_results(seeds)
    failures = []
    code = hip.compile_kernels(unit(seeds), arch, opt, FLAGS)
    with hip.Session(arch) as session:
        try:
            session.load(code)
        except hip.HipError as error:
            return [f"{arch} {opt} programs {seeds[0]}..{seeds[-1]}: {error}"]
        given = [session.buffer(array) for array in inputs()]
        for seed in seeds:
            out = np.zeros((programs.ITEMS, programs.OUTPUTS), np.uint64)
            where = f"{arch} {opt} program {seed}"
            try:
                session.run(code, f"program_{seed}", programs.ITEMS // 64, 64, [*given, out])
            except (hip.HipError, hip.CheckFailed) as error:
                failures.append(f"{where}: {error}")
                continue
            wrong = np.argwhere(out != expected[seed])
            if len(wrong):
                names = programs.output_names()
                lines = [
                    f"  item {i} {names[k]}: host {int(expected[seed][i, k]):#x}, emulator {int(out[i, k]):#x}"
                    for i, k in wrong[:8]
                ]
                failures.append(
                    f"{where}: {len(wrong)} values differ\n" + "\n".join(lines) + "\n" + programs.Program(seed).source()
                )
    return failures


def check_job(job):
    try:
        return job, check(*job)
    except Exception as error:
        return job, [f"{job[0]} {job[1]} programs {job[2][0]}..{job[2][-1]}: {error!r}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("count", type=int, help="programs per GPU and optimisation level")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    parser.add_argument("--arch", default=",".join(hip.ARCHITECTURES))
    parser.add_argument("--opt", default="O0,O1,O3")
    parser.add_argument("--batch", type=int, default=25)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    hip.library()  # says at once if there is none
    seeds = list(range(options.first, options.first + options.count))
    batches = [seeds[i : i + options.batch] for i in range(0, len(seeds), options.batch)]
    jobs = [
        (arch, opt, batch) for batch in batches for arch in options.arch.split(",") for opt in options.opt.split(",")
    ]
    passed = failed = 0
    os.environ["FLASHWAVE_EMU_THREADS"] = "1"
    with multiprocessing.Pool(options.jobs) as pool:
        for done, (job, failures) in enumerate(pool.imap_unordered(check_job, jobs), 1):
            failed += len(failures)
            passed += len(job[2]) - min(len(failures), len(job[2]))
            for failure in failures:
                print(failure, flush=True)
            if done % 15 == 0:
                print(f"{done} of {len(jobs)} batches", flush=True)
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
