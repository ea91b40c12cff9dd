"""python -m fuzzer: see the package."""

from __future__ import annotations

import argparse
import collections
import json
import os
import sys
import time

from . import engine
from .world import Finding


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzzer", description="Random sequences of calls of flashwave.")
    parser.add_argument("--seed", type=int, help="of the run; the default is the time")
    parser.add_argument("--first", type=int, default=0, help="number of the first sequence")
    parser.add_argument("--sequences", type=int, help="how many; the default is no limit")
    parser.add_argument("--seconds", type=float, default=60.0, help="at most (60)")
    parser.add_argument("--replay", metavar="SEED/NUMBER[/STEP,STEP]", help="one sequence, or some steps of it, aloud")
    parser.add_argument("--keep-going", action="store_true", help="report each kind of finding once, and go on")
    parser.add_argument("--isolate", action="store_true", help="each sequence in a process of its own (slow)")
    options = parser.parse_args()
    if options.replay:
        return _replay(options.replay)
    seed = int(time.time()) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    nursery = Nursery()  # before this process computes
    tally = engine.Tally()
    kinds: collections.Counter = collections.Counter()

    def found(number: int, finding: Finding) -> bool:
        kinds[finding.kind] += 1
        if kinds[finding.kind] == 1:
            print(f"FINDING after {tally.sequences} sequences: {finding}", flush=True)
            print(f"  {_shrunk(nursery, seed, number, finding, options.first)}", flush=True)
        return options.keep_going

    start = time.monotonic()
    last = start

    def progress() -> None:
        nonlocal last
        if time.monotonic() - last > 60:
            last = time.monotonic()
            print(f"{tally.sequences} sequences, {tally.steps} steps, {sum(kinds.values())} findings", flush=True)

    number = options.first
    while options.sequences is None or number < options.first + options.sequences:
        if time.monotonic() - start > options.seconds or (kinds and not options.keep_going):
            break
        if options.isolate:
            tally.sequences += 1
            finding = nursery.run(seed, number)
            if finding is not None:
                found(number, finding)
        else:
            engine.run(seed, number, 1, on_finding=found, tally=tally)
        number += 1
        progress()
    nursery.close()
    print("\n".join(tally.lines()))
    print(f"{time.monotonic() - start:.0f} s; findings by kind: {len(kinds)}")
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

    def run(self, seed: int, number: int, only: list[int] | None = None) -> Finding | None:
        """What a new process finds in this sequence."""
        self._ask.write(json.dumps([seed, number, only]) + "\n")
        self._ask.flush()
        answer = json.loads(self._answer.readline())
        if answer is None:
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
                    os.write(writing, json.dumps(_outcome(*json.loads(question))).encode())
                    os._exit(0)
                os.close(writing)
                text = b""
                while part := os.read(reading, 1 << 16):
                    text += part
                os.close(reading)
                _, status = os.waitpid(child, 0)
                if not text:  # a crash
                    text = json.dumps({"kind": f"died with status {status}", "details": "", "step": 0}).encode()
                os.write(self._answered, text + b"\n")


def _outcome(seed: int, number: int, only: list[int] | None) -> dict | None:
    try:
        engine.run_sequence(seed, number, engine.Tally(), only)
    except Finding as finding:
        details = str(finding)[len(finding.kind) + 2 :]
        return {"kind": finding.kind, "details": details[:30000], "step": finding.step}
    return None


def _shrunk(nursery: Nursery, seed: int, number: int, finding: Finding, first: int) -> str:
    """How to see it again: by as few steps as it takes."""

    def again(only: list[int] | None = None) -> bool:
        found = nursery.run(seed, number, only)
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
