"""The command `flashwave`, as the wheel has it: the command line that is built with the library (docs/cli.md)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_MAIN = "_Z14flashwave_mainiPPc"  # int flashwave_main(int, char**): main of cli/main.cpp


def main() -> None:
    """Runs it on the arguments of this process, and ends with its exit status."""
    here = Path(__file__).resolve().parent
    library, built = here / "lib" / "libflashwave_command.so", here.parents[1] / "build" / "flashwave"
    arguments = ["flashwave", *sys.argv[1:]]
    if not library.exists():  # a source tree has the executable
        if not built.exists():
            sys.exit(f"flashwave: neither {library} (installed package) nor {built} (source tree: run `make build`)")
        os.execv(built, arguments)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python would wait for the end of the call
    words = (ctypes.c_char_p * (len(arguments) + 1))(*map(os.fsencode, arguments))
    sys.exit(getattr(ctypes.CDLL(str(library)), _MAIN)(len(arguments), words))


if __name__ == "__main__":
    main()
