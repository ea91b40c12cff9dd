"""What the package says where torch or NumPy is not installed, and that `import *` takes what there is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import flashwave

HIDE = """
import importlib.util, sys
hidden = {hidden!r}
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in hidden else find(name, *rest)
"""


def _without(hidden: tuple[str, ...], code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(flashwave.__file__).parent.parent)}
    command = [sys.executable, "-c", HIDE.format(hidden=hidden) + code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return (done.stdout + done.stderr).strip().splitlines()[-1]


@pytest.mark.parametrize("name", ["flash_attn_func", "RotaryEmbedding", "backend", "FlashMHA"])
def test_a_name_that_needs_torch(name):
    said = _without(("torch",), f"from flashwave import {name}")
    assert said == f"ModuleNotFoundError: flashwave.{name} needs PyTorch: pip install flashwave[torch]"


def test_arrays_without_torch():
    code = "import numpy, flashwave; q = numpy.ones((1, 2, 1, 8), 'f'); print(flashwave.attention(q, q, q).shape)"
    assert _without(("torch",), code) == "(1, 2, 1, 8)"


def test_without_either():
    said = _without(("torch", "numpy"), "from flashwave import attention")
    assert said.endswith("needs PyTorch, or NumPy for arrays: pip install flashwave[torch] (or flashwave[numpy])")
    assert _without(("torch", "numpy"), "import flashwave; flashwave.arrays").endswith("pip install flashwave[numpy]")
    assert _without(("torch", "numpy"), "import flashwave; print(flashwave.devices()[0]['kind'])") == "cpu"


@pytest.mark.parametrize("hidden", [(), ("torch",), ("torch", "numpy")])
def test_everything_that_there_is(hidden):
    said = _without(hidden, "from flashwave import *; print('InvalidArgument' in dir(), 'flash_attn_func' in dir())")
    assert said == f"True {not hidden}"


def test_every_public_function_explains_itself():
    """help() of a function says what each of its arguments is, and what comes out."""
    import inspect

    for name in flashwave.__all__:
        function = getattr(flashwave, name)
        assert (inspect.getdoc(function) or "").strip(), name
        if not inspect.isfunction(function) or not name.startswith("flash_attn_") or "unpadded" in name:
            continue
        text = inspect.getdoc(function)
        assert len(text.splitlines()) >= 30 and "Returns:" in text, name
        missing = [argument for argument in inspect.signature(function).parameters if argument not in text]
        assert not missing, f"{name}: {missing}"
