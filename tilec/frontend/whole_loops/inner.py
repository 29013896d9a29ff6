"""Sums of products inside of the loops of a whole loop, as T.gemm gives them for its tiles.

    for i in T.Parallel(M):                     for step in …:  # over tiles of 64 rows
        for j in range(N):                          T.clear(sums)
            acc = 0.0                               for …: T.gemm(x_tile, w_tile, sums)
            for k in range(K):           ->         for o, n in T.Parallel(64, 128):
                acc += X[i, k] * W[j, k]                acc = sums[o, n]
            most = T.max(most, acc)                     parts[o, n] = T.max(parts[o, n], acc)
        L[i] = most                             …

The loop over `k` goes, and `acc` is a name for one more element of the tile that those over `j`
read (`tile_loops`). What several loops add up anew is added up anew for each of their tiles, by
tensor cores: there is no tensor of all the sums. Where the loop over `k` compares rows otherwise,
as distances do, threads do what it says with tiles of these rows (`pairs`).
"""

from __future__ import annotations

import ast
import copy
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from tilec.frontend.whole_loops.folds import Folds
from tilec.frontend.whole_loops.nests import (
    Fresh,
    Nest,
    Put,
    chain_of,
    counts_of,
    elements_of,
    stored_tensors,
    unravelled,
)
from tilec.frontend.whole_loops.operands import Tiling
from tilec.frontend.whole_loops.pairs import Pairs
from tilec.frontend.whole_loops.products import Product
from tilec.frontend.whole_loops.rows import is_pure, needed_by
from tilec.frontend.whole_loops.tile_places import Summed
from tilec.frontend.whole_loops.writing import Line, Writer
from tilec.ir.types import next_power_of_2
from tilec.support.syntax import copied, every, name_nodes, names_in, stored_names

_DEEP = 256  # bytes of a row, of which a tile has all;
_STEP = 128  # and what it has of longer ones


class Inner(NamedTuple):
    """The sums of a loop's body, and how their tiles are gone along; the
    indices and extents of the `loops` in one another; the `bytes` of an operand; `names`: what
    stands for each sum, by what the author calls it."""

    loops: Sequence[tuple[str, ast.expr]]
    product: Product | Pairs
    tiled: Tiling
    bytes: int
    names: dict[str, str]


Find = Callable[[Nest], tuple[Product | Pairs, Tiling, int] | None]


def without_sums(nest: Nest, find: Find, fresh: Fresh) -> tuple[Nest, list[Inner]] | None:
    """The nest with names for such sums, its last index the one that the rows of all go along; None
    where it has none, or their rows differ. `find` says what a nest is whose last index is that of
    a loop."""
    body, found = list[ast.stmt](), list[Inner]()
    for at, s in enumerate(nest.body):
        inner = _inner_of(s, nest, at, find, fresh)
        if inner is not None:
            found.append(inner)
            s = _without(s, inner, fresh)
        body.append(s)
    rows = {i for inner in found for i in inner.tiled.rows}
    lines = [line for inner in found for line in (inner.tiled.rows, inner.tiled.columns)]
    if len(rows) != 1 or not rows <= {*nest.indices} or any(len(line) > 1 for line in lines):
        return None
    for at, (old, new) in enumerate(zip(nest.body, body)):
        lost = {*stored_names(old)} - {*stored_names(new)}
        if any(lost & needed_by(s) for s in body[at + 1 :]):
            return None
    stored = stored_tensors(*body)
    read = {n.id for inner in found for o in inner.product.operands for n in name_nodes(o.value)}
    loops = {name for i in found for name, _ in (*i.loops, *i.product.inner)}
    if stored & read or read & {*stored_names(*body)} - loops:
        return None
    order = sorted(range(len(nest.indices)), key=lambda d: nest.indices[d] in rows)
    made = replace(
        nest, indices=tuple(nest.indices[d] for d in order),
        extents=tuple(nest.extents[d] for d in order), body=tuple(body),
    )  # fmt: skip
    return made, found


def _inner_of(s: ast.stmt, nest: Nest, at: int, find: Find, fresh: Fresh) -> Inner | None:
    chain = chain_of(s) if isinstance(s, ast.For) else []
    if chain and not any(every(ast.For, *chain[-1].body)):
        chain.pop()
    loops = counts_of(chain, nest.named)
    if not loops:
        return None
    known, (names, counts) = _names_for_places(nest, at), zip(*loops)
    indices, extents = (*nest.indices, *names), (*nest.extents, *counts)
    body = (*known, *chain[-1].body)
    found = find(replace(nest, indices=indices, extents=extents, body=body))
    if found is None:
        return None
    product, tiled, size = found
    texts = {*map(ast.unparse, known)}
    if isinstance(product, Pairs):
        others = tuple(t for t in product.named if ast.unparse(t) not in texts)
        product = replace(product, named=others)
    else:
        before = tuple(t for t in product.before if ast.unparse(t) not in texts)
        product = replace(product, before=before)
    return Inner(loops, product, tiled, size, {total: fresh("total") for total in product.kept})


