"""Ranges, divisors, uniformity: pinned facts, and facts checked on what programs really compute."""

from __future__ import annotations

from typing import Any

import interp
import numpy as np
import pytest
from interp import Machine as PlainMachine
from interp import Memory, run_tile
from programs import PROGRAMS

from tilec.ir import types as t
from tilec.ir.analysis import MOST, Facts
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Param, Value, walk
from tilec.ir.intervals import RANGES, dtype_range, low_bit
from tilec.ir.ops import Binary, Cast, Compare, Const, For, If, Load, Parallel, Select, Yield
from tilec.ir.parser import parse_func
from tilec.ir.uniformity import Level, Uniformity
from tilec.ir.verify import verify

INT = t.ScalarType(t.INT32)
PARAMS = """
  %A: global<M x K x f16, strides=[sa, 1], align=8> = tensor A, %I: global<M x i32> = tensor I,
  %B: global<M x u8> = tensor B,
  %M: i32 = size A 0, %K: i32 = size A 1, %sa: i64 = stride A 0, %n: i32 = scalar n,
  %u: u32 = scalar u, %p: i1 = scalar p, %u0: i32 = scalar u0,
"""


def facts_of(
    body: str, grid: str = "yield [%M]", attrs: str = ""
) -> tuple[Facts, dict[str, Value]]:
    text = f"kernel @f {{{attrs}}} ({PARAMS}) grid {{ {grid} }} body {{ {body} }}"
    func = parse_func(text)
    verify(func)
    named = {p.value.name: p.value for p in func.params}
    for o in walk(func.body):
        named |= {r.name: r for r in o.results}
        for region in o.regions:
            named |= {a.name: a for a in region.args}
    return Facts(func), named


