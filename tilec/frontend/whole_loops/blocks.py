"""The program with a grid that a loop over whole tensors becomes, written as syntax."""

from __future__ import annotations

import ast
import copy
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tilec import language as T
from tilec.frontend.whole_loops.folds import Magnitude
from tilec.frontend.whole_loops.nests import DtypeOf, Named, Nest, Put, fresh_name, unravelled
from tilec.frontend.whole_loops.operands import Operand, Tiling, beside
from tilec.frontend.whole_loops.pairs import Pairs
from tilec.frontend.whole_loops.products import Product
from tilec.frontend.whole_loops.rows import Known, Rows
from tilec.frontend.whole_loops.tiles import Tiles
from tilec.ir.types import NARROW_TILE, WIDE_TILE, next_power_of_2
from tilec.support.syntax import names_in, parsed, placed

_ELEMENTS = 2048  # of a tile
_DIMS = 3  # along which a tile has more than one element, at most
_THREADS = 128

Given = str | ast.expr | list[ast.stmt]


class _Tile(NamedTuple):
    """A shared tile of an operand: the statements that make and fill it, and whether it goes down
    its columns along the sum."""

    name: str
    made: str
    filled: str
    k_first: bool


class _Line(NamedTuple):
    """Indices that a tile goes along as one, by their numbers, where it begins, and how many it
    has; of the sum what its index, `turn`, and its extent are called."""

    indices: list[int]
    begin: str
    size: str
    turn: str = ""
    extent: str = ""


