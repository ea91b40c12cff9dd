"""Reads machine code as text and proves waits and barriers redundant, without running it.

The rules are those of the ISA manuals ("Data dependency resolution"): loads write their registers some time after they
are issued, and a wait for a counter to fall to N covers all but the last N operations of that counter, as long as they
complete in order (scalar loads do not). A barrier is needed between LDS accesses on either side of it.
"""

import os
import re
import subprocess
from dataclasses import dataclass, field

import hip

WAIT = re.compile(r"s_waitcnt(_vmcnt|_lgkmcnt|_vscnt|_expcnt)?$|s_wait_(load|store|ds|km|sample|bvh)cnt(_dscnt)?$")
BARRIER = re.compile(r"s_barrier$|s_barrier_(signal|wait)$")


@dataclass
class Line:
    address: int
    offset: int  # in the file
    name: str
    operands: str
    words: list
    kernel: str
    size: int = 4
    registers: frozenset = field(default_factory=frozenset)

    @property
    def text(self):
        return f"{self.name} {self.operands}".strip()


def registers_of(operands):
    found = set()
    for kind, first, last in re.findall(r"\b([vsa])\[(\d+):(\d+)\]", operands):
        found.update(f"{kind}{i}" for i in range(int(first), int(last) + 1))
    found.update(f"{kind}{n}" for kind, n in re.findall(r"(?<![\w\[])([vsa])(\d+)\b", operands))
    if "vcc" in operands:
        found.update(("vcc_lo", "vcc_hi"))
    return frozenset(found)


def disassemble(code, arch):
    """The instructions of a code object, in order of address."""
    path = hip.CACHE / f"text.{os.getpid()}.hsaco"
    hip.CACHE.mkdir(parents=True, exist_ok=True)
    path.write_bytes(code)
    try:
        features = [] if arch.startswith("gfx9") else ["--mattr=+real-true16"]
        dump = subprocess.run(
            [hip.tool("llvm-objdump"), "-d", *features, str(path)], capture_output=True, text=True, check=True
        ).stdout
        sections = subprocess.run(
            [hip.tool("llvm-readelf"), "-SW", str(path)], capture_output=True, text=True, check=True
        ).stdout
    finally:
        path.unlink()
    address, offset = (int(x, 16) for x in re.search(r" \.text\s+PROGBITS\s+(\w+)\s+(\w+)", sections).groups())
    lines, kernel = [], ""
    for line in dump.splitlines():
        head = re.match(r"[0-9a-f]+ <(\S+)>:", line)
        if head:
            kernel = head[1]
        found = re.match(r"\t(\S+)\s*(.*?)\s*// ([0-9A-F]+):((?: [0-9A-F]{8})+)", line)
        if found:
            name, operands, at, words = found.groups()
            at = int(at, 16)
            words = [int(w, 16) for w in words.split()]
            entry = Line(at, at - address + offset, name, operands, words, kernel, 4 * len(words))
            entry.registers = registers_of(operands)
            lines.append(entry)
    return lines


def is_wait(line):
    return WAIT.match(line.name) is not None


def is_barrier(line):
    return BARRIER.match(line.name) is not None


# --- what instructions do to the counters ----------------------------------------------------------------------------

LOADS, STORES, LDS, SCALAR = "loads", "stores", "lds", "scalar"


def counters_of(line, arch):
    """(counters the instruction raises, whether it returns into its first operand, whether it writes LDS)."""
    name, gfx9, gfx12 = line.name, arch.startswith("gfx9"), arch.startswith("gfx12")
    scalar = SCALAR if gfx12 else LDS
    if re.match(r"s_(buffer_)?(load|scratch_load)|s_memtime|s_memrealtime|s_sendmsg_rtn|s_atomic", name):
        return [scalar], True, False
    if name.startswith("ds_"):
        returns = (
            re.match(r"ds_(read|load|bpermute|permute|swizzle|consume|append)|ds_\w*_rtn|ds_\w*rtn_", name) is not None
        )
        moves = re.match(r"ds_(read|load|bpermute|permute|swizzle)", name) is not None
        return [LDS], returns, not moves
    if re.match(r"(global|buffer|flat|scratch|tbuffer)_", name) and not re.match(
        r"(buffer|global)_(inv|wb|wbl2|gl\d_inv|wbinv)", name
    ):
        atomic = "atomic" in name
        returns = ("load" in name and "lds" not in line.text) or (
            atomic and re.search(r"\b(glc|sc0)\b|TH_ATOMIC_RETURN", line.operands) is not None
        )
        to_lds = "load" in name and "lds" in line.text
        counters = [LOADS if gfx9 or returns or to_lds else STORES]
        if name.startswith("flat_"):
            counters.append(LDS)
        return counters, returns, to_lds or (name.startswith("flat_") and "load" not in name)
    return [], False, False


def wait_of(line, arch):
    """{counter: most that may stay outstanding}."""
    if line.name == "s_waitcnt":
        wanted = {}
        for counter, n in re.findall(r"(vmcnt|lgkmcnt)\((\d+)\)", line.operands):
            wanted[LOADS if counter == "vmcnt" else LDS] = int(n)
        if not line.operands.strip() or re.fullmatch(r"0(x0)?", line.operands.strip()):
            wanted = {LOADS: 0, LDS: 0}
        return wanted
    value = int(line.operands.split(",")[-1].strip() or "0", 0)
    by_name = {
        "s_waitcnt_vmcnt": LOADS,
        "s_waitcnt_lgkmcnt": LDS,
        "s_waitcnt_vscnt": STORES,
        "s_wait_loadcnt": LOADS,
        "s_wait_storecnt": STORES,
        "s_wait_dscnt": LDS,
        "s_wait_kmcnt": SCALAR,
    }
    if line.name == "s_wait_loadcnt_dscnt":
        return {LOADS: value >> 8 & 63, LDS: value & 63}
    if line.name == "s_wait_storecnt_dscnt":
        return {STORES: value >> 8 & 63, LDS: value & 63}
    return {by_name[line.name]: value} if line.name in by_name else {}