def _names_for_places(nest: Nest, at: int) -> list[ast.stmt]:
    """What names before a loop stand for, as far as that follows from the indices alone."""
    found, stored = list[ast.stmt](), stored_names(*nest.body)
    own = {*stored}
    for s in nest.body[:at]:
        match s:
            case ast.Assign([ast.Name(name)], value) if stored.count(name) == 1:
                free = own.isdisjoint(names_in(value)) and not elements_of(s)
                if free and is_pure(value, nest.named):
                    found.append(s)
                    own.remove(name)
    return found


def _without(s: ast.stmt, inner: Inner, fresh: Fresh) -> ast.stmt:
    """The loop, each of whose sums is a name's."""
    body, own = list[ast.stmt](), dict[str, str]()
    for total, dtype in inner.product.kept.items():
        own[total] = fresh("acc")
        made = ast.Name(inner.names[total], ast.Load())
        body.append(ast.AnnAssign(ast.Name(own[total], ast.Store()), dtype, made, simple=1))
    put = Put(own)
    for t in inner.product.behind:
        t = put.visit(copied(t))
        match t:
            case ast.AugAssign(ast.Name(name), op, value) if name in own.values():
                match value:
                    case ast.Call(ast.Constant(), [start, dtype], []):  # what the sum begins with
                        value = ast.Name(begun := fresh("begun"), ast.Load())
                        target = ast.Name(begun, ast.Store())
                        body.append(ast.AnnAssign(target, dtype, start, simple=1))
                read = ast.Name(name, ast.Load())
                sum_of_both = ast.BinOp(read, op, value)
                t = ast.copy_location(ast.Assign([t.target], sum_of_both), t)
        body.append(t)
    assert isinstance(s, ast.For)
    for t in body:
        if not hasattr(t, "lineno"):
            ast.copy_location(t, s)
        ast.fix_missing_locations(t)
    for c in reversed(chain_of(s)[: len(inner.loops)]):
        s = copy.copy(c)
        s.body, body = body, [s]
    return s


class Inners:
    """Writes the T.gemms of such sums of the writer's nest."""

    def __init__(self, writer: Writer, inner: Sequence[Inner]) -> None:
        self.writer, self.inner = writer, inner
        self.made: dict[tuple[object, ...], Summed] = {}

    def gemms(self, names: set[str], row: str, start: str, sizes: tuple[int, int]) -> Summed:
        """`row` and `start`: where a tile of `sizes` begins. Loops that add up the same have one
        fragment for it, and where a tile's rows have all of the sum, these come once."""
        found = next((i for i in self.inner if names & {*i.names.values()}), None)
        if found is None:
            return Summed([], [], {}, False)
        p = found.product
        texts = [*(o.text for o in p.operands), *(ast.unparse(e) for _, e in p.inner)]
        key, before = (*texts, *p.how(), start, sizes), list[ast.stmt]()
        if key not in self.made:
            self.made[key] = self._written(found, row, start, sizes)
            before = self.made[key].before
        made = self.made[key]
        tiles = dict(zip(found.names.values(), made.tiles.values(), strict=True))
        return Summed(before, [*map(copied, made.each)], tiles, made.ahead)

    def _written(self, i: Inner, row: str, start: str, sizes: tuple[int, int]) -> Summed:
        """With the fragments by what the author calls the sums."""
        p, w, last = i.product, self.writer, len(self.writer.nest.indices)
        *others, (index, extent) = i.loops
        w.given |= {f"I{last}": index, f"E{last}": extent}
        *around, k = w.counted(p.inner)
        depth = Folds(w.nest).magnitude(p.inner[-1][1])[0]
        if around or isinstance(p.inner[-1][1], ast.BinOp):
            depth = 0  # which may be a little more than that
        moving = {n for n, _ in others} & {n for o in p.operands for n in o.names}
        whole = not moving and 0 < depth <= _DEEP // i.bytes and len(p.kept) == 1
        deep = next_power_of_2(depth) if whole else _STEP // i.bytes // len(p.kept)
        for name, size in zip(("BM", "BN", "BK"), (*sizes, max(16, deep))):
            w.given[name] = ast.Constant(size)
        step, steps = w.own("step"), f"T.ceildiv(K{k}, BK)"
        number, turn = (f"({step} % {steps})", f"({step} // {steps})") if around else (step, "")
        lines = (
            Line([last - 1], w.put(row), "BM"), Line([last], w.put(start), "BN"),
            Line([k], "0" if whole else f"{number} * BK", "BK", f"J{k}", f"K{k}"),
        )  # fmt: skip
        g = w.gemms(p, i.tiled, lines, w.own)
        left = [t.filled for text, t in g.tiles.items() if text in g.left]
        right = [t.filled for text, t in g.tiles.items() if text not in g.left]
        made, each = g.made, [*g.begun, *right, *g.added]
        if whole:
            made = [*made, *left]
        else:
            names, extents = [f"J{d}" for d in around], [f"K{d}" for d in around]
            loop = f"for {step} in T.Pipelined({' * '.join([*extents, steps])}, num_stages=2):"
            body = "\n".join([unravelled(names, extents, turn), *left, *right, *g.added])
            each = [*g.begun, loop, textwrap.indent(body, "    ")]
        fragments = {total: str(w.given[x]) for total, x in g.sums.items()}
        before, again = (w.filled("\n".join(x), own=g.places) for x in (made, each))
        return Summed(before, again, fragments, whole)
