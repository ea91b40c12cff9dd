"""`python setup.py install`, as FlashAttention's documents have it: hands the work to pip, which pyproject.toml instructs.

GPU_ARCHS=gfx942 (or FLASHWAVE_AMD_TARGETS, FLASHWAVE_NVIDIA_TARGETS) chooses the GPUs of the build.
"""

import subprocess
import sys
from pathlib import Path

COMMANDS = {
    "install": ["install", "."],
    "develop": ["install", "--editable", "."],
    "bdist_wheel": ["wheel", "--no-deps", "--wheel-dir", "dist", "."],
}


def main(arguments):
    if not arguments or arguments[0] not in COMMANDS:
        sys.exit(f"usage: python setup.py {'|'.join(COMMANDS)} [OPTION OF PIP...]; better: pip install .")
    command = [sys.executable, "-m", "pip", *COMMANDS[arguments[0]], *arguments[1:]]
    return subprocess.call(command, cwd=Path(__file__).resolve().parent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
