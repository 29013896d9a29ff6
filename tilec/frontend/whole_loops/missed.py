"""Sums of products that are no T.gemm, of which a PerformanceWarning tells."""

from __future__ import annotations

import ast
import itertools
from dataclasses import replace
from typing import NamedTuple

from tilec.frontend.whole_loops.nests import Nest, chain_of, counts_of
from tilec.frontend.whole_loops.operands import Operand
from tilec.frontend.whole_loops.reader import Reader, sizes_along
from tilec.support.syntax import names_in, stored_names


class Missed(NamedTuple):
    """A statement that adds up products of elements of rows and columns, which are those of
    `tensors`; `inner` are the extents of its loops, or of tensors where these follow from the
    iteration, `why` says what T.gemm does not give."""

    statement: ast.stmt
    tensors: frozenset[str]
    inner: tuple[ast.expr, ...]
    why: str


def missed_product(nest: Nest) -> Missed | None:
    """Such a statement of a nest that is no product."""
    stored = stored_names(*nest.body)
    for s in nest.body:
        if isinstance(s, ast.If):
            for body in (s.body, s.orelse):
                if (missed := missed_product(replace(nest, body=tuple(body)))) is not None:
                    return missed
    for at, loop in enumerate(nest.body):
        if not isinstance(loop, ast.For):
            continue
        chain = chain_of(loop)
        inner, reader = counts_of(chain, nest.named), Reader(nest.named, lambda test: True)
        if inner is None:
            continue
        for s in nest.body[:at]:
            if not {*stored_names(s)} & {n for n in stored if stored.count(n) > 1}:
                reader.note(s)
        indices, extents = zip(*inner)
        whole = (*nest.indices, *indices), (*nest.extents, *extents), tuple(chain[-1].body)
        if (missed := missed_product(Nest(*whole, nest.named))) is not None:
            return missed._replace(why="the loops around it are not done over tiles of such sums")
        within = [s for s in ast.walk(loop) if isinstance(s, ast.stmt)]
        under = {x for s in within if isinstance(s, ast.If) for x in s.body + s.orelse}
        found, others = dict[ast.stmt, list[Operand]](), False
        for s in within:
            added = reader.added(s)
            operands = [] if added is None else reader.factors(added[1], inner[-1][0])
            pairs = itertools.permutations([o.names for o in operands], 2)
            if any({*nest.indices} & a - b and {*nest.indices} & b - a for a, b in pairs):
                found[s] = operands
            elif not isinstance(s, ast.For | ast.If):
                others |= added is not None or not reader.note(s)
        others |= any(stored.count(name) > 1 for name in reader.names)
        for s, operands in found.items():
            why = "its indices or dtypes are not T.gemm's"
            if len(operands) > 2:
                why = f"{len(operands)} factors go with {inner[-1][0]}, and T.gemm takes two"
            elif s in under:
                why = "a condition says what is added"
            elif others:
                why = "the loop does something else, too"
            tensors = frozenset(o.tensor.id for o in operands if o.tensor)
            own, known = {*nest.indices, *stored}, list[ast.expr]()
            for name, extent in inner:
                sizes = [extent] if names_in(extent).isdisjoint(own) else []
                known += sizes or sizes_along(operands, name)[:1]
            return Missed(s, tensors, tuple(known), why)
    return None
