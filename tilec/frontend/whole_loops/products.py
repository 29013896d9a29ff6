"""Whole loops that are sums of products, as T.gemm gives them.

    for b, s, n in T.Parallel(B, S, N):
        gate: T.float32 = bias[n]
        for k in range(K):
            x = T.cast(X[b, s, k], "float32")
            gate += x * T.cast(W[n, k], "float32")
        Y[b, s, n] = T.silu(gate)

What an index is follows from the operands that depend on it: `n` is a column, as only the right
operand does; `b` and `s` are rows, as only the left one does; what both or neither depend on is the
same for a tile. Names stand for what they are given, a condition for an operand that is 0 where it
does not hold, and what a sum begins with is added behind the loop.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilec.frontend.whole_loops.nests import (
    Fresh,
    Named,
    Nest,
    as_one_loop,
    counts_of,
    elements_of,
)
from tilec.frontend.whole_loops.operands import Operand, depends
from tilec.frontend.whole_loops.places import in_variables
from tilec.frontend.whole_loops.reader import Added, Own, Reader, sizes_along
from tilec.frontend.whole_loops.rows import is_pure
from tilec.frontend.whole_loops.several import by_loops
from tilec.frontend.whole_loops.spans import Most, turns_of, weakened
from tilec.support.syntax import all_of, conditions_in, every, names_in, stored_names

_SHORT = 16  # what is added up, of which a thread adds all
_FEW = 32  # what is added up, along which a tile may be nearly empty
Loops = tuple[tuple[str, ast.expr], ...]


@dataclass(frozen=True)
class Sum:
    """What the body calls a sum, its dtype, and the operands of what it adds up."""

    total: ast.expr
    dtype: ast.expr
    left: Operand
    right: Operand


@dataclass(frozen=True)
class Product:
    """A loop over `outer` that adds up `sums` along `inner`, loops in one another with their
    extents, and what it does with them: `before`, which stood before the loops, and `epilogue`.
    `rows`: indices on which all left operands depend and no right one, `columns`: the other way
    round. Iterations for which one of `guards` does not hold do nothing; `tests`: what all that is
    added is under; `alone`: sums of what rows alone, or columns alone, say; `more`: what further
    loops add to these sums, or to others."""

    outer: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    inner: tuple[tuple[str, ast.expr], ...]
    sums: tuple[Sum, ...]
    before: tuple[ast.stmt, ...]
    epilogue: tuple[ast.stmt, ...]
    guards: tuple[ast.expr, ...] = ()
    tests: tuple[ast.expr, ...] = ()
    alone: tuple[Own, ...] = ()
    more: tuple[Product, ...] = ()

    @property
    def parts(self) -> tuple[Product, ...]:
        """The product of each loop."""
        return self, *self.more

    @property
    def kept(self) -> dict[str, ast.expr]:
        """The dtypes of the sums, by what the body calls them."""
        return {ast.unparse(s.total): s.dtype for s in self.sums}

    @property
    def behind(self) -> tuple[ast.stmt, ...]:
        return *self.before, *self.epilogue

    def how(self) -> list[str]:
        """Which of the sums operands are added to, and as what."""
        names = [*self.kept]
        texts = [(names.index(ast.unparse(s.total)), ast.unparse(s.dtype)) for s in self.sums]
        return [*map(str, texts)]

    @property
    def pairs(self) -> list[tuple[Operand, Operand]]:
        return [(s.left, s.right) for s in self.sums]

    @property
    def operands(self) -> list[Operand]:
        return [o for pair in self.pairs for o in pair]

    @property
    def sided(self) -> list[tuple[Operand, tuple[str, ...]]]:
        """The operands with the indices on which those of their side alone depend."""
        return [x for a, b in self.pairs for x in ((a, self.rows), (b, self.columns))]

    @property
    def several(self) -> set[str]:
        """The indices of which tiles go along the longest ones."""
        return {i for found in (self.rows, self.columns) if len(found) > 1 for i in found}

    @property
    def text(self) -> str:
        """All of it that may differ between two of one loop."""
        written = [*self.before, *self.epilogue, *(e for _, e in self.inner)]
        for s in self.sums:
            written += [s.total, s.dtype]
        texts = [*(o.text for o in self.operands), *(x.text for x in self.alone)]
        return "\n".join([*map(ast.unparse, written), *texts, *(p.text for p in self.more)])


def find_product(nest: Nest, fresh: Fresh) -> Product | None:
    """The sums of products that a nest is, also where elements are what is added to."""
    return product_of(nest) or product_of(in_variables(nest, "", fresh))


def product_of(nest: Nest) -> Product | None:
    """The sums of products that a loop's body is; None for any other."""
    guards, body, otherwise = _guarded(nest)
    if not all(is_pure(t, nest.named) for t in guards):
        return None
    found = list[Product]()
    for part in by_loops(body):
        product = _of_loop(nest, guards, part, otherwise)
        if product is None:
            return None
        found.append(product)
    if not found:
        return None
    first, *more = found
    if any(
        (p.rows, p.columns) != (first.rows, first.columns) or p.alone for p in found * bool(more)
    ):
        return None
    begun = (*{ast.unparse(s): s for p in found for s in p.before}.values(),)
    epilogue = first.epilogue
    if guards:
        branch = ast.If(all_of(guards), [*begun, *epilogue], [*otherwise])
        guarded = ast.copy_location(branch, nest.body[-1])
        begun, epilogue = (), (guarded,)
    return replace(first, before=begun, epilogue=epilogue, more=tuple(more))


