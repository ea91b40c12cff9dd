#!/usr/bin/env python3
"""The checker finds what it is there to find: each violation is planted in a clean tree and must be reported."""

import contextlib
import io
import os
import tempfile
import unittest

import check_layers

CLEAN = {
    "include/flashwave/flashwave.h": "#include <stdint.h>\n",
    "include/flashwave/flashwave.hpp": '#include "flashwave/flashwave.h"\n',
    "src/base/status.h": '#include "flashwave/flashwave.h"\n#include <string>\n',
    "src/base/isa.h": '#include "kernels/registry.def"\n',
    "src/problem/problem.h": '#include "base/status.h"\n#include "flashwave/flashwave.h"\n',
    "src/catalog/catalog.h": '#include "base/status.h"\n#include "kernels/abi/features.h"\n',
    "src/catalog/catalog.cpp": '#include "catalog/catalog.h"\n#include "kernels/cpu/kernels.def"\n',
    "src/device/driver.h": '#include "base/status.h"\n#include "kernels/abi/params.h"\n',
    "src/device/cpu/cpu.cpp": '#include "device/driver.h"\n#  include "kernels/cpu/kernels.def"\n',
    "src/plan/plan.h": '#include "problem/problem.h"\n#include "catalog/catalog.h"\n#include "device/driver.h"\n',
    "src/plan/run.cpp": '#include "plan/plan.h"\n#include "kernels/abi/params.h"\n',
    "src/api/api.cpp": '#include "plan/plan.h"\n#include <flashwave/flashwave.h>\n',
    "kernels/abi/params.h": "#include <cstdint>\n",
    "kernels/common/mask.h": '#include "kernels/abi/params.h"\n',
    "kernels/cpu/fwd.cpp": '#include "kernels/common/mask.h"\n#include "tile.h"\n#include <immintrin.h>\n',
    "kernels/cpu/tile.h": "// not asm\nfloat x = __builtin_fmaf(a, b, c), v_f32 = value_u(x);\n",
    "kernels/cpu/vec.h": "__m512 x = _mm512_setzero_ps();\nreturn vcvt_f32_f16(h);\n",
    "kernels/cpu/amx_isa.h": "_tile_release();\n",
    "kernels/cpu/kernels.def": "ROW(a)\n",
    "kernels/abi/features.h": "\n",
    "kernels/amd/gpu.h": 'asm(""); // words\n',
    "kernels/amd/kernels.def": "FW_AMD_KERNEL(a)\n",
    "kernels/nvidia/gpu.h": "__syncthreads();\n",
    "kernels/nvidia/decode.cu": 'extern "C" __global__ void __launch_bounds__(64) f();  // after __syncwarp\n',
    "kernels/hopper/score.h": "// __shfl_sync, which is not here\n",
    "kernels/registry.def": '#include "kernels/cpu/kernels.def"\n#include "kernels/generic/kernels.def"\n',
    "kernels/common/gpu.h": '#include "kernels/amd/gpu.h"\n',
    "kernels/generic/fwd.hip": '#include "kernels/common/gpu.h"\n',
    "kernels/generic/kernels.def": "FW_AMD_KERNEL(a) FW_NVIDIA_KERNEL(a)\n",
    "kernels/cdna/kernels.def": "FW_AMD_KERNEL(a)\n",
    "kernels/rdna/kernels.def": "FW_AMD_KERNEL(a)\n",
    "kernels/cdna/isa.h": '#include "kernels/amd/gpu.h"\n',
    "kernels/rdna/fwd.hip": '#include "kernels/amd/gpu.h"\n',
    "cli/main.cpp": '#include "args.h"\n#include "parts/show.h"\n#include "flashwave/flashwave.hpp"\n',
    "cli/args.h": "\n",
    "cli/parts/show.h": '#include "args.h"\n',
    "bench/bench.cpp": "#include <cblas.h>\n#include <flashwave/flashwave.h>\n",
    "emulator/decode.cpp": "#include <cstdint>\n",
    "tests/unit/any_test.cpp": '#include "plan/plan.h"\n#include "not/in/the/tree.h"\n',
}

