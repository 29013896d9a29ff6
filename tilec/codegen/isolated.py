"""Running a part of the compiler that may abort in a child process, so that only the child ends.

LLVM reports what it cannot do by ending the process, and has such ends that no table foresees: the
checks of its AMDGPU back end's register allocator, assertions of its passes over vectors. A user's
program must survive them."""

from __future__ import annotations

import faulthandler
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable

from llvmlite.binding import ffi

from tilec.ir.errors import InternalError

_FAILED, _DONE = b"E", b"D"


class Ended(InternalError):
    """The child process ended before it was done."""


def run_isolated(make: Callable[[], bytes], what: str) -> bytes:
    """The bytes that `make()` returns, made in a child process where the system can fork. Raises
    InternalError with its words if `make` raised, Ended with the line of an error that the child
    wrote, or else the last, if it did not come to an end of its own."""
    if not hasattr(os, "fork"):
        return make()
    read, write = os.pipe()
    with tempfile.TemporaryFile() as log:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads: the child starts none
            with ffi.lib._lock:  # nobody is inside LLVM, whose own locks the child could not open
                child = os.fork()
        if child == 0:
            _child(make, read, write, log.fileno())
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            got = pipe.read()
        os.waitpid(child, 0)
        if got[:1] == _DONE:
            return got[1:]
        log.seek(0)
        said = log.read().decode(errors="replace").strip()
    if got:
        raise InternalError(f"{what}: {got[1:].decode(errors='replace')[:300]}")
    *_, last = lines = said.split("\n")
    last = next((line for line in lines if "error:" in line), last)
    raise Ended(f"{what}: {(last or 'no message')[:300]}")


def _child(make: Callable[[], bytes], read: int, write: int, log: int) -> None:
    """Never returns."""
    try:
        faulthandler.disable()
        os.close(read)
        os.dup2(log, 2)
        try:
            answer = _DONE + make()
        except InternalError as error:
            answer = _FAILED + error.message.encode()
        except BaseException:
            answer = _FAILED + traceback.format_exc(limit=1).encode()
        with os.fdopen(write, "wb") as pipe:
            pipe.write(answer)
    finally:
        os._exit(0)