@pytest.mark.parametrize(
    ("body", "value", "range", "divisor"),
    [
        ("", "M", (0, None), 1),
        ("", "n", (-(2**31), 2**31 - 1), 1),
        ("", "u", (0, 2**32 - 1), 1),
        ("", "p", (0, 1), 1),
        ("", "sa", (None, None), 4),  # 8 bytes of f16
        ("%b = block_index 0", "b", (0, None), 1),
        ("%b = block_index 1", "b", (0, None), 1),
        ("%t = thread_index", "t", (0, 255), 1),
        ("%l = lane", "l", (0, 63), 1),
        ("%g = grid_size 0", "g", (1, None), 1),
        ("%c = const 0, i32", "c", (0, 0), MOST),
        ("%c = const -24, i32", "c", (-24, -24), 8),
        ("%b = block_index 0 %c = const 96, i32 %r = binary.mul %b, %c", "r", (0, None), 32),
        ("%b = block_index 0 %c = const 96, i32 %q = binary.mul %b, %c %d = const 16, i32 "
         "%r = binary.add %q, %d", "r", (16, None), 16),
        ("%b = block_index 0 %c = const 1, i32 %r = binary.sub %b, %c", "r", (-1, None), 1),
        ("%c = const 15, i32 %a = binary.add %M, %c %d = const 16, i32 %r = binary.floordiv %a, %d",
         "r", (0, None), 1),
        ("%d = const 16, i32 %r = binary.mod %n, %d", "r", (0, 15), 1),
        ("%d = const 16, i32 %r = binary.truncmod %n, %d", "r", (-15, 15), 1),
        ("%d = const 16, i32 %r = binary.and %n, %d", "r", (0, 16), 16),
        ("%d = const 16, i32 %r = binary.floordiv %n, %d", "r", (-(2**27), 2**27 - 1), 1),
        ("%d = const 3, i32 %r = binary.shr %n, %d", "r", (-(2**28), 2**28 - 1), 1),
        ("%d = const 3, i32 %r = binary.shl %M, %d", "r", (0, None), 8),
        ("%d = const 64, i32 %q = binary.mul %M, %d %e = const 16, i32 %r = binary.floordiv %q, %e",
         "r", (0, None), 4),
        ("%r = binary.floordiv %M, %K", "r", (0, None), 1),
        ("%r = binary.mod %n, %K", "r", (0, None), 1),
        ("%r = binary.mod %n, %u0", "r", (-(2**31), 2**31 - 1), 1),
        ("%d = const 7, i32 %q = binary.floordiv %M, %d %m = binary.mul %q, %d "
         "%r = binary.sub %M, %m", "r", (0, 6), 1),
        ("%q = binary.floordiv %M, %K %m = binary.mul %K, %q %r = binary.sub %M, %m",
         "r", (0, None), 1),
        ("%d = const 5, i32 %r = binary.min %M, %d", "r", (0, 5), 1),
        ("%d = const 5, i32 %r = binary.max %n, %d", "r", (5, 2**31 - 1), 1),
        ("%r = unary.neg %M", "r", (None, 0), 1),
        ("%r = binary.add %n, %n", "r", (-(2**31), 2**31 - 1), 1),  # it may wrap
        ("%c = const 1, u32 %r = binary.sub %u, %c", "r", (0, 2**32 - 1), 1),
        ("%z = const 0, i32 %v = load %B[%z] %w = cast %v, i32 %r = binary.add %w, %w",
         "r", (0, 510), 1),
        ("%z = const 0, i32 %v = load %I[%z] %r = cast %v, i64", "r", (-(2**31), 2**31 - 1), 1),
        ("%r = cast %sa, i32", "r", (-(2**31), 2**31 - 1), 4),
        ("%r = cast %M, i64", "r", (0, None), 1),
        ("%r = cast %p, i32", "r", (0, 1), 1),
        ("%a = const 8, i32 %b = const 24, i32 %r = select %p, %a, %b", "r", (8, 24), 8),
        ("%a = const 8, i32 %b = const 24, i32 "
         "%r = if %p, types=(i32) then { yield [%a] } orelse { yield [%b] }", "r", (8, 24), 8),
        ("%r = compare.ge %M, %M", "r", (0, 1), 1),
        ("%z = const -1, i32 %r = compare.gt %M, %z", "r", (1, 1), 1),
        ("parallel (16, 3) body(%i: i32, %j: i32) { yield }", "j", (0, 2), 1),
        ("parallel (1) body(%i: i32) { yield }", "i", (0, 0), MOST),
        ("%z = const 4, i32 %s = const 12, i32 for.serial %z, %M, %s body(%i: i32) { yield }",
         "i", (4, None), 4),
        ("%z = const 0, i32 %h = const 20, i32 %s = const 8, i32 "
         "for.serial %z, %h, %s body(%i: i32) { yield }", "i", (0, 16), 8),
        ("for.serial %M, %M, %n body(%i: i32) { yield }", "i", (None, None), 1),
        # carried values that only grow
        ("%z = const 0, i32 %s = const 4, i32 "
         "%r = for.serial %z, %M, %s, [%z] body(%i: i32, %a: i32) { %q = binary.add %a, %s "
         "yield [%q] }", "r", (0, None), 4),
        ("%z = const 0, i32 %s = const 4, i32 "
         "%r = while [%z] cond(%a: i32) { %c = compare.lt %a, %M yield [%c] } body(%b: i32) { "
         "%q = binary.add %b, %s %w = select %p, %q, %b yield [%w] }",
         "b", (0, None), 4),
        ("%z = const 8, i32 %s = const 4, i32 "
         "%r = for.serial %z, %M, %s, [%z] body(%i: i32, %a: i32) { %q = binary.sub %a, %s "
         "yield [%q] }", "r", (None, None), 4),
        ("%z = const 1, i32 %r = for.serial %z, %M, %z, [%z] body(%i: i32, %a: i32) "
         "{ %q = binary.mul %a, %n yield [%q] }", "r", (-(2**31), 2**31 - 1), 1),
        ("%z = const 1, i32 %r = for.serial %z, %M, %z, [%z] body(%i: i32, %a: i32) "
         "{ %q = binary.add %a, %n yield [%q] }", "a", (-(2**31), 2**31 - 1), 1),
    ],
)  # fmt: skip
def test_facts(body: str, value: str, range: tuple[Any, Any], divisor: int) -> None:
    facts, named = facts_of(body, attrs="threads=256")
    assert facts.range(named[value]) == range
    assert facts.divisor(named[value]) == divisor


def test_block_indices_lie_in_a_known_grid() -> None:
    body = "%b = block_index 0 %c = block_index 1 %g = grid_size 0"
    facts, named = facts_of(body, "%c24 = const 24, i32 yield [%c24, %M]")
    assert facts.range(named["b"]) == (0, 23)
    assert facts.range(named["c"]) == (0, None)
    assert facts.range(named["g"]) == (24, 24) and facts.constant(named["g"]) == 24
    assert facts.below(named["b"], 24) and not facts.below(named["b"], 23)
    assert not facts.below(named["c"], 10**9) and facts.non_negative(named["c"])


# --- against what is computed ---------------------------------------------------------------------


