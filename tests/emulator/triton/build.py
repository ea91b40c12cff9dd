"""Compiles Triton kernels for AMD GPUs without one, and keeps the code objects."""

import hashlib
import json
import os
import pathlib
import sys

import hip

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests" / "python"))
CACHE = hip.CACHE / "triton"
HERE = pathlib.Path(__file__).resolve().parent
# Triton's own cache stays inside the build folder, and what it multiplies and adds is fused as in its releases so far.
os.environ.setdefault("TRITON_CACHE_DIR", str(ROOT / "build" / "triton-cache"))
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


SIZES = ("M", "N", "K", "stride", "columns")  # arguments whose values are divisible by 16 when aligned


def wave_size(arch):
    return 64 if arch.startswith("gfx9") else 32


def build(arch, kernel, signature, constants, num_warps=4, num_stages=2, aligned=True):
    """The code object of a kernel of kernels.py and what the launch must know of it.

    signature: {argument: Triton type}; constants: {argument: value}. aligned: pointers and sizes divisible by 16, as
    Triton's launcher finds them for tensors of PyTorch.
    """
    import kernels

    function = getattr(kernels, kernel)
    types = {name: signature.get(name, "constexpr") for name in function.arg_names}
    divisible = [name for name in signature if aligned and (types[name][0] == "*" or name in SIZES)]
    options = {"num_warps": num_warps, "num_stages": num_stages}
    return build_function(arch, function, [HERE / "kernels.py"], types, constants, divisible, options)


def build_function(arch, function, sources, types, constants, divisible, options):
    """The same for any kernel. sources: the files it is made of; types: of all arguments, "constexpr" among them;
    divisible: names of the arguments that are known to be multiples of 16."""
    import triton

    fused = os.environ["TRITON_DEFAULT_FP_FUSION"]
    what = [triton.__version__, arch, function.__name__, types, constants, divisible, options, fused]
    compiler = ROOT / "tests" / "python" / "triton_compile.py"
    files = [pathlib.Path(path).read_text() for path in (*sources, __file__, compiler)]
    text = json.dumps(what, sort_keys=True) + "".join(files)
    stem = CACHE / (function.__name__ + "_" + arch + "_" + hashlib.sha256(text.encode()).hexdigest()[:20])
    code, notes = stem.with_suffix(".hsaco"), stem.with_suffix(".json")
    if not (code.exists() and notes.exists()):
        _compile_to(code, notes, arch, function, types, constants, divisible, options)
    return code.read_bytes(), json.loads(notes.read_text())


def _compile_to(code, notes, arch, function, types, constants, divisible, options):
    from triton_compile import compiled as compile_kernel

    target = ("hip", arch, wave_size(arch))
    compiled = compile_kernel(function, target, types, constants, divisible, options)
    CACHE.mkdir(parents=True, exist_ok=True)
    for path, content in (
        (code, compiled.asm["hsaco"]),
        (notes, json.dumps({"name": compiled.metadata.name, "shared": compiled.metadata.shared}).encode()),
    ):
        part = path.with_suffix(f".part{os.getpid()}")
        part.write_bytes(content)
        part.rename(path)
