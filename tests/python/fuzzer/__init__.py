"""A stateful fuzzer of the Python package: random sequences of calls that share shapes, every result against fp64.

    python -m fuzzer --seconds 3600          # from tests/python, or `make fuzz-python`
    python -m fuzzer --replay 17/2041        # sequence 2041 of seed 17, alone, in a new process

What two calls of a sequence share (shapes, tensors, storage, scalars that are tensors, environment, default dtype) is
drawn on purpose so that anything kept from one call and wrongly used by another shows. `world` holds what a sequence
shares, `calls` and `more_calls` make calls of every public function with their reference, `modes` are the ways to make
a call (with gradients, traced, in threads, ...), `engine` runs sequences and reports.
"""

import os

# Read when torch's OpenMP is loaded: small calls on a busy machine would spend their time waiting at full speed.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
