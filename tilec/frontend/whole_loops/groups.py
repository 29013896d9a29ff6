"""Iterations that share, in groups, what they read: heads of queries that have keys together.

    for b, h in T.Parallel(B, H):               for b, g, r in T.Parallel(B, ceildiv(H, 8), 8):
        for s in range(S):                          for s in range(S):
            acc = 0.0                                   acc = 0.0
            for d in range(D):                ->        for d in range(D):
                acc += (Q[b, h, d]                          acc += (Q[b, g * 8 + r, d]
                        * K[b, s, h // 8, d])                       * K[b, s, g, d])

What the group's rows are multiplied by is the same for all of them: so they are the rows of a tile.
Those beyond the last head read nothing that counts, and store out of bounds, which is not done; of
an extent that is a product with the size of groups there are none. Where each iteration has its
own, `K[b, h, s, d]`, it is a group of one row, `Q[b, h + one, d]` for `one` in `range(1)`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from tilec.frontend.whole_loops.nests import Fresh, Nest, index_of
from tilec.support.syntax import copied, every, names_in, placed


def in_groups(
    nest: Nest,
    is_fixed: Callable[[ast.expr], bool],
    stays_inside: Callable[[str], bool],
    fresh: Fresh,
) -> Iterator[Nest]:
    """The nests that have two indices in place of one that is divided. `is_fixed`: whether a number
    is one for all iterations; `stays_inside`: whether those beyond an index's extent do nothing."""
    for index, extent in zip(nest.indices, nest.extents):
        divisors = {
            ast.unparse(n.right): n.right
            for n in every(ast.BinOp, *nest.body)
            if isinstance(n.op, ast.FloorDiv) and _is(n.left, index) and is_fixed(n.right)
        }
        for text, size in divisors.items():
            count = _times(extent, text)
            if count is None:
                if not stays_inside(index):
                    continue
                up = f"(({ast.unparse(extent)}) + ({text}) - 1) // ({text})"
                count = ast.parse(up, mode="eval").body
            group, row = fresh("group"), fresh(index)
            apart = _Apart(index, text, group, row)
            at = nest.indices.index(index)
            yield Nest(
                (*nest.indices[:at], group, row, *nest.indices[at + 1 :]),
                (*nest.extents[:at], count, size, *nest.extents[at + 1 :]),
                tuple(apart.visit(copied(s)) for s in nest.body),
            )


def _times(extent: ast.expr, size: str) -> ast.expr | None:
    """How many groups of a size an extent is that is written as a product with it."""
    match extent:
        case ast.BinOp(left, ast.Mult(), right) if ast.unparse(right) == size:
            return left
        case ast.BinOp(left, ast.Mult(), right) if ast.unparse(left) == size:
            return right
    return None


def by_one_row(nest: Nest, fresh: Fresh) -> Nest:
    """The nest with an index of extent 1 behind its last, beside which it stands in elements, but
    for those of the loops that sums stand in."""
    last, one = nest.indices[-1], fresh("one")
    around = {
        index_of(s)
        for s in every(ast.For, *nest.body)
        if any(isinstance(x, ast.For) and not any(every(ast.For, *x.body)) for x in s.body)
    }
    body = tuple(copied(s) for s in nest.body)
    for e in every(ast.Subscript, *body):
        if around.isdisjoint(names_in(e.slice)):
            e.slice = placed(_Beside(last, one).visit(e.slice), e.slice)
    return Nest((*nest.indices, one), (*nest.extents, ast.Constant(1)), body)


class _Beside(ast.NodeTransformer):
    """Puts the sum of an index and of one more in its place."""

    def __init__(self, index: str, one: str) -> None:
        self.index, self.one = index, one

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return node if node.id != self.index else ast.BinOp(node, ast.Add(), _name(self.one))


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _is(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


class _Apart(ast.NodeTransformer):
    """Puts what an index is of a group and of a row in it."""

    def __init__(self, index: str, size: str, group: str, row: str) -> None:
        self.index, self.size, self.group, self.row = index, size, group, row

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if _is(node.left, self.index) and ast.unparse(node.right) == self.size:
            if isinstance(node.op, ast.FloorDiv | ast.Mod):
                part = self.group if isinstance(node.op, ast.FloorDiv) else self.row
                return ast.copy_location(ast.Name(part, ast.Load()), node)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id != self.index:
            return node
        made = ast.parse(f"{self.group} * ({self.size}) + {self.row}", mode="eval").body
        for n in ast.walk(made):
            ast.copy_location(n, node)
        return made
