"""A kernel that reads where it must not ends everything of its process on the device. So the
measuring has a process of its own, and who is to blame is left out of the next one."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

_AGAIN = 75  # an exit status: the device was lost, and who is to blame is written down


class DeviceLost(RuntimeError):
    """Nothing runs on the device any more in this process."""


def in_processes(work: Callable[[], None]) -> int:
    """`work` in a forked process, and in another one for as long as it ends by DeviceLost; the
    last one's exit status. Neither the device nor threads of OpenMP (torch's, on the CPU) may have
    been used before: the child would wait for them for ever."""
    while True:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if not child:
            os._exit(_status(work))
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code != _AGAIN:
            return code


def _status(work: Callable[[], None]) -> int:
    """The exit status of the process: `os._exit` passes by what would touch the device again."""
    code = 0
    try:
        work()
    except DeviceLost as lost:
        print(f"{lost}; going on without it", file=sys.stderr)
        code = _AGAIN
    except SystemExit as ended:
        print(ended, file=sys.stderr)
        code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code
