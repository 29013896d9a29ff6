"""mem2reg: which one-element buffers become values, which stay, and their meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from interp import run_tile
from programs import PROGRAMS, expected
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.core import Func, walk
from tilec.ir.ops import Alloc
from tilec.ir.parser import parse_func
from tilec.ir.printer import print_block
from tilec.ir.verify import verify
from tilec.passes.mem2reg import mem2reg
from tilec.passes.simplify import simplify
from tilec.target import TARGETS

pytestmark = pytest.mark.turns

TARGET = TARGETS["cuda:sm_90a"]
M = T.dynamic("M")
PARAMS = """
  %A: global<N x f32> = tensor A, %R: global<N x f32> = tensor R, %N: i32 = size A 0,
  %n: i32 = scalar n, %x: f32 = scalar x, %p: i1 = scalar p,
"""
HEAD = """
  %z = const 0, i32
  %one = const 1, i32
  %s = alloc local<1xf32>
"""


def func_of(body: str) -> Func:
    grid = "%g = const 1, i32 yield [%g]"
    return parse_func(f"kernel @f {{}} ({PARAMS}) grid {{ {grid} }} body {{ {HEAD} {body} }}")


def placed(body: str) -> str:
    """The body after the pass, without the constants of HEAD."""
    func = func_of(body)
    verify(func)
    done = mem2reg(func, TARGET)
    verify(done)
    assert mem2reg(done, TARGET) is done
    lines = print_block(done.body).splitlines()
    return "\n".join(s for s in lines if s not in ("%z = const 0, i32", "%one = const 1, i32"))


def check_meaning(body: str, rng: np.random.Generator) -> None:
    func = func_of(body)
    done = mem2reg(func, TARGET)
    for flag in (True, False):
        for n in (0, 1, 3):
            data = rng.standard_normal(5).astype(np.float32)
            args: list[dict[str, Any]] = [
                {"A": data, "R": np.zeros(5, np.float32), "n": n, "x": np.float32(0.3), "p": flag}
                for _ in range(2)
            ]
            run_tile(func, args[0])
            run_tile(done, args[1])
            assert np.array_equal(args[0]["R"], args[1]["R"]), (flag, n)
            assert args[0]["R"].any()


LIFTED = {
    "straight line": (
        """
        store %s[%z], %x
        %a = load %s[%z]
        %b = binary.add %a, %x
        store %s[%z], %b
        %c = load %s[%z]
        store %R[%z], %c
        """,
        "%b = binary.add %x, %x : f32\nstore %R[%z], %b",
    ),
    "fill": (
        "fill %s[%z], (1), %x %a = load %s[%z] store %R[%z], %a",
        "store %R[%z], %x",
    ),
    "for": (
        """
        store %s[%z], %x
        for.serial %z, %n, %one body(%i: i32) {
          %a = load %s[%z]
          %v = load %A[%i]
          %b = binary.add %a, %v
          store %s[%z], %b
          yield
        }
        %c = load %s[%z]
        store %R[%z], %c
        """,
        "%s = for.serial %z, %n, %one, [%x] body(%i: i32, %s_1: f32) {\n"
        "  %v = load %A[%i] : f32\n"
        "  %b = binary.add %s_1, %v : f32\n"
        "  yield [%b]\n"
        "} : f32\n"
        "store %R[%z], %s",
    ),
    "for that carries already": (
        """
        store %s[%z], %x
        %r = for.serial %z, %n, %one, [%x] body(%i: i32, %y: f32) {
          %a = load %s[%z]
          %b = binary.mul %a, %y
          store %s[%z], %b
          yield [%a]
        }
        %c = load %s[%z]
        store %R[%z], %c
        store %R[%one], %r
        """,
        "%r, %s = for.serial %z, %n, %one, [%x, %x] body(%i: i32, %y: f32, %s_1: f32) {\n"
        "  %b = binary.mul %s_1, %y : f32\n"
        "  yield [%s_1, %b]\n"
        "} : f32, f32\n"
        "store %R[%z], %s\n"
        "store %R[%one], %r",
    ),
    "if, one side": (
        """
        store %s[%z], %x
        if %p then { %v = load %A[%z] store %s[%z], %v yield }
        %c = load %s[%z]
        store %R[%z], %c
        """,
        "%s = if %p, types=(f32) then {\n"
        "  %v = load %A[%z] : f32\n"
        "  yield [%v]\n"
        "} orelse {\n"
        "  yield [%x]\n"
        "}\n"
        "store %R[%z], %s",
    ),
    "while": (
        """
        %k = alloc local<i32>
        store %k, %z
        store %s[%z], %x
        while cond { %i = load %k %c = compare.lt %i, %n yield [%c] } body {
          %i = load %k
          %j = binary.add %i, %one
          store %k, %j
          %a = load %s[%z]
          %b = binary.add %a, %x
          store %s[%z], %b
          yield
        }
        %r = load %s[%z]
        store %R[%z], %r
        """,
        "%k, %s = while [%z, %x] cond(%k_1: i32, %s_1: f32) {\n"
        "  %c = compare.lt %k_1, %n : i1\n"
        "  yield [%c]\n"
        "} body(%k_2: i32, %s_2: f32) {\n"
        "  %j = binary.add %k_2, %one : i32\n"
        "  %b = binary.add %s_2, %x : f32\n"
        "  yield [%j, %b]\n"
        "} : i32, f32\n"
        "store %R[%z], %s",
    ),
    "not carried where each trip stores first": (
        """
        for.serial %z, %N, %one body(%i: i32) {
          %v = load %A[%i]
          store %s[%z], %v
          if %p then { %d = binary.add %v, %v store %s[%z], %d yield }
          %c = load %s[%z]
          store %R[%i], %c
          yield
        }
        """,
        "for.serial %z, %N, %one body(%i: i32) {\n"
        "  %v = load %A[%i] : f32\n"
        "  %s = if %p, types=(f32) then {\n"
        "    %d = binary.add %v, %v : f32\n"
        "    yield [%d]\n"
        "  } orelse {\n"
        "    yield [%v]\n"
        "  }\n"
        "  store %R[%i], %s\n"
        "  yield\n"
        "}",
    ),
    "read in a parallel": (
        """
        store %s[%z], %x
        parallel (4) body(%i: i32) {
          %t = alloc local<1x1xf32>
          %a = load %s[%z]
          %v = load %A[%i]
          store %t[%z, %z], %v
          if %p then { %w = binary.mul %v, %a store %t[%z, %z], %w yield }
          %b = load %t[%z, %z]
          store %R[%i], %b
        }
        """,
        "parallel (4) body(%i: i32) {\n"
        "  %v = load %A[%i] : f32\n"
        "  %t = if %p, types=(f32) then {\n"
        "    %w = binary.mul %v, %x : f32\n"
        "    yield [%w]\n"
        "  } orelse {\n"
        "    yield [%v]\n"
        "  }\n"
        "  store %R[%i], %t\n"
        "}",
    ),
}


@pytest.mark.parametrize("name", LIFTED)
def test_lifted(name: str, rng: np.random.Generator) -> None:
    body, want = LIFTED[name]
    assert placed(body) == want
    check_meaning(body, rng)


def test_nested_control_flow(rng: np.random.Generator) -> None:
    body = """
      %best = alloc local<1xf32>
      %count = alloc local<1xi32>
      store %best[%z], %x
      store %count[%z], %z
      for.serial %z, %N, %one body(%i: i32) {
        store %s[%z], %x
        for.serial %z, %i, %one body(%j: i32) {
          %v = load %A[%j]
          %old = load %s[%z]
          %new = binary.add %old, %v
          store %s[%z], %new
          %b = load %best[%z]
          %more = compare.gt %new, %b
          if %more then {
            store %best[%z], %new
            %c = load %count[%z]
            %d = binary.add %c, %one
            store %count[%z], %d
            yield
          } orelse { yield }
          yield
        }
        %total = load %s[%z]
        store %R[%i], %total
        yield
      }
      %r = load %best[%z]
      %k = load %count[%z]
      %kf = cast %k, f32
      %sum = binary.add %r, %kf
      store %R[%z], %sum
    """
    assert "alloc" not in placed(body)
    check_meaning(body, rng)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("store %s[%n], %x %a = load %s[%z] store %R[%z], %a", "a run-time index"),
        ("store %s[%z], %x print \"s\", buffer=%s", "its address is taken"),
        ("copy %A[%z], (1), %s[%z], (1) %a = load %s[%z] store %R[%z], %a", "a copy writes it"),
        ("%a = load %s[%z] store %R[%z], %a store %s[%z], %x", "it is read before it is written"),
        ("if %p then { store %s[%z], %x yield } orelse { %a = load %s[%z] store %R[%z], %a yield }",
         "it is read where it was not written"),
        ("store %s[%z], %x parallel (1) body(%i: i32) { %v = load %A[%i] store %s[%z], %v } "
         "%a = load %s[%z] store %R[%z], %a", "a parallel writes it"),
        ("store %s[%z], %x scope low, 0, 1 body { store %s[%z], %x } "
         "%a = load %s[%z] store %R[%z], %a", "another scope writes it"),
        ("store %s[%z], %x while cond { store %s[%z], %x yield [%p] } body { yield } "
         "%a = load %s[%z] store %R[%z], %a", "a condition writes it"),
    ],
)  # fmt: skip
def test_what_stays(body: str, why: str) -> None:
    func = func_of(body)
    verify(func)
    assert mem2reg(func, TARGET) is func, why


def test_other_buffers_stay() -> None:
    body = """
      %f = alloc fragment<2xf32>
      %h = alloc shared<1xf32>
      %l = alloc local<2xf32>
      store %f[%z], %x store %h[%z], %x store %l[%one], %x
      %a = load %f[%z] %b = load %h[%z] %c = load %l[%one]
      print "{}{}{}", [%a, %b, %c]
      store %s[%z], %x %d = load %s[%z] store %R[%z], %d
    """
    text = placed(body)
    assert [s.split()[3] for s in text.splitlines() if "alloc" in s] == [
        "fragment<2xf32>", "shared<1xf32>", "local<2xf32>",
    ]  # fmt: skip


def test_one_that_stays_does_not_hold_back_the_others() -> None:
    text = placed("""
      %k = alloc local<1xf32>
      store %k[%z], %x
      %a = load %s[%z]
      %b = load %k[%z]
      print "{}{}", [%a, %b]
    """)
    assert text == ('%s = alloc local<1xf32>\n%a = load %s[%z] : f32\nprint "{}{}", [%a, %x]')


@pytest.mark.parametrize("first", [mem2reg, simplify])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_keep_their_bits(name: str, first: Any, rng: np.random.Generator) -> None:
    text, make = PROGRAMS[name]
    func = parse_func(text)
    done = mem2reg(first(func, TARGET), TARGET)
    verify(done)
    args = make(rng)
    copies = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in args.items()}
    want = expected(name, args)
    run_tile(func, args)
    run_tile(done, copies)
    for key in want:
        assert np.array_equal(args[key], copies[key])
    left = [o.type for o in walk(done.body) if isinstance(o, Alloc) and o.type.space == "local"]
    assert all(t.size > 1 for t in left)


@tilec.kernel
def scaled_rows(
    S: T.Tensor((16, M), "float32"),
    A: T.Tensor((M, 64), "float32"),
    B: T.Tensor((M, 64), "float32"),
    how: T.constexpr,
):
    """Rows times one over the root of a mean, which a fragment of one element adds up."""
    with T.Kernel(M, threads=64) as i:
        r, x = T.alloc_fragment(1, "float32"), T.alloc_fragment(64, "float32")
        t = T.get_thread_binding()
        r[0] = 0
        for k in T.serial(16):
            r[0] += S[k, i]
        if how == "all":
            r[0] = T.rsqrt(r[0] / 16)
        elif t == 3:  # what it stores is every thread's
            r[0] = T.rsqrt(r[0] / 16)
        T.copy(A[i, 0], x)
        for j in T.Parallel(64):
            x[j] = x[j] * r[0]
        T.copy(x, B[i, 0])


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
@pytest.mark.parametrize("how", ["all", "one"])
def test_a_fragment_of_one_element(how: str, target: str, rng: np.random.Generator) -> None:
    s, a = rng.random((16, 5), np.float32), rng.random((5, 64), np.float32)
    b = np.full_like(a, np.nan)
    want = a / np.sqrt(s.astype(float).mean(0))[:, None]
    stages = scaled_rows.compile(s, a, b, how, target=target).stages
    run(scaled_rows, target, s, a, b, how)
    np.testing.assert_allclose(b, want, rtol=1e-5)
    assert ("fragment<1xf32>" in stages["mem2reg"]) == (how == "one")
    if how == "all" and target != "cpu":
        assert "barrier" not in stages["insert_sync"]
