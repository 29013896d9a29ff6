"""simplify: what it folds, what it must not touch, and that numbers stay the same bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from interp import run_tile
from programs import PROGRAMS, expected

from tilec.ir import semantics as num
from tilec.ir import types as t
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Param, Value, walk
from tilec.ir.fold import normal
from tilec.ir.ops import (
    Binary,
    Compare,
    Const,
    Select,
    Store,
    Unary,
    Yield,
)
from tilec.ir.ops.scalar import COMPARE_KINDS
from tilec.ir.parser import parse_func
from tilec.ir.printer import print_block
from tilec.ir.verify import verify
from tilec.passes.simplify import simplify
from tilec.target import TARGETS

TARGET = TARGETS["cuda:sm_90a"]
PARAMS = """
  %A: global<M x f32> = tensor A, %I: global<M x i32> = tensor I, %M: i32 = size A 0,
  %x: f32 = scalar x, %n: i32 = scalar n, %u: u32 = scalar u, %p: i1 = scalar p, %h: f16 = scalar h,
  %w: i64 = scalar w,
"""


def func_of(body: str, grid: str = "yield [%M]") -> Func:
    return parse_func(f"kernel @f {{}} ({PARAMS}) grid {{ {grid} }} body {{ {body} }}")


def simple(body: str, contract: str = "TILE") -> str:
    """The body after the pass."""
    func = func_of(body)
    verify(func, contract)
    done = simplify(func, TARGET)
    verify(done, contract)
    assert simplify(done, TARGET) is done
    return print_block(done.body).strip()


def value_of(expression: str, dtype: str) -> str:
    """The lines left of `expression`, which defines `%r`, and of a store of it to `%out`."""
    buffer = f"%out = alloc local<{dtype}>"
    done = simple(f'{buffer} {expression} store %out, %r print "", buffer=%out')
    kept = [s for s in done.splitlines() if "alloc" not in s and "print" not in s]
    return "\n".join(kept)


# --- identities -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "dtype", "stored"),
    [
        ("%z = const 0, i32 %r = binary.add %n, %z", "i32", "%n"),
        ("%z = const 0, i32 %r = binary.add %z, %n", "i32", "%n"),
        ("%z = const 0, i32 %r = binary.sub %n, %z", "i32", "%n"),
        ("%z = const 1, i32 %r = binary.mul %z, %n", "i32", "%n"),
        ("%z = const 1, i32 %r = binary.floordiv %n, %z", "i32", "%n"),
        ("%z = const 1, i32 %r = binary.truncdiv %n, %z", "i32", "%n"),
        ("%z = const -1, i32 %r = binary.and %z, %n", "i32", "%n"),
        ("%z = const 4294967295, u32 %r = binary.and %u, %z", "u32", "%u"),
        ("%z = const 0, i32 %r = binary.shl %n, %z", "i32", "%n"),
        ("%r = binary.min %n, %n", "i32", "%n"),
        ("%r = binary.or %p, %p", "i1", "%p"),
        ("%t = const true, i1 %r = binary.and %p, %t", "i1", "%p"),
        ("%t = const false, i1 %r = binary.xor %p, %t", "i1", "%p"),
        ("%a = unary.neg %x %r = unary.neg %a", "f32", "%x"),
        ("%a = unary.not %n %r = unary.not %a", "i32", "%n"),
        ("%o = const 1.0, f32 %r = binary.mul %x, %o", "f32", "%x"),
        ("%o = const 1, f32 %r = binary.mul %o, %x", "f32", "%x"),
        ("%o = const 1.0, f32 %r = binary.div %x, %o", "f32", "%x"),
        ("%o = const -0.0, f32 %r = binary.add %x, %o", "f32", "%x"),
        ("%o = const 0.0, f32 %r = binary.sub %x, %o", "f32", "%x"),
        ("%r = binary.max %x, %x", "f32", "%x"),
        ("%r = select %p, %x, %x", "f32", "%x"),
        ("%t = const true, i1 %f = const 0, i1 %r = select %p, %t, %f", "i1", "%p"),
        ("%a = cast %h, f32 %r = cast %a, f16", "f16", "%h"),
        ("%a = cast %n, i64 %r = cast %a, i32", "i32", "%n"),
        ("%a = cast %n, i64 %b = cast %a, i32 %r = cast %b, i32", "i32", "%n"),
    ],
)  # fmt: skip
def test_identities_leave_the_operand(expression: str, dtype: str, stored: str) -> None:
    assert value_of(expression, dtype) == f"store %out, {stored}"


@pytest.mark.parametrize(
    ("expression", "dtype", "op"),
    [
        ("%z = const 0.0, f32 %r = binary.add %x, %z", "f32", "binary.add %x, %z"),
        ("%z = const 0.0, f32 %r = binary.mul %x, %z", "f32", "binary.mul %x, %z"),
        ("%z = const -0.0, f32 %r = binary.sub %x, %z", "f32", "binary.sub %x, %z"),
        ("%r = binary.sub %x, %x", "f32", "binary.sub %x, %x"),
        ("%r = binary.div %x, %x", "f32", "binary.div %x, %x"),
        ("%r = compare.eq %x, %x", "i1", "compare.eq %x, %x"),
        ("%r = compare.le %x, %x", "i1", "compare.le %x, %x"),
        ("%r = binary.floordiv %n, %n", "i32", "binary.floordiv %n, %n"),
        (
            "%t = const 3.0, f32 %o = const 1.0, f32 %r = binary.div %o, %t",
            "f32",
            "binary.div %o, %t",
        ),
        ("%a = compare.lt %x, %x %r = unary.not %a", "i1", "unary.not %a"),
        ("%a = cast %n, f32 %r = cast %a, i32", "i32", "cast %a, i32"),
        ("%a = cast %x, f16 %r = cast %a, f32", "f32", "cast %a, f32"),
        ("%a = cast %w, i32 %r = cast %a, i64", "i64", "cast %a, i64"),
        ("%a = cast %u, i32 %r = cast %a, i64", "i64", "cast %a, i64"),
        ("%a = cast %n, u32 %r = cast %a, i64", "i64", "cast %a, i64"),
        ("%n1 = const nan, f32 %o = const 1.0, f32 %r = binary.max %n1, %o", "f32", "binary.max"),
        ("%z = const 0, i32 %r = binary.floordiv %n, %z", "i32", "binary.floordiv"),
    ],
)
def test_what_is_no_identity_stays(expression: str, dtype: str, op: str) -> None:
    lines = value_of(expression, dtype).splitlines()
    assert lines[-1] == "store %out, %r"
    assert lines[-2].startswith(f"%r = {op}")


@pytest.mark.parametrize(
    ("expression", "dtype", "left"),
    [
        ("%a = const 3, i32 %b = const 4, i32 %y = binary.add %n, %a %r = binary.add %y, %b",
         "i32", "binary.add %n, %c7"),
        ("%a = const 3, i32 %b = const 4, i32 %y = binary.sub %n, %a %r = binary.sub %b, %y",
         "i32", "binary.sub %b, %y"),
        ("%a = const 3, i32 %b = const 4, i32 %y = binary.sub %n, %a %r = binary.add %b, %y",
         "i32", "binary.add %n, %c1"),
        ("%o = const 1, i32 %r = binary.mod %n, %o", "i32", None),
        ("%z = const 0, i32 %r = binary.mul %n, %z", "i32", None),
        ("%r = binary.xor %n, %n", "i32", None),
        ("%a = const 65536, i32 %y = binary.mul %n, %a %r = binary.mul %y, %a", "i32", None),
        ("%a = const 12, i32 %b = const 10, i32 %y = binary.and %n, %a %r = binary.and %y, %b",
         "i32", "binary.and %n, %c8"),
        ("%a = compare.lt %n, %M %r = unary.not %a", "i1", "compare.ge %n, %M"),
        ("%a = compare.eq %x, %x %r = unary.not %a", "i1", "compare.ne %x, %x"),
        ("%c = const 3, i32 %r = compare.lt %c, %n", "i1", "compare.gt %n, %c"),
        ("%q = unary.not %p %y = unary.exp %x %r = select %q, %x, %y", "f32", "select %p, %y, %x"),
        ("%a = cast %h, f32 %r = cast %a, f64", "f64", "cast %h, f64"),
    ],
)  # fmt: skip
def test_cheaper_forms(expression: str, dtype: str, left: str | None) -> None:
    lines = value_of(expression, dtype).splitlines()
    if left is None:  # nothing is left (65536 * 65536 wraps)
        assert len(lines) == 2 and lines[0].endswith(" = const 0, i32")
    else:
        assert f"%r = {left}" in lines[-2]


# --- constants and random arithmetic --------------------------------------------------------------


def test_formats_that_depend_on_the_target_are_not_folded() -> None:
    assert normal(1.5, t.FLOAT8_E4M3) is None and normal(1.5, t.TFLOAT32) is None
    text = value_of("%a = const 1.5, e4m3 %b = const 2.0, e4m3 %r = binary.add %a, %b", "e4m3")
    assert "binary.add" in text


def test_a_literal_is_rounded_before_it_is_used() -> None:
    text = value_of("%a = const 0.1, f16 %r = cast %a, f32", "f32")
    assert text.splitlines()[0].endswith(f"const {float(np.float32(np.float16(0.1)))!r}, f32")


@pytest.mark.parametrize("dtype", [t.INT32, t.UINT32, t.FLOAT32], ids=str)
def test_random_expressions_keep_their_bits(dtype: t.DType, rng: np.random.Generator) -> None:
    integer = [
        "add",
        "sub",
        "mul",
        "min",
        "max",
        "and",
        "or",
        "xor",
        "shl",
        "shr",
        "mod",
        "floordiv",
    ]
    kinds = integer if dtype.is_int else ["add", "sub", "mul", "div", "min", "max"]
    scalar = t.ScalarType(dtype)
    params = [Value(scalar, n) for n in "abc"]
    out = Value(t.BufferType((40,), dtype, "global"), "out")
    for _ in range(40):
        build = Builder()
        pool = list(params)
        for n in (0, 1, 2, 3, int(rng.integers(0, 31))):
            pool.append(build.value(Const, n if dtype.is_int else n / 2 - 1, dtype))
        for _ in range(40):
            a, b, c = (pool[i] for i in rng.integers(len(pool), size=3))
            b = pool[int(rng.integers(3, 8))] if rng.integers(2) else b  # a constant
            match int(rng.integers(6)):
                case 0:
                    cond = build.value(Compare, str(rng.choice(COMPARE_KINDS)), a, b)
                    cond = build.value(Unary, "not", cond) if rng.integers(2) else cond
                    made = build.value(Select, cond, b, c)
                case 1:
                    made = build.value(Unary, "neg", a)
                case _:
                    made = build.value(Binary, str(rng.choice(kinds)), a, b)
            pool.append(made)
        for n, v in enumerate(pool[-40:]):
            build.emit(Store, out, (build.value(Const, n, t.INT32),), v)
        roles = [Param(p, "scalar", p.name) for p in params]
        func = Func(
            "f", (*roles, Param(out, "tensor", "out")), Block((), (Yield(),)), build.block()
        )
        done = simplify(func, TARGET)
        verify(done)
        values: list[Any] = [rng.integers(0, 1 << 31), rng.integers(0, 9), 0]
        if dtype.is_float:
            values = [*rng.standard_normal(2).astype(np.float32), np.float32(-0.0)]
        arrays = [np.zeros(40, num.numpy_dtype(dtype)) for _ in range(2)]
        for f, array in zip((func, done), arrays):
            run_tile(f, {"out": array, **dict(zip("abc", values))}, grid=(1,))
        if dtype.is_float:
            nan = np.isnan(arrays[0])
            assert np.array_equal(nan, np.isnan(arrays[1]))
            # signed zeros of minimum and maximum differ from machine to machine; nothing else may
            assert np.array_equal(arrays[0][~nan], arrays[1][~nan])
        else:
            assert np.array_equal(*arrays), (print_block(func.body), print_block(done.body))


# --- common subexpressions ------------------------------------------------------------------------


def test_equal_ops_are_shared_in_dominated_places_only() -> None:
    text = simple("""
      %y = binary.add %n, %M
      if %p then {
        %a = binary.add %M, %n
        %d = binary.mul %n, %n
        print "{} {}", [%a, %d]
        yield
      } orelse {
        %d = binary.mul %n, %n
        print "{}", [%d]
        yield
      }
      %d = binary.mul %n, %n
      print "{} {}", [%d, %y]
    """)
    assert text.count("binary.add") == 1 and text.count("binary.mul") == 3
    assert 'print "{} {}", [%y, %d]' in text


def test_equal_literals_of_another_sign_or_type_are_not_shared() -> None:
    text = simple("""
      %a = const 0.0, f32 %b = const -0.0, f32 %c = const 0, f32
      %d = const 0, i32 %e = const false, i1
      print "{}{}{}{}{}", [%a, %b, %c, %d, %e]
    """)
    assert 'print "{}{}{}{}{}", [%a, %b, %a, %d, %e]' in text


def test_reads_of_memory_are_not_shared() -> None:
    text = simple("""
      %z = const 0, i32
      %a = load %A[%z]
      %y = binary.add %a, %x
      store %A[%z], %y
      %b = load %A[%z]
      store %A[%n], %b
    """)
    assert text.count("load") == 2


def test_thread_numbers_are_per_scope() -> None:
    text = simple("""
      %a = warp
      scope producer, 0, 1 body { %b = warp print "{}", [%b] }
      print "{}", [%a]
    """)
    assert text.count("= warp") == 2


# --- control flow ---------------------------------------------------------------------------------


def test_a_known_condition_takes_its_branch() -> None:
    text = simple("""
      %t = const 3, i32 %f = const 4, i32
      %c = compare.lt %t, %f
      %r = if %c, types=(f32) then { print "yes" yield [%x] }
        orelse { print "no" %y = unary.exp %x yield [%y] }
      print "{}", [%r]
    """)
    assert text == 'print yes\nprint "{}", [%x]'


def test_a_condition_is_known_inside_its_branches() -> None:
    text = simple("""
      if %p then {
        %q = unary.not %p
        if %q then { print "never" yield } orelse { print "first" yield }
        %s = select %p, %n, %M
        print "{}", [%s]
        yield
      } orelse {
        if %p then { print "never" yield } orelse { print "second" yield }
        yield
      }
    """)
    assert "never" not in text and "select" not in text
    assert text.index("first") < text.index("orelse") < text.index("second")
    assert 'print "{}", [%n]' in text


def test_branches_that_compute_nothing() -> None:
    text = simple("""
      if %p then { yield } orelse { yield }
      %r, %s = if %p, types=(f32, i32) then { yield [%x, %n] }
        orelse { %o = const 2.0, f32 yield [%o, %n] }
      print "{} {}", [%r, %s]
    """)
    assert "if" not in text and "%r = select %p, %x, %o : f32" in text
    assert 'print "{} {}", [%r, %n]' in text


def test_branches_on_one_condition_are_one() -> None:
    twice = """
      %c0 = const 0, i32
      if %p then { store %A[%c0], %x yield } orelse { yield }
      %y = binary.add %x, %x : f32
      if %p then { store %A[%n], %y yield } orelse { store %A[%c0], %y yield }
    """
    text = simple(twice)
    assert text.count("if %p") == 1 and text.index("binary.add") < text.index("if %p")
    then, orelse = text.split("orelse")
    assert then.index("store %A[%c0], %x") < then.index("store %A[%n]")
    assert orelse.count("store") == 1
    between = twice.replace("%y = binary", "store %A[%n], %x %y = binary")
    assert simple(between).count("if %p") == 2
    other = twice.replace(
        "if %p then { store %A[%n]", "%q = compare.lt %n, %M : i1 if %q then { store %A[%n]"
    )
    assert simple(other).count("if ") == 2


def test_results_that_are_equal_or_unused_are_dropped() -> None:
    text = simple("""
      %a, %b, %c = if %p, types=(f32, i32, i32)
        then { print "t" %y = unary.exp %x %m = binary.add %n, %n yield [%y, %n, %m] }
        orelse { print "e" yield [%x, %n, %M] }
      print "{} {}", [%a, %b]
    """)
    assert "types=(f32)" in text and 'print "{} {}", [%a, %n]' in text
    assert "binary.add" not in text


@pytest.mark.parametrize(
    ("lo", "hi", "step", "trips"),
    [
        (0, 0, 1, 0),
        (5, 3, 1, 0),
        (2, 3, 1, 1),
        (0, 8, 8, 1),
        (0, 5, 8, 1),
        (0, 9, 8, 2),
        (0, 2, 1, 2),
    ],
)
def test_loops_of_no_and_one_trip(lo: int, hi: int, step: int, trips: int) -> None:
    text = simple(f"""
      %lo = const {lo}, i32 %hi = const {hi}, i32 %st = const {step}, i32
      %r = for.pipelined %lo, %hi, %st, [%n] body(%i: i32, %a: i32) {{
        print "{{}}", [%i]
        %y = binary.add %a, %i
        yield [%y]
      }}
      print "{{}}", [%r]
    """)
    assert ("for.pipelined" in text) == (trips == 2)
    if trips == 0:
        assert text == 'print "{}", [%n]'
    elif trips == 1 and lo:
        assert text.endswith('%y = binary.add %n, %lo : i32\nprint "{}", [%y]')
    elif trips == 1:
        assert text.endswith('print "{}", [%n]')


def test_values_carried_unchanged_or_for_nobody() -> None:
    text = simple("""
      %z = const 0, i32 %o = const 1, i32
      %a, %b, %c = for.serial %z, %n, %o, [%x, %x, %n] body(%i: i32, %p1: f32, %q: f32, %r: i32) {
        %y = binary.add %q, %p1
        %m = binary.add %i, %n
        yield [%p1, %y, %m]
      }
      print "{} {}", [%a, %b]
    """)
    assert "%b = for.serial %z, %n, %o, [%x] body(%i: i32, %q: f32)" in text
    assert "%y = binary.add %q, %x : f32\n  yield [%y]" in text
    assert 'print "{} {}", [%x, %b]' in text


def test_a_while_that_never_starts() -> None:
    text = simple("""
      %r = while [%n] cond(%a: i32) { %c = compare.lt %a, %a yield [%c] } body(%b: i32) {
        print "x" %m = binary.add %b, %n yield [%m] }
      print "{}", [%r]
    """)
    assert text == 'print "{}", [%n]'


def test_idle_loops_and_dead_buffers_go() -> None:
    text = simple("""
      %z = const 0, i32 %o = const 1, i32
      %s = alloc shared<8xf32>
      %f = alloc fragment<8xf32>
      %k = alloc fragment<8xf32>
      fill %f[%z], (8), %x
      copy %f[%z], (8), %s[%z], (8)
      copy %A[%z], (8), %k[%z], (8)
      for.serial %z, %n, %o body(%i: i32) {
        parallel (8) body(%j: i32) { %v = load %A[%j] %e = unary.exp %v store %s[%j], %e }
        yield
      }
      copy %k[%z], (8), %A[%z], (8)
    """)
    assert text == (
        "%z = const 0, i32\n"
        "%k = alloc fragment<8xf32>\n"
        "copy %A[%z], (8), %k[%z], (8)\n"
        "copy %k[%z], (8), %A[%z], (8)"
    )


def test_effects_stay() -> None:
    body = """
      %z = const 0, i32 %o = const 1, i32
      while cond { %v = load %I[%z] %c = compare.gt %v, %z yield [%c] } body { yield }
      for.serial %z, %n, %o body(%i: i32) { if %p then { store %A[%i], %x yield } yield }
      barrier
    """
    text = simple(body)
    assert "while" in text and "store %A[%i], %x" in text and "barrier" in text


# --- ranges ---------------------------------------------------------------------------------------


def test_ranges_decide() -> None:
    text = simple("""
      %e = const 8, i32 %t = const 16, i32
      parallel (8) body(%i: i32) {
        %m = binary.mod %i, %e
        %q = binary.floordiv %i, %e
        %c = compare.lt %i, %t
        %l = binary.min %i, %e
        %v = select %c, %x, %x
        %j = binary.add %m, %q
        %k = binary.add %j, %l
        %ok = unary.not %c
        if %ok then { store %A[%i], %x yield } orelse { store %A[%k], %v yield }
      }
    """)
    assert text == (
        "parallel (8) body(%i: i32) {\n  %k = binary.add %i, %i : i32\n  store %A[%k], %x\n}"
    )


def test_ranges_do_not_decide_what_may_wrap() -> None:
    text = simple("""
      %v = load %I[%n] %o = const 1, i32
      %y = binary.add %v, %o
      %c = compare.gt %y, %v
      print "{}", [%c]
    """)
    assert "compare.gt" in text


@pytest.mark.parametrize(
    ("expression", "left"),
    [
        ("%n1 = const 32, i32 %r = binary.floordiv %at, %n1", {"floordiv": ["%base, ", "%j, "]}),
        ("%n1 = const 64, i32 %r = binary.floordiv %at, %n1", {"floordiv": ["%base, "]}),
        ("%n1 = const 128, i32 %r = binary.floordiv %at, %n1", {"floordiv": ["%base, "]}),
        ("%n1 = const 32, i32 %r = binary.mod %at, %n1", {"mod": ["%j, "]}),
        ("%n1 = const 64, i32 %r = binary.mod %at, %n1", {}),
        ("%n1 = const 128, i32 %r = binary.mod %at, %n1",
         {"floordiv": ["%base, "], "mod": ["%0, "]}),
        ("%n1 = const 24, i32 %r = binary.floordiv %at, %n1", {"floordiv": ["%at, "]}),
        ("%n1 = const -64, i32 %r = binary.floordiv %at, %n1", {"floordiv": ["%at, "]}),
        ("%n1 = const -64, i32 %r = binary.mod %at, %n1", {"mod": ["%at, "]}),
        ("%n1 = const 32, i32 %y = binary.sub %j, %n1 %b = binary.add %base, %y "
         "%r = binary.floordiv %b, %n1", {"floordiv": ["%b, "]}),
        ("%v = load %I[%j] %c = const 64, i32 %u1 = binary.mul %v, %c %b = binary.add %u1, %j "
         "%n1 = const 32, i32 %r = binary.floordiv %b, %n1", {"floordiv": ["%b, "]}),
    ],
)  # fmt: skip
def test_quotients_of_sums(expression: str, left: dict[str, list[str]]) -> None:
    """Of what a divisor divides and a rest; not where the rest is negative, or the sum wraps."""
    text = simple(f"""
      %c0 = const 0, i32 %c1 = const 1, i32 %c64 = const 64, i32
      for.serial %c0, %M, %c1 body(%k: i32) {{
        %base = binary.mul %k, %c64
        parallel (64) body(%j: i32) {{
          %at = binary.add %base, %j {expression}
          %w1 = load %I[%r]
          store %I[%at], %w1
        }}
        yield
      }}
    """)
    for kind in ("floordiv", "mod"):
        found = [line.split(kind)[1] for line in text.splitlines() if f".{kind}" in line]
        wanted = left.get(kind, [])
        assert len(found) == len(wanted), text
        assert all(any(w in line for line in found) for w in wanted), text


def test_remainders_of_floats_stay() -> None:
    text = simple("""
      %inf = const inf, f32 %one = const 1.0, f32
      parallel (8) body(%i: i32) {
        %y = binary.add %x, %one
        %r = binary.mod %y, %inf
        store %A[%i], %r
        yield
      }
    """)
    assert "binary.mod %y, %inf" in text


# --- whole programs -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_keep_their_bits(name: str, rng: np.random.Generator) -> None:
    text, arguments = PROGRAMS[name]
    func = parse_func(text)
    done = simplify(func, TARGET)
    verify(done)
    assert simplify(done, TARGET) is done
    args = arguments(rng)
    copies = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in args.items()}
    want = expected(name, args)
    run_tile(func, args)
    run_tile(done, copies)
    for key, array in want.items():
        assert np.array_equal(args[key], copies[key])
        tolerance = 1e-2 if args[key].dtype == np.float16 else 1e-5
        np.testing.assert_allclose(copies[key].astype(np.float64), array, tolerance, tolerance)
    ops = [list(walk(f.body)) for f in (func, done)]
    assert len(ops[1]) <= len(ops[0])


def test_nothing_to_do_is_the_same_object() -> None:
    func = func_of('print "{}", [%n]')
    assert simplify(func, TARGET) is func


def test_the_grid_is_simplified_too() -> None:
    func = func_of("", "%a = const 15, i32 %b = const 1, i32 %c = binary.add %a, %b yield [%c]")
    done = simplify(func, TARGET)
    assert [type(o) for o in done.grid.ops] == [Const, Yield]
    const = done.grid.ops[0]
    assert isinstance(const, Const) and const.value == 16
