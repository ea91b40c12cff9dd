#!/usr/bin/env python3
"""Fails when an #include points up or sideways, a kernel names instructions, a name has gone, or a file is too long.

    check_layers.py ROOT

Reads the #include lines of every C and C++ file under ROOT and looks each one up in ARROWS. Tests may include
anything and are only held to the length.
"""

import functools
import os
import re
import sys

MAX_LINES = 800
CODE = (".h", ".hpp", ".c", ".cc", ".cpp", ".cu", ".cuh", ".hip", ".def", ".inc")
ALSO_MEASURED = (".py", ".rs", ".sh", ".cmake")
TOP_FOLDERS = (
    "include",
    "src",
    "kernels",
    "cli",
    "bench",
    "emulator",
    "tests",
    "python",
    "rust",
    "scripts",
    "cmake",
)
UNRESTRICTED = ("tests",)
SKIPPED_FOLDERS = {"build", "target", "__pycache__", "node_modules"}

# What each layer may include besides itself. "include" is the public header, "lists" the lists of kernels
# (kernels/registry.def, kernels/*/kernels.def) and the words they are written in. A layer that is not named here may
# include nothing but itself; a folder of kernels has those of "kernels/*", and the folder of its GPUs' maker.
ARROWS = {
    "include": (),
    "src/base": ("include", "lists"),
    "src/problem": ("src/base", "include"),
    "src/catalog": ("src/base", "include", "lists"),
    "src/device": ("src/base", "include", "kernels/abi", "lists"),
    "src/plan": ("src/problem", "src/catalog", "src/device", "src/base", "include", "kernels/abi"),
    "src/api": ("src/plan", "src/problem", "src/device", "src/catalog", "src/base", "include"),
    "kernels/abi": (),
    "kernels/common": ("kernels/abi",),
    "kernels": ("lists",),  # the registry
    "kernels/*": ("kernels/abi", "kernels/common"),  # an architecture: never a sibling's
    "cmake": ("src/base", "src/device"),  # tools of the build
    "cli": ("include",),
    "bench": ("include", "cli"),
    "emulator": (),  # knows nothing of attention
    "python": ("include",),
    "rust": ("include",),
}

# The one place where a shared kernel gets the words of the GPU that it is compiled for.
SWITCH, SWITCHED = "kernels/common/gpu.h", ("kernels/amd/gpu.h", "kernels/nvidia/gpu.h")

# Instructions have words, and only the headers of those words have assembly and builtins of an instruction set: a kernel
# reads like its algorithm, and what a new architecture needs is in one place. CUDA's builtins have no prefix of their
# own, so that every name that is reserved for compilers counts as one, unless it is known to be none.
INSTRUCTION_HEADERS = ("isa.h", "gpu.h", "wgmma.h", "mma16.h", "vec.h", "amx_isa.h")
RESERVED = re.compile(
    r"\basm\b|\b__\w+|\batomic[A-Z]\w*|\b(?:thread|block|grid)(?:Idx|Dim)\b"
    r"|\b_(?:mm\d*|tile|pdep|pext|cvt\w*)_\w+"  # x86: intrinsics have one underscore, types of registers two
    r"|\bv[a-z]\w*_[fpsu](?:8|16|32|64)\b"  # NEON
)
NO_INSTRUCTION = re.compile(
    r"__builtin_(?!amdgcn_|nontemporal_|ia32_|neon_)\w+"  # of every target
    r"|__attribute__|__VA_ARGS__|__restrict|__is_same|__make_integer_seq|__bf16"  # language, types
    r"|__(?:global|shared|align|launch_bounds|grid_constant|cluster_dims)__"  # CUDA's declarations
    r"|__(?:clang|HIP|CUDA|CUDACC|AMDGCN|x86_64|aarch64|gfx\w+|GFX\d+)__"  # who compiles, and for what
)
COMMENT = re.compile(r"//.*")

# Names that were given up, with what says the same today: two words for one thing, or one for two, mislead.
NAMED_FOLDERS = ("kernels", "src")
GONE = {
    # Beside "generic", the slow path that takes any problem, it meant the kernels that take score modifiers and dropout.
    "general": "modified",
}
GONE_WORD = re.compile(rf"(?<![a-z])({'|'.join(GONE)})(?![a-z])", re.IGNORECASE)
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


