"""Operands of sums of products in whole loops: what an index, or a condition, does to one.

An element whose indices go by those of a tile, `X[b, i + 1, k]`, is copied. Anything else that
follows from indices and elements is computed on its way into the tile: `X[n, i] - mean[i]`, a pixel
`X[b, 2 * y + r, x, c]`, what a condition leaves out as zero.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tilec.frontend.values import MOST_CHOSEN, is_literal
from tilec.frontend.whole_loops.nests import Nest, elements_of, indices_of
from tilec.frontend.whole_loops.terms import added_in, without
from tilec.ir.types import DType
from tilec.support.syntax import copied, every, names_in, placed


@dataclass(frozen=True)
class Operand:
    """A factor: `value`, and what it is cast to first. It is an element where `tensor` is one, of
    these `indices`; it counts where `tests` hold, and as 0 elsewhere."""

    value: ast.expr
    tensor: ast.Name | None
    indices: tuple[ast.expr, ...]
    dtype: ast.expr | None
    tests: tuple[ast.expr, ...] = ()

    @property
    def text(self) -> str:
        """What it is, without the cast."""
        return ", ".join(map(ast.unparse, (self.value, *self.tests)))

    @property
    def names(self) -> set[str]:
        """What it depends on."""
        return names_in(self.value, *self.tests)

    def where(self, name: str) -> int | None:
        """The dimension along which it goes by `name`, which no other index depends on."""
        found = [d for d, i in enumerate(self.indices) if name in names_in(i)]
        goes_by = [without(name, added_in(self.indices[d]))[0] == 1 for d in found]
        return found[0] if goes_by == [True] else None

    def is_along(self, name: str) -> bool:
        """Whether `name` alone is an index, and no other depends on it."""
        at = self.where(name)
        return at is not None and isinstance(self.indices[at], ast.Name)

    def elements(self) -> Iterator[Operand]:
        """The elements that it is made of, as operands."""
        return map(element_of, elements_of(ast.Expr(self.value)))

    def ends_with(self, name: str) -> bool:
        """Whether neighbours along `name` are neighbours in memory, in the first of its elements
        that depends on it."""
        of = (o for o in self.elements() if name in o.names)
        return any(name in names_in(o.indices[-1]) for o in [*of][:1])


def element_of(e: ast.Subscript) -> Operand:
    assert isinstance(e.value, ast.Name)
    return Operand(e, e.value, tuple(indices_of(e)), None)


def with_tables(nest: Nest) -> Nest:
    """The nest with a few numbers in place of the name of the tuple or list that holds them, one of
    which an index chooses: `NF4[q]` is no element of a tensor, but arithmetic on `q`."""

    class Written(ast.NodeTransformer):
        def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
            self.generic_visit(node)
            table = nest.named(node.value)
            if isinstance(table, list | tuple) and 0 < len(table) <= MOST_CHOSEN:
                if all(is_literal(x) and x == x for x in table):  # a nan is no syntax
                    items = ast.Tuple([ast.Constant(x) for x in table], ast.Load())
                    node.value = placed(items, node.value)
            return node

    owners = (nest.named(n.value) for n in every(ast.Subscript, *nest.body))
    if not any(isinstance(x, list | tuple) for x in owners):
        return nest
    return replace(nest, body=tuple(Written().visit(copied(s)) for s in nest.body))


@dataclass(frozen=True)
class Tiling:
    """Which indices tiles go along, as one, and how operands, by their texts, come into these:
    `copied`, or computed in `dtypes` (None: in that of the element that it is) from elements, some
    of which, `parts`, are copied. `ended`: those that are 0 by themselves where the sum has
    ended; `kinds`: the dtypes of their tiles."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    copied: frozenset[str]
    parts: frozenset[str]
    dtypes: Mapping[str, ast.expr | None]
    ended: frozenset[str]
    kinds: Mapping[str, DType | None]

    @property
    def text(self) -> str:
        """All of it that may differ between two of one product."""
        how = sorted((x, "" if d is None else ast.unparse(d)) for x, d in self.dtypes.items())
        texts = map(sorted, (self.copied, self.parts, self.ended))
        return f"{self.rows} {self.columns} {[*texts]} {how}"


def depends(index: str, one: Operand, other: Operand) -> bool:
    """Whether one operand alone depends on an index."""
    return index in one.names and index not in other.names


def sides_of(
    test: ast.expr,
) -> list[tuple[ast.expr | None, ast.expr, ast.expr | None]]:
    """The comparisons that a condition is, each as `low <= value` or `value < high`."""
    found = list[tuple[ast.expr | None, ast.expr, ast.expr | None]]()
    if isinstance(test, ast.Compare):
        values = [test.left, *test.comparators]
        for a, op, b in zip(values, test.ops, values[1:]):
            match op:
                case ast.GtE():
                    found.append((b, a, None))
                case ast.LtE():
                    found.append((a, b, None))
                case ast.Lt():
                    found.append((None, a, b))
                case ast.Gt():
                    found.append((None, b, a))
                case _:
                    return []
    return found


def beside(index: ast.expr, name: str) -> list[ast.expr]:
    """What is added to `name` in an index."""
    _, rest = without(name, added_in(index))
    return [x if s > 0 else ast.copy_location(ast.UnaryOp(ast.USub(), x), x) for s, x in rest]
