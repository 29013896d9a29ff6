"""The tiles that a search for the fastest has come by: those that cannot win are not ranked."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tilec.tune.cost import Estimate
from tilec.tune.rank import Ranked

Tile = tuple[int, ...]  # a value for each of the open arguments


class Tried(Iterable[Ranked]):
    """The configurations of the tiles that a search has come by, best first by `order`. What no
    plan of a tile takes `less` than is known at once; its plans are ranked (by `rank`) when it is
    asked for, or when that is less than what all others that are left take."""

    def __init__(
        self,
        less: Callable[[Tile], float],
        rank: Callable[[Tile], list[Ranked]],
        order: Callable[[Ranked], float],
    ) -> None:
        self._less, self._rank, self.order = less, rank, order
        self.least: dict[Tile, float] = {}
        self.ranked: dict[Tile, list[Ranked]] = {}

    def come_by(self, at: Tile) -> float:
        """What no plan of a tile takes less than."""
        if at not in self.least:
            self.least[at] = self._less(at)
        return self.least[at]

    def of(self, at: Tile) -> list[Ranked]:
        """Those of a tile, the fastest first."""
        self.come_by(at)
        if at not in self.ranked:
            self.ranked[at] = self._rank(at)
        return self.ranked[at]

    def sorted_of(self, at: Tile) -> list[Ranked]:
        """Those of a tile, by `order`."""
        return sorted(self.of(at), key=self.order)

    def first(self, at: Tile) -> Estimate | None:
        """Of the fastest of a tile."""
        return next((r.estimate for r in self.of(at)), None)

    def seconds(self, at: Tile) -> float:
        """What the fastest of a tile takes."""
        first = self.first(at)
        return math.inf if first is None else first.seconds

    def fastest(self, tiles: Iterable[Tile]) -> Tile:
        """The first of the fastest tiles."""
        every = [*tiles]
        least = sorted((at not in self.ranked, self.come_by(at), n) for n, at in enumerate(every))
        best = math.inf, 0
        for _, s, n in least:
            if (s, n) < best:
                best = min(best, (self.seconds(every[n]), n))
        return every[best[1]]

    def __iter__(self) -> Iterator[Ranked]:
        heap: list[tuple[float, int, int, Any]]  # a tile, or one of its configurations
        heap = [(s, n, -1, at) for n, (at, s) in enumerate(self.least.items())]
        heapq.heapify(heap)
        while heap:
            _, n, row, x = heapq.heappop(heap)
            if row >= 0:
                yield x
            else:
                for row, r in enumerate(self.of(x)):
                    heapq.heappush(heap, (self.order(r), n, row, r))
