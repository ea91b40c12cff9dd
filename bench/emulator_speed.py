#!/usr/bin/env python3
"""How fast the emulator executes: wave-instructions per second on one core, with and without checkers.

    bench/emulator_speed.py [--arch gfx942,...] [--length 512] [--repeats 3] [--threads 1]

The work is attention of tests/emulator/kernels/attention.hip (K and V tiles in LDS, matrix instructions). Needs NumPy
and a built libflashwave_emu.so.
"""

import argparse
import pathlib
import sys
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "emulator"))

import hip  # noqa: E402

KERNELS = {"attention_64": 64, "attention_64_causal": 64, "attention_128": 128}


def measure(arch, kernel, length, repeats, threads, check):
    """(instructions, the shortest time in seconds)"""
    d = KERNELS[kernel]
    draw = np.random.default_rng(0)
    code = hip.compile_kernels(ROOT / "tests" / "emulator" / "kernels" / "attention.hip", arch, "O3")
    with hip.Session(arch, check="report" if check else "0", threads=threads) as session:
        q, k, v = (session.buffer(draw.standard_normal((2, length, d)).astype(np.float16)) for _ in range(3))
        out, lse = session.buffer(2 * length * d * 2), session.buffer(2 * length * 4)
        args = [q, k, v, out, lse, length, length, d**-0.5]
        best, instructions = float("inf"), 0
        for _ in range(repeats):
            session.reset_counters()
            begin = time.perf_counter()
            session.run(code, kernel, (-(-length // 64), 2), 4 * hip.wave_size(arch), args)
            best = min(best, time.perf_counter() - begin)
            instructions = session.counters()[-1]["counters"]["instructions"]
    return instructions, best


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--arch", default=",".join(hip.ARCHITECTURES))
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    print(f"{'GPU':8} {'kernel':20} {'instructions':>12} {'M/s':>7} {'M/s, checked':>13}")
    for arch in options.arch.split(","):
        for kernel in KERNELS:
            rates = []
            for check in (False, True):
                instructions, seconds = measure(arch, kernel, options.length, options.repeats, options.threads, check)
                rates.append(instructions / seconds / 1e6)
            print(f"{arch:8} {kernel:20} {instructions:12} {rates[0]:7.1f} {rates[1]:13.1f}", flush=True)


if __name__ == "__main__":
    main()
