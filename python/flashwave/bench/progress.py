"""A progress bar on stderr, if that is a terminal."""

from __future__ import annotations

import sys

_WIDTH = 30


class Progress:
    def __init__(self, steps: int) -> None:
        self._steps, self._done = steps, 0
        self._shown = sys.stderr.isatty()

    def step(self, what: str) -> None:
        """The next step begins."""
        if self._shown:
            filled = _WIDTH * self._done // max(self._steps, 1)
            bar = "#" * filled + "." * (_WIDTH - filled)
            sys.stderr.write(f"\r\x1b[K[{bar}] {self._done}/{self._steps} {what}")
            sys.stderr.flush()
        self._done += 1

    def close(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
