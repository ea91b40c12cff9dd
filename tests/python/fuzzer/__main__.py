"""python -m fuzzer: see the package."""

from __future__ import annotations

import argparse
import collections
import json
import os
import sys
import time

import torch

from . import engine
from .world import Finding

BATCH = 4000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzzer", description="Random sequences of calls of flashwave.")
    parser.add_argument("--seed", type=int, help="of the run; the default is the time")
    parser.add_argument("--first", type=int, default=0, help="number of the first sequence")
    parser.add_argument("--sequences", type=int, help="how many; the default is no limit")
    parser.add_argument("--seconds", type=float, default=60.0, help="at most (60)")
    parser.add_argument("--replay", metavar="SEED/NUMBER[/STEP,STEP]", help="one sequence, or some steps of it, aloud")
    parser.add_argument("--keep-going", action="store_true", help="report each kind of finding once, and go on")
    parser.add_argument("--no-shrink", action="store_true", help="do not look for the steps that matter")
    options = parser.parse_args()
    if options.replay:
        return _replay(options.replay)
    seed = int(time.time()) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    nursery = Nursery()
    tally, kinds, start = engine.Tally(), collections.Counter(), time.monotonic()
    number, end = options.first, None if options.sequences is None else options.first + options.sequences
    while (end is None or number < end) and time.monotonic() - start < options.seconds:
        left = options.seconds - (time.monotonic() - start)
        batch = number  # a process is used for some thousand sequences: what one leaves behind, others may trip over
        count = BATCH if end is None else min(BATCH, end - number)
        finding = nursery.run(seed, number, count, min(left, 300.0), tally)
        number = tally.next
        if finding is not None:
            kinds[finding.kind] += 1
            if kinds[finding.kind] == 1:
                print(f"FINDING after {tally.sequences} sequences: {finding}", flush=True)
                if not options.no_shrink:
                    print(f"  {_shrunk(nursery, seed, number - 1, finding, batch)}", flush=True)
                else:
                    print(f"  replay: python -m fuzzer --replay {seed}/{number - 1}", flush=True)
            if not options.keep_going:
                break
        else:
            print(f"{tally.sequences} sequences, {tally.steps} steps, {sum(kinds.values())} findings", flush=True)
    nursery.close()
    print("\n".join(tally.lines()))
    print(f"{time.monotonic() - start:.0f} s; kinds of findings: {len(kinds)}")
    for kind, times in kinds.most_common():
        print(f"  {times:6} {kind}")
    tally.check()
    return 1 if kinds else 0


def _replay(which: str) -> int:
    seed, number, *steps = which.split("/")
    only = [int(step) for step in steps[0].split(",")] if steps else None
    try:
        engine.run_sequence(int(seed), int(number), engine.Tally(), only, verbose=True)
    except Finding as finding:
        print(f"FINDING {finding}")
        return 1
    print("no finding")
    return 0


class Nursery:
    """A process that has imported everything and computed nothing: its children run sequences as if they were first."""

    def __init__(self) -> None:
        self._asked, asking = os.pipe()
        answering, self._answered = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(asking)
            os.close(answering)
            self._serve()
            os._exit(0)
        os.close(self._asked)
        os.close(self._answered)
        self._ask, self._answer = os.fdopen(asking, "w"), os.fdopen(answering)

    def run(
        self,
        seed: int,
        first: int,
        count: int = 1,
        seconds: float = 300.0,
        tally: engine.Tally | None = None,
        only: list[int] | None = None,
    ) -> Finding | None:
        """What a new process finds in these sequences, up to the first finding; tally.next is the one behind it."""
        self._ask.write(json.dumps([seed, first, count, seconds, only]) + "\n")
        self._ask.flush()
        answer = json.loads(self._answer.readline())
        if tally is not None:
            tally.add(answer["tally"])
        if answer["kind"] is None:
            return None
        finding = Finding(answer["kind"], answer["details"])
        finding.step = answer["step"]
        return finding

    def close(self) -> None:
        self._ask.close()
        os.waitpid(self._child, 0)

    def _serve(self) -> None:
        with os.fdopen(self._asked) as questions:
            for question in questions:
                reading, writing = os.pipe()
                child = os.fork()
                if child == 0:
                    _answer_to(writing, *json.loads(question))
                    os._exit(0)
                os.close(writing)
                lines = b""
                while part := os.read(reading, 1 << 16):
                    lines = (lines + part)[-(1 << 20) :]
                os.close(reading)
                _, status = os.waitpid(child, 0)
                answer = json.loads(lines.rstrip().rpartition(b"\n")[2])
                if status:
                    answer.update(kind=f"died with status {status}", details="the process is gone", step=99)
                os.write(self._answered, json.dumps(answer).encode() + b"\n")


def _answer_to(pipe: int, seed: int, first: int, count: int, seconds: float, only: list[int] | None) -> None:
    """Writes a line before each sequence, so that it is known which one ends the process, and one at the end."""
    tally, start = engine.Tally(), time.monotonic()
    answer = {"kind": None, "details": "", "step": 0}

    def write() -> None:
        os.write(pipe, json.dumps({**answer, "tally": tally.data()}).encode() + b"\n")

    torch.set_num_threads(1)
    for number in range(first, first + count):
        if time.monotonic() - start > seconds:
            break
        tally.next = number + 1
        if only is None and (number - first) % 16 == 0:
            write()
        try:
            engine.run_sequence(seed, number, tally, only)
        except Finding as finding:
            answer = {
                "kind": finding.kind,
                "details": str(finding)[len(finding.kind) + 2 :][:20000],
                "step": finding.step,
            }
            break
    write()


def _shrunk(nursery: Nursery, seed: int, number: int, finding: Finding, first: int) -> str:
    """How to see it again: by as few steps as it takes."""

    def again(only: list[int] | None = None) -> bool:
        found = nursery.run(seed, number, only=only)
        return found is not None and found.kind == finding.kind

    if not again():
        count = number - first + 1
        return f"needs the sequences before it: python -m fuzzer --seed {seed} --first {first} --sequences {count}"
    steps = list(range(finding.step + 1))
    for candidate in steps[:-1]:
        fewer = [step for step in steps if step != candidate]
        if again(fewer):
            steps = fewer
    return f"replay: python -m fuzzer --replay {seed}/{number}/{','.join(map(str, steps))}"


if __name__ == "__main__":
    sys.exit(main())
