"""How fast this machine computes at the moment: what tests of the time that something takes allow
for. Others may compute beside them, and two threads of a core are slower than one."""

from __future__ import annotations

import time

QUIET = 0.06  # seconds that the loop takes on a machine of 2024 that does nothing else, about


def slower() -> float:
    """How many times as long as on a quiet machine a loop takes, 1 at least."""
    start, total = time.process_time(), 0
    for i in range(1_000_000):
        total += i * i % 7
    return max(1.0, (time.process_time() - start) / QUIET)
