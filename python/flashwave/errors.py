"""What flashwave raises. All are RuntimeErrors, as flash-attn's are; each also is the built-in that fits."""

from __future__ import annotations


class FlashwaveError(RuntimeError):
    """A call of the library failed; the message is the library's."""


class InvalidArgument(FlashwaveError, ValueError):
    """An argument breaks a rule; the message names both."""


class Unsupported(FlashwaveError, NotImplementedError):
    """A valid problem that no kernel of the device, or not the forced kernel, takes."""


class BackendRefused(Unsupported):
    """The backend that was asked for cannot compute the call; the message says why."""

    def __init__(self, backend: str, op: str, reason: str) -> None:
        super().__init__(f"backend '{backend}' was asked for and cannot compute this {op}: {reason}")
        self.backend, self.op, self.reason = backend, op, reason

    def __reduce__(self) -> tuple:  # else a pool of processes waits for ever for an error that it cannot unpickle
        return BackendRefused, (self.backend, self.op, self.reason)


class NoDevice(FlashwaveError):
    """An unknown device name, or its driver or hardware is not there."""


class OutOfMemory(FlashwaveError, MemoryError):
    """Host or device memory ran out."""


# By fw_status.
BY_STATUS = {1: InvalidArgument, 2: Unsupported, 3: NoDevice, 4: OutOfMemory}
