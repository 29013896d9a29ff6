"""The program with a grid that a loop over whole tensors becomes, written as syntax."""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from tilec.frontend.builtins.reduce import combine_parts, scan_tile
from tilec.frontend.whole_loops.inner import Inner, Inners
from tilec.frontend.whole_loops.nests import Nest, unravelled
from tilec.frontend.whole_loops.operands import Tiling
from tilec.frontend.whole_loops.pairs import Pairs
from tilec.frontend.whole_loops.products import Product
from tilec.frontend.whole_loops.rows import Rows
from tilec.frontend.whole_loops.side_by_side import SideBySide
from tilec.frontend.whole_loops.spans import Most, span_of
from tilec.frontend.whole_loops.tiles import Tiles
from tilec.frontend.whole_loops.writing import Gemms, Given, Line, Writer, indented
from tilec.ir.types import NARROW_TILE, WIDE_TILE, next_power_of_2
from tilec.support.syntax import names_in, parsed, placed

_ELEMENTS = 2048  # of a tile
_DIMS = 3  # along which a tile has more than one element, at most
_THREADS = 128
_SHORT = 32  # a sum that has one step, about


class Blocks(Writer):
    """Writes the program with a grid. `asked`: how many threads the decorator or the launch asks
    for."""

    def __init__(self, node: ast.stmt, nest: Nest, used: set[str], asked: int | None) -> None:
        super().__init__(node, nest, used)
        self.asked = asked

    def product(
        self, parts: Sequence[Product | Pairs], tiled: Sequence[Tiling],
        sizes: Mapping[str, Given], edges: bool,
    ) -> ast.With:  # fmt: skip
        """Tiles of `sizes` of sums along what is `tiled`, which a loop for each of `parts` adds up
        by T.gemm, or of what pairs of rows keep; `edges`: what is done with them is compared with
        the loop's extents."""
        m, n = ([self.nest.indices.index(i) for i in x] for x in (tiled[0].rows, tiled[0].columns))
        batch = [d for d in range(len(self.nest.indices)) if d not in (*m, *n)]
        batches = f", {_product(batch)}" * bool(batch)
        made, loops, counts = list[str](), list[str](), Counter[str]()
        totals, own = dict[str, str](), list[ast.stmt]()
        self.given |= sizes

        def name(base: str) -> str:
            counts[base] += 1
            return _numbered(base, counts[base] - 1)

        first, g = 0, None
        for x, t in zip(parts, tiled, strict=True):
            *around, k = self.counted(x.inner, first)
            first = k + 1
            begin, steps = name("first"), f"T.ceildiv(K{k}, BK)"
            begun, span = self._span(
                x, [*around, k], (m, "by * BM", "BM"), (n, "bx * BN", "BN"),
                called=(begin, name("steps")),
            )  # fmt: skip
            step, turn = "step", ""
            if span:
                steps = span[-1].split()[0]
            if around:
                step, turn = f"(step % {steps})", f"(step // {steps})"
            if begun:
                step = f"({begin} + {step})"
            lines = (
                Line(m, "by * BM", "BM"), Line(n, "bx * BN", "BN"),
                Line([k], f"{step} * BK", "BK", f"J{k}", f"K{k}"),
            )  # fmt: skip
            g = self.gemms(x, t, lines, name, g)
            alone, places, of_one = self._alone(x, g, t, lines)
            made += [*begun, *span, *g.made, *g.begun]
            totals, own = totals | places, own + of_one
            filled = "\n".join([*(o.filled for o in g.tiles.values()), *alone, *g.added])
            turns = " * ".join([*(f"K{d}" for d in around), steps])
            loops.append(
                f"""
    for step in T.Pipelined({turns}{", num_stages=2" * bool(g.head)}):
        {unravelled([f"J{d}" for d in around], [f"K{d}" for d in around], turn)}
{indented(filled, 2)}
""".strip("\n")
            )
            totals |= {total: f"{x}[row, column]" for total, x in g.sums.items() if not g.head}
        assert g is not None
        behind = "; ".join(f"T.finalize_reducer(fold{n})" for n in range(len(own))) or "pass"
        grid = f"T.ceildiv({_product(n)}, BN), T.ceildiv({_product(m)}, BM){batches}"
        begun_lines, summed = "\n".join(made), "\n".join(loops)
        head = (
            g.head
            or f"""for row, column in T.Parallel(BM, BN):
    {self._apart("by * BM + row", m)}
    {self._apart("bx * BN + column", n)}"""
        )
        text = f"""
with T.Kernel({grid}) as (bx, by{", bz" * bool(batch)}):
    {self._apart("bz", batch)}
{indented(begun_lines, 1)}
{summed}
    {behind}
{indented(head, 1)}
        {f"if I{m[0]} < E{m[0]} and I{n[0]} < E{n[0]}: BODY" if edges else "BODY"}
"""
        self.given["BODY"] = [*own, *parts[0].behind]
        return self._written(text, totals, g.places)

    def _alone(
        self, p: Product | Pairs, g: Gemms, tiled: Tiling, lines: tuple[Line, Line, Line]
    ) -> tuple[list[str], dict[str, str], list[ast.stmt]]:
        """Loops that add up what rows alone, or columns alone, say of a step; which elements stand
        for names of these sums, and for what is in tiles; and what gives the author's the sums."""
        made, places, given, k = list[str](), dict[str, str](), dict[str, ast.stmt](), lines[2]
        for x in p.alone:
            side = 0 if names_in(x.value) & {*p.rows} else 1
            at, line, total = ("row", "column")[side], lines[side], ast.unparse(x.total)
            for o in p.operands:
                if o.text in tiled.copied and (o.text in g.left) == (side == 0):
                    tile = g.tiles[o.text]
                    where = f"turn, {at}" if tile.k_first else f"{at}, turn"
                    places[o.text] = f"{tile.name}[{where}]"
            if total not in given:
                own, fold = self._fresh(total), f"fold{len(given)}"
                places[own] = f"{fold}[{at}]"
                kind = self.put(x.dtype)
                g.made.append(f"{fold} = T.alloc_reducer(({line.size},), {kind}, op='sum')")
                g.made.append(f"T.reducer_init({fold})")
                given[total] = parsed(f"{total} = {own}", x.value)[0]
            into = ast.unparse(given[total]).rpartition(" ")[2]
            number = len(made)
            added = ast.AugAssign(ast.Name(into, ast.Store()), ast.Add(), x.value)
            placed(added.target, x.value)
            self.given[f"ADDED{number}"] = [ast.copy_location(added, x.value)]
            made.append(f"""
for {at}, turn in T.Parallel({line.size}, BK):
    {self._apart(f"{line.begin} + {at}", line.indices)}
    {k.turn} = {k.begin} + turn
    if {k.turn} < {k.extent}: ADDED{number}
""")
        return made, places, [*given.values()]

    def _span(
        self, p: Product | Pairs, turns: Sequence[int], *lines: tuple[list[int], str, str],
        called: tuple[str, str],
    ) -> tuple[list[str], list[str]]:  # fmt: skip
        """Statements that say at which step of a tile's sum there is something that conditions do
        not leave out, and for how many steps, `called` so. `turns`: the numbers of its loops,
        `lines`: the indices that tiles go along, where one begins, and how many it has."""
        index = p.inner[-1][0]
        none, others, outer = ("", 0), zip(turns, p.inner[:-1]), self.nest.indices
        ranges = {name: (none, (f"K{d}", -1)) for d, (name, _) in others}
        for own, begin, size in lines:
            for d in own:
                ranges[outer[d]] = none, (f"E{d}", -1)
                if len(own) == 1:
                    end = f"T.min({begin} + {size}, E{d})"
                    ranges[outer[d]] = (f"({begin})", 0), (end, -1)
        most, extent = Most(ranges, self.nest.named, self.put), p.inner[-1][1]
        match extent:
            case ast.Constant(int(n)) if n <= _SHORT:
                tests: tuple[ast.expr, ...] = ()
            case _:
                tests = p.tests
        begins, ends, some = span_of(tests, p.guards, index, most)
        if not (begins or ends or some):
            return [], []
        first = [f"{called[0]} = T.max(0, {', '.join(begins)}) // BK"] if begins else []
        last = ", ".join([f"K{turns[-1]}", *ends])
        steps = (
            f"T.ceildiv({f'T.min({last})' if ends else last}, BK){f' - {called[0]}' * bool(begins)}"
        )
        if begins or ends:
            steps = f"T.max({steps}, 0)"
        for x in some:
            steps = f"T.if_then_else({x} > 0, {steps}, 0)"
        return first, [f"{called[1]} = {steps}"]

    def elements(
        self, about: Sequence[int], unit: int, sizes: Sequence[bool], edges: bool, holds: object
    ) -> ast.With:
        """T.Parallel over tiles along the last indices, which take about as many values as `about`
        says, the last one a multiple of `unit`; `sizes`: which extents are tensors'; `edges`:
        indices are compared with the extents; `holds`: what says that something does."""
        tile = tile_of(about, unit if sizes[-1] else WIDE_TILE)
        outer, own = list(range(len(about) - len(tile))), range(len(about) - len(tile), len(about))
        inside = [f"x{d}" for d in own]
        number, made = "block", []
        for d, size in reversed([*zip(own, tile)]):
            down = f"tiles{d}"
            made += [f"I{d} = {number} % {down} * {size} + x{d}"]
            number = f"({number} // {down})"
        counts = [f"T.ceildiv(E{d}, {size})" for d, size in zip(own, tile)]
        compared = " and ".join(f"I{d} < E{d}" for d in reversed(own))
        some = [f"E{d}" for d, size in enumerate(sizes) if size]
        some += [f"tiles{d}" for d in own if sizes[d]]
        there = " and ".join(f"{x} > 0" for x in some)  # as there is a block, and none is below 0
        threads = self.asked or threads_of(tile)
        text = f"""
with T.Kernel({" * ".join(counts)} * {_product(outer)}, threads={threads}) as block:
    {"; ".join(f"tiles{d} = {count}" for d, count in zip(own, counts))}
    {f"HOLDS({there})" if some else "pass"}
    {self._apart(number, outer)}
    for {", ".join(inside)} in T.Parallel({", ".join(map(str, tile))}):
        {"; ".join(made)}
        {f"if {compared}: BODY" if edges else "BODY"}
"""
        self.given |= {"BODY": list(self.nest.body), "HOLDS": self._fresh("holds")}
        self.names[str(self.given["HOLDS"])] = holds
        return self._written(text)

    def threads(
        self, typed: Nest | None = None, unit: int = 1, iterations: int = 0,
        bits: Callable[[str], int] = lambda tensor: 0,
    ) -> ast.With:  # fmt: skip
        """One thread for each iteration, or for several; see `side_by_side`. `typed`: the nest with
        dtypes, of so many `iterations`, the last extent a multiple of `unit`."""
        if typed is not None:
            several = SideBySide(typed, self.language, self._fresh, bits)
            self.nest = several.written(unit, iterations) or self.nest
            last = len(self.nest.indices) - 1
            self.given |= {f"I{last}": self.nest.indices[-1], f"E{last}": self.nest.extents[-1]}
        self.given["BODY"] = list(self.nest.body)
        return self._one_by_one(self.asked or _THREADS, "T.get_thread_binding(0)")

    def _one_by_one(self, each: int, own: str, top: str = "") -> ast.With:
        """Blocks of `each` iterations, of which a thread has the one with the number `own`; what it
        does first."""
        indices = list(range(len(self.nest.indices)))
        text = f"""
with T.Kernel(T.ceildiv({_product(indices)}, {each}), threads={self.asked or _THREADS}) as block:
    {top}
    iteration = block * {each} + {own}
    if iteration < {_product(indices)}:
        {self._apart("iteration", indices)}
        BODY
"""
        return self._written(text)

    def rows(self) -> ast.With | None:
        """Lanes of a warp for each iteration, if it goes along rows; see `rows`."""
        threads, lanes = self.asked or _THREADS, self.nest.lanes
        if not lanes or threads % lanes:
            return None
        lane = self._fresh("lane")
        body = Rows(self.nest, self.language, lane, self._fresh).body()
        if body is None:
            return None
        self.given |= {"BODY": body, "LANE": lane}
        return self._one_by_one(threads // lanes, "T.get_warp_idx()", "LANE = T.get_lane_idx()")

    def tiles(self, inner: Sequence[Inner] = (), across: str = "") -> ast.With | None:
        """Tiles of several iterations, if they go along rows or down columns, and lanes may share
        these; see `tiles`. `inner`: the sums of products for which names stand, `across`: the index
        of columns that these share."""
        if not self.nest.lanes:
            return None
        ours = "block", "part", "combined", "scan"
        block, part, combined, scanned = map(self._fresh, ours)
        used = self.used
        writer = Tiles(
            self.nest, self.language, "", self._fresh, block=block, part=part, combined=combined,
            scan=scanned, totals=frozenset(x for i in inner for x in i.names.values()),
            gemms=Inners(self, inner).gemms, across=across,
        )  # fmt: skip
        found = writer.tiled()
        if found is None or found.threads != (self.asked or found.threads):
            self.used = used
            return None
        *outer, last = range(len(self.nest.indices))
        extents = f"T.ceildiv({_product([*outer, last])}, {found.outer})"
        if found.alone:
            counts = [f"T.ceildiv(E{last}, {found.outer})"]
            for d in outer:
                wide = self.nest.indices[d] == across
                counts.append(f"T.ceildiv(E{d}, {found.width})" if wide else f"E{d}")
            extents = " * ".join(counts)
        names = "BLOCK"
        if found.parts > 1:
            extents, names = f"{extents}, 1, {found.parts}", "(BLOCK, ONE, PART)"
        text = f"""
with T.Kernel({extents}, threads={found.threads}) as {names}:
    BODY
"""
        self.given |= {"BODY": found.body, "BLOCK": block, "PART": part}
        self.given["ONE"] = self._fresh("one")
        self.names |= {combined: combine_parts, scanned: scan_tile}
        return self._written(text)


def tile_of(about: Sequence[int], unit: int) -> list[int]:
    """The extents of a tile along the last of the indices that take about so many values, the last
    one a multiple of `unit`: rows that are short are not padded to long ones, and there are more of
    them; a tile that sticks out of a row does so by little."""
    tile: list[int] = []
    left = _ELEMENTS
    columns = NARROW_TILE if unit < NARROW_TILE < about[-1] // 2 else WIDE_TILE
    for extent in reversed(about):
        most = left if tile or len(about) == 1 else columns
        if left == 1 or len(tile) == _DIMS:
            break
        tile.insert(0, min(most, next_power_of_2(extent)) if len(about) > 1 else most)
        left //= tile[0]
    return tile


def threads_of(tile: Sequence[int]) -> int:
    """The threads of a tile."""
    return max(_THREADS // 2, min(2 * _THREADS, math.prod(tile) // 8))


def _numbered(name: str, number: int) -> str:
    return name + f"{number}" * bool(number)


def _product(extents: list[int]) -> str:
    return " * ".join(f"E{d}" for d in extents) or "1"
