"""What each source line costs the memory and the arithmetic units: bank conflicts, sectors, bytes,
operations.

Shared memory has 32 banks of 4 bytes. The lanes of a warp are served together where each accesses 4
bytes or less, 16 lanes at a time for 8 bytes, 8 for 16 bytes; words of one bank that differ are
served one after the other, in a wavefront each. Global memory moves sectors of 32 bytes. The ideal
is what the same bytes would need if they lay side by side. (CUDA C++ Programming Guide, "Shared
Memory", and the metrics l1tex__data_pipe_lsu_wavefronts_mem_shared and
l1tex__t_sectors_pipe_lsu_mem_global of Nsight Compute.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from tilec.ir.layout.queries import PHASE_BYTES, first_of_each, wavefronts
from tilec.ir.llvm import Inst
from tilec.ir.loc import UNKNOWN, Loc
from tilec.sim.clocks import Ints
from tilec.sim.threads import Threads
from tilec.support.rich import aligned

SECTOR_BYTES = 32
MOST_PATTERNS = 4096  # of addresses, whose costs are kept


@dataclass
class LineCount:
    """Of one source line, over all blocks that were run.

    `*_requests`: accesses by a warp. `wavefronts` of shared memory and `ideal_wavefronts`; `ways`:
    the most wavefronts that took the place of one. `sectors` of global memory and `ideal_sectors`.
    Bytes by level: those of threads, and those of engines (TMA, cp.async, wgmma). `flops`: of
    matrix instructions, by type of the operands, a multiply-add being two. `special`: operations
    such as exp2, by lane. `shuffles`: exchanges of a word within a warp.
    """

    loc: Loc = UNKNOWN
    shared_requests: int = 0
    wavefronts: int = 0
    ideal_wavefronts: int = 0
    ways: int = 0
    global_requests: int = 0
    sectors: int = 0
    ideal_sectors: int = 0
    shared_read: int = 0
    shared_written: int = 0
    global_read: int = 0
    global_written: int = 0
    engine_shared_read: int = 0
    engine_shared_written: int = 0
    engine_global_read: int = 0
    engine_global_written: int = 0
    special: int = 0
    shuffles: int = 0
    flops: dict[str, int] = field(default_factory=dict)

    @property
    def conflicts(self) -> int:
        """Wavefronts of shared memory that bank conflicts cost."""
        return self.wavefronts - self.ideal_wavefronts

    def add(self, other: LineCount) -> None:
        """Count what `other` counts too."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.ways = max(self.ways, other.ways)
        for kind, n in other.flops.items():
            self.flops[kind] = self.flops.get(kind, 0) + n


_SUMS = [f.name for f in fields(LineCount) if f.name not in ("loc", "ways", "flops")]

Cost = tuple[int, int, int, int]
"""Requests, wavefronts or sectors, the ideal of that, and the most ways."""


