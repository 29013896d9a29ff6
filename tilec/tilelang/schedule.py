"""`T.PersistentTileScheduler`: tiles of a grid dealt to blocks that stay, as TileLang's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilec import language as T
from tilec.frontend.values import Region
from tilec.tilelang.arch import driver

_ROW, _COLUMN, _LINEAR, _ITERATION = range(4)  # what `state` holds


@dataclass(frozen=True)
class Schedule:
    """A scheduler in a kernel. `primary` tiles along the direction that is walked first, in panels
    of `swizzle` tiles of the other, of which there are `secondary`."""

    primary: Any
    secondary: Any
    swizzle: int
    by_column: bool
    workers: Any
    state: Any

    def _field(self, which: int) -> Region:
        if self.state is None:
            raise AttributeError("a scheduler with stateful=False has coord alone")
        return Region(self.state, (which,), (None,), self.state.loc)

    @property
    def m_idx(self) -> Region:
        """The row of the tile at hand; with clusters, that of the cluster."""
        return self._field(_ROW)

    @property
    def n_idx(self) -> Region:
        """The column of the tile at hand."""
        return self._field(_COLUMN)

    @property
    def linear_idx(self) -> Region:
        """The number of the tile at hand, in the order of the walk."""
        return self._field(_LINEAR)

    @property
    def current_iter(self) -> Region:
        """How many tiles this block has left behind."""
        return self._field(_ITERATION)

    @T.macro
    def coord(self, tile_id):  # type: ignore[no-untyped-def]
        """(row, column) of the tile of a number."""
        in_panel = self.primary * self.swizzle
        begin = tile_id // in_panel * self.swizzle
        width = T.max(1, T.min(self.swizzle, self.secondary - begin))
        fast, slow = tile_id % in_panel // width, begin + tile_id % in_panel % width
        return (fast, slow) if self.by_column else (slow, fast)

    @T.macro
    def _go_to(self, tile_id):  # type: ignore[no-untyped-def]
        row, column = self.coord(tile_id)
        self.state[_ROW] = row
        self.state[_COLUMN] = column
        self.state[_LINEAR] = tile_id

    @T.macro
    def init(self, worker_id):  # type: ignore[no-untyped-def]
        """Begin with the first tile of a worker."""
        self.state[_ITERATION] = 0
        self._go_to(worker_id)

    @T.macro
    def next_tile(self):  # type: ignore[no-untyped-def]
        """Go on to this worker's next tile."""
        self.state[_ITERATION] = self.state[_ITERATION] + 1
        self._go_to(self.state[_LINEAR] + self.workers)

    @T.macro
    def valid(self):  # type: ignore[no-untyped-def]
        """Whether there is a tile at hand."""
        return self.state[_LINEAR] < self.primary * self.secondary


@T.macro
def PersistentTileScheduler(  # type: ignore[no-untyped-def]  # noqa: N802 (their name)
    num_m_tiles,
    num_n_tiles,
    num_workers=None,
    swizzle_size=1,
    column_major=True,
    cluster_size=1,
    stateful=True,
    name=None,
):
    """A scheduler of num_m_tiles by num_n_tiles tiles for `num_workers` blocks, or clusters of
    `cluster_size` blocks along M: the multiprocessors of the machine where it is left out. Down the
    columns first (`column_major`), in panels of `swizzle_size` tiles.

    `sched.init(block)`, then `while sched.valid():` with `sched.m_idx`, `sched.n_idx` and
    `sched.current_iter`, and `sched.next_tile()` at the end; or `sched.coord(number)` alone.
    """
    rows = T.ceildiv(num_m_tiles, cluster_size)
    workers = num_workers
    if num_workers is None:
        workers = _multiprocessors() // cluster_size
    primary, secondary = (rows, num_n_tiles) if column_major else (num_n_tiles, rows)
    state = T.alloc_local((4,), "int32") if stateful else None
    return Schedule(primary, secondary, swizzle_size, column_major, workers, state)


def _multiprocessors() -> int:
    return driver.get_num_sms()
