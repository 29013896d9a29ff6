"""Writes programs as syntax, in which the author's stands in the place of names."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tilec import language as T
from tilec.frontend.whole_loops.nests import Nest, Put, fresh_name, no_less, unravelled
from tilec.frontend.whole_loops.operands import Operand, Tiling, beside
from tilec.frontend.whole_loops.pairs import Pairs
from tilec.frontend.whole_loops.products import Product
from tilec.support.syntax import copied, names_in, parsed

Given = str | ast.expr | list[ast.stmt]


class OperandTile(NamedTuple):
    """A shared tile of an operand: the statements that make and fill it, and whether it goes down
    its columns along the sum."""

    name: str
    made: str
    filled: str
    k_first: bool


class Line(NamedTuple):
    """Indices that a tile goes along as one, by their numbers, where it begins, and how many it
    has; of the sum what its index, `turn`, and its extent are called."""

    indices: list[int]
    begin: str
    size: str
    turn: str = ""
    extent: str = ""


class Gemms(NamedTuple):
    """T.gemm for each sum of a product: the tiles of its operands by their texts, `left`: those of
    rows, the fragments by what the author calls the sums, and the statements that make both, that
    begin the sums, and that add up. `kinds`: the names of tiles with what those of other operands
    must be alike in, to be the same ones in another loop; `places`: elements for what the author
    calls otherwise; `head`: the line and indices of a loop over what pairs of rows keep."""

    tiles: dict[str, OperandTile]
    left: set[str]
    sums: dict[str, str]
    made: list[str]
    begun: list[str]
    added: list[str]
    kinds: Mapping[str, tuple[object, ...]] = {}
    places: Mapping[str, str] = {}
    head: str = ""


class Writer:
    """Writes what the loop at `node` becomes. `used` are the names that it must not take; it asks
    for tilec's builtins as attributes of `language`. `names`: what names of its own stand for."""

    def __init__(self, node: ast.stmt, nest: Nest, used: set[str]) -> None:
        self.node, self.nest, self.used = node, nest, used
        self.language = fresh_name("T", used)
        self.names: dict[str, object] = {self.language: T}
        self.given: dict[str, Given] = {}
        for d, (index, extent) in enumerate(zip(nest.indices, nest.extents)):
            self.given |= {f"I{d}": index, f"E{d}": extent}

    def counted(self, inner: Sequence[tuple[str, ast.expr]], first: int = 0) -> range:
        """The numbers, from `first`, by which the text of a program names the indices and the
        extents of loops in one another."""
        for d, (index, extent) in enumerate(inner, first):
            count = extent if len(inner) == 1 else no_less(extent, self.language)
            self.given |= {f"J{d}": index, f"K{d}": count}
        return range(first, first + len(inner))

    def gemms(
        self, p: Product | Pairs, tiled: Tiling, lines: tuple[Line, Line, Line],
        name: Callable[[str], str], known: Gemms | None = None,
    ) -> Gemms:  # fmt: skip
        """`lines`: of rows, of columns, and of the sum; `name` makes names of a base; `known`: what
        a loop before this one adds up, maybe to the same sums, and whose tiles are free again."""
        if isinstance(p, Pairs):
            return self._paired(p, lines)
        rows, columns, turns = lines
        tiles, left = dict[str, OperandTile](), set[str]()
        sums, kinds = (dict(known.sums), dict(known.kinds)) if known else ({}, {})
        free, made, begun, added = dict(kinds), list[str](), list[str](), list[str]()
        for s in p.sums:
            if (called := ast.unparse(s.total)) not in sums:
                total = sums[called] = name("sums")
                self.given[f"DTYPE_{total}"] = s.dtype
                made.append(f"{total} = T.alloc_fragment((BM, BN), DTYPE_{total})")
                begun.append(f"T.clear({total})")
            for o, line in ((s.left, rows), (s.right, columns)):
                if o.text not in tiles:
                    kind = tiled.kinds[o.text], line is rows, self._goes_down(o, line, turns, tiled)
                    same = next((x for x, k in free.items() if k == kind), "")
                    own = same or name("a_tile" if line is rows else "b_tile")
                    tile = self._operand(own, o, line, turns, tiled)
                    if same:
                        del free[same]
                        tile = tile._replace(made=tile.made.rpartition("; ")[0])
                    tiles[o.text], kinds[own] = tile, kind
                    left |= {o.text} if line is rows else set()
            a, b = tiles[s.left.text], tiles[s.right.text]
            turned = f"transpose_A={a.k_first}, transpose_B={not b.k_first}"
            added.append(f"T.gemm({a.name}, {b.name}, {sums[called]}, {turned})")
        made = [*(t.made for t in tiles.values() if t.made), *made]
        return Gemms(tiles, left, sums, made, begun, added, kinds)

    def _paired(self, p: Pairs, lines: tuple[Line, Line, Line]) -> Gemms:
        """What pairs of rows keep instead of sums of products: tiles of all their elements, with
        which threads do four iterations of the loop at once, and then those that are left."""
        rows, columns, k = lines
        row, column, turn = map(self.own, ("row", "column", "turn"))
        tiles, left, places, sums = dict[str, OperandTile](), set[str](), dict[str, str](), {}
        for e in p.tiles:
            line, at = (rows, row) if {*p.rows} & e.names else (columns, column)
            begins = {str(self.given[f"I{line.indices[0]}"]): (line.begin, line.size)}
            begins[str(self.given[k.turn])] = k.begin, k.size
            tile = tiles[e.text] = self._tile(self.own("tile"), e, begins)
            places[e.text] = self._place(tile, at, turn)
            left |= {e.text} if line is rows else set()
        made = [t.made for t in tiles.values()]
        for name, dtype in p.kept.items():
            kept = sums[name] = self.own(name)
            places[name] = f"{self.given[kept]}[{self.given[row]}, {self.given[column]}]"
            shape = f"({rows.size}, {columns.size})"
            made.append(f"{kept} = T.alloc_fragment({shape}, {self.put(dtype)})")
        each = f"""for {row}, {column} in T.Parallel({rows.size}, {columns.size}):
    I{rows.indices[0]} = {rows.begin} + {row}
    I{columns.indices[0]} = {columns.begin} + {column}"""
        turned = f"""{k.turn} = {k.begin} + {turn}
STEP"""
        count = self.own("count")
        added = f"""
{count} = T.min({k.size}, {k.extent} - ({k.begin}))
for four in T.serial({count} // 4):
{indented(each, 1)}
        for part in T.unroll(4):
            {turn} = four * 4 + part
{indented(turned, 3)}
for rest in T.serial({count} % 4):
{indented(each, 1)}
        {turn} = {count} // 4 * 4 + rest
{indented(turned, 2)}"""
        self.given |= {"BEGIN": [*map(_without_dtype, p.before)], "STEP": [*p.body]}
        return Gemms(tiles, left, sums, made, [f"{each}\n    BEGIN"], [added], {}, places, each)

    def _goes_down(self, o: Operand, line: Line, k: Line, tiled: Tiling) -> bool:
        """Whether an operand's tile goes down its columns along the sum."""
        turn, *own = (str(self.given[x]) for x in (k.turn, *(f"I{d}" for d in line.indices)))
        if o.text in tiled.copied:
            along, at = o.where(turn), o.where(own[0])
            return along is not None and at is not None and along < at
        return not o.ends_with(turn) and any(map(o.ends_with, own))

    def _operand(self, name: str, o: Operand, line: Line, k: Line, tiled: Tiling) -> OperandTile:
        """A tile of an operand along its rows or columns, and along the sum; what makes it stands
        behind what makes its parts."""
        turn, *own = (str(self.given[x]) for x in (k.turn, *(f"I{d}" for d in line.indices)))
        begins = {turn: (k.begin, k.size)}
        if len(own) == 1:
            begins[own[0]] = line.begin, line.size
        if o.text in tiled.copied:
            return self._tile(name, o, begins)
        k_first = self._goes_down(o, line, k, tiled)
        at, step = self.own("at"), self.own("turn")
        parts, puts = list[OperandTile](), dict[str, str]()
        for e in {e.text: e for e in o.elements() if e.text in tiled.parts}.values():
            parts.append(self._tile(self.own("part"), e, begins))
            puts[e.text] = self._place(parts[-1], at, step)
        value, dtype = self.put(Put(puts).visit(copied(o.value))), tiled.dtypes[o.text]
        if dtype is None:
            assert o.tensor is not None
            kind = f"{self.put(o.tensor)}.dtype"
        else:
            kind = self.put(dtype)
            for d in (o.dtype, dtype):
                value = value if d is None else f"T.cast({value}, {self.put(d)})"
        tests = [self.put(t) for t in o.tests]
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
        return OperandTile(
            name, "; ".join(made), "\n".join([*(t.filled for t in parts), filled]), k_first
        )

    def own(self, base: str) -> str:
        """A name for one of this module's, which the author's syntax may be given."""
        name = f"OWN{len(self.given)}"
        self.given[name] = self._fresh(base)
        return name

    def _place(self, tile: OperandTile, at: str, turn: str) -> str:
        """The text of a tile's element, by names that may stand in the author's syntax."""
        name, *place = (str(self.given[x]) for x in (tile.name, at, turn))
        return f"{name}[{', '.join(reversed(place) if tile.k_first else place)}]"

    def _tile(self, name: str, o: Operand, begins: Mapping[str, tuple[str, str]]) -> OperandTile:
        """A tile of elements; `begins`: of the indices that they go by, where it begins, and how
        many it has."""
        assert o.tensor is not None
        tensor, shape, at = self.put(o.tensor), list[str](), list[str]()
        last_two = {o.where(i) for i in begins} == {len(o.indices) - 2, len(o.indices) - 1}
        for d, index in enumerate(o.indices):
            by = next((i for i in begins if o.where(i) == d), "")
            place = " + ".join(self.put(x) for x in beside(index, by))
            if by:
                start, size = begins[by]
                shape.append(size)
                place = f"{place} + {start}" if place else start
                place += "" if last_two else f":{place} + {size}"
            at.append(place)
        made = f"{name} = T.alloc_shared(({', '.join(shape)}), {tensor}.dtype)"
        filled = f"T.copy({tensor}[{', '.join(at)}], {name})"
        return OperandTile(name, made, filled, shape[0] == "BK")

    def put(self, node: ast.expr | str) -> str:
        """A name for the author's syntax, or for a text of names that are used."""
        name = f"GIVEN{len(self.given)}"
        self.given[name] = ast.parse(node, mode="eval").body if isinstance(node, str) else node
        return name

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
        element is what the author calls so, by names of the text, `own`: by others."""
        (made,) = self.filled(text, totals, own)
        assert isinstance(made, ast.With)
        return made

    def filled(
        self,
        text: str,
        totals: Mapping[str, str] | None = None,
        own: Mapping[str, str] | None = None,
    ) -> list[ast.stmt]:
        made = parsed(text, self.node)
        ours = names_in(*made) - {*self.given, "T"}
        suffix = ""
        while self.used & {n + suffix for n in ours}:
            suffix += "_"
        names = {n: n + suffix for n in ours} | {"T": self.language}
        renamed = _Fill({}, names, {})
        elements = {
            text: ast.unparse(renamed.visit(ast.parse(x, mode="eval")))
            for text, x in (totals or {}).items()
        }
        elements |= own or {}
        fill = _Fill(self.given, names, elements)
        return [fill.visit(s) for s in made]


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
        put = Put(self.elements)
        return [put.visit(copied(s)) for s in found] or [ast.copy_location(ast.Pass(), node)]


def indented(text: str, levels: int) -> str:
    return textwrap.indent(text.strip("\n"), " " * 4 * levels)


def _without_dtype(s: ast.stmt) -> ast.stmt:
    """An assignment to what has its dtype."""
    match s:
        case ast.AnnAssign(target, _, ast.expr() as value):
            return ast.copy_location(ast.Assign([target], value), s)
    return s
