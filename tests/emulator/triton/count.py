"""Counters of the Triton backend's kernels on the emulator, a line per configuration.

    out/venv-python/bin/python tests/emulator/triton/count.py [--arch A] [--op OP] [--dim D] [--causal] [CONFIG...]

CONFIG: queries x keys x warps x stages [x waves_per_eu], 128x64x4x1; without any, those of the backend's table. The
shape is that of the counts in kernels/cdna/NOTES.md.
"""

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # of hip.py

import attention
import torch

from flashwave.backends.triton import configs as triton_configs
from flashwave.backends.triton import launch as triton_launch
from flashwave.problem import Problem


def problem(dim: int, causal: bool) -> Problem:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1024, heads, dim, dtype=torch.bfloat16) for heads in (2, 1, 1))
    return Problem(q, k, v, max_seqlen_q=1024, max_seqlen_k=1024, causal=causal)


def count(arch: str, op: str, p: Problem, config: triton_configs.Config) -> dict:
    """Counters of the operation's own kernel, and what the emulator's model says of it."""
    out, lse = torch.randn_like(p.q), torch.zeros(1, 2, 1024)
    before = triton_configs.configs
    triton_configs.configs = lambda *which: (config,)
    try:
        with attention.on_emulator(arch, count=1, model=1, check=0) as launches:
            launches.session.reset_counters()
            if op == "forward":
                triton_launch.forward(p, None, True)
            else:
                needs = (op == "queries", op == "keys", op == "keys", False, False, False)
                triton_launch.backward(p, out, None, out, lse, needs)
            return launches.session.counters()[-1]
    finally:
        triton_configs.configs = before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="gfx942")
    parser.add_argument("--op", default="forward", choices=("forward", "keys", "queries"))
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("configs", nargs="*")
    options = parser.parse_args()
    family = "cdna" if options.arch.startswith("gfx9") else "rdna"
    configs = [triton_configs.Config(*map(int, text.split("x"))) for text in options.configs]
    for config in configs or triton_configs.configs(family, options.op, options.dim, 2, False)[:-1]:
        result = count(options.arch, options.op, problem(options.dim, options.causal), config)
        c = result["counters"]
        print(
            f"{options.arch} {options.op} d{options.dim} {'causal ' if options.causal else ''}"
            f"{config.block_m}x{config.block_n} warps {config.warps} stages {config.stages} "
            f"waves_per_eu {config.waves_per_eu}: "
            f"instructions {c['instructions']}, clocks: matrix {c['matrix_clocks']} vector {c['vector_clocks']} "
            f"transcendental {c['transcendental_clocks']} LDS {c['lds_clocks']} (ideal {c['lds_ideal_clocks']}), "
            f"scratch instructions {c['scratch_instructions']}, bytes loaded {c['vmem_bytes']}, "
            f"upper {100 * c['overlap_bound']:.1f} serial {100 * c['serial_bound']:.1f} "
            f"model {100 * result['model']['matrix_busy']:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
