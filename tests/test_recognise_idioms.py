"""recognise_idioms: which element loops become copies and fills, which do not; what they mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from interp import run_tile
from programs import PROGRAMS, expected

from tilec.ir.core import Func, walk
from tilec.ir.ops import Copy, Fill, Parallel
from tilec.ir.parser import parse_func
from tilec.ir.printer import print_block
from tilec.ir.verify import verify
from tilec.passes.recognise_idioms import recognise_idioms
from tilec.passes.simplify import simplify
from tilec.target import TARGETS

TARGET = TARGETS["cuda:sm_90a"]
PARAMS = """
  %A: global<M x N x f32> = tensor A, %B: global<M x N x f16> = tensor B,
  %C: global<B0 x M x N x f32> = tensor C, %V: global<N x f32> = tensor V,
  %M: i32 = size A 0, %N: i32 = size A 1, %B0: i32 = size C 0, %n: i32 = scalar n,
  %x: f32 = scalar x,
"""
HEAD = """
  %b = block_index 0
  %c = block_index 1
  %S = alloc shared<4x8xf32>
  %F = alloc fragment<4x8xf16>
  %L = alloc local<4x8xf32>
  %one = const 1, i32
  %four = const 4, i32
  %eight = const 8, i32
  %r0 = binary.mul %b, %four
  %c0 = binary.mul %c, %eight
"""


def func_of(body: str) -> Func:
    grid = "%two = const 2, i32 yield [%two, %two]"
    return parse_func(f"kernel @f {{}} ({PARAMS}) grid {{ {grid} }} body {{ {HEAD} {body} }}")


def raised(body: str) -> str:
    """What the pass makes of `body`, the ops of HEAD left out."""
    func = func_of(body)
    verify(func)
    done = recognise_idioms(func, TARGET)
    verify(done)
    assert recognise_idioms(done, TARGET) is done
    skip = len(func_of("").body.ops)
    return "\n".join(print_block(done.body).splitlines()[skip:])


def arguments(rng: np.random.Generator) -> dict[str, Any]:
    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    return {
        "A": normal(7, 13), "B": normal(7, 13).astype(np.float16), "C": normal(3, 7, 13),
        "V": normal(13), "n": 1, "x": 0.7,
    }  # fmt: skip


def check_meaning(body: str, rng: np.random.Generator) -> None:
    func = func_of(body)
    done = recognise_idioms(func, TARGET)
    args = arguments(rng)
    copies = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in args.items()}
    run_tile(func, args)
    run_tile(done, copies)
    for key in args:
        assert np.array_equal(args[key], copies[key]), key


SHOW = """
  parallel (4, 8) body(%p: i32, %q: i32) {
    %o = load %S[%p, %q]
    %w = unary.neg %o
    %k = binary.add %q, %one
    store %C[%n, %p, %k], %w
  }
