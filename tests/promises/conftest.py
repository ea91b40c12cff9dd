"""What the systems that flashwave replaces promised, run literally. One line each at the end of the output:

    works    0.9    pip install -e .
    skipped  0.3    on an AMD GPU, with PyTorch for ROCm: there is none

@pytest.mark.promise("0.9", "pip install -e .") names rows in the appendix of docs/coming-from.md, and what is tried.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_WORDS = {"passed": "works", "failed": "BROKEN", "skipped": "skipped"}
_lines: list[tuple[str, str, str]] = []


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "promise(rows, text): the rows of docs/coming-from.md that the test stands for")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = (yield).get_result()
    if Path(__file__).parent not in item.path.parents or (report.when != "call" and report.passed):
        return
    mark = item.get_closest_marker("promise")
    rows, text = mark.args if mark else ("", item.name)
    if report.skipped and isinstance(report.longrepr, tuple):
        text += ": " + report.longrepr[2].removeprefix("Skipped: ")
    _lines.append((_WORDS[report.outcome], rows, text))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _lines:
        terminalreporter.section("promises")
    for word, rows, text in _lines:
        terminalreporter.write_line(f"{word:8} {rows:12} {text}")


@pytest.fixture
def root() -> Path:
    return ROOT


@pytest.fixture
def run():
    """Runs a command, from the checkout unless said otherwise, and returns it done; it must end with status 0."""

    def run(
        *command: object, cwd: Path = ROOT, status: int = 0, stdin: str | None = None, timeout: float = 600,
        **environment: str | None,
    ):  # fmt: skip
        given = {**os.environ, **environment}
        given = {name: value for name, value in given.items() if value is not None}
        done = subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            env=given,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == status, f"status {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done

    return run


@pytest.fixture
def snippet(run, tmp_path):
    """Runs Python code as a user would paste it; where torch sees no GPU, with "cuda" for "cpu"."""
    import torch

    def snippet(code: str, **environment: str | None):
        if not torch.cuda.is_available():
            code = code.replace('"cuda"', '"cpu"').replace("'cuda'", "'cpu'")
        return run(sys.executable, "-c", code, cwd=tmp_path, **environment)

    return snippet


@pytest.fixture
def without_torch(tmp_path):
    """The Python of a new environment with pip and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    return tmp_path / "venv" / "bin" / "python"


@pytest.fixture
def wheel(root):
    """The wheel that scripts/wheel made."""
    found = sorted(root.glob("out/wheel/flashwave-*.whl"))
    if not found:
        pytest.skip("needs a wheel: make wheel")
    return found[0]
