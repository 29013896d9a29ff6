"""How fast this machine computes at the moment: what tests of the time that something takes allow
for. Others may compute beside them, and two threads of a core are slower than one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

QUIET = 0.06  # seconds that the loop takes on a machine of 2024 that does nothing else, about


def slower() -> float:
    """How many times as long as on a quiet machine a loop takes, 1 at least."""
    start, total = time.process_time(), 0
    for i in range(1_000_000):
        total += i * i % 7
    return max(1.0, (time.process_time() - start) / QUIET)


def least_seconds(make: Callable[[int], Callable[[], Any]], limit: float, tries: int = 3) -> float:
    """CPU seconds of the quickest of some calls, up to the first within `limit`; `make(k)` returns
    what to call the k-th time (a kernel that no cache knows)."""
    least = float("inf")
    for k in range(tries):
        call = make(k)
        start = time.process_time()
        call()
        least = min(least, time.process_time() - start)
        if least <= limit:
            break
    return least


def opcodes(call: Callable[[], Any]) -> int:
    """The bytecode instructions that a call executes: what stays the same on a machine that does
    other things too, where the time of a few microseconds says nothing."""
    if sys.version_info >= (3, 12):  # whose traces see no opcodes of frames that run already
        return _monitored(call)
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def _monitored(call: Callable[[], Any]) -> int:
    count, tool = 0, 3
    monitor: Any = vars(sys)["monitoring"]

    def one(*_: object) -> None:
        nonlocal count
        count += 1

    monitor.use_tool_id(tool, "opcodes")
    monitor.register_callback(tool, monitor.events.INSTRUCTION, one)
    monitor.set_events(tool, monitor.events.INSTRUCTION)
    try:
        call()
    finally:
        monitor.set_events(tool, 0)
        monitor.free_tool_id(tool)
    return count