"""  # reads S in a form that stays a loop, so that what went into it is seen

COPIES = {
    "whole": (
        "parallel (4, 8) body(%i: i32, %j: i32) {"
        " %r = binary.add %r0, %i %k = binary.add %j, %c0 %v = load %A[%r, %k] store %S[%i, "
        "%j], %v }",
        "%c0_1 = const 0, i32\n"
        "copy %A[%r0, %c0], (4, 8), %S[%c0_1, %c0_1], (4, 8)",
    ),
    "converted": (
        "parallel (4, 8) body(%i: i32, %j: i32) {"
        " %k = binary.add %j, %c0 %v = load %B[%i, %k] %w = cast %v, f32 store %S[%i, %j], %w }",
        "copy %B[%c0_1, %c0], (4, 8), %S[%c0_1, %c0_1], (4, 8)",
    ),
    "part of a tile, negative offset": (
        "parallel (3, 5) body(%i: i32, %j: i32) { %r = binary.sub %i, %one %k = binary.sub "
        "%c0, %four"
        " %q = binary.add %k, %j %s = binary.add %i, %one %v = load %A[%r, %q] store %S[%s, "
        "%j], %v }",
        "copy %A[%r, %k], (3, 5), %S[%one, %c0_1], (3, 5)",
    ),
    "constant inside": (
        "parallel (4, 8) body(%i: i32, %j: i32) { %t = const 2, i32 %r = binary.add %i, %t"
        " %k = binary.add %r, %r0 %v = load %A[%k, %j] store %S[%i, %j], %v }",
        "copy %A[%k, %c0_1], (4, 8), %S[%c0_1, %c0_1], (4, 8)",
    ),
    "leading index": (
        "parallel (4, 8) body(%i: i32, %j: i32) { %v = load %C[%n, %i, %j] store %S[%i, %j], %v }",
        "copy %C[%n, %c0_1, %c0_1], (1, 4, 8), %S[%c0_1, %c0_1], (4, 8)",
    ),
    "one dimension": (
        "parallel (8) body(%j: i32) { %k = binary.add %c0, %j %v = load %V[%k] store %S[%one, "
        "%j], %v }",
        "copy %V[%c0], (8), %S[%one, %c0_1], (1, 8)",
    ),
    "a row of length one": (
        "parallel (1, 8) body(%i: i32, %j: i32) { %v = load %A[%i, %j] store %S[%i, %j], %v }",
        "copy %A[%c0_1, %c0_1], (1, 8), %S[%c0_1, %c0_1], (1, 8)",
    ),
    "to global, rounded": (
        "parallel (4, 8) body(%i: i32, %j: i32) { %r = binary.add %r0, %i %v = load %S[%i, %j]"
        " %h = cast %v, f16 store %B[%r, %j], %h }",
        "copy %S[%c0_1, %c0_1], (4, 8), %B[%r0, %c0_1], (4, 8)",
    ),
    "columns first": (
        "parallel (8, 4) body(%j: i32, %i: i32) { %v = load %A[%i, %j] store %S[%i, %j], %v }",
        "copy %A[%c0_1, %c0_1], (4, 8), %S[%c0_1, %c0_1], (4, 8)",
    ),
    "wide indices": (
        "%w0 = cast %c0, i64 parallel (4, 8) body(%i: i32, %j: i32) { %w = cast %j, i64"
        " %k = binary.add %w0, %w %v = load %A[%i, %k] store %S[%i, %j], %v }",
        "copy %A[%c0_1, %w0], (4, 8), %S[%c0_1, %c0_1], (4, 8)",
    ),
    "the user's width": (
        "parallel (4, 8), coalesced_width=4 body(%i: i32, %j: i32) {"
        " %v = load %A[%i, %j] store %S[%i, %j], %v }",
        "copy %A[%c0_1, %c0_1], (4, 8), %S[%c0_1, %c0_1], (4, 8), coalesced_width=4",
    ),
}  # fmt: skip

FILLS = {
    "whole tile": (
        "parallel (4, 8) body(%i: i32, %j: i32) { %z = const 1.5, f32 store %S[%i, %j], %z }",
        "fill %S[%c0_1, %c0_1], (4, 8), %z",
    ),
    "a value from outside": (
        "parallel (4, 8) body(%i: i32, %j: i32) { %y = binary.mul %x, %x store %S[%i, %j], %y }",
        "fill %S[%c0_1, %c0_1], (4, 8), %y",
    ),
    "a region of a tensor": (
        "parallel (4, 8) body(%i: i32, %j: i32) { %r = binary.add %r0, %i store %A[%r, %j], %x }",
        "fill %A[%r0, %c0_1], (4, 8), %x",
    ),
}


@pytest.mark.parametrize("name", COPIES | FILLS)
def test_raised(name: str, rng: np.random.Generator) -> None:
    body, last = (COPIES | FILLS)[name]
    text = raised(body)
    assert "parallel" not in text
    assert text.endswith(last)
    check_meaning(f"%zz = const 0, i32 fill %S[%zz, %zz], (4, 8), %x {body} {SHOW}", rng)


@pytest.mark.parametrize(
    "body",
    [
        # permuted, strided, gathered, broadcast, wrapped, several indices in one place
        "parallel (4, 4) body(%i: i32, %j: i32) { %v = load %A[%j, %i] store %S[%i, %j], %v }",
        "parallel (4, 4) body(%i: i32, %j: i32) { %k = binary.add %j, %j %v = load %A[%i, %k] "
        "store %S[%i, %j], %v }",
        "%two = const 2, i32 parallel (4, 4) body(%i: i32, %j: i32) { %k = binary.mul %j, %two "
        "%v = load %A[%i, %k] store %S[%i, %j], %v }",
        "parallel (4, 8) body(%i: i32, %j: i32) { %k = binary.add %i, %j %v = load %A[%i, %k] "
        "store %S[%i, %j], %v }",
        "parallel (4, 8) body(%i: i32, %j: i32) { %v = load %V[%j] store %S[%i, %j], %v }",
        "parallel (4, 8) body(%i: i32, %j: i32) { %k = binary.sub %four, %i %v = load %A[%k, %j] "
        "store %S[%i, %j], %v }",
        "parallel (4, 8) body(%i: i32, %j: i32) { %k = binary.mod %j, %four %v = load %A[%i, %k] "
        "store %S[%i, %j], %v }",
        "parallel (4, 8) body(%i: i32, %j: i32) { %g = load %A[%i, %j] %k = cast %g, i32 "
        "%v = load %A[%i, %k] store %S[%i, %j], %v }",
        # the same place twice, itself shifted
        "parallel (4, 8) body(%i: i32, %j: i32) { %v = load %A[%i, %j] store %S[%one, %j], %v }",
        "parallel (3, 8) body(%i: i32, %j: i32) { %k = binary.add %i, %one %v = load %S[%k, %j] "
        "store %S[%i, %j], %v }",
        # arithmetic, two conversions, two stores, a condition, a print
        "parallel (4, 8) body(%i: i32, %j: i32) { %v = load %A[%i, %j] %w = unary.neg %v "
        "store %S[%i, %j], %w }",
        "parallel (4, 8) body(%i: i32, %j: i32) { %v = load %A[%i, %j] %h = cast %v, f16 "
        "%w = cast %h, f32 store %S[%i, %j], %w }",
        "parallel (4, 8) body(%i: i32, %j: i32) { %v = load %A[%i, %j] store %S[%i, %j], %v "
        "store %C[%n, %i, %j], %v }",
        "parallel (4, 8) body(%i: i32, %j: i32) { %p = compare.lt %i, %one if %p then "
        "{ %v = load %A[%i, %j] store %S[%i, %j], %v yield } orelse { yield } }",
        "parallel (4, 8) body(%i: i32, %j: i32) { %v = load %A[%i, %j] store %S[%i, %j], %v "
        'print "{}", [%v] }',
        # a thread's own array, part of an on-chip buffer, a value read from memory
        "parallel (4, 8) body(%i: i32, %j: i32) { %v = load %A[%i, %j] store %L[%i, %j], %v }",
        "parallel (4, 4) body(%i: i32, %j: i32) { store %S[%i, %j], %x }",
        "parallel (4, 4) body(%i: i32, %j: i32) { %k = binary.add %j, %four store %S[%i, %k], %x }",
        "parallel (4, 8) body(%i: i32, %j: i32) { %v = load %V[%one] store %S[%i, %j], %v }",
    ],
)
def test_left_alone(body: str) -> None:
    func = func_of(body)
    verify(func)
    assert recognise_idioms(func, TARGET) is func


def test_inside_other_control_flow(rng: np.random.Generator) -> None:
    body = """
      %z = const 0, i32
      for.serial %z, %four, %one body(%k: i32) {
        %r = binary.add %k, %r0
        parallel (4, 8) body(%i: i32, %j: i32) {
          %q = binary.add %i, %r
          %v = load %A[%q, %j]
          store %S[%i, %j], %v
        }
        %p = compare.lt %k, %one
        if %p then {
          parallel (4, 8) body(%i: i32, %j: i32) { store %A[%i, %j], %x }
          yield
        } orelse { yield }
        yield
      }
    """
    text = raised(body)
    assert "    copy %A[%r, " in "\n" + text.replace("\n  ", "\n    ")
    assert text.count("copy") == 1 and text.count("fill") == 1 and "parallel" not in text
    check_meaning(body + SHOW, rng)


def test_bounds_and_safe_values_mean_the_same(rng: np.random.Generator) -> None:
    body = """
      %safe = const -3.25, f32
      annotate_safe_value %A, %safe
      %far = const -2, i32
      parallel (4, 8) body(%i: i32, %j: i32) {
        %r = binary.add %i, %far
        %k = binary.add %j, %eight
        %v = load %A[%r, %k]
        store %S[%i, %j], %v
      }
    """
    assert "copy %A[%far, %eight], (4, 8), %S" in raised(body)
    check_meaning(body + SHOW, rng)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_keep_their_bits(name: str, rng: np.random.Generator) -> None:
    text, make = PROGRAMS[name]
    func = parse_func(text)
    done = recognise_idioms(simplify(func, TARGET), TARGET)
    verify(done)
    args = make(rng)
    copies = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in args.items()}
    want = expected(name, args)
    run_tile(func, args)
    run_tile(done, copies)
    for key in want:
        assert np.array_equal(args[key], copies[key])
    loops = sum(isinstance(o, Parallel) for o in walk(done.body))
    tiles = sum(isinstance(o, Copy | Fill) for o in walk(done.body))
    counts = {"matmul": (0, 4), "stencil": (1, 0), "transpose": (1, 1), "chain": (1, 2)}
    assert (loops, tiles) == counts.get(name, (loops, tiles))
