"""Reads machine code as text and proves waits and barriers redundant on every path, without running it.

The rules are those of the ISA manuals ("Data dependency resolution"): loads write their registers some time after they
are issued, and a wait for a counter to fall to N covers all but the last N operations of that counter, as long as they
complete in order (scalar loads do not). What a wave did to LDS must have been waited for before a barrier that orders
it with other waves' accesses, reads too. Global memory is ordered between waves where a barrier comes between a store
and a load.
"""

import copy
import functools
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


@dataclass
class Effect:
    """What a memory instruction leaves outstanding."""

    counter: str
    registers: frozenset = frozenset()  # it will write
    what: tuple = ()  # of "lds read", "lds write", "load", "store", "cache"
    ordered: bool = True


def effect_of(line, arch):
    """None if the instruction raises no counter."""
    name, gfx9, gfx12 = line.name, arch.startswith("gfx9"), arch.startswith("gfx12")
    first = registers_of(line.operands.split(",")[0])
    if re.match(r"s_(buffer_)?load|s_scratch_load|s_memtime|s_memrealtime|s_sendmsg_rtn|s_atomic", name):
        return Effect(SCALAR if gfx12 else LDS, first, (), ordered=False)
    if name.startswith("ds_"):
        if re.match(r"ds_(bpermute|permute|swizzle)", name):
            return Effect(LDS, first)
        if re.match(r"ds_(read|load)", name):
            return Effect(LDS, first, ("lds read",))
        if re.match(r"ds_(write|store)(?!xchg)", name) and "rtn" not in name:
            return Effect(LDS, frozenset(), ("lds write",))
        return Effect(LDS, first if "rtn" in name else frozenset(), ("lds read", "lds write"))
    if name.startswith("flat_") or (re.match(r"(global|buffer)_load", name) and "lds" in line.text):
        raise Unclear(line.text)  # two counters at once, LDS written from memory
    if is_cache_control(line):
        # What LLVM's SIInsertWaitcnts counts; the others need no wait.
        if name == "buffer_wbl2" or (name == "global_inv" and not gfx9):
            return Effect(LOADS, frozenset(), ("cache",))
        return Effect(STORES, frozenset(), ("cache",)) if name in ("global_wb", "global_wbinv") else None
    if re.match(r"(global|buffer|scratch|tbuffer)_", name):
        if "load" in name:
            return Effect(LOADS, first, ("load",))
        returns = "atomic" in name and re.search(r"\b(glc|sc0)\b|TH_ATOMIC_RETURN", line.operands) is not None
        what = ("load", "store") if "atomic" in name else ("store",)
        return Effect(LOADS if gfx9 or returns else STORES, first if returns else frozenset(), what)
    return None


def is_cache_control(line):
    return re.match(r"(buffer|global)_(inv|wb|wbl2|wbinv\w*|gl[01]_inv)", line.name) is not None


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


def written(line):
    """Registers an instruction other than a store may write; a carry or scale flag is its second operand."""
    operands = line.operands.split(",")
    second = operands[1] if re.search(r"_co_|div_scale", line.name) and len(operands) > 1 else ""
    return registers_of(operands[0]) | registers_of(second)


def reads(line, register):
    """Whether a load has the register among its operands other than the first."""
    return register in registers_of(line.operands.partition(",")[2])


def touched(line):
    """Registers an instruction reads or writes, with those its text does not show."""
    hidden = "vccz" in line.name or "vccnz" in line.name or line.name.startswith("v_div_fmas")
    return line.registers | {"vcc_lo", "vcc_hi"} if hidden else line.registers


# --- control flow ----------------------------------------------------------------------------------------------------


class Unclear(Exception):
    """Code that the proofs do not understand: calls, computed jumps, some kinds of memory instructions."""


def kernel_lines(lines, kernel):
    return [line for line in lines if line.kernel == kernel]


def is_signal(line):
    return line.name in ("s_barrier", "s_barrier_signal")


def is_join(line):
    return line.name in ("s_barrier", "s_barrier_wait")


def kept(method):
    """The method of a Kernel, worked out once for each argument."""

    @functools.wraps(method)
    def wrapper(self, *arguments):
        key = (method.__name__, *map(frozenset, arguments))
        if key not in self.known:
            self.known[key] = method(self, *arguments)
        return self.known[key]

    return wrapper


