"""The verifier: every rule has a program that breaks it, and the programs that keep them pass."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from machine_speed import slower
from programs import PROGRAMS

from tilec.ir import types as t
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Param, Value, walk
from tilec.ir.errors import CompileError, InternalError
from tilec.ir.layout import blocked
from tilec.ir.op_classes import OPS
from tilec.ir.ops import Alloc, Binary, Const, For, Parallel, Yield
from tilec.ir.parser import parse_func
from tilec.ir.verify import CONTRACTS, RULES, allowed, span, verify

INT = t.ScalarType(t.INT32)
PARAMS = """
  %A: global<M x K x f16> = tensor A, %M: i32 = size A 0, %K: i32 = size A 1, %n: i32 = scalar n,
  %x: f32 = scalar x, %p: i1 = scalar p,
"""


def func_of(body: str, grid: str = "yield [%M]") -> Func:
    return parse_func(f"kernel @f {{}} ({PARAMS}) grid {{ {grid} }} body {{\n{body}\n}}")


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_keep_the_rules(name: str) -> None:
    verify(parse_func(PROGRAMS[name][0]), "TILE")


# --- structure ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("if %p then { %a = const 1, i32 yield } orelse { yield } %b = binary.add %a, %n",
         "%a: i32 is used outside its region"),
        ("%z = const 0, i32 for.serial %z, %n, %n body(%i: i32) { yield } %b = binary.add %i, %n",
         "%i: i32 is used outside its region"),
        ("%b = binary.add %n, %n : i64", "results are ['i64'], should be ['i32']"),
        ("%b = binary.plus %n, %n", "unknown binary kind plus"),
        ("%b = binary.add %n, %x", "add of i32 and f32"),
        ("if %p then { yield print \"x\" }", "a yield is not the last op of its region"),
        ("for.serial %n, %n, %n body(%i: i32) { print \"x\" }", "ends without a yield"),
        ("for.serial %n, %n, %n body { yield }", "takes no index"),
        ("for.serial %n, %n, %n body(%i: i64) { yield }", "a loop index of i64 from i32 to i32"),
        ("for.serial %x, %x, %x body(%i: f32) { yield }", "a loop index of f32"),
        ("for.fast %n, %n, %n body(%i: i32) { yield }", "unknown loop kind fast"),
        ("%r = for.serial %n, %n, %n, [%x] body(%i: i32, %a: f32) { yield }", "the loop carries"),
        ("while cond { yield [%n] } body { yield }", "not one bool"),
        ("%r = while [%n] cond { yield [%p] } body(%a: i32) { yield [%a] }", "its condition takes"),
        ("while cond { yield [%p] }", "ends without a yield"),
        ("if %n then { yield } orelse { yield }", "the condition is i32, not a bool"),
        ("%r = if %p, types=(f32) then { yield [%x] } orelse { yield [%n] }", "a branch yields"),
        ("if %p then(%q: i32) { yield } orelse { yield }", "a branch takes no arguments"),
        ("parallel (4) body(%i: i64) { %c = const 1, i32 }", "a parallel body takes i32 indices"),
        ("parallel (4) body(%i: i32) { yield [%i] }", "a parallel body takes i32 indices"),
        ("parallel (4, 4) body(%i: i32) { yield }", "2 extents, 1 indices"),
        ("%b = alloc global<4xf16>", "an alloc in global memory"),
        ("%b = alloc shared<M x f16>", "compile-time extents above 0"),
        ("%b = alloc shared<4x0xf16>", "compile-time extents above 0"),
        ("%v = load %A[%n]", "1 indices into global<M x K x f16>"),
        ("%v = load %A[%n, %x]", "index %x: f32 is not an integer"),
        ("%v = load %n[%n]", "not a buffer"),
        ("store %A[%n, %n], %x", "store of f32 into global<M x K x f16>"),
        ("%b = alloc shared<4x4xf16> copy %A[%n, %n], (4, 4), %b[%n, %n], (4, 2)", "copy of (4, 4"),
        ("%b = alloc shared<4xf16> copy %A[%n, %x], (1, 4), %b[%n], (4)", "%x: f32 is not an int"),
        ("%c = alloc fragment<4x4xf32> %b = alloc shared<4x4xf16> "
         "gemm %b[%n, %n], (4, 4), %b[%n], (4, 4), %c", "1 indices into shared<4x4xf16>"),
        ("%c = alloc fragment<4x8xf32> %b = alloc shared<4x4xf16> "
         "gemm %b[%n, %n], (4, 4), %b[%n, %n], (4, 4), %c", "gemm of"),
        ("%b = if %p, types=(local<1xf32>) then { %c = alloc local<1xf32> yield [%c] } "
         "orelse { %c = alloc local<1xf32> yield [%c] }", "leaves the region it lives in"),
        ("yield [%n]", "the body of f yields values"),
    ],
)  # fmt: skip
def test_structure(body: str, message: str) -> None:
    with pytest.raises(InternalError) as error:
        verify(func_of(body))
    assert message in error.value.message
    assert error.value.loc is not None and error.value.loc.line >= 1


def test_the_message_shows_the_op() -> None:
    with pytest.raises(InternalError, match=r"in: %b = binary.add %n, %n : i64") as error:
        verify(func_of("%b = binary.add %n, %n : i64"))
    assert error.value.loc is not None and error.value.loc.line == 5


def test_a_value_is_defined_once() -> None:
    func = func_of("%a = const 1, i32 %b = const 2, i32")
    a, b = func.body.ops
    twice = func.with_body(Block((), (a, replace(b, results=a.results))))
    with pytest.raises(InternalError, match="is defined twice"):
        verify(twice)
    index = Value(INT, "i")
    loops = Builder()
    for _ in range(2):
        loops.emit(Parallel, (4,), Block((index,), ()))
    with pytest.raises(InternalError, match="is defined twice"):
        verify(func.with_body(loops.block()))
    with pytest.raises(InternalError, match="%n: i32 is defined twice"):
        verify(replace(func, params=(*func.params, func.params[3])))


def test_use_before_definition() -> None:
    func = func_of("%a = const 1, i32 %b = binary.add %a, %a")
    with pytest.raises(InternalError, match="is used before its definition"):
        verify(func.with_body(Block((), func.body.ops[::-1])))


def test_the_grid() -> None:
    with pytest.raises(InternalError, match="the grid of f ends without a yield"):
        verify(func_of("", "%a = const 1, i32"))
    with pytest.raises(InternalError, match="a grid extent is f32"):
        verify(func_of("", "yield [%x]"))
    func = func_of("", "%a = const 1, i32 yield [%a]")
    used = Block((), (Binary("add", *[func.grid.ops[0].result] * 2, results=(Value(INT),)),))
    with pytest.raises(InternalError, match="outside its region"):
        verify(func.with_body(used))


def test_parameters() -> None:
    func = func_of("")
    wrong = Param(Value(t.BufferType((4,), t.FLOAT16, "shared"), "S"), "tensor", "S")
    with pytest.raises(InternalError, match="tensor parameter %S is shared<4xf16>"):
        verify(replace(func, params=(*func.params, wrong)))
    lost = Param(Value(t.BufferType(("Q",), t.FLOAT16, "global"), "B"), "tensor", "B")
    with pytest.raises(InternalError, match="%B: global<Q x f16> names Q, which is no parameter"):
        verify(replace(func, params=(*func.params, lost)))


# --- contracts ------------------------------------------------------------------------------------


def test_every_op_has_a_span_and_every_contract_rules() -> None:
    assert set(RULES) == set(CONTRACTS)
    for cls in OPS.values():
        first, last = map(CONTRACTS.index, span(cls))
        assert first <= last
    assert allowed(OPS["gemm"], "TILE") and not allowed(OPS["gemm"], "LOWERED")
    assert allowed(OPS["mem_load"], "LOWERED") and not allowed(OPS["mem_load"], "TILE")
    assert allowed(OPS["binary"], "LOWERED") and allowed(OPS["barrier"], "TILE")


def test_ops_out_of_their_contract() -> None:
    with pytest.raises(InternalError, match="mem_load may not appear under contract TILE"):
        verify(func_of("%v = mem_load %A, %n"))
    with pytest.raises(InternalError, match="parallel may not appear under contract LOWERED"):
        verify(func_of("parallel (4) body(%i: i32) { yield }"), "LOWERED")


def test_tile_has_no_layouts_and_the_others_have() -> None:
    bare = func_of("%f = alloc fragment<16x8xf32> %s = alloc local<4xf32>")
    verify(bare, "TILE")
    with pytest.raises(InternalError, match=r"%f: fragment<16x8xf32> has no layout"):
        verify(bare, "LAID_OUT")
    layout = blocked((16, 8), 32, 4, 1)
    build = Builder()
    build.emit(Alloc, t.BufferType((16, 8), t.FLOAT32, "fragment", layout=layout), name="f")
    done = bare.with_body(build.block())
    for contract in CONTRACTS[1:]:
        verify(done, contract)
    with pytest.raises(InternalError, match="has a layout already"):
        verify(done, "TILE")
    loop = Builder()
    loop.emit(Parallel, (16, 8), Block((Value(INT, "i"), Value(INT, "j")), ()), layout=layout)
    verify(bare.with_body(loop.block()), "LAID_OUT")
    with pytest.raises(InternalError, match="a parallel has a layout already"):
        verify(bare.with_body(loop.block()), "TILE")


# --- uniformity -----------------------------------------------------------------------------------

TILE_OPS = """
  %z = const 0, i32 %o = const 1, i32 %q = const 4, i32
  %s = alloc shared<4x4xf16>
  %f = alloc fragment<4x4xf32>
  %g = alloc local<1xi32>
  %l = alloc local<4xf16>
  %t = thread_index
  %b = block_index 0
  %w = warp
