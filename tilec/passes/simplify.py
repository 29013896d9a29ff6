"""Does at compile time what needs no run time. Numbers stay the same, bit for bit."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from tilec.ir.analysis import Facts
from tilec.ir.core import Block, Func, Op, Substitution, Value, substitute
from tilec.ir.errors import InternalError
from tilec.ir.fold import Number, fold, literal
from tilec.ir.ops import (
    Alloc,
    AnnotateLayout,
    Binary,
    Compare,
    Const,
    Copy,
    Fill,
    For,
    If,
    Parallel,
    Scope,
    Select,
    Store,
    While,
    Yield,
    yielded,
)
from tilec.ir.types import DType, ScalarType
from tilec.passes.identities import COMMUTATIVE, Env, reduce
from tilec.target import Target

_ROUNDS = 8  # each round feeds the next; in practice two suffice
_READS = frozenset({"load", "reg_read", "mem_load", "alloc"})  # no effect, so may go if unused
_PER_SCOPE = frozenset({"thread_index", "lane", "warp"})  # another number in another scope


def simplify(func: Func, target: Target) -> Func:
    """Before: valid IR of any contract. After: the same, and no scalar op has only constant operands,
    an algebraic identity for a body, an equal in a dominating place, or no use; no condition and no
    trip count of 0 or 1 is known; no buffer is only written.

    Floating-point results do not change: nothing is regrouped, and a constant is folded only where
    every machine agrees on the result (see `tilec.ir.fold`).
    """
    for _ in range(_ROUNDS):
        before = func
        grid = _Forward(func).region(func.grid)
        forward = _Forward(func)
        forward.region(func.grid)
        body = forward.region(func.body)
        if grid is not func.grid or body is not func.body:
            func = replace(func, grid=grid, body=body)
        func = _sweep(func)
        if func is before:
            return func
    return func
