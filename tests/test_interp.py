"""The reference interpreter itself: programs against NumPy, and corners nobody else looks at."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from interp import InterpError, run_tile
from programs import PROGRAMS, expected

from tilec.ir.parser import parse_func


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, rng: np.random.Generator) -> None:
    text, make = PROGRAMS[name]
    args = make(rng)
    want = expected(name, args)
    run_tile(parse_func(text), args)
    for key, array in want.items():
        tolerance = 1e-2 if args[key].dtype == np.float16 else 1e-5
        np.testing.assert_allclose(args[key].astype(np.float64), array, tolerance, tolerance)


def run(body: str, args: dict[str, Any], params: str, **kwargs: Any) -> list[str]:
    text = f"kernel @f {{threads=64}} ({params}) grid {{ yield }} body {{ {body} }}"
    return run_tile(parse_func(text), args, **{"grid": (1,), **kwargs})


X = "%X: global<N x f32> = tensor X, %N: i32 = size X 0"


def test_grids_given_at_launch() -> None:
    out = run(
        '%a = block_index 0 %b = block_index 2 %g = grid_size 1 print "{} {} {}", [%a, %b, %g]',
        {},
        "",
        grid=(2, 1, 3),
    )
    assert out == [f"{a} {b} 1" for b in range(3) for a in range(2)]
    with pytest.raises(InterpError, match="leaves its grid to the launch"):
        run("", {}, "", grid=None)


def test_on_chip_memory_starts_as_noise_and_has_bounds() -> None:
    x = np.zeros(3, np.float32)
    body = "%z = const 0, i32 %s = alloc shared<4xf32> %v = load %s[%z] store %X[%z], %v"
    run(body, {"X": x}, X)
    assert np.isnan(x[0])
    with pytest.raises(InterpError, match="out of bounds of %s"):
        run("%n = const 4, i32 %s = alloc shared<4xf32> %v = load %s[%n]", {"X": x}, X)
    with pytest.raises(InterpError, match="out of bounds of %s"):
        run("%n = const 1, i32 %s = alloc shared<4xf32> copy %X[%n], (4), %s[%n], (4)", {"X": x}, X)


def test_out_of_bounds_of_a_tensor(rng: np.random.Generator) -> None:
    x = rng.standard_normal(3).astype(np.float32)
    kept = x.copy()
    out = run(
        """
        %safe = const 9.5, f32
        annotate_safe_value %X, %safe
        %a = const -1, i32 %b = const 3, i32
        %v = load %X[%a] %w = load %X[%b]
        print "{} {}", [%v, %w]
        store %X[%a], %v store %X[%b], %v
        fill %X[%b], (4), %v
        """,
        {"X": x},
        X,
    )
    assert out == ["9.5 9.5"] and np.array_equal(x, kept)


def test_masks_of_iterations(rng: np.random.Generator) -> None:
    """Conditions, loops of different length and a carried value, all per iteration."""
    x = rng.standard_normal(9).astype(np.float32)
    want = np.array([(i + 1) * i / 2 if i % 3 else -x[i] for i in range(9)], np.float32)
    run(
        """
        %z = const 0, i32 %one = const 1, i32 %three = const 3, i32
        parallel (9) body(%i: i32) {
          %m = binary.mod %i, %three
          %p = compare.ne %m, %z
          %r = if %p, types=(f32) then {
            %hi = binary.add %i, %one
            %zero = const 0.0, f32
            %t, %n = while [%zero, %z] cond(%a: f32, %k: i32) {
              %c = compare.lt %k, %hi
              yield [%c]
            } body(%a: f32, %k: i32) {
              %kf = cast %k, f32
              %b = binary.add %a, %kf
              %l = binary.add %k, %one
              yield [%b, %l]
            }
            yield [%t]
          } orelse {
            %v = load %X[%i]
            %w = unary.neg %v
            yield [%w]
          }
          store %X[%i], %r
        }
        """,
        {"X": x},
        X,
    )
    assert np.array_equal(x, want)


def test_scopes_warps_and_lanes() -> None:
    x = np.zeros(64, np.float32)
    run(
        """
        %t = thread_index
        %z = const 0, i32
        scope high, 1, 1 body {
          %w = warp %l = lane
          %s = binary.add %w, %l
          %f = cast %s, f32
          store %X[%t], %f
        }
        barrier
        """,
        {"X": x},
        X,
    )
    assert np.array_equal(x, np.concatenate([np.zeros(32), np.arange(32)]))


@pytest.mark.parametrize(
    ("a", "b", "dtype", "out"),
    [(np.float16, np.float16, "f32", np.float32), (np.int8, np.int8, "i32", np.int32),
     (ml_dtypes.bfloat16, ml_dtypes.bfloat16, "f32", np.float32),
     (np.float32, np.float32, "f32", np.float32)],
)  # fmt: skip
def test_products(a: Any, b: Any, dtype: str, out: Any, rng: np.random.Generator) -> None:
    short = {np.float16: "f16", np.int8: "i8", np.float32: "f32"}.get(a, "bf16")
    x = (rng.standard_normal((6, 4)) * 9).astype(a)
    y = (rng.standard_normal((5, 6)) * 9).astype(b)
    c = (rng.standard_normal((4, 5)) * 9).astype(out)
    params = (
        f"%A: global<6x4x{short}> = tensor A, %B: global<5x6x{short}> = tensor B, "
        f"%C: global<4x5x{dtype}> = tensor C"
    )
    want = c.astype(np.float64) + x.astype(np.float64).T @ y.astype(np.float64).T
    run(
        f"""
        %z = const 0, i32
        %As = alloc shared<6x4x{short}> %Bs = alloc shared<5x6x{short}>
        %acc = alloc fragment<4x5x{dtype}>
        copy %A[%z, %z], (6, 4), %As[%z, %z], (6, 4)
        copy %B[%z, %z], (5, 6), %Bs[%z, %z], (5, 6)
        copy %C[%z, %z], (4, 5), %acc[%z, %z], (4, 5)
        gemm %As[%z, %z], (6, 4), %Bs[%z, %z], (5, 6), %acc, transpose_a=true, transpose_b=true
        copy %acc[%z, %z], (4, 5), %C[%z, %z], (4, 5)
        """,
        {"A": x, "B": y, "C": c},
        params,
    )
    np.testing.assert_allclose(c.astype(np.float64), want, 1e-5, 1e-4)


def test_arguments_are_checked() -> None:
    with pytest.raises(InterpError, match="X: float64"):
        run("", {"X": np.zeros(3)}, X)
    with pytest.raises(InterpError, match=r"X: \(3,\) does not fit global<4xf32>"):
        run("", {"X": np.zeros(3, np.float32)}, "%X: global<4xf32> = tensor X")