"""
GEMM = "gemm %s[%z, %z], (4, 4), %s[%z, %z], (4, 4), %f"
COPY = "copy %A[%z, %z], (4, 4), %s[%z, %z], (4, 4)"
LOCAL = "copy %A[%t, %z], (1, 4), %l[%z], (4)"
PARALLEL = "parallel (4, 4) body(%e0: i32, %e1: i32) { store %f[%e0, %e1], %x }"


@pytest.mark.parametrize(
    "body",
    [
        f"%c = compare.lt %b, %n if %c then {{ {GEMM} yield }} orelse {{ {COPY} yield }}",
        f"for.serial %z, %b, %o body(%i: i32) {{ {COPY} {PARALLEL} yield }}",
        f"%c = compare.lt %t, %n if %c then {{ {LOCAL} %v = load %f[%z, %z] yield }}",
        f"store %g[%z], %b %v = load %g[%z] %c = compare.eq %v, %n if %c then {{ {GEMM} yield }}",
        f"scope low, 0, 1 body {{ %c = compare.eq %w, %z if %c then {{ {COPY} yield }} }}",
        "%c = compare.eq %w, %z if %c then { warp_sync yield }",
        f"%v = load %s[%z, %b] %c = compare.lt %v, %v if %c then {{ {COPY} yield }}",
    ],
)
def test_uniform_conditions(body: str) -> None:
    verify(func_of(TILE_OPS + body))


BY_THREAD = "%c = compare.lt %t, %n"
ON_GLOBAL = "%v = load %g[%z] %c = compare.eq %v, %n"


@pytest.mark.parametrize(
    ("before", "around", "inside", "word"),
    [
        (BY_THREAD, "if %c then {", f"{GEMM} yield }}", "T.gemm"),
        (BY_THREAD, "if %c then { yield } orelse {", f"{COPY} yield }}", "T.copy"),
        (BY_THREAD, "if %c then {", f"{PARALLEL} yield }}", "T.Parallel"),
        (BY_THREAD, "if %c then {", "barrier yield }", "T.sync_threads()"),
        (BY_THREAD, "if %c then {", "warp_sync yield }", "T.sync_warp()"),
        ("%c = compare.eq %w, %z", "if %c then {", f"{COPY} yield }}", "T.copy"),
        ("", "for.serial %z, %t, %o body(%i: i32) {", f"{COPY} yield }}", "T.copy"),
        (
            "",
            "%r = while [%z] cond(%i: i32) { %c = compare.lt %i, %t yield [%c] } body(%j: i32) {",
            f"{COPY} %k = binary.add %j, %o yield [%k] }}",
            "T.copy",
        ),
        (f"store %g[%z], %t {ON_GLOBAL}", "if %c then {", f"{GEMM} yield }}", "T.gemm"),
        (
            f"%k = compare.eq %t, %z if %k then {{ store %g[%z], %o yield }} {ON_GLOBAL}",
            "if %c then {",
            f"{GEMM} yield }}",
            "T.gemm",
        ),
        (
            "%v = load %s[%t, %z] %y = cast %v, f32 %c = compare.lt %y, %x",
            "if %c then {",
            f"{COPY} yield }}",
            "T.copy",
        ),
        (
            "%k = compare.lt %t, %n %v = if %k, types=(i32) then { yield [%z] } "
            "orelse { yield [%o] } %c = compare.eq %v, %z",
            "if %c then {",
            f"{COPY} yield }}",
            "T.copy",
        ),
        (
            "%v = for.serial %z, %t, %o, [%z] body(%i: i32, %a: i32) { %m = binary.add %a, %o "
            "yield [%m] } %c = compare.eq %v, %z",
            "if %c then {",
            f"{COPY} yield }}",
            "T.copy",
        ),
        ("", "parallel (8) body(%e: i32) {", f"{COPY} }}", "T.copy"),
        ("", "parallel (8) body(%e: i32) {", f"{PARALLEL} }}", "T.Parallel"),
    ],
)
def test_divergent_tile_ops(before: str, around: str, inside: str, word: str) -> None:
    func = func_of(f"{TILE_OPS}\n{before}\n{around}\n{inside}")
    lines = TILE_OPS.count("\n") + 8
    with pytest.raises(CompileError) as error:
        verify(func)
    assert error.value.loc is not None and error.value.loc.line == lines
    assert error.value.message.startswith(word)
    if around.startswith("parallel"):
        assert "inside T.Parallel" in error.value.message
    else:
        group = "warp to warp" if "%w" in before else "thread to thread"
        assert f"(line {lines - 1}) that differs from {group}" in error.value.message
    assert error.value.hint and len(str(error.value).splitlines()) <= 12


# --- speed ----------------------------------------------------------------------------------------


def test_300_ops_are_cheap() -> None:
    build = Builder()
    zero = build.value(Const, 0, t.INT32)
    x = zero
    for _ in range(10):
        loop = Builder()
        index = Value(INT, "i")
        y = index
        for _ in range(28):
            y = loop.value(Binary, "add", y, x)
        loop.emit(Yield)
        build.emit(For, "serial", zero, zero, zero, (), loop.block((index,)))
    func = func_of("").with_body(build.block())
    assert sum(1 for _ in walk(func.body)) >= 300
    best = 1.0
    for _ in range(5):
        start = time.process_time()
        verify(func)
        best = min(best, time.process_time() - start)
    assert best < 5e-3 * slower()


def test_an_op_that_was_checked_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says of itself cannot change; where it stands can, and is looked at each time."""
    func = func_of("%b = binary.add %n, %n %c = binary.mul %b, %n")
    asked: list[Op] = []
    infer = Binary.infer
    monkeypatch.setattr(Binary, "infer", lambda o: (asked.append(o), infer(o))[1])
    checked: set[Op] = set()
    verify(func, "TILE", checked)
    verify(func, "TILE", checked)
    assert asked == [*func.body.ops] and {*asked} <= checked
    first, second = func.body.ops
    moved = func.with_body(replace(func.body, ops=(second, first)))
    with pytest.raises(InternalError, match="used before its definition"):
        verify(moved, "TILE", checked)
    longer = func.with_body(replace(func.body, ops=(first, replace(second, results=()))))
    with pytest.raises(InternalError, match="should be"):
        verify(longer, "TILE", checked)