class Kernel:
    """One kernel's instructions and what may follow each of them in a launch of at most `limit` work-items a group."""

    def __init__(self, lines, arch, limit=1024):
        self.lines, self.arch, self.limit = lines, arch, limit
        self.index_of = {line.address: i for i, line in enumerate(lines)}
        self.unclear, self.known = None, {}
        self.following, self.preceding, self.effects = [], [[] for _ in lines], []
        try:
            self.effects = [effect_of(line, arch) for line in lines]
            self.following = [self._successors(i) for i in range(len(lines))]
        except (Unclear, KeyError) as error:
            self.unclear = str(error)
            return
        certain = self._certain_masks()
        self._prune([i for i, line in enumerate(lines) if self._is_dead(line, certain.get(i, ()))], jump=False)
        self.groups = self._branches_that_agree(certain)

    def _prune(self, branches, jump):
        """Leaves one way out of each of these conditional branches."""
        for i in branches:
            self.following[i] = [self._successors(i)[1]] if jump else [i + 1]
        self.preceding = [[] for _ in self.lines]
        for i, following in enumerate(self.following):
            for n in following:
                self.preceding[n].append(i)

    @staticmethod
    def _is_dead(line, certain):
        return line.name == "s_cbranch_execz" and "exec" in certain

    def _branches_that_agree(self, certain):
        """Lists of branches for EXEC = 0 that all jump or all do not: they test the same lanes of the same mask."""
        groups = {}
        for i, line in enumerate(self.lines[1:], 1):
            before = self.lines[i - 1]
            masks = re.match(r"s_and_saveexec_b", before.name) and "exec" in certain.get(i - 1, ())
            if line.name != "s_cbranch_execz" or not masks or len(self.following[i]) < 2:
                continue
            maker = self._only_maker(registers_of(before.operands.partition(",")[2]), i - 1)
            if maker is not None and maker not in self.reach(self.following[maker], self.following):
                groups.setdefault(maker, []).append(i)
        return [group for group in groups.values() if len(group) > 1]

    def _only_maker(self, registers, at):
        """The one instruction that wrote the registers on every path to an instruction, or None."""

        def writes(line):
            return bool(registers & written(line))

        seen = self.reach(self.preceding[at], self.preceding, writes)
        makers = [i for i in seen if writes(self.lines[i])]
        return makers[0] if len(makers) == 1 and 0 not in seen - set(makers) else None

    def _cases(self, group):
        for jump in (False, True):
            case = copy.copy(self)
            case.known = {}
            case.following = list(self.following)
            case._prune(group, jump)
            yield case

    def _successors(self, i):
        line = self.lines[i]
        if line.name in ("s_endpgm", "s_endpgm_saved"):
            return []
        if re.match(r"s_(setpc|swappc|set_pc|swap_pc|call|rfe|cbranch_[gi]_fork|cbranch_join)", line.name):
            raise Unclear(line.text)
        if line.name == "s_branch" or line.name.startswith("s_cbranch"):
            jump = line.words[0] & 0xFFFF
            to = self.index_of[line.address + 4 + 4 * (jump - 0x10000 if jump & 0x8000 else jump)]
            return [to] if line.name == "s_branch" else [i + 1, to]
        return [i + 1] if i + 1 < len(self.lines) else []  # past the end: padding that is never reached

    def _certain_masks(self):
        """What is certain before each instruction; branches for EXEC = 0 never jump while EXEC is what it was at first.

        A state holds the names of registers equal to the initial EXEC, "v0" while that is the
        work-item's id, and "s1=512" for constants. A mask from comparing the id with a bound no work-item reaches is
        the initial EXEC too. EXEC never has more lanes than it started with, or nothing is claimed.
        """
        for line in self.lines:
            into_exec = re.match(r"exec(_lo|_hi)?\b", line.operands) or re.search("saveexec|wrexec", line.name)
            if into_exec and not re.match(r"s_(and|or|xor|andn2|and_not1|mov)_(saveexec_)?b(32|64)", line.name):
                return {}
            if into_exec and re.search(r",\s*(-1|0x)", line.operands):
                return {}
        mask = r"(vcc_lo|vcc|exec_lo|exec|s\[\d+:\d+\]|s\d+)"

        def name_of(text):
            return text.strip().replace("_lo", "")

        def holds(state, name):
            return "=" not in name and name_of(name) in state

        def bound_of(text, state):
            if re.fullmatch(r"\d+|0x[0-9a-f]+", text):
                return int(text, 0)
            return next((int(k.partition("=")[2]) for k in state if k.startswith(text + "=")), None)

        def step(i, state):
            line = self.lines[i]
            operands = [o.strip() for o in line.operands.split(",")]
            gained = set()
            if re.match(r"s_and_saveexec_b(32|64)", line.name):
                gained |= {name_of(operands[0])} if "exec" in state else set()
                gained |= {"exec"} if "exec" in state and holds(state, operands[1]) else set()
            elif re.match(r"s_or_b(32|64)", line.name) and name_of(operands[0]) == "exec":
                gained |= {"exec"} if any(holds(state, o) for o in operands[1:]) else set()
            elif re.match(r"s_mov_b(32|64)", line.name) and re.fullmatch(mask, operands[1]):
                gained |= {name_of(operands[0])} if holds(state, operands[1]) else set()
            elif re.match(r"s_mov(k_i|_b)32", line.name) and re.fullmatch(r"\d+|0x[0-9a-f]+", operands[1]):
                gained.add(f"{operands[0]}={int(operands[1], 0)}")
            elif re.match(r"v_cmp_gt_u32", line.name) and operands[2] == "v0" and {"v0", "exec"} <= state:
                bound = bound_of(operands[1], state)
                gained |= {name_of(operands[0])} if bound is not None and bound >= self.limit else set()
            elif re.match(r"v_and_b32", line.name) and operands == ["v0", "0x3ff", "v0"]:
                gained |= state & {"v0"}
            changed = written(line)
            all_exec = re.search(r"cmpx|saveexec|wrexec", line.name) or "exec" in operands[0]

            def overwritten(name):
                if name == "exec":
                    return bool(all_exec)
                return bool(registers_of(name.partition("=")[0]) & changed)

            return frozenset({name for name in state if not overwritten(name)} | gained)

        before, todo = {0: frozenset({"exec", "v0"})}, [0]
        while todo:
            i = todo.pop()
            after = step(i, before[i])
            for n in [i + 1] if self._is_dead(self.lines[i], before[i]) else self.following[i]:
                new = after & before.get(n, after)
                if n not in before or new != before[n]:
                    before[n] = new
                    todo.append(n)
        return before

    def reach(self, first, neighbours, stop=lambda line: False):
        """Indices on paths from `first`, up to and with those where `stop` says so."""
        seen, todo = set(), list(first)
        while todo:
            i = todo.pop()
            if i not in seen:
                seen.add(i)
                if not stop(self.lines[i]):
                    todo.extend(neighbours[i])
        return seen

    def flow(self, start, step, join):
        """States before each instruction at the fixed point of a forward analysis."""
        before, todo = {0: start}, [0]
        while todo:
            i = todo.pop()
            after = step(i, before[i])
            for n in self.following[i]:
                new = after if n not in before else join(before[n], after)
                if n not in before or new != before[n]:
                    before[n] = new
                    todo.append(n)
        return before

    # --- proofs ---

    @kept
    def most_outstanding(self):
        """Before each instruction: {counter: how many operations may be outstanding at most} (64: or more)."""

        def step(i, state):
            line, effect = self.lines[i], self.effects[i]
            if is_wait(line):
                wanted = wait_of(line, self.arch)
                return {c: min(n, wanted.get(c, n)) for c, n in state.items()}
            if effect:
                return {**state, effect.counter: min(state.get(effect.counter, 0) + 1, 64)}
            return state

        def join(a, b):
            return {c: max(a.get(c, 0), b.get(c, 0)) for c in a.keys() | b.keys()}

        return self.flow({}, step, join)

    @kept
    def too_early(self, removed=frozenset()):
        """What may be used while it is outstanding, on any path, without the instructions at the indices `removed`.

        (instruction, kind, what) with the kinds "register", "lds read", "lds write" (outstanding at a barrier) and
        "memory": a load or store outstanding at a barrier (not on gfx9, where waves of a workgroup share a cache that
        works in order) or when caches are invalidated or written back, or that outstanding at a barrier or another
        access. What: the register, or for LDS the instruction that accesses it. A state maps (what, counter, ordered)
        to how many operations of that counter were issued since, at least.
        """
        found = set()
        rdna = not self.arch.startswith("gfx9")

        def step(i, state):
            line, effect = self.lines[i], self.effects[i]
            if i in removed:
                return state
            if is_wait(line):
                wanted = wait_of(line, self.arch)
                unordered = {counter for _, counter, ordered in state if not ordered}
                return {
                    (what, counter, ordered): age
                    for (what, counter, ordered), age in state.items()
                    if counter not in wanted
                    or (wanted[counter] > 0 and (counter in unordered or age < wanted[counter]))
                }
            used = touched(line)
            for what, counter, ordered in state:
                if what in used:
                    # Operations of one counter return in order: one overwriting the result of another is fine.
                    overwrites = effect and ordered and effect.ordered and effect.counter == counter
                    if not (overwrites and what in effect.registers and not reads(line, what)):
                        found.add((i, "register", what))
                if is_signal(line) and what[0] in ("lds read", "lds write"):
                    found.add((i, *what))
                if what in ("load", "store") and (is_cache_control(line) or (rdna and is_signal(line))):
                    found.add((i, "memory", what))
                if what == "cache" and (is_signal(line) or (effect and {"load", "store"} & set(effect.what))):
                    found.add((i, "memory", what))
            if not effect:
                return state
            new = {k: min(age + 1, 64) if k[1] == effect.counter else age for k, age in state.items()}
            for what in (*effect.registers, *effect.what):
                new[(what, i) if what.startswith("lds") else what, effect.counter, effect.ordered] = 0
            return new

        def join(a, b):
            return {k: min(a.get(k, 64), b.get(k, 64)) for k in a.keys() | b.keys()}

        self.flow({}, step, join)
        return found

    @kept
    def has_flags(self):
        """Whether waves may be ordered by memory itself: atomics, accesses that bypass a cache.

        Sums of floats that return nothing are no flags: no wave learns from them that another one came by.
        """

        def is_flag(line):
            sums = re.match(r"(buffer|global)_atomic_(pk_)?add_(f|bf)\d", line.name)
            return re.search(r"\b(glc|sc0|sc1|scope)\b", line.text) or ("atomic" in line.name and not sums)

        return any(e and {"load", "store"} & set(e.what) and is_flag(line) for line, e in zip(self.lines, self.effects))

    @kept
    def shares_memory(self):
        """Whether some wave may load, after a barrier, what another one stored before it."""
        if self.has_flags():
            return True
        stores = [i for i, e in enumerate(self.effects) if e and "store" in e.what]
        barriers = [i for i in self.reach(stores, self.following) if is_signal(self.lines[i])]
        after = self.reach(barriers, self.following)
        return any(self.effects[i] and (not self.effects[i].ordered or "load" in self.effects[i].what) for i in after)

    def wait_proof(self, at):
        """Why the wait at that index is redundant, or None."""
        if self.unclear:
            return None
        found = self._wait_proof(at)
        if found or self.has_flags() or not self.serves_registers_only(at):
            return found
        for group in self.groups:
            if all(case._wait_proof(at) for case in self._cases(group)):
                return "waited for again, since branches agree"
        return None

    def _wait_proof(self, at):
        most = self.most_outstanding().get(at)
        if most is None:
            return "unreachable"
        if all(most.get(c, 0) <= n for c, n in wait_of(self.lines[at], self.arch).items()):
            return "nothing outstanding"
        if self.has_flags():
            return None
        found = self.too_early({at}) - self.too_early()
        if not found:
            return "waited for again"
        if self.shares_memory() or any(kind != "memory" for _, kind, _ in found):
            return None
        return "memory not shared"

    def serves_lds_only(self, at):
        """Whether the wait at that index is for LDS at barriers alone: registers can do without on every path."""
        if self.unclear or self.shares_memory():
            return False
        return all(kind != "register" for _, kind, _ in self.too_early({at}))

    def serves_registers_only(self, at):
        return all(not kind.startswith("lds") for _, kind, _ in self.too_early({at}) - self.too_early())

    def barrier_proof(self, signal, join):
        """Why the barrier (indices of its two halves, which may be one instruction) is redundant, or None."""
        if self.unclear or self.shares_memory():
            return None

        def touches_lds(indices):
            return any(self.effects[i] and {"lds read", "lds write"} & set(self.effects[i].what) for i in indices)

        # No access until the next barrier: that one orders everything.
        halves = self.reach(self.following[signal], self.following, is_join) if signal != join else set()
        if not touches_lds(halves | self.reach(self.following[join], self.following, is_join)):
            return "no LDS access after it"
        # No access since the barrier before: that one did, if all had been waited for by then.
        since = self.reach(self.preceding[join], self.preceding, is_join)
        barriers = self.reach([i for i in since if is_join(self.lines[i])], self.preceding, is_signal)
        early = {i for i, kind, _ in self.too_early() if kind.startswith("lds")}
        if not touches_lds(since | barriers) and not early & barriers:
            return "no LDS access before it"
        return None


def mutants(lines):
    """Indices of the waits, one at a time, and of the barriers: both halves where there are two."""
    found, signal = [], None
    for i, line in enumerate(lines):
        if is_wait(line) or line.name == "s_barrier":
            found.append((i,))
        elif line.name == "s_barrier_signal":
            signal = i
        elif line.name == "s_barrier_wait":
            found.append((signal, i))
            signal = None
    assert signal is None and (None, None) not in found
    return found
