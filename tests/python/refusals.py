"""What a backend may refuse: the reasons for which a test is skipped.

Any other one, a kernel that does not compile among them, fails it: refusals for unknown reasons once hid a backward
that never ran.
"""

from __future__ import annotations

import re

import flashwave
from flashwave.backends.triton import support as triton_support

# Triton is not here, or is too old. One that is broken, or does not take the kernels, is here.
_NO_TRITON = r"Triton is not installed|Triton \S+ is older than "
# A backend that has nothing for a device at all.
_NOT_HERE = {
    "native": r"no libflashwave\.so",
    "triton": rf"{_NO_TRITON}|Triton runs on GPUs|Triton's kernels are not written for ",
}
_NOT_TAKEN = {
    "native": [r"float64"],
    "triton": [
        r"the Triton kernels take fp16, bf16 and fp32, not torch\.\w+$",
        r"Triton's interpreter does not multiply bf16$",
        r"the Triton kernels take head dims up to \d+$",
        r"the Triton kernels do not write the softmax matrix$",
        r"the Triton kernels do not take \w+$",
        r"the Triton kernels take rows (of bias )?up to \d+ elements apart$",
        r"the Triton kernels hold the gradients of all \d+ pairs for that of bias, which is too much$",
    ],
}


def why_no_triton() -> str | None:
    """Why tests of Triton's kernels are skipped wherever they would run."""
    reason = triton_support.why_no_triton()
    return reason if reason is not None and re.match(_NO_TRITON, reason) else None


def may_skip(error: flashwave.BackendRefused) -> bool:
    """Whether a test of the backend need not run the problem."""
    return any(re.search(reason, error.reason) for reason in _NOT_TAKEN.get(error.backend, ()))


def is_absent(error: flashwave.BackendRefused) -> bool:
    """Whether the backend need not be tested on the device."""
    return error.backend in _NOT_HERE and re.search(_NOT_HERE[error.backend], error.reason) is not None
