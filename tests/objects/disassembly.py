"""Functions, instructions and loops of an object, from llvm-objdump's listing: of x86-64 (AT&T syntax) or aarch64."""

import collections
import os
import re
import subprocess

Instruction = collections.namedtuple("Instruction", "address mnemonic operands")
Function = collections.namedtuple("Function", "name instructions")
Loop = collections.namedtuple("Loop", "function first last instructions")

_FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)(?:\s+(.*))?$")
_PREFIXES = {"lock", "rep", "repne", "notrack", "bnd", "{evex}", "{vex}"}
_TARGET = re.compile(r"(?:^|, )0x([0-9a-f]+)(?: <|$)")
_BRANCH = re.compile(r"j|b$|b\.|cbn?z$|tbn?z$")


def tool(name):
    """llvm-NAME, from FLASHWAVE_LLVM_NAME if set."""
    return os.environ.get("FLASHWAVE_LLVM_" + name.upper(), "llvm-%s-22" % name)


def output_of(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout


def functions(path, cpu=None):
    """Every function of the object, in address order. Names are mangled. What `cpu` does not have is "<unknown>"."""
    found = []
    only = ["--mcpu=" + cpu] if cpu else []
    for line in output_of(tool("objdump"), "-d", "--no-show-raw-insn", *only, path).splitlines():
        start = _FUNCTION.match(line)
        if start:
            found.append(Function(start.group(1), []))
            continue
        instruction = _INSTRUCTION.match(line)
        if not instruction or not found:
            continue
        address, mnemonic, operands = instruction.groups()
        operands = (operands or "").split(" # ")[0].split(" //")[0].strip()
        if mnemonic in _PREFIXES and operands:
            mnemonic, _, operands = operands.partition(" ")
        found[-1].instructions.append(Instruction(int(address, 16), mnemonic, operands.strip()))
    return found


def innermost_loops(function):
    """Loops that hold no other loop. A loop runs from the target of a backward branch to the last branch to it."""
    first = function.instructions[0].address if function.instructions else 0
    ends = {}
    for instruction in function.instructions:
        head = target(instruction) if _BRANCH.match(instruction.mnemonic) else None
        if head is not None and first <= head <= instruction.address:
            ends[head] = instruction.address  # in address order, so the last one stays
    loops = []
    for head, end in ends.items():
        if not any(head < other <= end for other in ends):
            body = [i for i in function.instructions if head <= i.address <= end]
            loops.append(Loop(function.name, head, end, body))
    return loops


def target(instruction):
    """Address a direct jump or call goes to, or None."""
    found = _TARGET.search(instruction.operands)
    return int(found.group(1), 16) if found else None


class Flow:
    """Ways through one function."""

    def __init__(self, function):
        self._instructions = function.instructions
        self._index = {i.address: n for n, i in enumerate(function.instructions)}

    def leaves(self, instruction):
        """Whether it is a jump to another function (or to somewhere unknown)."""
        return instruction.mnemonic.startswith("jmp") and target(instruction) not in self._index

    def reachable(self, first, stop):
        """Instructions on any way from the one numbered `first`, up to and without those where stop() holds."""
        seen, waiting = set(), [first]
        while waiting:
            n = waiting.pop()
            if n in seen or n >= len(self._instructions) or stop(self._instructions[n]):
                continue
            seen.add(n)
            instruction = self._instructions[n]
            jump = instruction.mnemonic.startswith("j")
            if jump and target(instruction) in self._index:
                waiting.append(self._index[target(instruction)])
            if not instruction.mnemonic.startswith(("jmp", "ret", "ud2")):
                waiting.append(n + 1)
        return [self._instructions[n] for n in sorted(seen)]


def uses_frame_pointer(function):
    """Whether %rbp (x29) points into the stack frame rather than being one more general register."""
    return any(
        (i.mnemonic in ("mov", "movq") and i.operands in ("%rsp, %rbp", "x29, sp"))
        or (i.mnemonic == "add" and i.operands.startswith("x29, sp,"))
        for i in function.instructions
    )
