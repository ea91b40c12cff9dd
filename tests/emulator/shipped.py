"""Takes waits and barriers away from kernels that the library ships, and demands that the checkers notice.

    shipped.py [--arch A,B] [--kernel PATTERN] [--sample N] [--jobs N] [--list]

Each s_waitcnt*, s_wait_*cnt* and barrier of a kernel's machine code, one at a time, becomes an s_nop, as in
mutation.py, and is
    noticed     the checkers report it in one of the launches below
    strict      they do if reads of LDS, too, must have been waited for before a barrier (option strict)
    order       the result depends on the order of waves (order=compare): they exchange something through memory
    WRONG       none of these, and yet the result is another one: a hole in the checkers
    redundant   proven so on every path (waits.py)
    unexecuted  no launch gets there: a trap in its place stays silent
    unproven    executed, not reported, not proven redundant
--sample N: instead of all, N of those between the first and the last matrix instruction, evenly spread. The code
objects are those in build/kernels.
"""

import argparse
import collections
import functools
import multiprocessing
import os
import pathlib
import re
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "codeobj"))

import kernel_lists

import hip
import launches
import mutation
import waits

FOLDER = pathlib.Path(os.environ.get("FLASHWAVE_CODE_OBJECTS", hip.ROOT / "build" / "kernels"))

# Of the forward kernels that stand for the rest (both layouts of tiles over waves, every generation); every backward on
# matrix cores, and the passes around it.
CHOSEN = (
    r"_fwd_bf16_d(64|128)_m\d+n\d+(_modified)?$"
    r"|^(rdna\d|cdna)_bwd_((head|dkdv|dq)_)?b?f16_d\w+_m\d+n\d+(_rtz|_modified)?$|_bwd_d(bias|slopes)$"
    r"|^amd_bwd_"
)


def rows(arch):
    """The kernels of CHOSEN for one GPU."""
    offered = kernel_lists.amd_gpus()[arch]
    return [row for row in kernel_lists.rows("amd") if row.isa in offered and re.search(CHOSEN, row.name)]


def size_of(launch):
    return launch.queries * launch.keys


class Subject(mutation.Subject):
    """A shipped kernel and its launches."""

    def __init__(self, arch, row):
        self.arch, self.row, self.name = arch, row, row.name
        self.code = hip.only((FOLDER / f"{row.source}_{arch}.co").read_bytes(), row.name)
        self.lines = waits.kernel_lines(waits.disassemble(self.code, arch), row.name)
        self.any_size = self.kernel = waits.Kernel(self.lines, arch, row.threads)
        self.runs = launches.launches_of(row)

    def results_of(self, code, runs=None, checks="all", **options):
        """Of each launch of `runs`, or all: what is said, and what it leaves in memory."""
        with hip.Session(self.arch, barriers="counted", checks=checks, **options) as session:
            for launch in self.runs if runs is None else runs:
                before = len(session.buffers)
                try:
                    said = launch.run(session, code)
                except hip.HipError as error:
                    said = str(error)
                yield said, [buffer.get() for buffer in session.buffers[before:]]

    def says(self, code, runs=None, **options):
        return next((said for said, _ in self.results_of(code, runs, **options) if said), "")

    def reached(self, mutants):
        """Of those that are executed, by address: the smallest launch in which a wave gets there.

        A trap ends a wave, so each round finds those that a wave meets first, and takes them out.
        """
        lines = [self.lines[mutant[0]] for mutant in mutants]
        found, left = {}, {line.address: line for line in lines}
        for launch in sorted(self.runs, key=size_of):
            new = True
            while left and new:
                code = mutation.patched(self.code, left.values(), mutation.S_TRAP[self.arch[:4]])
                said = self.says(code, [launch], checks="trap")
                new = {int(at, 16) for at in re.findall(r"\btrap \d+ \[.* at (0x[0-9a-f]+):", said)}
                for address in new:
                    found[address] = launch
                    del left[address]
        return found

    @functools.cached_property
    def results(self):
        return dict(zip(self.runs, (left for _, left in self.results_of(self.code)), strict=True))

    @functools.cached_property
    def ignores_order(self):
        """Whether the unchanged kernel does: sums by atomics of several waves may not."""
        return not self.says(self.code, order="compare")

    def is_wrong(self, code, runs):
        """Whether results are not those of the unchanged kernel, but for the last bits of sums in memory."""

        def differ(a, b):
            if a.dtype == np.float32:
                largest = np.abs(b[np.isfinite(b)]).max(initial=0)
                return not np.allclose(a, b, 0, 1e-5 * largest, equal_nan=True)
            return a.tobytes() != b.tobytes()

        results = zip(runs, self.results_of(code, runs), strict=True)
        return any(differ(a, b) for run, (_, left) in results for a, b in zip(left, self.results[run], strict=True))

    def verdict(self, mutant, likely):
        """likely: a launch that executes it, if there is one."""
        if likely is None:
            return "unexecuted", ""
        lines = [self.lines[i] for i in mutant]
        runs = sorted(self.runs, key=lambda run: (run is not likely, size_of(run)))
        code = mutation.patched(self.code, lines, mutation.S_NOP)
        said = self.says(code, runs) or self.says(code, runs, seed=1)
        if said:
            return "noticed", said
        strict = self.says(code, runs, strict=1)
        if strict:
            return "strict", strict
        order = self.ignores_order and self.says(code, runs, order="compare")
        if order:
            return "order", order
        if self.is_wrong(code, runs):
            return "WRONG", ""
        proof = self.proof(mutant)
        return ("redundant", proof) if proof else ("unproven", "")