def destination(line):
    return registers_of(line.operands.split(",")[0])


# --- control flow ----------------------------------------------------------------------------------------------------


class Unclear(Exception):
    """Code whose control flow cannot be read off: calls, computed jumps."""


def successors(lines, i, index_of, never_taken=frozenset()):
    """Indices of what may follow. never_taken: indices of conditional branches that are known not to jump."""
    line = lines[i]
    if i in never_taken:
        return [i + 1]
    if line.name == "s_endpgm" or line.name == "s_endpgm_saved":
        return []
    if re.match(r"s_(setpc|swappc|call|rfe|cbranch_[gi]_fork|cbranch_join)", line.name):
        raise Unclear(line.text)
    if line.name == "s_branch" or line.name.startswith("s_cbranch"):
        jump = line.words[0] & 0xFFFF
        to = line.address + 4 + 4 * (jump - 0x10000 if jump & 0x8000 else jump)
        return [index_of[to]] if line.name == "s_branch" else [i + 1, index_of[to]]
    return [i + 1]


def kernel_lines(lines, kernel):
    return [line for line in lines if line.kernel == kernel]


# --- proofs ----------------------------------------------------------------------------------------------------------


def flow(lines, start, step, join, index_of, never_taken):
    """States before each instruction at the fixed point of a forward analysis."""
    before, todo = {0: start}, [0]
    while todo:
        i = todo.pop()
        after = step(i, before[i])
        for n in successors(lines, i, index_of, never_taken):
            new = after if n not in before else join(before[n], after)
            if n not in before or new != before[n]:
                before[n] = new
                todo.append(n)
    return before


def wait_is_redundant(lines, at, arch, never_taken=frozenset()):
    """Whether no path uses a register too early, and no barrier finds LDS writes outstanding, without the wait at `at`.

    A state maps what is outstanding (registers, and "lds write") to (counter, operations issued since, at least).
    """
    index_of = {line.address: i for i, line in enumerate(lines)}
    culprits = []

    def step(i, state):
        line = lines[i]
        if i == at:
            return state
        if is_wait(line):
            wanted = wait_of(line, arch)
            unordered = {c for _, (c, _, kind) in state.items() if kind == "scalar"}
            kept = {}
            for what, (counter, age, kind) in state.items():
                allowed = wanted.get(counter)
                done = allowed is not None and (allowed == 0 or (counter not in unordered and age >= allowed))
                if not done:
                    kept[what] = (counter, age, kind)
            return kept
        counters, returns, writes_lds = counters_of(line, arch)
        target = destination(line) if returns else frozenset()
        for r in line.registers:
            if r in state:
                # Loads of one counter return in order: overwriting one by the next is fine.
                counter, _, kind = state[r]
                in_order = r in target and counters == [counter] and kind == "ordered" and SCALAR not in counters
                if not (in_order and not re.match(r"s_", line.name)):
                    culprits.append((line.text, r))
        if is_barrier(line) and any(what.startswith("lds write") for what in state):
            culprits.append((line.text, "lds write"))
        if not counters:
            return state
        new = {w: (c, min(a + 1, 64) if c in counters else a, k) for w, (c, a, k) in state.items()}
        kind = "scalar" if line.name.startswith("s_") or len(counters) > 1 else "ordered"
        for counter in counters:
            for r in target:
                new[r] = (counter, 0, kind)
            if writes_lds:
                new["lds write by " + counter] = (counter, 0, kind)
        return new

    def join(a, b):
        both = dict(a)
        for what, (counter, age, kind) in b.items():
            if what not in both:
                both[what] = (counter, age, kind)
            else:
                c, other, k = both[what]
                # Two counters at once: keep the one that is harder to prove waited for.
                both[what] = (c, min(age, other), "scalar" if c != counter or "scalar" in (kind, k) else kind)
        return both

    try:
        flow(lines, {}, step, join, index_of, never_taken)
    except Unclear:
        return False
    return not culprits


def touches_lds(line, arch):
    if line.name.startswith("ds_"):
        return re.match(r"ds_(bpermute|permute|swizzle|nop)", line.name) is None
    return line.name.startswith("flat_") or ("lds" in line.text and "load" in line.name)


def barrier_is_redundant(lines, at, arch, never_taken=frozenset()):
    """Whether LDS is untouched on every path since the barrier before, or on every path until the next one."""
    index_of = {line.address: i for i, line in enumerate(lines)}
    joins = {"s_barrier", "s_barrier_wait"}
    try:
        following = {i: successors(lines, i, index_of, never_taken) for i in range(len(lines))}
    except (Unclear, KeyError):
        return False

    def reaches_lds(first, neighbours):
        seen, todo = set(), list(first)
        while todo:
            i = todo.pop()
            if i in seen:
                continue
            seen.add(i)
            if touches_lds(lines[i], arch):
                return True
            if lines[i].name not in joins:
                todo.extend(neighbours.get(i, []))
        return False

    preceding = {}
    for i, to in following.items():
        for n in to:
            preceding.setdefault(n, []).append(i)
    return not reaches_lds(following[at], following) or not reaches_lds(preceding.get(at, []), preceding)
