"""The command: see the package."""

from __future__ import annotations

import argparse
import json
import sys

from . import checks
from .report import failures, report, text


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m flashwave.doctor", description="What flashwave does on this machine."
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--device", action="append", help="check this torch device only (cpu, cuda:1); may be repeated")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds that one check may take (300)")
    parser.add_argument("--child", nargs=3, metavar=("WHAT", "DEVICE", "DTYPES"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        what, device, dtypes = options.child
        checks.child(what, device, dtypes.split(","))
        return 0
    found = report(options.device, options.timeout)
    print(json.dumps(found, indent=2) if options.json else text(found))
    return 1 if failures(found) else 0


if __name__ == "__main__":
    sys.exit(main())