class Blocks:
    """Writes the program with a grid that the loop at `node` becomes. `used` are the names that it
    must not take; it asks for tilec's builtins as attributes of `language`. `asked`: how many
    threads the decorator or the launch asks for. `names`: what names of its own stand for."""

    def __init__(self, node: ast.stmt, nest: Nest, used: set[str], asked: int | None) -> None:
        self.node, self.nest, self.used, self.asked = node, nest, used, asked
        self.language = fresh_name("T", used)
        self.names: dict[str, object] = {self.language: T}
        self.given: dict[str, Given] = {}
        for d, (index, extent) in enumerate(zip(nest.indices, nest.extents)):
            self.given |= {f"I{d}": index, f"E{d}": extent}

    def product(self, p: Product, tiled: Tiling, sizes: Mapping[str, str], edges: bool) -> ast.With:
        """A tiled T.gemm for each sum, with tiles of `sizes` along what is `tiled`; `edges`: its
        results are compared with the loop's extents."""
        m, n = ([p.outer.index(i) for i in line] for line in (tiled.rows, tiled.columns))
        batch = [d for d in range(len(p.outer)) if d not in (*m, *n)]
        batches = f", {_product(batch)}" * bool(batch)
        for d, (index, extent) in enumerate(p.inner):
            self.given |= {f"J{d}": index, f"K{d}": extent}
        *around, k = range(len(p.inner))
        steps, step, turn = f"T.ceildiv(K{k}, BK)", "step", ""
        if around:
            step, turn = f"(step % {steps})", f"(step // {steps})"
        rows, columns = _Line(m, "by * BM", "BM"), _Line(n, "bx * BN", "BN")
        turns = _Line([k], f"{step} * BK", "BK", f"J{k}", f"K{k}")
        tiles: dict[str, _Tile] = {}
        sums: dict[str, str] = {}
        gemms = []
        for s in p.sums:
            total = sums.setdefault(ast.unparse(s.total), _numbered("sums", len(sums)))
            self.given[f"DTYPE_{total}"] = s.dtype
            for name, operand, line in (("a_tile", s.left, rows), ("b_tile", s.right, columns)):
                same = sum(t.name.startswith(name) for t in tiles.values())
                if operand.text not in tiles:
                    tile = self._operand(_numbered(name, same), operand, line, turns, tiled)
                    tiles[operand.text] = tile
            a, b = tiles[s.left.text], tiles[s.right.text]
            turned = f"transpose_A={a.k_first}, transpose_B={not b.k_first}"
            gemms.append(f"T.gemm({a.name}, {b.name}, {total}, {turned})")
        made = [t.made for t in tiles.values()]
        made += [f"{x} = T.alloc_fragment((BM, BN), DTYPE_{x})" for x in sums.values()]
        made += [f"T.clear({x})" for x in sums.values()]
        filled = "\n".join([*(t.filled for t in tiles.values()), *gemms])
        grid = f"T.ceildiv({_product(n)}, BN), T.ceildiv({_product(m)}, BM){batches}"
        text = f"""
with T.Kernel({grid}) as (bx, by{", bz" * bool(batch)}):
    {self._apart("bz", batch)}
    {"; ".join(made)}
    for step in T.Pipelined({" * ".join([*(f"K{d}" for d in around), steps])}):
        {unravelled([f"J{d}" for d in around], [f"K{d}" for d in around], turn)}
{_indented(filled, 2)}
    for row, column in T.Parallel(BM, BN):
        {self._apart("by * BM + row", m)}
        {self._apart("bx * BN + column", n)}
        {f"if I{m[0]} < E{m[0]} and I{n[0]} < E{n[0]}: BODY" if edges else "BODY"}
"""
        self.given |= {"BODY": [*p.before, *p.epilogue], **sizes}
        return self._written(text, sums)

    def _operand(self, name: str, o: Operand, line: _Line, k: _Line, tiled: Tiling) -> _Tile:
        """A tile of an operand along its rows or columns, and along the sum."""
        turn, *own = (str(self.given[x]) for x in (k.turn, *(f"I{d}" for d in line.indices)))
        begins = {turn: (k.begin, k.size)}
        if len(own) == 1:
            begins[own[0]] = line.begin, line.size
        if o.text in tiled.copied:
            return self._tile(name, o, begins)
        k_first = not o.ends_with(turn) and any(map(o.ends_with, own))
        at, step = self._own("at"), self._own("turn")
        parts, puts = list[_Tile](), dict[str, ast.expr]()
        for e in {e.text: e for e in o.elements() if e.text in tiled.parts}.values():
            parts.append(self._tile(self._own("part"), e, begins))
            place = self._place(parts[-1], at, step)
            puts[e.text] = ast.parse(place, mode="eval").body
        value, dtype = self._put(Put(puts).visit(copy.deepcopy(o.value))), tiled.dtypes[o.text]
        if dtype is None:
            assert o.tensor is not None
            kind = f"{self._put(o.tensor)}.dtype"
        else:
            kind = self._put(dtype)
            for d in (o.dtype, dtype):
                value = value if d is None else f"T.cast({value}, {self._put(d)})"
        tests = [self._put(t) for t in o.tests]
        tests += [f"{k.turn} < {k.extent}"] * (o.text not in tiled.ended)
        if tests:
            value = f"T.if_then_else({' and '.join(tests)}, {value}, T.cast(0, {kind}))"
        (first, rows), (last, columns) = [(at, line.size), (step, k.size)][:: -1 if k_first else 1]
        filled = f"""
for {first}, {last} in T.Parallel({rows}, {columns}):
    {self._apart(f"{line.begin} + {at}", line.indices)}
    {k.turn} = {k.begin} + {step}
    {name}[{first}, {last}] = {value}
"""
        made = [*(t.made for t in parts), f"{name} = T.alloc_shared(({rows}, {columns}), {kind})"]
        return _Tile(
            name, "; ".join(made), "\n".join([*(t.filled for t in parts), filled]), k_first
        )

    def _own(self, base: str) -> str:
        """A name for one of this module's, which the author's syntax may be given."""
        name = f"OWN{len(self.given)}"
        self.given[name] = self._fresh(base)
        return name

    def _place(self, tile: _Tile, at: str, turn: str) -> str:
        """The text of a tile's element, by names that may stand in the author's syntax."""
        name, *place = (str(self.given[x]) for x in (tile.name, at, turn))
        return f"{name}[{', '.join(reversed(place) if tile.k_first else place)}]"

    def _tile(self, name: str, o: Operand, begins: Mapping[str, tuple[str, str]]) -> _Tile:
        """A tile of elements; `begins`: of the indices that they go by, where it begins, and how
        many it has."""
        assert o.tensor is not None
        tensor, shape, at = self._put(o.tensor), list[str](), list[str]()
        last_two = {o.where(i) for i in begins} == {len(o.indices) - 2, len(o.indices) - 1}
        for d, index in enumerate(o.indices):
            by = next((i for i in begins if o.where(i) == d), "")
            place = " + ".join(self._put(x) for x in beside(index, by))
            if by:
                start, size = begins[by]
                shape.append(size)
                place = f"{place} + {start}" if place else start
                place += "" if last_two else f":{place} + {size}"
            at.append(place)
        made = f"{name} = T.alloc_shared(({', '.join(shape)}), {tensor}.dtype)"
        return _Tile(name, made, f"T.copy({tensor}[{', '.join(at)}], {name})", shape[0] == "BK")

    def _put(self, node: ast.expr) -> str:
        """A name for the author's syntax."""
        name = f"GIVEN{len(self.given)}"
        self.given[name] = node
        return name

    def pairs(self, p: Pairs, sizes: Mapping[str, ast.expr]) -> ast.With:
        """Tiles of `sizes` of what pairs of rows keep, which go along the loop in shared tiles of
        these rows, four of its iterations at once, and then those that are left."""
        m, n = map(self.nest.indices.index, (p.row, p.column))
        batch = [d for d in range(len(self.nest.indices)) if d not in (m, n)]
        for d, (index, extent) in enumerate(p.inner):
            self.given |= {f"J{d}": index, f"K{d}": extent}
        k = len(p.inner) - 1
        around, steps = [f"J{d}" for d in range(k)], f"T.ceildiv(K{k}, BK)"
        extents = [f"K{d}" for d in range(k)]
        of = {p.row: ("by * BM", "BM"), p.column: ("bx * BN", "BN")}
        turns = {p.inner[-1][0]: (f"(step % {steps}) * BK", "BK")}
        row, column, turn = map(self._own, ("row", "column", "turn"))
        tiles, elements = list[_Tile](), dict[str, str]()
        for e in p.tiles:
            line = p.row if p.row in e.names else p.column
            tiles.append(self._tile(self._own("tile"), e, {line: of[line], **turns}))
            elements[e.text] = self._place(tiles[-1], row if line == p.row else column, turn)
        made = [t.made for t in tiles]
        for name, dtype in p.kept.items():
            kept = self._own(name)
            elements[name] = f"{self.given[kept]}[{self.given[row]}, {self.given[column]}]"
            made.append(f"{kept} = T.alloc_fragment((BM, BN), {self._put(dtype)})")
        each = f"""for {row}, {column} in T.Parallel(BM, BN):
    I{m} = by * BM + {row}
    I{n} = bx * BN + {column}
"""
        turned = f"""    J{k} = (step % {steps}) * BK + {turn}
    STEP
"""
        filled = "\n".join(t.filled for t in tiles)
        inside = f"I{m} < E{m} and I{n} < E{n}"
        text = f"""
with T.Kernel(T.ceildiv(E{n}, BN), T.ceildiv(E{m}, BM), {_product(batch)}) as (bx, by, bz):
    {self._apart("bz", batch)}
    {"; ".join(made)}
{_indented(each, 1)}
        BEGIN
    for step in T.Pipelined({" * ".join([*extents, steps])}, num_stages=2):
        {unravelled(around, extents, f"(step // {steps})")}
{_indented(filled, 2)}
        count = T.min(BK, K{k} - (step % {steps}) * BK)
        for four in T.serial(count // 4):
{_indented(each, 3)}
                for part in T.unroll(4):
                    {turn} = four * 4 + part
{_indented(turned, 4)}
        for rest in T.serial(count % 4):
{_indented(each, 3)}
                {turn} = count // 4 * 4 + rest
{_indented(turned, 3)}
{_indented(each, 1)}
        if {inside}: BODY
"""
        begin = [_without_dtype(s) for s in p.before]
        self.given |= {"BEGIN": begin, "STEP": [*p.body], "BODY": [*p.named, *p.epilogue], **sizes}
        return self._written(text, own=elements)

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

    def threads(self) -> ast.With:
        """One thread for each iteration."""
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

    def rows(self, named: Named, known: Known, lanes: int) -> ast.With | None:
        """`lanes` of a warp for each iteration, if it goes along rows; see `rows`."""
        threads = self.asked or _THREADS
        if threads % lanes:
            return None
        lane = self._fresh("lane")
        body = Rows(self.nest, named, known, lanes, self.language, lane, self._fresh).body()
        if body is None:
            return None
        self.given |= {"BODY": body, "LANE": lane}
        return self._one_by_one(threads // lanes, "T.get_warp_idx()", "LANE = T.get_lane_idx()")

    def tiles(
        self,
        named: Named,
        known: Known,
        lanes: int,
        magnitude: Magnitude,
        dtype_of: DtypeOf,
        combine: object,
        scan: object,
    ) -> ast.With | None:
        """Tiles of several iterations, if they go along rows or down columns; see `tiles`.
        `combine`: what gives what blocks have together; `scan`: running values."""
        ours = "block", "part", "combined", "scan"
        block, part, combined, scanned = map(self._fresh, ours)
        used = self.used
        writer = Tiles(
            self.nest, named, known, lanes, self.language, "", self._fresh,
            magnitude=magnitude, dtype_of=dtype_of, block=block, part=part, combined=combined,
            scan=scanned,
        )  # fmt: skip
        found = writer.tiled()
        if found is None or found.threads != (self.asked or found.threads):
            self.used = used
            return None
        *outer, last = range(len(self.nest.indices))
        extents = f"T.ceildiv({_product([*outer, last])}, {found.outer})"
        if found.columns:
            extents = f"T.ceildiv(E{last}, {found.outer}) * {_product(outer)}"
        names = "BLOCK"
        if found.parts > 1:
            extents, names = f"{extents}, 1, {found.parts}", "(BLOCK, ONE, PART)"
        text = f"""
with T.Kernel({extents}, threads={found.threads}) as {names}:
    BODY
"""
        self.given |= {"BODY": found.body, "BLOCK": block, "PART": part}
        self.given["ONE"] = self._fresh("one")
        self.names |= {combined: combine, scanned: scan}
        return self._written(text)

    def _fresh(self, base: str) -> str:
        name = fresh_name(base, self.used)
        self.used = self.used | {name}
        return name

    def _apart(self, number: str, indices: list[int]) -> str:
        """Statements that take the indices out of a row-major number."""
        return unravelled([f"I{d}" for d in indices], [f"E{d}" for d in indices], number)

    def _written(
        self,
        text: str,
        totals: Mapping[str, str] | None = None,
        own: Mapping[str, str] | None = None,
    ) -> ast.With:
        """The syntax of `text`, at the loop's place but for what is the author's; `totals`: which
        fragment holds what the author calls so; `own`: which element."""
        (made,) = parsed(text, self.node)
        ours = names_in(made) - {*self.given, "T"}
        suffix = ""
        while self.used & {n + suffix for n in ours}:
            suffix += "_"
        names = {n: n + suffix for n in ours} | {"T": self.language}
        place = f"[{names.get('row')}, {names.get('column')}]"
        elements = {total: names[x] + place for total, x in (totals or {}).items()}
        elements |= own or {}
        made = _Fill(self.given, names, elements).visit(made)
        assert isinstance(made, ast.With)
        return made


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


def _indented(text: str, levels: int) -> str:
    return textwrap.indent(text.strip("\n"), " " * 4 * levels)


def _without_dtype(s: ast.stmt) -> ast.stmt:
    """An assignment to what has its dtype."""
    match s:
        case ast.AnnAssign(target, _, ast.expr() as value):
            return ast.copy_location(ast.Assign([target], value), s)
    return s


def _numbered(name: str, number: int) -> str:
    return name + f"{number}" * bool(number)


def _product(extents: list[int]) -> str:
    return " * ".join(f"E{d}" for d in extents) or "1"


class _Fill(ast.NodeTransformer):
    """Puts the author's syntax in the place of names, and gives other names those of `names`. In
    the author's own statements what is written as in `elements` becomes one of these."""

    def __init__(
        self,
        given: Mapping[str, Given],
        names: Mapping[str, str],
        elements: Mapping[str, str],
    ) -> None:
        self.given, self.names, self.elements = given, names, elements

    def visit_Name(self, node: ast.Name) -> ast.AST:
        found = self.given.get(node.id)
        if isinstance(found, ast.AST):
            return found
        name = found if isinstance(found, str) else self.names.get(node.id, node.id)
        return ast.copy_location(ast.Name(name, node.ctx), node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | list[ast.AST]:
        found = self.given.get(node.value.id) if isinstance(node.value, ast.Name) else None
        if not isinstance(found, list):
            return self.generic_visit(node)
        return [self._own(s) for s in found] or [ast.copy_location(ast.Pass(), node)]

    def _own(self, node: ast.AST) -> ast.AST:
        """A copy of the author's syntax."""
        if isinstance(node, ast.Name | ast.Subscript) and ast.unparse(node) in self.elements:
            made = ast.parse(self.elements[ast.unparse(node)], mode="eval").body
            assert isinstance(made, ast.Subscript)
            made.ctx = node.ctx
            return placed(made, node)
        fields = {
            name: [self._own(x) if isinstance(x, ast.AST) else x for x in value]
            if isinstance(value, list)
            else self._own(value)
            if isinstance(value, ast.AST)
            else value
            for name, value in ast.iter_fields(node)
        }
        return ast.copy_location(type(node)(**fields), node)