def mutate(job):
    """(job, how many waits and barriers there are, [(text, verdict, proof or report)])."""
    arch, row, sample = job
    subject = Subject(arch, row)
    clean = subject.says(subject.code) or subject.says(subject.code, seed=1)
    mutants = waits.mutants(subject.lines)
    if clean:
        return job, len(mutants), [("unchanged", "FALSE", clean)]
    chosen = mutants
    if sample:
        matrix = [i for i, line in enumerate(subject.lines) if re.match("v_(s?mfma|s?wmma)", line.name)]
        inside = [mutant for mutant in mutants if matrix[0] < mutant[0] < matrix[-1]]
        chosen = [inside[len(inside) * (2 * i + 1) // (2 * sample)] for i in range(min(sample, len(inside)))]
    found, reached = [], subject.reached(chosen)
    for mutant in chosen:
        first = subject.lines[mutant[0]]
        found.append((f"{first.address:#x} {first.text}", *subject.verdict(mutant, reached.get(first.address))))
    return job, len(mutants), found


BAD = ("WRONG", "FALSE")
VERDICTS = ("noticed", "strict", "order", "redundant", "unexecuted", "unproven", *BAD)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--arch", default=",".join(hip.ARCHITECTURES))
    parser.add_argument("--kernel", default="", help="a regular expression")
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--list", action="store_true", help="name those that are not noticed, and why")
    options = parser.parse_args()
    os.environ["FLASHWAVE_EMU_THREADS"] = "1"
    jobs = [
        (arch, row, options.sample)
        for arch in options.arch.split(",")
        for row in rows(arch)
        if re.search(options.kernel, row.name)
    ]
    totals = collections.Counter()
    with multiprocessing.Pool(options.jobs) as pool:
        for (arch, row, _), there, results in pool.imap(mutate, jobs):
            counts = collections.Counter(verdict for _, verdict, _ in results)
            totals += counts
            numbers = ", ".join(f"{counts[v]} {v}" for v in VERDICTS if counts[v])
            print(f"{arch} {row.name}: {len(results)} of {there} mutants: {numbers}", flush=True)
            for where, verdict, why in results:
                if verdict in BAD or (options.list and verdict != "noticed"):
                    print(f"    {verdict} {where}: {why}")
    print("all: " + ", ".join(f"{totals[v]} {v}" for v in VERDICTS if totals[v]))
    return 1 if totals["WRONG"] or totals["FALSE"] or not totals else 0


if __name__ == "__main__":
    sys.exit(main())