# file, line added to it, what the report must say
PLANTED = [
    ("src/base/status.h", '#include "problem/problem.h"', "src/base may not include src/problem/problem.h"),
    ("src/base/status.h", '#include "kernels/abi/params.h"', "src/base may not include kernels/abi/params.h"),
    ("src/problem/problem.h", '#include "catalog/catalog.h"', "src/problem may not include src/catalog"),
    ("src/problem/problem.h", '#include "../plan/plan.h"', "src/problem may not include src/plan/plan.h"),
    ("src/catalog/catalog.cpp", '#include "device/driver.h"', "src/catalog may not include src/device"),
    ("src/catalog/catalog.cpp", '#include "kernels/abi/params.h"', "src/catalog may not include kernels/abi"),
    ("src/device/driver.h", '#include "problem/problem.h"', "src/device may not include src/problem"),
    ("src/device/cpu/cpu.cpp", '#include "kernels/cpu/tile.h"', "src/device may not include kernels/cpu/tile.h"),
    ("src/plan/run.cpp", '#include "kernels/cpu/tile.h"', "src/plan may not include kernels/cpu/tile.h"),
    ("src/plan/run.cpp", '#include "kernels/cpu/kernels.def"', "src/plan may not include kernels/cpu/kernels.def"),
    ("src/api/api.cpp", '#include "kernels/abi/params.h"', "src/api may not include kernels/abi/params.h"),
    ("kernels/abi/params.h", '#include "kernels/common/mask.h"', "kernels/abi may not include kernels/common"),
    ("kernels/abi/params.h", '#include "flashwave/flashwave.h"', "kernels/abi may not include include/flashwave"),
    ("kernels/common/mask.h", '#include "kernels/cpu/tile.h"', "kernels/common may not include kernels/cpu"),
    ("kernels/common/mask.h", '#include "kernels/amd/gpu.h"', "kernels/common may not include kernels/amd/gpu.h"),
    ("kernels/common/gpu.h", '#include "kernels/cdna/isa.h"', "kernels/common may not include kernels/cdna/isa.h"),
    ("kernels/generic/fwd.hip", '#include "kernels/amd/gpu.h"', "kernels/generic may not include kernels/amd/gpu.h"),
    ("kernels/cpu/fwd.cpp", '#include "kernels/cdna/isa.h"', "kernels/cpu may not include kernels/cdna/isa.h"),
    ("kernels/rdna/fwd.hip", '#include "kernels/cdna/isa.h"', "kernels/rdna may not include kernels/cdna/isa.h"),
    ("kernels/rdna/fwd.hip", '#include "kernels/nvidia/gpu.h"', "kernels/rdna may not include kernels/nvidia/gpu.h"),
    ("kernels/cpu/fwd.cpp", '#include "kernels/amd/gpu.h"', "kernels/cpu may not include kernels/amd/gpu.h"),
    ("kernels/cpu/fwd.cpp", '#include "base/status.h"', "kernels/cpu may not include src/base/status.h"),
    ("cli/main.cpp", '#include "src/plan/plan.h"', "cli may not include src/plan/plan.h"),
    ("bench/bench.cpp", '#include "plan/plan.h"', "bench may not include src/plan/plan.h"),
    ("include/flashwave/flashwave.h", '#include "base/status.h"', "include may not include src/base/status.h"),
    ("emulator/decode.cpp", "#include <flashwave/flashwave.h>", "emulator may not include include/flashwave"),
    ("src/plan/run.cpp", '#include "plan/missing.h"', '"plan/missing.h" is not in the tree'),
    ("kernels/rdna/fwd.hip", 'asm volatile("s_nop 0");', "asm is an instruction and belongs in isa.h"),
    ("kernels/cpu/tile.h", '#define KEEP asm("" ::: "memory")', "asm is an instruction and belongs in isa.h"),
    ("kernels/generic/fwd.hip", "x = __builtin_amdgcn_readfirstlane(y);", "__builtin_amdgcn_readfirstlane is an instr"),
    ("kernels/generic/fwd.hip", "x = __nvvm_bar_warp_sync(y);", "__nvvm_bar_warp_sync is an instruction"),
    ("kernels/hopper/bwd.h", "x = __shfl_sync(~0u, x, 0);", "__shfl_sync is an instruction and belongs in isa.h"),
    ("kernels/hopper/bwd.h", "__syncthreads();", "__syncthreads is an instruction"),
    ("kernels/ampere/fwd.h", "a = __fmaf_rn(b, c, a);", "__fmaf_rn is an instruction"),
    ("kernels/nvidia/decode.cu", "n = atomicAdd(counter, 1u);", "atomicAdd is an instruction"),
    ("kernels/nvidia/decode.cu", "i = threadIdx.x / 32;", "threadIdx is an instruction"),
    ("kernels/cdna/kernels.def", "FW_CDNA_GENERAL(64)", "GENERAL is no name here any more; see modified"),
    ("kernels/cdna/isa.h", "constexpr bool kGeneral = true;", "General is no name here any more"),
    ("kernels/cpu/tile.h", "void general_tile();", "general is no name here any more"),
    ("src/plan/run.cpp", 'x = "cdna_fwd_bf16_d64_general";  // generalised', "general is no name here any more"),
    ("kernels/cpu/tile.h", "x = _mm512_max_ps(x, y);", "_mm512_max_ps is an instruction and belongs in isa.h"),
    ("kernels/cpu/tile.h", "x = _mm_max_ss(x, y);", "_mm_max_ss is an instruction"),
    ("kernels/cpu/tile.h", "_tile_zero(0);", "_tile_zero is an instruction"),
    ("kernels/cpu/tile.h", "bits = _pdep_u32(bits, places);", "_pdep_u32 is an instruction"),
    ("kernels/cpu/tile.h", "for (__m512i x : rows) {}", "__m512i is an instruction"),
    ("kernels/cpu/tile.h", "x = vmaxvq_u32(mask);", "vmaxvq_u32 is an instruction"),
    ("src/plan/run.cpp", "\n" * check_layers.MAX_LINES, "lines; the limit is"),
    ("tests/unit/any_test.cpp", "\n" * check_layers.MAX_LINES, "lines; the limit is"),
    ("python/flashwave/attention.py", "\n" * (check_layers.MAX_LINES + 1), "lines; the limit is"),
]


def write_tree(root, files):
    for name, text in files.items():
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


class CheckLayers(unittest.TestCase):
    def problems_of(self, files):
        with tempfile.TemporaryDirectory() as root:
            write_tree(root, files)
            return check_layers.check_tree(root)[0]

    def test_clean_tree_has_no_problems(self):
        self.assertEqual(self.problems_of(CLEAN), [])

    def test_each_planted_violation_is_found(self):
        for name, line, expected in PLANTED:
            with self.subTest(file=name, line=line.strip()):
                files = dict(CLEAN)
                files[name] = files.get(name, "") + line + "\n"
                problems = self.problems_of(files)
                self.assertEqual(len(problems), 1, problems)
                self.assertIn(expected, problems[0])
                self.assertTrue(problems[0].startswith(name), problems[0])

    def test_exit_status(self):
        with tempfile.TemporaryDirectory() as root, contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(check_layers.main([root]), 1, "an empty tree is a mistake in the path")
            write_tree(root, CLEAN)
            self.assertEqual(check_layers.main([root]), 0)
            write_tree(root, {"src/base/bad.h": '#include "plan/plan.h"\n'})
            self.assertEqual(check_layers.main([root]), 1)


if __name__ == "__main__":
    unittest.main()
