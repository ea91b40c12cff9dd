"""Decides from the trace of a run whether it needs a wait or a barrier: slowly, exactly, and without the checkers.

`flashwave-emu run --trace` lists every wave's instructions and the addresses of its LDS instructions. With the wait or
barrier in question left out, no register may be used while a load into it is outstanding, and of any two accesses of
different waves to the same byte of LDS, at least one of them a write, one must have been waited for before a barrier
that the other wave passed before its own access.
"""

import pathlib
import re
import subprocess
import tempfile
from dataclasses import dataclass

import numpy as np

import hip
import waits

WIDTHS = {"8": 1, "16": 2, "32": 4, "64": 8, "96": 12, "128": 16}


@dataclass
class Event:
    """One instruction a wave executed."""

    index: int  # in the kernel's lines
    addresses: tuple  # of the LDS access, by active lane


def lds_bytes(line, addresses):
    """Every byte an LDS instruction touches."""
    found = re.match(r"ds_(?:read|load|write|store)(2st64|2|_2addr_stride64|_2addr)?_[bui](\d+)", line.name)
    if not found:
        raise waits.Unclear(line.text)
    pair, width = found[1], WIDTHS[found[2]]
    if pair:
        scale = width * (64 if "64" in pair else 1)
        given = dict(re.findall(r"(offset[01]):(\d+)", line.operands))
        offsets = [int(given.get(name, 0)) * scale for name in ("offset0", "offset1")]
    else:
        offsets = [int((re.search(r"offset:(\d+)", line.operands) or [0, 0])[1])]
    return {a + o + b for a in addresses for o in offsets for b in range(width)}


def argument_words(args, folder):
    words = []
    for i, argument in enumerate(args):
        if isinstance(argument, np.ndarray):
            argument.tofile(folder / f"{i}")
            words.append(f"buf:{max(argument.nbytes, 4)}:file={folder / str(i)}")
        elif isinstance(argument, int):
            words.append(f"i32:{argument}")
        else:
            words.append(f"f32:{argument!r}")
    return words


def touches_lds(effect):
    return bool(effect and {"lds read", "lds write"} & set(effect.what))


def trace(code, name, kernel, grid, block, args):
    """{workgroup: {wave: [Event]}}."""
    tool = hip.LIBRARY.with_name("flashwave-emu")
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        (folder / "code").write_bytes(code)
        extents = [",".join(map(str, hip.three(shape))) for shape in (grid, block)]
        command = [tool, "run", folder / "code", "--kernel", name, "--grid", extents[0], "--block", extents[1]]
        command += ["--no-check", "--trace", folder / "trace", *argument_words(args, folder)]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        text = (folder / "trace").read_text()
    groups = {}
    for row in text.splitlines():
        group, wave, address, rest = re.match(r"(\S+) wave (\d+)\s+([0-9a-f]+)  (.*)", row).groups()
        index = kernel.index_of[int(address, 16)]
        lds = rest.partition("; lds ")[2] if touches_lds(kernel.effects[index]) else ""
        event = Event(index, tuple(int(a, 16) for a in lds.split()))
        groups.setdefault(group, {}).setdefault(int(wave), []).append(event)
    return groups


@dataclass
class Access:
    wave: int
    write: bool
    passed: int  # barriers the wave had passed before
    done: int  # barriers it had signalled before this was waited for; a barrier after that one orders it


def wave_accesses(kernel, events, wave, removed):
    """(whether a register is used too early, [(bytes, Access)])."""
    accesses, early = [], False
    outstanding = {}  # counter: [(registers, ordered, Access)], oldest first
    signalled = passed = 0
    for event in events:
        line, effect = kernel.lines[event.index], kernel.effects[event.index]
        if event.index in removed:
            continue
        if waits.is_wait(line):
            for counter, allowed in waits.wait_of(line, kernel.arch).items():
                left = outstanding.get(counter, [])
                if allowed == 0 or all(ordered for _, ordered, _ in left):
                    for _, _, access in left[: len(left) - allowed]:
                        if access:
                            access.done = signalled
                    outstanding[counter] = left[max(len(left) - allowed, 0) :]
            continue
        used = waits.touched(line)
        for counter, left in outstanding.items():
            for registers, ordered, _ in left:
                for register in registers & used:
                    in_order = effect and ordered and effect.ordered and effect.counter == counter
                    early |= not (in_order and register in effect.registers and not waits.reads(line, register))
        if waits.is_signal(line):
            signalled += 1
        if waits.is_join(line):
            passed += 1
        if effect:
            access = None
            if touches_lds(effect):
                access = Access(wave, "lds write" in effect.what, passed, 1 << 30)
                accesses.append((lds_bytes(line, event.addresses), access))
            outstanding.setdefault(effect.counter, []).append((effect.registers, effect.ordered, access))
    return early, accesses


def is_needed(kernel, groups, removed):
    """Whether the run in `groups` goes wrong, or may, without the instructions at the indices `removed`."""
    if kernel.unclear or kernel.shares_memory():
        return True
    for waves in groups.values():
        at_byte = {}
        for wave, events in waves.items():
            early, accesses = wave_accesses(kernel, events, wave, removed)
            if early:
                return True
            for touched, access in accesses:
                for byte in touched:
                    at_byte.setdefault(byte, []).append(access)
        decided = {}
        for accesses in at_byte.values():
            if any(a.write for a in accesses):
                key = tuple(map(id, accesses))
                if key not in decided:
                    decided[key] = any(races(a, b) for i, a in enumerate(accesses) for b in accesses[:i])
                if decided[key]:
                    return True
    return False


def races(a, b):
    return a.wave != b.wave and (a.write or b.write) and not (a.done < b.passed or b.done < a.passed)
