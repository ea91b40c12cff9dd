"""The appendix of docs/coming-from.md: all rows of the five documents with its status, and the tests that name them."""

from __future__ import annotations

import re

ROWS = {0: 21, 1: 35, 2: 31, 3: 23, 4: 30}  # of each document
STATUS = ("works", "part", "not", "n/a")


def appendix(root) -> dict[str, tuple[str, str, str]]:
    """(promise, status, note) of each row."""
    text = (root / "docs" / "coming-from.md").read_text().split("## Appendix")[1]
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.splitlines()]
    rows = [row for row in rows if re.fullmatch(r"\d\.\d+", row[0])]
    assert all(len(row) == 4 for row in rows), [row for row in rows if len(row) != 4]
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0]: tuple(row[1:]) for row in rows}


def test_every_row_is_there(root):
    rows = appendix(root)
    assert list(rows) == [f"{document}.{n + 1}" for document, count in ROWS.items() for n in range(count)]
    assert {status for _, status, _ in rows.values()} <= set(STATUS)
    assert all(note for _, status, note in rows.values() if status in ("not", "n/a")), "these rows say why"


def test_rows_and_tests_agree(root):
    """Each row that works, all of it or part, is tried by a test; none is that is said to be absent."""
    rows, named = appendix(root), set()
    for path in (root / "tests" / "promises").glob("test_*.py"):
        for given in re.findall(r'promise\(\s*"([^"]*)"', path.read_text()):
            named |= set(given.split())
    there = {row for row, (_, status, _) in rows.items() if status in ("works", "part")}
    assert there - named == set(), "no test names these rows"
    assert named - there == set(), "a test shows that these rows work"
