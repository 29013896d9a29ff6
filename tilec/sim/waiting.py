"""What an agent waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]


class Waiting(Protocol):
    """A record that may not be finished yet, for some lanes of an agent."""

    def ready(self) -> Mask:
        """Which of the lanes may go on."""
        ...

    def finish(self, mask: Mask) -> None:
        """These lanes go on: they have behind them what they waited for."""
        ...

    def only(self, mask: Mask) -> Waiting:
        """The same, for these lanes."""
        ...

    def describe(self) -> str:
        """Who waits for what, for a report of a deadlock."""
        ...


@dataclass(frozen=True)
class Condition:
    """`Waiting` for conditions that are computed from the lanes' numbers: `test(lanes) -> mask`,
    `then(lanes)`, `text(lanes)`."""

    lanes: NDArray[Any]
    test: Callable[[NDArray[Any]], Mask]
    then: Callable[[NDArray[Any]], None]
    text: Callable[[NDArray[Any]], str]

    def ready(self) -> Mask:
        return self.test(self.lanes)

    def finish(self, mask: Mask) -> None:
        self.then(self.lanes[mask])

    def only(self, mask: Mask) -> Condition:
        return Condition(self.lanes[mask], self.test, self.then, self.text)

    def describe(self) -> str:
        return self.text(self.lanes)
