"""Running a part of the compiler that may abort in a child process, so that only the child ends.

LLVM reports what it cannot do by ending the process, and its AMDGPU back end has such ends that no
table foresees (its own register allocator's checks). A user's program must survive them."""

from __future__ import annotations

import faulthandler
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable

from tilec.ir.errors import InternalError

_FAILED, _DONE = b"E", b"D"


def run_isolated(make: Callable[[], bytes], what: str) -> bytes:
    """The bytes that `make()` returns, made in a child process where the system can fork. Raises
    InternalError, with the last line the child wrote, if it ended early or `make` raised."""
    if not hasattr(os, "fork"):
        return make()
    read, write = os.pipe()
    with tempfile.TemporaryFile() as log:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads: the child starts none
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
    message = got[1:].decode(errors="replace") or said.rsplit("\n", 1)[-1] or "no message"
    raise InternalError(f"{what}: {message[:300]}")


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
