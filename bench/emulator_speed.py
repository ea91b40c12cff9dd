#!/usr/bin/env python3
"""How fast the emulator executes: million wave-instructions per second of CPU time, with and without checkers.

    bench/emulator_speed.py [--arch gfx942,...] [--work PATTERN] [--repeats 3] [--threads 1] [--against LIBRARY]

The work: attention of tests/emulator/kernels/attention.hip (K and V tiles in LDS), the forward of head size 128 that
the library ships (if build/kernels has it), and mixture.hip beside the first, the same mixture of instructions around
each kind of matrix instruction. The least time of the repeats counts. --against: another libflashwave_emu.so, measured
in turn with the first; the columns are then its rates, ours, and how many times as fast ours are. Needs NumPy and a
built libflashwave_emu.so.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads spin, which is CPU time too
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "emulator"))

import hip  # noqa: E402
import launches  # noqa: E402
import shipped  # noqa: E402

KERNELS = ROOT / "tests" / "emulator" / "kernels"
ATTENTION = {"attention_64": 64, "attention_64_causal": 64, "attention_128": 128}
LENGTH = 512
SHIPPED = r"_fwd_bf16_d128_m\d+n\d+$"
MIXTURES = ["mix_f16", "mix_fp8", "mix_fp8_16x16", "mix_f16_deep", "mix_bf16_deep_16x16", "mix_f8f6f4"]


def attention(session, arch, kernel):
    d, draw = ATTENTION[kernel], np.random.default_rng(0)
    code = hip.compile_kernels(KERNELS / "attention.hip", arch, "O3")
    q, k, v = (session.buffer(draw.standard_normal((2, LENGTH, d)).astype(np.float16)) for _ in range(3))
    out, lse = session.buffer(2 * LENGTH * d * 2), session.buffer(2 * LENGTH * 4)
    args = [q, k, v, out, lse, LENGTH, LENGTH, d**-0.5]
    return lambda: session.run(code, kernel, (-(-LENGTH // 64), 2), 4 * hip.wave_size(arch), args)


def shipped_forward(session, arch, row):
    code = (shipped.FOLDER / f"{row.source}_{arch}.co").read_bytes()
    launch = launches.Launch(row, row.tile_q, 4096, window=(launches.NO_WINDOW, launches.NO_WINDOW))
    return launch.prepared(session, code)


def mixture(session, arch, kernel):
    code = hip.compile_kernels(KERNELS / "mixture.hip", arch, "O3")
    draw = np.random.default_rng(0)
    # Numbers near 1 in every type, so that no sum becomes NaN or infinite.
    data = session.buffer((draw.integers(0x30, 0x40, 16384) | draw.integers(0, 2, 16384) << 7).astype(np.uint8))
    out = session.buffer(4 * 4 * 4 * hip.wave_size(arch))
    return lambda: session.run(code, kernel, 4, 4 * hip.wave_size(arch), [out, data, 128], check=False)


def all_work(arch):
    """Name: what gives a function that runs it."""
    work = {kernel: (attention, kernel) for kernel in ATTENTION}
    for row in shipped.rows(arch):
        if re.search(SHIPPED, row.name) and (shipped.FOLDER / f"{row.source}_{arch}.co").exists():
            work[row.name] = (shipped_forward, row)
    code = hip.compile_kernels(KERNELS / "mixture.hip", arch, "O3")
    work.update({name: (mixture, name) for name in MIXTURES if name.encode() + b"\0" in code})
    return work


def measure(arch, name, repeats, threads):
    """Instructions, and the least CPU time in seconds without and with checkers."""
    prepare, what = all_work(arch)[name]
    instructions, times = 0, []
    for check in ("0", "report"):
        with hip.Session(arch, check=check, threads=threads, barriers="counted") as session:
            run, best = prepare(session, arch, what), float("inf")
            for _ in range(repeats):
                session.reset_counters()
                begin = time.process_time()
                run()
                best = min(best, time.process_time() - begin)
                instructions = session.counters()[-1]["counters"]["instructions"]
            times.append(best)
    return instructions, times


def in_a_process(library, arch, name, options):
    """measure() with another library: each process can have one."""
    environment = {**os.environ, "FLASHWAVE_EMU_LIBRARY": str(library)}
    command = [sys.executable, __file__, "--arch", arch, "--one", name, "--repeats", str(options.repeats)]
    done = subprocess.run(
        [*command, "--threads", str(options.threads)], env=environment, capture_output=True, check=True
    )
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--arch", default=",".join(hip.ARCHITECTURES))
    parser.add_argument("--work", default="", help="a regular expression")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--against", type=pathlib.Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.arch, options.one, options.repeats, options.threads)))
        return
    libraries = [options.against, hip.LIBRARY] if options.against else [hip.LIBRARY]
    print(f"{'GPU':8} {'work':28} {'instructions':>12}  M/s without and with all checkers")
    for arch in options.arch.split(","):
        for name in all_work(arch):
            if not re.search(options.work, name):
                continue
            best = [[float("inf")] * 2 for _ in libraries]
            for _ in range(2 if options.against else 1):
                for i, library in enumerate(libraries):
                    instructions, times = in_a_process(library, arch, name, options)
                    best[i] = [min(pair) for pair in zip(best[i], times)]
            rates = [[instructions / seconds / 1e6 for seconds in times] for times in best]
            line = "   ".join(f"{plain:5.1f} {checked:5.1f}" for plain, checked in rates)
            if options.against:
                line += "   " + " ".join(f"{new / old:4.2f}x" for old, new in zip(*rates))
            print(f"{arch:8} {name:28} {instructions:12}  {line}", flush=True)


if __name__ == "__main__":
    main()
