"""Builtins by which a kernel says something about itself, and small ones that stand for others."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from typing import Any

from tilec import language as T
from tilec.frontend.arithmetic import static_int
from tilec.frontend.builtins.scalar import block_index
from tilec.frontend.builtins.table import Call, builtin
from tilec.frontend.expressions import Expressions
from tilec.frontend.values import Buffer, LoopHeader, Number, Scalar, describe, is_literal
from tilec.ir.clusters import PDL
from tilec.ir.ops import Assume, DeviceAssert, Load

_MOST_BLOCKS = 32  # of a multiprocessor, on every target


@builtin(T.assume, raw=True)
def assume(t: Expressions, c: Call) -> None:
    hazards = t.hazards
    with t.inside():  # what it takes to know the condition is not computed
        cond = t.condition(c.nodes["cond"])
    t.hazards = hazards
    if cond is False:
        hint = "leave it out, or mend it"
        raise t.error("this assumption is known to be false", hint, c.nodes["cond"])
    if cond is True:
        return
    if t.asserts == "fatal":  # it is looked at, and nothing relies on it
        text = f"{t.loc}: assertion failed: T.assume({ast.unparse(c.nodes['cond'])})"
        _note(t, _asserted(t, c.nodes["cond"]), text)
        return
    for part in _conjuncts(c.nodes["cond"]):
        _assume(t, part, ast.unparse(part))


def in_a_block(cond: Any) -> None:
    """T.assume of what follows from there being a block that runs: no launch looks. Programs that
    tilec writes say it (`whole_loops.blocks`)."""


@builtin(in_a_block, raw=True)
def _in_a_block(t: Expressions, c: Call) -> None:
    for part in _conjuncts(c.nodes["cond"]):
        _assume(t, part, "")


def _conjuncts(node: ast.expr) -> Iterator[ast.Compare]:
    """The comparisons of two numbers that have to hold together, as far as they are known."""
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            for v in values:
                yield from _conjuncts(v)
        case ast.BinOp(op=ast.BitAnd(), left=left, right=right):
            yield from _conjuncts(left)
            yield from _conjuncts(right)
        case ast.Compare(left=left, ops=ops, comparators=others):
            for a, op, b in zip((left, *others), ops, others):
                yield ast.copy_location(ast.Compare(a, [op], [b]), node)


_KINDS: dict[type[ast.cmpop], str] = {
    ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq",
}  # fmt: skip


def _assume(t: Expressions, node: ast.Compare, text: str) -> None:
    """Note one comparison, if it is of integers that are known without looking into memory."""
    (op,), left, right = node.ops, node.left, node.comparators[0]
    kind = _KINDS.get(type(op))
    match left:
        case ast.BinOp(op=ast.Mod(), left=number, right=by) if kind == "eq":
            if t.expression(right) != 0:
                return
            kind, left, right = "multiple", number, by
    hazards = t.hazards
    with t.inside() as builder:
        a, b = (t.number(t.expression(x), "this number") for x in (left, right))
        if kind is None or any(isinstance(x, float) for x in (a, b)):
            return
        if not (isinstance(a, Scalar) or isinstance(b, Scalar)):
            return
        x, y = t.unify(a, b, "this comparison")
        if not x.dtype.is_int or (kind == "multiple" and static_int(b) is None):
            return
    t.hazards = hazards
    own = (isinstance(o, Load) and o.source.space == "local" for o in builder.ops)
    if all(o.pure or is_own for o, is_own in zip(builder.ops, own)):
        t.builder.ops += builder.ops
        t.emit(Assume, x.value, y.value, kind, text)


@builtin(T.device_assert, raw=True)
def device_assert(t: Expressions, c: Call) -> None:
    node = c.nodes["condition"]
    msg = c.message('write T.device_assert(i < n, "i is too large"), or leave the message out')
    hazards, checks = t.hazards, t.asserts
    with contextlib.nullcontext() if checks else t.inside():
        cond = _asserted(t, node)
    if not checks:
        t.hazards = hazards
    if cond is True:
        return
    text = f"{t.loc}: assertion failed: {ast.unparse(node)}" + (f": {msg}" if msg else "")
    _note(t, cond, text)


def _note(t: Expressions, cond: bool | Scalar, text: str) -> None:
    """Let a run look at `cond`, if it is one that looks."""
    checks = t.asserts
    texts = t.attributes.get("asserts", ())
    assert isinstance(texts, tuple)
    t.attributes["asserts"] = texts = tuple(dict.fromkeys((*texts, text)))
    if checks:
        block = [block_index(t, d).value for d in range(3)] if checks == "fatal" else []
        false = t.run_time(cond).value
        t.emit(DeviceAssert, false, text, texts.index(text) + 1, tuple(block))


def _asserted(t: Expressions, node: ast.expr) -> bool | Scalar:
    with t.at(node):
        return t.truth(t.number(t.expression(node), "condition of T.device_assert"))


@builtin(T.evaluate)
def evaluate(t: Expressions, c: Call) -> None:
    pass  # its argument has been evaluated


@builtin(T.clamp)
def clamp(t: Expressions, c: Call) -> Number:
    x, low, high = (c.number(name) for name in ("dst", "min_val", "max_val"))
    return t.binary("min", t.binary("max", x, low), high)


@builtin(T.grid)
def grid(t: Expressions, c: Call) -> LoopHeader:
    if not c["extents"]:
        raise t.error("T.grid needs at least one extent", "write T.grid(m, n)")
    places = {f"extents[{d}]": t.frame.loc(a) for d, a in enumerate(c.node.args)}
    return LoopHeader("grid", dict(c.values), t.loc, places)


@builtin(T.annotate_l2_hit_ratio)
def annotate_l2_hit_ratio(t: Expressions, c: Call) -> None:
    given = c["ratios"]
    if not isinstance(given, dict):
        hint = "write {A: 0.9}"
        raise t.error(f"T.annotate_l2_hit_ratio takes a dict, not {describe(given)}", hint)
    for tensor, ratio in given.items():
        _tensor(t, c, tensor)
        if not is_literal(ratio) or not 0 <= ratio <= 1:
            message = f"the hit ratio of {tensor.name} is {describe(ratio)}"
            raise t.error(message, "write a number from 0 to 1", c.place("ratios"))


@builtin(T.annotate_restrict_buffers)
def annotate_restrict_buffers(t: Expressions, c: Call) -> None:
    for tensor in c["buffers"]:
        _tensor(t, c, tensor)


def _tensor(t: Expressions, c: Call, value: object) -> None:
    if not isinstance(value, Buffer) or not value.is_global:
        hint = "name tensor parameters"
        raise t.error(f"T.{c.builtin} is about tensors, not {describe(value)}", hint)


builtin(T.pdl_sync)(lambda t, c: _launch_beside(t, "wait"))
builtin(T.pdl_trigger)(lambda t, c: _launch_beside(t, "trigger"))


def _launch_beside(t: Expressions, word: str) -> None:
    """Threads do it first of all, wherever the kernel says it: who waits earlier than asked is
    right, and a trigger says nothing of memory."""
    asked = t.attributes.get("pdl", ())
    assert isinstance(asked, tuple)
    t.attributes["pdl"] = tuple(w for w in PDL if w == word or w in asked)


@builtin(T.annotate_compile_flags)
def annotate_compile_flags(t: Expressions, c: Call) -> None:
    flags = c.several("flags")
    if not all(isinstance(flag, str) for flag in flags):
        raise c.wrong("flags", f"is {describe(c['flags'])}", 'write ["--fmad=false"]')
    t.options = t.options.with_flags(flags)


@builtin(T.annotate_pass_configs)
def annotate_pass_configs(t: Expressions, c: Call) -> None:
    if not isinstance(c["configs"], dict):
        raise c.wrong("configs", f"is {describe(c['configs'])}", "write {name: True}")
    t.options = t.options.with_flags(configs=c["configs"])


@builtin(T.annotate_min_blocks_per_sm)
def annotate_min_blocks_per_sm(t: Expressions, c: Call) -> None:
    n = c.integer("n", 1)
    if n > _MOST_BLOCKS:
        hint = "write 2 or 3: each of them gets its share of the registers"
        raise c.wrong("n", f"is {n}, the most is {_MOST_BLOCKS}", hint)
    c.alone()
    if "min_blocks" in t.attributes:
        raise t.error(f"this kernel has a T.{c.builtin} already", "keep one of them")
    t.attributes["min_blocks"] = n