def layer_of(path):
    """The layer of a file, by its path from the root: "src/plan", "kernels/cpu", "cli", ..."""
    parts = path.split("/")
    return "/".join(parts[:2]) if parts[0] in ("src", "kernels") and len(parts) > 2 else parts[0]


@functools.cache
def makers(root, folder):
    """The folders of the makers of the GPUs that the list in a folder of kernels is for."""
    path = os.path.join(root, folder, "kernels.def")
    text = open(path, encoding="utf-8").read() if os.path.isfile(path) else ""
    return tuple(f"kernels/{maker}" for maker in ("amd", "nvidia") if f"FW_{maker.upper()}_KERNEL" in text)


def arrows_of(root, layer):
    if layer in ARROWS or not layer.startswith("kernels/"):
        return ARROWS.get(layer, ())
    # What both makers' GPUs share gets their words through the switch below.
    maker = makers(root, layer)
    return ARROWS["kernels/*"] + (maker if len(maker) == 1 else ())


def allowed(root, source_layer, target):
    target_layer = layer_of(target)
    if source_layer == target_layer:
        return True
    arrows = arrows_of(root, source_layer)
    if target.startswith("kernels/") and target.endswith(".def"):
        return "lists" in arrows
    if target == "kernels/abi/features.h" and "lists" in arrows:
        return True
    return target_layer in arrows


def resolve(root, source, name):
    """The file in the tree that an #include in `source` names, or None. Searched where the compiler searches."""
    for folder in (os.path.dirname(source), "", "src", "include", source.split("/")[0]):
        path = os.path.normpath(os.path.join(folder, name))
        if not path.startswith("..") and os.path.isfile(os.path.join(root, path)):
            return path.replace(os.sep, "/")
    return None


def files_of(root):
    for top in TOP_FOLDERS:
        for folder, folders, names in os.walk(os.path.join(root, top)):
            folders[:] = sorted(f for f in folders if f not in SKIPPED_FOLDERS and not f.startswith("."))
            for name in sorted(names):
                if name.endswith(CODE + ALSO_MEASURED) or name == "CMakeLists.txt":
                    yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")


def instructions_in(source, lines):
    """(line number, name) of each instruction that a file of kernels names outside of the headers for them."""
    if not source.startswith("kernels/") or os.path.basename(source) in INSTRUCTION_HEADERS:
        return []
    return [
        (number, name)
        for number, line in enumerate(lines, 1)
        for name in RESERVED.findall(COMMENT.sub("", line))
        if not NO_INSTRUCTION.fullmatch(name)
    ]


def names_gone_in(source, lines):
    """(line number, name) of each name that was given up, as a word or as part of one: general, kGeneral, bwd_general."""
    if source.split("/")[0] not in NAMED_FOLDERS:
        return []
    return [
        (number, name)
        for number, line in enumerate(lines, 1)
        for name in GONE_WORD.findall(CAMEL.sub(" ", line))
    ]


def check_file(root, source):
    with open(os.path.join(root, source), encoding="utf-8") as file:
        lines = file.read().splitlines()
    problems = []
    if len(lines) > MAX_LINES:
        problems.append(f"{source}: {len(lines)} lines; the limit is {MAX_LINES}")
    for number, name in names_gone_in(source, lines):
        problems.append(f"{source}:{number}: {name} is no name here any more; see {GONE[name.lower()]}")
    if not source.endswith(CODE) or source.split("/")[0] in UNRESTRICTED:
        return problems
    layer = layer_of(source)
    belong = f"belongs in {', '.join(INSTRUCTION_HEADERS)}"
    found = instructions_in(source, lines)
    problems += [f"{source}:{number}: {name} is an instruction and {belong}" for number, name in found]
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quoted, angled = match.groups()
        target = resolve(root, source, quoted or angled)
        if target is None:
            if quoted:
                problems.append(f'{source}:{number}: "{quoted}" is not in the tree; system headers take <>')
        elif not allowed(root, layer, target) and not (source == SWITCH and target in SWITCHED):
            problems.append(f"{source}:{number}: {layer} may not include {target}")
    return problems


def check_tree(root):
    """Everything wrong with the tree, one sentence each, and the number of files read."""
    problems, files = [], 0
    for source in files_of(root):
        files += 1
        problems += check_file(root, source)
    return problems, files


def main(arguments):
    if len(arguments) != 1:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    problems, files = check_tree(arguments[0])
    for problem in problems:
        print(problem)
    if files == 0:
        print(f"no source files under {arguments[0]}")
        return 1
    print(f"{files} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
