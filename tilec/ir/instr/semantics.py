"""The semantics of a row: what it does, as a function `(m, *arguments) -> results`.

It is called once for a set of threads that go the same way; `m` is their view of the machine. An
argument is what a register holds in them: a NumPy scalar where it is the same in all, else an
array, one entry per thread; a vector is a tuple of such. The semantics of something that may wait
returns a `Waits`; one without results may return None. `where` is which threads act, None for all
of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Word = Any
"""A register in a set of threads: a NumPy scalar, or an array with one entry per thread."""

Where = NDArray[np.bool_] | np.bool_ | None


class Waits(Protocol):
    """Threads that have come to something they may have to wait for."""

    def ready(self) -> NDArray[np.bool_]:
        """Which of them may go on now."""

    def finish(self, mask: NDArray[np.bool_]) -> None:
        """Those in `mask` go on: what happened before what they waited for is behind them."""

    def only(self, mask: NDArray[np.bool_]) -> Waits:
        """The same for those in `mask` only."""

    def describe(self) -> str:
        """What they wait for and what is missing, for people."""


Outcome = tuple[Word, ...] | Waits | None
Semantics = Callable[..., Outcome]


def waiting(semantics: Semantics) -> Semantics:
    """Mark a meaning that may return a `Waits`."""
    semantics.__dict__["waits"] = True
    return semantics


def may_wait(semantics: Semantics | None) -> bool:
    """Whether a meaning is marked by `waiting`."""
    return getattr(semantics, "waits", False)


def absorbing(semantics: Semantics) -> Semantics:
    """Mark a meaning that may be given registers which hold nothing: what it makes of them holds
    nothing, or it looks itself whether it may read them."""
    semantics.__dict__["absorbs"] = True
    return semantics


def absorbs(semantics: Semantics) -> bool:
    """Whether a meaning is marked by `absorbing`."""
    return getattr(semantics, "absorbs", False)