class Counts:
    """Counts by record, given by source line in `lines`."""

    def __init__(self, lines: Iterable[LineCount] = ()) -> None:
        self._by_record: dict[int, LineCount] = {}
        self._records: list[Inst | None] = []  # keeps the records, and so their ids, alive
        self._read = list(lines)
        self._costs: dict[tuple[Any, ...], Cost] = {}

    def _of(self, inst: Inst | None) -> LineCount:
        found = self._by_record.get(id(inst))
        if found is None:
            loc = inst.loc if inst is not None else UNKNOWN
            found = self._by_record[id(inst)] = LineCount(loc)
            self._records.append(inst)
        return found

    # --- what memory and engines say ---

    def threads(self, active: Threads, space: str, at: Ints, size: int, does: str) -> None:
        """Lanes access `size` bytes each of "shared" or "global" memory at addresses `at` (lanes,
        or one for all), which are "read" or "written"."""
        line = self._of(active.inst)
        total = size * len(active.lanes)
        if space == "shared":
            requests, waves, ideal, ways = self._cost(active, at, size, PHASE_BYTES, _wavefronts)
            line.shared_requests += requests
            line.wavefronts += waves
            line.ideal_wavefronts += ideal
            line.ways = max(line.ways, ways)
        else:
            requests, sectors, ideal, _ = self._cost(active, at, size, SECTOR_BYTES, _sectors)
            line.global_requests += requests
            line.sectors += sectors
            line.ideal_sectors += ideal
        name = f"{space}_{does}"
        setattr(line, name, getattr(line, name) + total)

    def engine(self, inst: Inst | None, space: str, does: str, bytes: int) -> None:
        """An engine has "read" or "written" bytes of "shared" or "global" memory."""
        line, name = self._of(inst), f"engine_{space}_{does}"
        setattr(line, name, getattr(line, name) + bytes)

    def flops(self, inst: Inst | None, kind: str, count: int) -> None:
        """Matrix instructions of all lanes together do `count` operations on operands of the dtype
        `kind`."""
        flops = self._of(inst).flops
        flops[kind] = flops.get(kind, 0) + count

    def work(self, active: Threads, inst: Inst, kind: str) -> None:
        """Each lane does a "special" function, or each warp a "shuffle": it exchanges a word
        between its lanes."""
        line = self._of(inst)
        if kind == "special":
            line.special += len(active.lanes)
        else:
            line.shuffles += len(np.unique(active.lanes // active.block.warp_size))

    def _cost(self, active: Threads, at: Ints, size: int, period: int, count: Any) -> Cost:
        """What an access costs, remembered by its pattern of addresses."""
        lanes = active.lanes
        first, base = int(lanes[0]), int(at[0])
        dense = int(lanes[-1]) - first + 1 == len(lanes)
        warp = active.block.warp_size
        who = (first % warp, len(lanes)) if dense else lanes.tobytes()
        key = (period, size, warp, base % period, who, (at - base).tobytes())
        found = self._costs.get(key)
        if found is None:
            if len(self._costs) >= MOST_PATTERNS:
                self._costs.clear()
            rows = _by_warp(lanes, np.broadcast_to(at, lanes.shape), warp)
            found = self._costs[key] = count(rows, size)
        return found

    # --- for readers ---

    @property
    def lines(self) -> list[LineCount]:
        """One for each source line, by file and line; macros count where they are called."""
        found: dict[tuple[str, int], LineCount] = {}
        for one in [*self._read, *self._by_record.values()]:
            loc = one.loc.chain()[-1]
            total = found.setdefault((loc.file, loc.line), LineCount(loc))
            total.add(one)
        return [found[k] for k in sorted(found)]

    def places(self) -> list[Loc]:
        """The locations of the lines."""
        return [line.loc for line in self.lines]

    def cells(
        self, sources: Mapping[tuple[str, int], str] | None = None
    ) -> tuple[list[str], list[list[str]]]:
        """Titles of the columns that hold something, and a row for each line: the last cell is
        "3: text", of a text that `sources` may hold by file and line."""
        rows = [[cell(line) for _, cell in COLUMNS] for line in self.lines]
        used = [i for i, _ in enumerate(COLUMNS) if any(r[i] for r in rows)]
        made = []
        for line, row in zip(self.lines, rows):
            text = (sources or {}).get((line.loc.file, line.loc.line))
            text = line.loc.source_line() if text is None else text
            made.append([*(row[i] for i in used), f"{line.loc.line}: {text.strip()}".rstrip()])
        return [*(COLUMNS[i][0] for i in used), "line"], made

    def table(self, sources: Mapping[tuple[str, int], str] | None = None) -> str:
        """The counts beside the source; "" where nothing was counted."""
        titles, rows = self.cells(sources)
        if not rows:
            return ""
        head, *made = aligned(rows, titles, right=range(len(titles) - 1)).split("\n")
        out, file = list[str](), None
        for line, text in zip(self.lines, made):
            if line.loc.file != file:
                file = line.loc.file
                out.append(f"{head} of {file}")
            out.append(text)
        return "\n".join(out)


# --- costs of one access ---


def _by_warp(lanes: Ints, at: Ints, warp: int) -> Ints:
    """(warps, lanes of a warp): the addresses, -1 where a lane is not here."""
    warps = lanes // warp
    first = int(warps[0])
    rows = np.full((int(warps[-1]) - first + 1, warp), -1, np.int64)
    rows[warps - first, lanes % warp] = at
    here: Ints = rows[(rows >= 0).any(axis=1)]
    return here


def _wavefronts(rows: Ints, size: int) -> Cost:
    """Rows of addresses of warps, `size` bytes each lane."""
    ways = wavefronts(rows, size)
    return len(rows), int(ways.sum()), len(ways), int(ways.max())


def _sectors(rows: Ints, size: int) -> Cost:
    """The same, of global memory."""
    reach = -(-size // SECTOR_BYTES) + 1
    first = rows // SECTOR_BYTES
    last = (rows + size - 1) // SECTOR_BYTES
    at = np.minimum(first[:, :, None] + np.arange(reach), last[:, :, None])
    at = np.where((rows >= 0)[:, :, None], at, -1).reshape(len(rows), -1)
    # Lanes that want the same bytes need them once.
    single = first_of_each(np.sort(rows, axis=1)).sum(axis=1)
    ideal = -(-single * size // SECTOR_BYTES)
    return len(rows), int(first_of_each(np.sort(at, axis=1)).sum()), int(ideal.sum()), 1


# --- the table ---


def _ratio(got: int, ideal: int) -> str:
    return f"{got:,}" if got == ideal else f"{got:,} ({got / max(ideal, 1):.2g}x)"


def _bytes(*counts: int) -> str:
    return " / ".join(f"{n:,}" for n in counts) if any(counts) else ""


def _conflicts(line: LineCount) -> str:
    if not line.wavefronts:
        return ""
    ways = f" ({line.ways} ways)" if line.ways > 1 else ""
    return f"{_ratio(line.wavefronts, line.ideal_wavefronts)}{ways}"


COLUMNS: tuple[tuple[str, Any], ...] = (
    ("shared wavefronts", _conflicts),
    ("global sectors", lambda c: _ratio(c.sectors, c.ideal_sectors) if c.sectors else ""),
    ("shared B r/w", lambda c: _bytes(c.shared_read, c.shared_written)),
    ("global B r/w", lambda c: _bytes(c.global_read, c.global_written)),
    ("async shared B r/w", lambda c: _bytes(c.engine_shared_read, c.engine_shared_written)),
    ("async global B r/w", lambda c: _bytes(c.engine_global_read, c.engine_global_written)),
    ("matrix flops", lambda c: ", ".join(f"{n:,} {k}" for k, n in sorted(c.flops.items()))),
    ("special", lambda c: f"{c.special:,}" if c.special else ""),
    ("shuffles", lambda c: f"{c.shuffles:,}" if c.shuffles else ""),
)
"""Titles of the table and what stands below them; empty columns are left out."""
