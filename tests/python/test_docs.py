"""The examples of the documentation, each in a process of its own, as a reader would paste it, and a table."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flashwave import dispatch

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("python.md", "dispatch.md", "coming-from.md", "distributed.md", "integrations.md")
EXAMPLES = [
    found
    for page in PAGES
    for found in re.findall(r"^(#+ .*?)$|^```python\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)
]


def titled():
    title, found = "", []
    for heading, code in EXAMPLES:
        title = heading.lstrip("# ") if heading else title
        if code:
            found.append(pytest.param(code, id=f"{title} {len(found)}".replace(" ", "-")))
    return found


def test_the_pages_have_examples():
    assert len(titled()) >= 10


@pytest.mark.parametrize("code", titled())
def test_example(code, tmp_path):
    if "transformers" in code:
        pytest.importorskip("transformers")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=environment, timeout=300)


def test_the_documented_rules_are_the_rules():
    section = (DOCS / "dispatch.md").read_text().split("## The rules")[1].split("\n## ")[0]
    rows = [tuple(line.strip("| ").split(" | ")) for line in section.splitlines() if line.startswith("| ")]
    assert rows[1:] == [(rule.when, ", ".join(rule.order)) for rule in dispatch.RULES]


def test_every_integration_names_a_test_that_is_there():
    table = (DOCS / "integrations.md").read_text().split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 11
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row[-1])
        assert named, row[0]
        for file, function in named:
            text = (DOCS.parent / file).read_text()
            assert not function or f"\ndef {function}(" in text, f"{file}::{function}"
