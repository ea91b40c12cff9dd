"""Compiles Triton kernels for AMD GPUs without one, and keeps the code objects."""

import hashlib
import json
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[3]
CACHE = pathlib.Path(os.environ.get("FLASHWAVE_EMULATOR_CACHE", ROOT / "build" / "emulator-cache")) / "triton"
HERE = pathlib.Path(__file__).resolve().parent
# Triton's own cache stays inside the build folder, and what it multiplies and adds is fused as in its releases so far.
os.environ.setdefault("TRITON_CACHE_DIR", str(CACHE / "intermediate"))
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


SIZES = ("M", "N", "K", "stride", "columns")  # arguments whose values are divisible by 16 when aligned


def wave_size(arch):
    return 64 if arch.startswith("gfx9") else 32


def build(arch, kernel, signature, constants, num_warps=4, num_stages=2, aligned=True):
    """The code object of a kernel of kernels.py and what the launch must know of it.

    signature: {argument: Triton type}; constants: {argument: value}. aligned: pointers and sizes divisible by 16, as
    Triton's launcher finds them for tensors of PyTorch.
    """
    import triton

    what = [triton.__version__, arch, kernel, signature, constants, num_warps, num_stages, aligned]
    text = json.dumps(what, sort_keys=True) + (HERE / "kernels.py").read_text() + pathlib.Path(__file__).read_text()
    stem = CACHE / (kernel + "_" + arch + "_" + hashlib.sha256(text.encode()).hexdigest()[:20])
    code, notes = stem.with_suffix(".hsaco"), stem.with_suffix(".json")
    if not (code.exists() and notes.exists()):
        compile_to(code, notes, arch, kernel, signature, constants, num_warps, num_stages, aligned)
    return code.read_bytes(), json.loads(notes.read_text())


def compile_to(code, notes, arch, kernel, signature, constants, num_warps, num_stages, aligned):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    import kernels
    import triton

    function = getattr(kernels, kernel)
    types = {name: signature.get(name, "constexpr") for name in function.arg_names}
    names = [name for name in signature if aligned and (types[name][0] == "*" or name in SIZES)]
    divisible = [function.arg_names.index(name) for name in names]
    source = ASTSource(
        fn=function,
        signature=types,
        constexprs=constants,
        attrs={(i,): [["tt.divisibility", 16]] for i in divisible},
    )
    compiled = triton.compile(
        source,
        target=GPUTarget("hip", arch, wave_size(arch)),
        options={"num_warps": num_warps, "num_stages": num_stages},
    )
    CACHE.mkdir(parents=True, exist_ok=True)
    for path, content in (
        (code, compiled.asm["hsaco"]),
        (notes, json.dumps({"name": compiled.metadata.name, "shared": compiled.metadata.shared}).encode()),
    ):
        part = path.with_suffix(f".part{os.getpid()}")
        part.write_bytes(content)
        part.rename(path)
