"""The examples of docs/python.md, each in a process of its own, as a reader would paste it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"
EXAMPLES = re.findall(r"^(#+ .*?)$|^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)


def titled():
    title, found = "", []
    for heading, code in EXAMPLES:
        title = heading.lstrip("# ") if heading else title
        if code:
            found.append(pytest.param(code, id=f"{title} {len(found)}".replace(" ", "-")))
    return found


def test_the_page_has_examples():
    assert len(titled()) >= 10


@pytest.mark.parametrize("code", titled())
def test_example(code, tmp_path):
    if "transformers" in code:
        pytest.importorskip("transformers")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=environment, timeout=300)
