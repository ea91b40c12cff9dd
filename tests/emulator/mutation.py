"""Takes waits and barriers away, one at a time, and demands that the checkers notice.

    mutation.py [--arch A,B] [--opt O1,O3] [--kernel NAME,...] [--jobs N] [--list]

Each s_waitcnt*, s_wait_*cnt* and barrier (both halves on gfx12) of a kernel becomes an s_nop. Each of these mutants is
    noticed     the checkers report it
    strict      they do if reads of LDS, too, must have been waited for before a barrier (option strict)
    redundant   by a proof: on every path (waits.py); or it orders LDS accesses of no two waves in these runs, and none
                in others, since neither data nor order of waves matter to what is accessed (accesses.py)
    unexecuted  no run gets there: a trap in its place stays silent
    MISSED      none of these, or the runs need it by accesses.py
    FALSE       noticed although redundant on every path, or although the runs do not need it by accesses.py
"""

import argparse
import collections
import functools
import multiprocessing
import os
import pathlib
import struct
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import accesses  # noqa: E402
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


def gemm_i8(arch):
    deep = 96  # a multiple of 16 and 32
    a, b = ((draw(n, m) * 9).astype(np.int8) for n, m in ((32, deep), (deep, 32)))
    return (2, 2), hip.wave_size(arch), [a, b, np.zeros((32, 32), I32), 32, deep]


def softmax(waves, columns):
    def arguments(arch):
        return 1, waves * hip.wave_size(arch) or 1, [draw(columns).astype(F32), np.zeros(columns, F32), columns]

    return arguments


def transpose(arch):
    return (2, 2), (32, 8), [draw(45, 40).astype(F32), np.zeros((40, 45), F32), 45, 40]


def scan(threads):
    return lambda arch: (1, threads, [np.arange(256, dtype=I32), np.zeros(256, I32)])


def scan_exclusive(arch):
    return 1, 256, [np.arange(512, dtype=np.int64), np.zeros(512, np.int64)]


def attention(d, keys):
    def arguments(arch):
        q, k, v = (draw(1, n, d).astype(F16) for n in (80, keys, keys))
        out = [np.zeros_like(q), np.zeros((1, 80), F32)]
        return (2, 1), 4 * hip.wave_size(arch), [q, k, v, *out, 80, keys, d**-0.5]

    return arguments


def sums(n, block):
    return lambda arch: (3, block, [draw(n).astype(F32), np.zeros(3, F32), n])


def over_lanes(kind):
    return lambda arch: (1, 128, [(draw(128) * 100).astype(kind), np.zeros(128, kind)])


def halves(arch):
    return (2, 1), 256, [draw(64, 128).astype(F16), np.zeros((128, 64), F16), 64, 128]


def layer_norm(waves, columns):
    def arguments(arch):
        x = draw(columns).astype(F16)
        return 1, waves * hip.wave_size(arch) or 1, [x, x.copy(), np.zeros(columns, F16), columns, 1e-5]

    return arguments


def tree(arch):
    return 2, 256, [draw(512), np.zeros(2)]


KERNELS = {  # kernel: (file, launches...)
    "gemm_f32": ("gemm", gemm_plain),
    "gemm_f16": ("gemm", gemm),
    "gemm_bf16": ("gemm", gemm),
    "gemm_i8": ("gemm", gemm_i8),
    "softmax": ("softmax", softmax(4, 600), softmax(1, 40), softmax(16, 3000), softmax(0, 9)),
    "layer_norm": ("softmax", layer_norm(4, 600), layer_norm(1, 40), layer_norm(16, 3000), layer_norm(0, 9)),
    "transpose": ("shared", transpose),
    "transpose_half": ("shared", halves),
    "scan": ("shared", scan(256), scan(1)),
    "scan_exclusive": ("shared", scan_exclusive),
    "sum_shuffle": ("reduce", sums(1000, 256), sums(20, 32)),
    "sum_swizzle": ("reduce", over_lanes(F32)),
    "sum_tree": ("reduce", tree),
    "max_dpp": ("reduce", over_lanes(I32)),
    "attention_64": ("attention", attention(64, 90), attention(64, 5)),
    "attention_64_causal": ("attention", attention(64, 90), attention(64, 5)),
    "attention_128": ("attention", attention(128, 90), attention(128, 5)),
}
UNSHARED = "orders no two waves"


def patched(code, lines, word):
    changed = bytearray(code)
    for line in lines:
        assert struct.unpack_from("<I", code, line.offset)[0] == line.words[0]
        struct.pack_into("<I", changed, line.offset, word)
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


def other_data(args):
    return [a.reshape(-1)[::-1].reshape(a.shape).copy() if isinstance(a, np.ndarray) else a for a in args]


