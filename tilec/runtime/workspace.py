"""Memory that launches bring along: parts of sums, counters that are zero between launches, packed
copies of operands.

Launches on one stream come one after the other and share it; different streams, and each stream of
a captured graph, have their own. What has been given out stays allocated until the process ends: a
launch that was made ready, or a graph, may still use it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from tilec.runtime.block import ArgumentBlock, BlockLayout
from tilec.runtime.driver import Ready
from tilec.runtime.image import OWN_MEMORY, AbiParam, Image

ALIGNMENT = 256
LEAST = 1 << 16  # bytes; more are taken in powers of two, so that few sizes are ever allocated

Allocate = Callable[[int, int, bool], int]


class Workspaces:
    """Those of one driver. `allocate(index, bytes, zero)` gives the address of memory on device
    `index`, of zeros if `zero`."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._lock = threading.Lock()
        self.in_order = threading.Lock()  # held by who launches several kernels that share one
        self._found: dict[tuple[Hashable, bool], tuple[int, int]] = {}  # (address, bytes)

    def addresses(
        self, index: int, owner: Hashable, params: Sequence[AbiParam], sums: int
    ) -> list[int]:
        """An address for each of `params`, for a launch of `owner` (a stream, a stream of a graph)
        that shares `sums` sums. Raises DriverError where there is no room."""
        sizes = [-(-p.dim * sums // ALIGNMENT) * ALIGNMENT for p in params]
        counters = [p.role == "counters" for p in params]
        at = {
            zero: self._find(
                index, owner, zero, sum(n for n, z in zip(sizes, counters) if z == zero)
            )
            for zero in {*counters}
        }
        found = []
        for size, zero in zip(sizes, counters):
            found.append(at[zero])
            at[zero] += size
        return found

    def _find(self, index: int, owner: Hashable, zero: bool, size: int) -> int:
        key = (index, owner), zero
        with self._lock:
            address, room = self._found.get(key, (0, 0))
            if size > room:
                room = max(LEAST, 1 << (size - 1).bit_length())
                address = self._allocate(index, room, zero)
                self._found[key] = address, room
        return address


def workspace_params(image: Image) -> list[tuple[int, AbiParam]]:
    """The parameters that the launch brings along, with their numbers."""
    return [(i, p) for i, p in enumerate(image.params) if p.role in OWN_MEMORY]


class Driver(Protocol):
    """What a workspace is given out by."""

    workspaces: Workspaces

    def owner(self, stream: int) -> Hashable:
        """Whose launches on `stream` come one after the other now; None: the stream's own."""


def owner_of(stream: int, graph_of: Callable[[int], int | None]) -> Hashable:
    """Whose launches on `stream` come one after the other now, where that is not the stream itself:
    a graph that is captured from it (`graph_of`: its number, None if there is none), or a thread;
    else None."""
    if stream in (0, 1):  # the legacy default stream is no one's own, and in no graph
        return None
    graph = graph_of(stream)
    if graph is not None:
        return "graph", graph, stream, threading.get_ident()
    return ("thread", threading.get_ident()) if stream == 2 else None


class ForOwner:
    """A launch on a stream that `make` makes ready from its `blocks` (each with its layout) for
    whose it is: once for the stream itself and, where the stream is captured, at each call for the
    graph, from copies: another thread may be launching from the blocks."""

    __slots__ = ("_blocks", "_call", "_driver", "_make", "_stream")

    def __init__(
        self,
        driver: Driver,
        stream: int,
        blocks: Sequence[tuple[BlockLayout, ArgumentBlock]],
        make: Callable[[Sequence[ArgumentBlock], Hashable], Ready],
    ) -> None:
        self._driver, self._stream, self._blocks, self._make = driver, stream, blocks, make
        self._call: Ready | None = None
        if driver.owner(stream) is None:
            self._call = make([block for _, block in blocks], stream)

    def __call__(self) -> int:
        owner = self._driver.owner(self._stream)
        if owner is not None:
            return self._make([layout.copy(block) for layout, block in self._blocks], owner)()
        if self._call is None:
            self._call = self._make([block for _, block in self._blocks], self._stream)
        return self._call()