def _of_loop(
    nest: Nest,
    guards: Sequence[ast.expr],
    body: Sequence[ast.stmt],
    otherwise: Sequence[ast.stmt],
) -> Product | None:
    """The product of a body that has one loop."""
    named = nest.named
    at = next((n for n, s in enumerate(body) if isinstance(s, ast.For)), len(body))
    before, epilogue = body[:at], body[at + 1 :]
    behind = (*epilogue, *otherwise)
    if at == len(body) or any(every(ast.For | ast.While | ast.With | ast.Return, *behind)):
        return None
    loop = body[at]
    assert isinstance(loop, ast.For)
    loops, between, within, tests = _levels(loop)
    inner, reader = counts_of(loops, named), Reader(named, nest.decided)
    if inner is None or any(map(reader.added, between)):
        return None
    if not reader.reads(before, [*between, *within]):
        return None
    stored = stored_names(*before, loop)
    own = {name for name, _ in inner} | reader.inside
    if own & names_in(*before, *behind) or any(stored.count(n) > 1 for n in {*reader.names, *own}):
        return None
    if not {*nest.indices}.isdisjoint(stored) or names_in(*guards) & {*stored}:
        return None
    added, alone = reader.products(nest.indices)
    ended = _with_ends([(x, reader.meant(e)) for x, e in inner], added, nest)
    if ended is None:
        return None
    inner, ends = ended
    asked = [*map(reader.meant, tests)]
    if not all(is_pure(t, named) for t in (*asked, *ends)):
        return None
    if alone and (asked or ends or guards or len(inner) > 1):
        return None
    made = _sums(added, asked, ends, inner, nest)
    for turn in turns_of([o for _, _, *pair in added for o in pair], dict(inner), nest.indices):
        extent = dict(inner)[turn.index]
        if made is None and not alone and not _is_short(extent, named):
            turned = [(x, d, turn.operand(a), turn.operand(b)) for x, d, a, b in added]
            loops_turned = [(x, turn.extent if x == turn.index else e) for x, e in inner]
            inside = [turn.inside(extent), *map(turn.of, ends)]
            made = _sums(turned, [*map(turn.of, asked)], inside, loops_turned, nest)
    if made is None:
        return None
    inner, sums, rows, columns = made
    sides = dict[str, tuple[str, ...]]()
    for x in alone:
        said = {*rows, *columns} & names_in(x.value)
        side = rows if said & {*rows} else columns
        if not said or not said <= {*side} or sides.setdefault(ast.unparse(x.total), side) != side:
            return None
    some = () if otherwise else tuple(guards)
    under = {ast.unparse(t): t for o in (sums[0].left, sums[0].right) for t in o.tests}
    tested = tuple(under.values())  # all sums have the same
    return Product(
        nest.indices,
        rows,
        columns,
        inner,
        sums,
        tuple(reader.begun),
        tuple(epilogue),
        some,
        tested,
        tuple(alone),
    )


def _is_short(extent: ast.expr, named: Named) -> bool:
    """Whether a loop is known to have few iterations: those of the product that goes by the rows of
    a tensor instead have as many as a tile, most of which add nothing."""
    count = extent.value if isinstance(extent, ast.Constant) else named(extent)
    return isinstance(count, int) and count < _SHORT


def _guarded(
    nest: Nest,
) -> tuple[tuple[ast.expr, ...], tuple[ast.stmt, ...], tuple[ast.stmt, ...]]:
    """The conditions under which iterations do anything, what they do, and what others do."""
    match nest.body:
        case [ast.If(test, body, otherwise)] if not elements_of(ast.Expr(test)):
            return tuple(conditions_in(test)), as_one_loop(body), tuple(otherwise)
    return (), as_one_loop(nest.body), ()


def _with_ends(
    inner: Sequence[tuple[str, ast.expr]], added: Sequence[Added], nest: Nest
) -> tuple[Loops, list[ast.expr]] | None:
    """Loops that go as far as tensors do instead of as far as iterations say, and the conditions
    that do the latter; None where no element says so."""
    found, ends, own = [], list[ast.expr](), {name for name, _ in inner}
    for name, extent in inner:
        if names_in(extent) & own:
            return None
        if not names_in(extent).isdisjoint(nest.indices):
            end = ast.Compare(ast.Name(name, ast.Load()), [ast.Lt()], [extent])
            ends.append(ast.fix_missing_locations(ast.copy_location(end, extent)))
            sizes = {
                ast.unparse(e): e for _, _, *pair in added for e in sizes_along(pair, name)[:1]
            }
            if len(sizes) != 1 or not all(sizes_along(pair, name) for _, _, *pair in added):
                return None
            (extent,) = sizes.values()
        found.append((name, extent))
    return tuple(found), ends