class Checked(dict[Value, Any]):
    """An environment that compares each value set with what the analysis says of it."""

    facts: Facts
    count = 0

    def __setitem__(self, value: Value, got: Any) -> None:
        super().__setitem__(value, got)
        if isinstance(got, Memory) or not isinstance(value.type, t.ScalarType):
            return
        if value.dtype.is_float:
            return
        lo, hi = self.facts.range(value)
        divisor = self.facts.divisor(value)
        for n in np.unique(np.asarray(got).astype(object)):
            Checked.count += 1
            assert (lo is None or n >= lo) and (hi is None or n <= hi), (value, n, lo, hi)
            assert int(n) % divisor == 0, (value, n, divisor)

    def update(self, *args: Any, **kwargs: Any) -> None:
        for value, got in dict(*args, **kwargs).items():
            self[value] = got


def check_run(
    func: Func, args: dict[str, Any], monkeypatch: pytest.MonkeyPatch, grid: Any = None
) -> int:
    Checked.facts, Checked.count = Facts(func), 0

    class Machine(PlainMachine):
        def __init__(self, func: Func, env: Any, *rest: Any) -> None:
            checked = Checked()
            dict.update(checked, env)
            super().__init__(func, checked, *rest)

    monkeypatch.setattr(interp, "Machine", Machine)
    run_tile(func, args, grid)
    return Checked.count


