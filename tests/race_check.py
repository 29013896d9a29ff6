"""Who touched which byte of shared memory since when: finds accesses that no barrier orders.

A thread's access is ordered behind another's by a barrier of the scope between them, or within a
warp by a `warp_sync`. Asynchronous accesses (cp.async writes, wgmma and TMA-store reads) last from
their start to the wait for their group; a warpgroup's wait for its products tells each of its
threads that all have read the operands. What different scopes exchange is ordered by mbarriers and
not looked at here; nor is global memory.
"""

from __future__ import annotations

from collections import deque

import numpy as np

IN_FLIGHT = 1 << 60
WARPGROUP = 128


class Race(Exception):
    """Two accesses of the same bytes that nothing orders."""


class Clock:
    """Of one scope: barriers and warp syncs passed, and the groups in flight."""

    def __init__(self, number: int, warp_size: int) -> None:
        self.number = number
        self.size = warp_size
        self.epoch = 1
        self.warp_epoch = 1
        self.open: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        self.groups: dict[str, deque[list[tuple[np.ndarray, np.ndarray]]]] = {}

    def start(self, kind: str, bytes_: np.ndarray, threads: np.ndarray) -> None:
        self.open.setdefault(kind, []).append((bytes_, threads))

    def commit(self, kind: str) -> None:
        self.groups.setdefault(kind, deque()).append(self.open.pop(kind, []))


class RaceCheck:
    """The history of every granule: bytes that are accessed together. Thread numbers are those of
    the block."""

    def __init__(self, size: int) -> None:
        # Scopes count from 1: of a granule whose scope is 0 nothing else is looked at.
        self.writer, self.w_epoch, self.w_warp, self.w_scope = np.zeros((4, size), np.int64)
        self.unfenced = np.zeros(size, bool)
        self.first, self.last = np.zeros((2, size), np.int64)  # the range of threads that have read
        self.r_epoch, self.r_warp, self.r_scope = np.zeros((3, size), np.int64)
        self.by_product = np.zeros(size, bool)  # nothing but products of a warpgroup has read

    def read(self, c: Clock, at: np.ndarray, thread: np.ndarray, what: str) -> None:
        """`thread` (n,) reads granules `at` (n, …)."""
        at, thread = self._flat(at, thread)
        self._against_writes(c, at, thread, what)
        self._note_read(c, at, thread, c.epoch)

    def engine_read(
        self, c: Clock, kind: str, at: np.ndarray, thread: np.ndarray, what: str
    ) -> None:
        """An asynchronous engine reads `at` on behalf of `thread` until its group is done."""
        at, thread = self._flat(at, thread)
        self._against_writes(c, at, thread, what)
        if (self.unfenced[at] & (self.w_scope[at] == c.number)).any():
            raise Race(f"{what} reads what a thread wrote, without a proxy fence")
        self._note_read(c, at, thread, IN_FLIGHT, product=kind == "wgmma")
        c.start(kind, at, thread)

    def write(self, c: Clock, at: np.ndarray, thread: np.ndarray, what: str) -> None:
        at, thread = self._flat(at, thread)
        self._before_write(c, at, thread, what)
        self._note_write(c, at, thread, c.epoch)
        self.unfenced[at] = True

    def late_write(self, c: Clock, at: np.ndarray, thread: np.ndarray, what: str) -> None:
        """cp.async: written at any time until its group is waited for."""
        at, thread = self._flat(at, thread)
        self._before_write(c, at, thread, what)
        self._note_write(c, at, thread, IN_FLIGHT)
        self.unfenced[at] = True
        c.start("cp_async", at, thread)

    def wait(self, c: Clock, kind: str, pending: int) -> None:
        """At most `pending` groups are in flight afterwards."""
        groups = c.groups.setdefault(kind, deque())
        while len(groups) > pending:
            for at, _ in groups.popleft():
                if kind == "cp_async":
                    self.w_epoch[at], self.w_warp[at] = c.epoch, c.warp_epoch
                else:
                    self.r_epoch[at], self.r_warp[at] = c.epoch, c.warp_epoch

    def fence(self, c: Clock) -> None:
        self.unfenced[self.w_scope == c.number] = False

    # --- inside ---

    def _flat(self, at: np.ndarray, thread: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        wide = np.broadcast_to(thread.reshape(-1, *(1,) * (at.ndim - 1)), at.shape)
        return at.ravel(), wide.ravel()

    def _against_writes(self, c: Clock, at: np.ndarray, thread: np.ndarray, what: str) -> None:
        epoch = self.w_epoch[at]
        written = (self.w_scope[at] == c.number) & (epoch >= c.epoch)
        if not written.any():
            return
        writer = self.writer[at]
        same_warp = writer // c.size == thread // c.size
        ordered = (writer == thread) | (same_warp & (self.w_warp[at] < c.warp_epoch))
        bad = written & ~(ordered & (epoch < IN_FLIGHT))
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise Race(
                f"{what}: thread {thread[i]} after a write by thread {writer[i]}, granule {at[i]}"
            )

    def _before_write(self, c: Clock, at: np.ndarray, thread: np.ndarray, what: str) -> None:
        self._against_writes(c, at, thread, what)
        epoch = self.r_epoch[at]
        read = (self.r_scope[at] == c.number) & (epoch >= c.epoch)
        if not read.any():
            return
        first, last = self.first[at], self.last[at]
        alone = (first == thread) & (last == thread)
        same_warp = (first // c.size == thread // c.size) & (last // c.size == thread // c.size)
        group = thread // WARPGROUP
        same_group = (first // WARPGROUP == group) & (last // WARPGROUP == group)
        ordered = alone | (same_warp & (self.r_warp[at] < c.warp_epoch))
        ordered |= same_group & self.by_product[at]
        bad = read & ~(ordered & (epoch < IN_FLIGHT))
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise Race(
                f"{what}: thread {thread[i]} writes granule {at[i]}, read by {first[i]}..{last[i]}"
            )

    def _note_read(
        self, c: Clock, at: np.ndarray, thread: np.ndarray, epoch: int, product: bool = False
    ) -> None:
        old = (self.r_epoch[at] < c.epoch) | (self.r_scope[at] != c.number)
        self.first[at[old]], self.last[at[old]] = 1 << 40, -1
        self.by_product[at[old]] = True
        self.by_product[at] &= product
        np.minimum.at(self.first, at, thread)
        np.maximum.at(self.last, at, thread)
        self.r_epoch[at] = np.where(old, epoch, np.maximum(self.r_epoch[at], epoch))
        self.r_warp[at], self.r_scope[at] = c.warp_epoch, c.number

    def _note_write(self, c: Clock, at: np.ndarray, thread: np.ndarray, epoch: int) -> None:
        self.writer[at], self.w_epoch[at] = thread, epoch
        self.w_warp[at], self.w_scope[at] = c.warp_epoch, c.number
        self.r_scope[at] = 0  # whoever is behind this write is behind the reads before it