class Subject:
    """A kernel for one GPU, and the runs it is tried in."""

    def __init__(self, arch, opt, name, checks="all"):
        file, *self.launches = KERNELS[name]
        self.arch, self.name, self.checks = arch, name, checks
        self.code = hip.compile_kernels(HERE / "kernels" / f"{file}.hip", arch, opt)
        self.lines = waits.kernel_lines(waits.disassemble(self.code, arch), name)
        self.limit = hip.largest_workgroup(self.code, name)
        self.any_size = waits.Kernel(self.lines, arch)
        self.kernel = waits.Kernel(self.lines, arch, self.limit) if self.limit < 1024 else self.any_size

    def says(self, code, **options):
        return reports_of(self.arch, code, self.name, self.launches, checks=self.checks, **options)

    @functools.cached_property
    def traces(self):
        """Of each launch, or None where the LDS accesses depend on the data."""
        found = []
        for launch in self.launches:
            grid, block, args = launch(self.arch)
            found.append(accesses.trace(self.code, self.name, self.any_size, grid, block, args))
            if found[-1] != accesses.trace(self.code, self.name, self.any_size, grid, block, other_data(args)):
                return None
        return found

    def proof(self, mutant):
        """Why it is redundant on every path, or None."""
        for kernel, condition in ((self.any_size, ""), (self.kernel, ", for the workgroups it is declared for")):
            if waits.is_wait(self.lines[mutant[0]]):
                found = kernel.wait_proof(mutant[0])
            else:
                found = kernel.barrier_proof(mutant[0], mutant[-1])
            if found or kernel is self.kernel:
                return found and found + condition * (kernel is not self.any_size)

    def is_needed(self, mutant):
        """Whether one of the runs goes wrong without it; None if that is not known."""
        try:
            return self.traces and any(accesses.is_needed(self.any_size, trace, set(mutant)) for trace in self.traces)
        except waits.Unclear:
            return None

    def verdict(self, mutant):
        """(verdict, proof or report)."""
        lines = [self.lines[i] for i in mutant]
        code, proof, needed = patched(self.code, lines, S_NOP), self.proof(mutant), self.is_needed(mutant)
        said = self.says(code) or self.says(code, seed=1)  # an order of the waves in which the mistake shows
        strict = "" if said else self.says(code, strict=1)
        if said or strict:
            if proof or needed is False:
                return "FALSE", f"{proof or 'no run needs it'}, yet: {said or strict}"
            return ("noticed", said) if said else ("strict", strict)
        if needed:
            return "MISSED", "a run needs it"
        if proof:
            return "redundant", proof
        if "trap" not in self.says(patched(self.code, lines[:1], S_TRAP[self.arch[:4]])):
            return "unexecuted", ""
        barrier = not waits.is_wait(lines[0])
        if needed is False and (barrier or self.kernel.serves_lds_only(mutant[0])):
            return "redundant", UNSHARED
        return "MISSED", ""


def mutate(job, checks="all"):
    """All mutants of one kernel (arch, opt, name): (job, [(text, verdict, proof or report)])."""
    subject = Subject(*job, checks)
    clean = subject.says(subject.code) or subject.says(subject.code, seed=1) or subject.says(subject.code, strict=1)
    if clean:
        return job, [("unchanged", "FALSE", clean)]
    found = []
    for mutant in waits.mutants(subject.lines):
        first = subject.lines[mutant[0]]
        found.append((f"{first.address:#x} {first.text}", *subject.verdict(mutant)))
    return job, found


def count(results, verdict):
    return sum(v == verdict for _, v, _ in results)


def is_good(results):
    return bool(results) and not count(results, "MISSED") and not count(results, "FALSE")


def jobs_for(architectures, levels, kernels):
    return [(arch, opt, kernel) for arch in architectures for opt in levels for kernel in kernels]


VERDICTS = ("noticed", "strict", "redundant", "unexecuted", "MISSED", "FALSE")


def table(rows):
    """Markdown: by GPU."""
    print("\n| GPU | mutants | " + " | ".join(VERDICTS) + " |\n|" + "---|" * (len(VERDICTS) + 2))
    for name in [*dict.fromkeys(arch for arch, _ in rows), "all"]:
        of = [r for arch, results in rows for r in results if name in (arch, "all")]
        print(f"| {name} | {len(of)} | " + " | ".join(str(count(of, v)) for v in VERDICTS) + " |")
    proofs = collections.Counter(why for _, results in rows for _, v, why in results if v == "redundant")
    print("\n| proof | mutants |\n|---|---|")
    for why, n in proofs.most_common():
        print(f"| {why} | {n} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--arch", default=",".join(hip.ARCHITECTURES))
    parser.add_argument("--opt", default="O3")
    parser.add_argument("--kernel", default=",".join(KERNELS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--list", action="store_true", help="name the waits and barriers that are not noticed, and why")
    options = parser.parse_args()
    os.environ["FLASHWAVE_EMU_THREADS"] = "1"
    rows, failed = [], 0
    jobs = jobs_for(options.arch.split(","), options.opt.split(","), options.kernel.split(","))
    with multiprocessing.Pool(options.jobs) as pool:
        for (arch, opt, kernel), results in pool.imap(mutate, jobs):
            rows.append((arch, results))
            numbers = ", ".join(f"{count(results, v)} {v}" for v in VERDICTS if count(results, v))
            print(f"{arch} {opt} {kernel}: {len(results)} mutants: {numbers}", flush=True)
            for where, verdict, why in results:
                if verdict in ("MISSED", "FALSE") or (options.list and verdict != "noticed"):
                    print(f"    {verdict} {where}: {why}")
            failed += not is_good(results)
    table(rows)
    print(f"\n{len(rows) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