@pytest.mark.parametrize("name", PROGRAMS)
def test_facts_hold_in_programs(
    name: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, arguments = PROGRAMS[name]
    assert check_run(parse_func(text), arguments(rng), monkeypatch) > 20


@pytest.mark.parametrize("dtype", [t.INT8, t.UINT8, t.INT32, t.UINT32, t.INT64], ids=str)
def test_facts_hold_in_random_arithmetic(
    dtype: t.DType, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data (loaded, scalar parameters) may wrap at any width; nothing is assumed of it."""
    scalar = t.ScalarType(dtype)
    buffer = Value(t.BufferType((16,), dtype, "global"), "X")
    kinds = sorted(RANGES)
    lo, hi = dtype_range(dtype)
    for _ in range(25):
        x = Value(scalar, "x")
        build, index = Builder(), Value(INT, "i")
        pool = [x, build.value(Cast, index, dtype), build.value(Load, buffer, (index,))]
        pool += [build.value(Const, n, dtype) for n in (0, 1, 3, 8, int(rng.integers(0, 100)))]
        for _ in range(40):
            a, b = (pool[i] for i in rng.integers(len(pool), size=2))
            match int(rng.integers(8)):
                case 0:
                    cond = build.value(Compare, str(rng.choice(["lt", "eq", "ge"])), a, b)
                    made = build.value(Select, cond, a, b)
                case 1:
                    wide = build.value(Cast, a, t.INT64)
                    made = build.value(Cast, wide, dtype)
                case 2:
                    by = build.value(Const, int(rng.integers(0, 70)), dtype)
                    made = build.value(Binary, str(rng.choice(["shl", "shr"])), a, by)
                case _:
                    made = build.value(Binary, str(rng.choice(kinds)), a, b)
            pool.append(made)
        body = Block((), (Parallel((16,), build.block((index,))),))
        params = (Param(x, "scalar", "x"), Param(buffer, "tensor", "X"))
        func = Func("f", params, Block((), (Yield(),)), body)
        data = rng.integers(lo, hi, 16, dtype=np.dtype(dtype.name), endpoint=True)
        args = {"x": int(rng.integers(lo, hi)), "X": data}
        assert check_run(func, args, monkeypatch, (1,)) > 100


@pytest.mark.parametrize("kind", RANGES)
def test_intervals_hold_every_result(kind: str) -> None:
    """Exhaustively on small intervals, unbounded ones included, against Python's integers."""
    python = {
        "add": int.__add__, "sub": int.__sub__, "mul": int.__mul__, "floordiv": int.__floordiv__,
        "mod": int.__mod__, "min": min, "max": max, "and": int.__and__, "or": int.__or__,
        "xor": int.__xor__, "shl": int.__lshift__, "shr": int.__rshift__,
        "truncdiv": lambda a, b: int(a / b), "truncmod": lambda a, b: a - b * int(a / b),
    }  # fmt: skip
    bounds = [-9, -4, -1, 0, 1, 2, 5]
    for a_lo in [*bounds, None]:
        for a_hi in [*bounds, None]:
            for b_lo in bounds:
                for b_hi in [*bounds, None]:
                    a = range(-20 if a_lo is None else a_lo, (20 if a_hi is None else a_hi) + 1)
                    b = range(b_lo, (8 if b_hi is None else b_hi) + 1)
                    if not a or not b:
                        continue
                    lo, hi = RANGES[kind]((a_lo, a_hi), (b_lo, b_hi))
                    for x in a:
                        for y in b:
                            by_zero = y == 0 and ("div" in kind or "mod" in kind)
                            if kind in ("shl", "shr") and y < 0:
                                continue
                            got = 0 if by_zero else python[kind](x, y)
                            assert lo is None or got >= lo, (a_lo, a_hi, b_lo, b_hi, x, y)
                            assert hi is None or got <= hi, (a_lo, a_hi, b_lo, b_hi, x, y)


def test_low_bit() -> None:
    assert [low_bit(n) for n in (1, 6, 8, -12, 0)] == [1, 2, 8, 4, MOST]


# --- uniformity -----------------------------------------------------------------------------------


def test_levels() -> None:
    _, named = facts_of("%b = const 0, i32")
    func = parse_func(f"""kernel @f {{}} ({PARAMS}) grid {{ yield [%M] }} body {{
      %b = block_index 0
      %t = thread_index
      %w = warp
      %bt = binary.add %b, %t
      %bw = binary.add %b, %w
      %g = load %I[%b]
      %h = load %I[%t]
      %s = alloc local<1xi32>
      %q = alloc local<1xi32>
      %z = const 0, i32
      store %s[%z], %g
      %v = load %s[%z]
      for.serial %z, %M, %b body(%i: i32) {{
        %old = load %q[%z]
        %c = compare.lt %t, %n
        if %c then {{ store %q[%z], %z yield }} orelse {{ yield }}
        yield
      }}
      %after = load %q[%z]
      parallel (4) body(%e: i32) {{ %k = binary.add %e, %b }}
    }}""")
    levels = Uniformity(func)
    values = {r.name: r for o in walk(func.body) for r in o.results}
    want = {
        "b": Level.BLOCK, "t": Level.THREAD, "w": Level.WARP, "bt": Level.THREAD, "bw": Level.WARP,
        "g": Level.BLOCK, "h": Level.THREAD, "v": Level.BLOCK, "after": Level.THREAD,
        "old": Level.THREAD, "c": Level.THREAD, "k": Level.THREAD,
    }  # fmt: skip
    assert {name: levels.level(values[name]) for name in want} == want
    assert levels.level(named["M"]) == Level.BLOCK


def test_carried_values_are_as_uniform_as_what_flows_in() -> None:
    func = parse_func(f"""kernel @f {{}} ({PARAMS}) grid {{ yield [%M] }} body {{
      %t = thread_index
      %z = const 0, i32
      %a, %b = for.serial %z, %M, %z, [%z, %z] body(%i: i32, %x: i32, %y: i32) {{
        %s = binary.add %y, %t
        yield [%y, %s]
      }}
      %f = for.serial %z, %t, %z, [%z] body(%j: i32, %v: i32) {{
        %w = binary.add %v, %z
        yield [%w]
      }}
      %o = const 1, i32
      %c = compare.lt %t, %o
      %k = if %c, types=(i32) then {{ yield [%z] }} orelse {{ yield [%M] }}
    }}""")
    loop, until = [o for o in func.body.ops if isinstance(o, For)]
    (branch,) = [o for o in func.body.ops if isinstance(o, If)]
    levels = Uniformity(func)
    assert [levels.level(r) for r in loop.results] == [Level.THREAD, Level.THREAD]
    assert [levels.level(a) for a in loop.body.args] == [Level.BLOCK, Level.THREAD, Level.THREAD]
    assert levels.level(until.body.args[1]) == Level.BLOCK
    assert levels.level(until.results[0]) == Level.THREAD
    assert levels.level(branch.results[0]) == Level.THREAD


@pytest.mark.parametrize(
    ("index", "above", "below"),
    [
        ("%x = binary.sub %M, %one %r = binary.sub %x, %i", True, False),  # M - 1 - i
        ("%r = binary.sub %M, %i", True, False),
        ("%x = binary.sub %M, %two %r = binary.sub %x, %i", False, False),
        (
            "%x = binary.sub %K, %one %r = binary.sub %x, %i",
            False,
            True,
        ),  # of another loop's extent
        ("%x = binary.mul %i, %two %y = binary.mul %M, %two %r = binary.sub %y, %x", True, False),
        ("%x = binary.mul %i, %two %r = binary.sub %M, %x", False, False),
        ("%x = binary.sub %K, %M %r = binary.add %x, %i", False, True),  # K - M + i
        ("%x = binary.add %i, %one %y = binary.sub %K, %M %r = binary.add %x, %y", False, False),
    ],
)
def test_indices_at_the_ends_of_loops(index: str, above: bool, below: bool) -> None:
    consts = " ".join(f"%{name} = const {n}, i32" for n, name in enumerate(("zero", "one", "two")))
    loop = f"for.serial %zero, %M, %one body(%i: i32) {{ {index} yield }}"
    facts, named = facts_of(f"{consts} {loop}")
    assert facts.inside(named["r"], "K") == (above, below)
