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
from dataclasses import replace

from tilec.frontend.whole_loops.nests import Fresh, Nest, Put, index_of
from tilec.support.syntax import copied, every, names_in


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
            if isinstance(n.op, ast.FloorDiv) and ast.unparse(n.left) == index and is_fixed(n.right)
        }
        for text, size in divisors.items():
            count = _times(extent, text)
            if count is None:
                if not stays_inside(index):
                    continue
                up = f"(({ast.unparse(extent)}) + ({text}) - 1) // ({text})"
                count = ast.parse(up, mode="eval").body
            group, row = fresh("group"), fresh(index)
            parts = zip((group, row), (ast.FloorDiv(), ast.Mod()))
            apart = {ast.unparse(ast.BinOp(ast.Name(index), op, size)): x for x, op in parts}
            put = Put({**apart, index: f"{group} * ({text}) + {row}"})
            at = nest.indices.index(index)
            yield replace(
                nest,
                indices=(*nest.indices[:at], group, row, *nest.indices[at + 1 :]),
                extents=(*nest.extents[:at], count, size, *nest.extents[at + 1 :]),
                body=tuple(put.visit(copied(s)) for s in nest.body),
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
            e.slice = Put({last: f"{last} + {one}"}).visit(e.slice)
    indices, extents = (*nest.indices, one), (*nest.extents, ast.Constant(1))
    return replace(nest, indices=indices, extents=extents, body=body)