def _sums(
    added: Sequence[Added], tests: Sequence[ast.expr], ends: Sequence[ast.expr],
    inner: Sequence[tuple[str, ast.expr]], nest: Nest,
) -> tuple[Loops, tuple[Sum, ...], tuple[str, ...], tuple[str, ...]] | None:  # fmt: skip
    """The loops, the last of which tiles go along, the sums, and their rows and columns."""
    sums, fixed = list[Sum](), set[str]()
    for total, dtype, *factors in added:
        pair = _sides(nest.indices, *factors)
        for test in (*tests, *ends):
            pair = pair and _tested(*pair, test, nest.indices, None if test in ends else fixed)
        if pair is None:
            return None
        sums.append(Sum(total, dtype, *pair))
    operands = [o for s in sums for o in (s.left, s.right)]
    loops = _longest_last(inner, operands, fixed, nest.length)
    if not loops:
        return None
    values = [*zip(nest.indices, nest.extents), *loops[:-1]]
    ranges = {name: (("", 0), (f"({ast.unparse(extent)})", -1)) for name, extent in values}
    most = Most(ranges, nest.named, ast.unparse)
    sums = [_weakened(s, loops[-1][0], most) for s in sums]
    rows = tuple(i for i in nest.indices if all(depends(i, s.left, s.right) for s in sums))
    columns = tuple(i for i in nest.indices if all(depends(i, s.right, s.left) for s in sums))
    return (loops, tuple(sums), rows, columns) if sums and rows and columns else None


def _weakened(s: Sum, index: str, most: Most) -> Sum:
    """The sum with operands each of which is 0 where the other one is for all iterations."""

    def of(o: Operand, other: Operand) -> Operand:
        own = [t for t in other.tests if t not in o.tests and index in names_in(t)]
        known = [*map(ast.unparse, o.tests)]
        more = [x for t in own for x in weakened(t, index, most) if ast.unparse(x) not in known]
        return replace(o, tests=(*o.tests, *more))

    return replace(s, left=of(s.left, s.right), right=of(s.right, s.left))


def _levels(
    loop: ast.For,
) -> tuple[list[ast.For], list[ast.stmt], list[ast.stmt], list[ast.expr]]:
    """Loops in one another, what stands between them, what the innermost one does, and the
    conditions around it."""
    loops, between, tests = list[ast.For](), list[ast.stmt](), list[ast.expr]()
    body: list[ast.stmt] = [loop]
    while True:
        match body[-1]:
            case ast.For() as inner:
                loops.append(inner)
            case ast.If(test, _, []) as inner:
                tests += conditions_in(test)
            case _:
                return loops, between, body, tests
        between += body[:-1]
        body = inner.body


def _longest_last(
    inner: Sequence[tuple[str, ast.expr]], operands: Sequence[Operand], fixed: set[str],
    length: Callable[[ast.expr], int],
) -> Loops:  # fmt: skip
    """Loops in an order in which tiles go along the last one, the longest that can be: none of
    those that are `fixed`, if there are others that are not short, and one that is an index by
    itself, if any is."""

    def size(loop: tuple[str, ast.expr]) -> int:
        extent = loop[1].value if isinstance(loop[1], ast.Constant) else None
        return extent if isinstance(extent, int) else sys.maxsize

    def about(loop: tuple[str, ast.expr]) -> int:
        return min(size(loop), length(loop[1]) or sys.maxsize)

    long = [loop for loop in inner if about(loop) > _FEW] or [*inner]
    along = [loop for loop in long if loop[0] not in fixed] or long
    along = [loop for loop in along if all(o.is_along(loop[0]) for o in operands)] or along
    if not along:
        return ()
    last = max(reversed(along), key=size)
    return (*(loop for loop in inner if loop is not last), last)


def _sides(outer: Sequence[str], a: Operand, b: Operand) -> tuple[Operand, Operand] | None:
    """Two operands; the one that alone depends on the last of such indices is the right one."""
    free = [i for i in outer if (i in a.names) != (i in b.names)]
    if not free:
        return None
    return (b, a) if free[-1] in a.names else (a, b)


def _tested(
    left: Operand, right: Operand, test: ast.expr, outer: Sequence[str], fixed: set[str] | None
) -> tuple[Operand, Operand] | None:
    """The operands of what is added where a condition holds; None for one that says so of a row and
    a column. Where it is one of rows alone, what the right operand has there is multiplied by 0,
    which is a nan if it is infinite: so it may be asked of indices only, which tells taps beyond
    an image from others, and is to be the same along a tile's sum, if there are several loops:
    these names become `fixed`. It is None for a condition that is the end of a loop."""
    names = names_in(test)
    of_rows = any(depends(i, left, right) for i in names & {*outer})
    of_columns = any(depends(i, right, left) for i in names & {*outer})
    if of_rows and of_columns:
        return None
    if (of_rows or of_columns) and fixed is not None:
        if elements_of(ast.Expr(test)):
            return None
        fixed |= names
    if not of_columns:
        left = replace(left, tests=(*left.tests, test))
    if not of_rows:
        right = replace(right, tests=(*right.tests, test))
    return left, right
