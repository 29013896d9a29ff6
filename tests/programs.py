"""Small kernels in text form, none of them tuned to a pass, with random arguments: what every pass
must leave the meaning of. `PROGRAMS[name]` gives (text, arguments maker); ragged sizes throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

Args = dict[str, Any]
PROGRAMS: dict[str, tuple[str, Callable[[np.random.Generator], Args]]] = {}


def _program(text: str) -> Callable[[Callable[[np.random.Generator], Args]], None]:
    def register(make: Callable[[np.random.Generator], Args]) -> None:
        PROGRAMS[make.__name__] = (text, make)

    return register


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


@_program("""
kernel @matmul {threads=128} (
  %A: global<M x K x f16> = tensor A, %B: global<K x N x f16> = tensor B,
  %C: global<M x N x f16> = tensor C,
  %M: i32 = size A 0, %N: i32 = size B 1, %K: i32 = size A 1,
)
grid {
  %c15 = const 15, i32
  %c16 = const 16, i32
  %a = binary.add %N, %c15
  %gx = binary.floordiv %a, %c16
  %b = binary.add %M, %c15
  %gy = binary.floordiv %b, %c16
  yield [%gx, %gy]
}
body {
  %bx = block_index 0
  %by = block_index 1
  %As = alloc shared<16x8xf16>
  %Bs = alloc shared<8x16xf16>
  %acc = alloc fragment<16x16xf32>
  %zero = const 0, i32
  %zf = const 0.0, f32
  fill %acc[%zero, %zero], (16, 16), %zf
  %t = const 16, i32
  %row = binary.mul %by, %t
  %col = binary.mul %bx, %t
  %one = const 1, i32
  %e = const 8, i32
  %s = const 7, i32
  %k1 = binary.add %K, %s
  %steps = binary.floordiv %k1, %e
  for.pipelined %zero, %steps, %one, num_stages=3 body(%k: i32) {
    %eight = const 8, i32
    %at = binary.mul %k, %eight
    copy %A[%row, %at], (16, 8), %As[%zero, %zero], (16, 8)
    copy %B[%at, %col], (8, 16), %Bs[%zero, %zero], (8, 16)
    gemm %As[%zero, %zero], (16, 8), %Bs[%zero, %zero], (8, 16), %acc, policy=full_row
    yield
  }
  parallel (16, 16) body(%i: i32, %j: i32) {
    %x = load %acc[%i, %j]
    %r = binary.add %row, %i
    %c = binary.add %col, %j
    %h = cast %x, f16
    store %C[%r, %c], %h
  }
}
""")
def matmul(rng: np.random.Generator) -> Args:
    m, n, k = 37, 21, 29
    a, b = normal(rng, (m, k), np.float16), normal(rng, (k, n), np.float16)
    return {"A": a, "B": b, "C": normal(rng, (m, n), np.float16)}


@_program("""
kernel @stencil {} (
  %X: global<H x W x f32> = tensor X, %Y: global<H x W x f32> = tensor Y,
  %H: i32 = size X 0, %W: i32 = size X 1, %k: f32 = scalar k,
)
grid {
  %n = const 8, i32
  %m = const 7, i32
  %a = binary.add %W, %m
  %gx = binary.floordiv %a, %n
  %b = binary.add %H, %m
  %gy = binary.floordiv %b, %n
  yield [%gx, %gy]
}
body {
  %bx = block_index 0
  %by = block_index 1
  %n = const 8, i32
  %border = const 2.5, f32
  annotate_safe_value %X, %border
  %r0 = binary.mul %by, %n
  %c0 = binary.mul %bx, %n
  parallel (8, 8) body(%i: i32, %j: i32) {
    %one = const 1, i32
    %uno = const 1, i32
    %r = binary.add %r0, %i
    %c = binary.add %c0, %j
    %up = binary.sub %r, %one
    %down = binary.add %r, %one
    %left = binary.sub %c, %uno
    %right = binary.add %c, %uno
    %x0 = load %X[%r, %c]
    %x1 = load %X[%up, %c]
    %x2 = load %X[%down, %c]
    %x3 = load %X[%r, %left]
    %x4 = load %X[%r, %right]
    %s1 = binary.add %x1, %x2
    %s2 = binary.add %x3, %x4
    %s = binary.add %s1, %s2
    %four = const 4.0, f32
    %f = binary.mul %x0, %four
    %d = binary.sub %s, %f
    %kd = binary.mul %d, %k
    %y = binary.add %x0, %kd
    store %Y[%r, %c], %y
  }
}
""")
def stencil(rng: np.random.Generator) -> Args:
    return {"X": normal(rng, (19, 13)), "Y": normal(rng, (19, 13)), "k": 0.2}


@_program("""
kernel @transpose {} (
  %X: global<M x N x bf16> = tensor X, %Y: global<N x M x f32> = tensor Y,
  %M: i32 = size X 0, %N: i32 = size X 1,
)
grid {
  %n = const 8, i32
  %m = const 7, i32
  %a = binary.add %N, %m
  %gx = binary.floordiv %a, %n
  %b = binary.add %M, %m
  %gy = binary.floordiv %b, %n
  yield [%gx, %gy]
}
body {
  %bx = block_index 0
  %by = block_index 1
  %n = const 8, i32
  %S = alloc shared<8x8xbf16>
  parallel (8, 8) body(%i: i32, %j: i32) {
    %r0 = binary.mul %by, %n
    %c0 = binary.mul %bx, %n
    %r = binary.add %i, %r0
    %c = binary.add %c0, %j
    %x = load %X[%r, %c]
    store %S[%i, %j], %x
  }
  parallel (8, 8) body(%i: i32, %j: i32) {
    %r0 = binary.mul %bx, %n
    %c0 = binary.mul %by, %n
    %r = binary.add %i, %r0
    %c = binary.add %c0, %j
    %x = load %S[%j, %i]
    %y = cast %x, f32
    store %Y[%r, %c], %y
  }
}
""")
def transpose(rng: np.random.Generator) -> Args:
    x = normal(rng, (11, 17), ml_dtypes.bfloat16)
    return {"X": x, "Y": normal(rng, (17, 11))}


@_program("""
kernel @chain {} (
  %X: global<N x f16> = tensor X, %B: global<N x f32> = tensor B, %Y: global<N x f16> = tensor Y,
  %N: i32 = size X 0, %limit: f32 = scalar limit,
)
grid {
  %n = const 32, i32
  %m = const 31, i32
  %a = binary.add %N, %m
  %g = binary.floordiv %a, %n
  yield [%g]
}
body {
  %b = block_index 0
  %x = alloc fragment<32xf16>
  %y = alloc fragment<32xf32>
  %z = const 0, i32
  %n = const 32, i32
  %at = binary.mul %b, %n
  copy %X[%at], (32), %x[%z], (32)
  parallel (32) body(%i: i32) {
    %v = load %x[%i]
    %w = cast %v, f32
    %k = binary.add %at, %i
    %bias = load %B[%k]
    %s = binary.add %w, %bias
    %one = const 1.0, f32
    %t = binary.mul %s, %one
    %zero = const 0.0, f32
    %p = compare.gt %t, %zero
    %r = if %p, types=(f32) then {
      %l = binary.min %t, %limit
      yield [%l]
    } orelse {
      %e = unary.exp2 %t
      %q = binary.sub %e, %one
      yield [%q]
    }
    store %y[%i], %r
  }
  parallel (32) body(%i: i32) {
    %v = load %y[%i]
    %h = cast %v, f16
    %k = binary.add %at, %i
    store %Y[%k], %h
  }
}
""")
def chain(rng: np.random.Generator) -> Args:
    n = 75
    x, b = normal(rng, (n,), np.float16), normal(rng, (n,))
    return {"X": x, "B": b, "Y": normal(rng, (n,), np.float16), "limit": 0.75}


@_program("""
kernel @running {} (
  %X: global<R x C x f32> = tensor X, %Y: global<R x f32> = tensor Y,
  %I: global<R x i32> = tensor I, %R: i32 = size X 0, %C: i32 = size X 1,
)
grid { yield [%R] }
body {
  %row = block_index 0
  %z = const 0, i32
  %one = const 1, i32
  %best = alloc local<1xf32>
  %where = alloc local<1xi32>
  %live = alloc local<i1>
  %i = alloc local<1xi32>
  %low = const -inf, f32
  store %best[%z], %low
  store %where[%z], %z
  %t = const true, i1
  store %live, %t
  store %i[%z], %z
  while cond {
    %l = load %live
    %n = load %i[%z]
    %in = compare.lt %n, %C
    %go = binary.and %l, %in
    yield [%go]
  } body {
    %n = load %i[%z]
    %x = load %X[%row, %n]
    %b = load %best[%z]
    %more = compare.gt %x, %b
    if %more then {
      store %best[%z], %x
      store %where[%z], %n
      yield
    } orelse { yield }
    %top = const 1.5, f32
    %over = compare.gt %x, %top
    if %over then {
      %f = const false, i1
      store %live, %f
      yield
    } orelse { yield }
    %m = binary.add %n, %one
    store %i[%z], %m
    yield
  }
  %sum = alloc local<1xf32>
  %zero = const 0.0, f32
  store %sum[%z], %zero
  for.serial %z, %C, %one body(%c: i32) {
    %x = load %X[%row, %c]
    %s = load %sum[%z]
    %b = load %best[%z]
    %d = binary.sub %x, %b
    %e = unary.exp %d
    %u = binary.add %s, %e
    store %sum[%z], %u
    yield
  }
  %s = load %sum[%z]
  store %Y[%row], %s
  %w = load %where[%z]
  store %I[%row], %w
}
""")
def running(rng: np.random.Generator) -> Args:
    y, i = normal(rng, (5,)), rng.integers(0, 9, 5).astype(np.int32)
    return {"X": normal(rng, (5, 11)), "Y": y, "I": i}


@_program("""
kernel @threads {threads=64} (
  %X: global<N x i32> = tensor X, %Y: global<N x i32> = tensor Y, %N: i32 = size X 0,
)
grid {
  %n = const 64, i32
  %m = const 63, i32
  %a = binary.add %N, %m
  %g = binary.floordiv %a, %n
  yield [%g]
}
body {
  %b = block_index 0
  %t = thread_index
  %n = const 64, i32
  %at = binary.mul %b, %n
  %k = binary.add %at, %t
  %regs = alloc local<4xi32>
  %acc = alloc local<1xi32>
  %z = const 0, i32
  %one = const 1, i32
  %four = const 4, i32
  store %acc[%z], %z
  for.unroll %z, %four, %one body(%j: i32) {
    %kj = binary.add %k, %j
    %x = load %X[%kj]
    store %regs[%j], %x
    yield
  }
  %odd = binary.and %t, %one
  %is = compare.eq %odd, %one
  if %is then {
    for.serial %z, %four, %one body(%j: i32) {
      %v = load %regs[%j]
      %old = load %acc[%z]
      %new = binary.add %v, %old
      store %acc[%z], %new
      yield
    }
    yield
  } orelse {
    %v = load %regs[%z]
    %three = const 3, i32
    %w = binary.floordiv %v, %three
    store %acc[%z], %w
    yield
  }
  %r = load %acc[%z]
  store %Y[%k], %r
}
""")
def threads(rng: np.random.Generator) -> Args:
    x = rng.integers(-50, 50, 150).astype(np.int32)
    return {"X": x, "Y": rng.integers(0, 9, 150).astype(np.int32)}


@_program("""
kernel @gather {} (
  %X: global<N x D x f32> = tensor X, %I: global<M x i32> = tensor I, %Y: global<M x D x f32> =
  tensor Y, %M: i32 = size I 0, %D: i32 = size X 1, %N: i32 = size X 0,
)
grid {
  %n = const 4, i32
  %m = const 3, i32
  %a = binary.add %M, %m
  %g = binary.truncdiv %a, %n
  yield [%g]
}
body {
  %b = block_index 0
  %n = const 4, i32
  %base = binary.mul %b, %n
  %z = const 0, i32
  %eight = const 8, i32
  for.serial %z, %D, %eight body(%d: i32) {
    parallel (4, 8) body(%i: i32, %j: i32) {
      %r = binary.add %base, %i
      %src = load %I[%r]
      %c = binary.add %d, %j
      %x = load %X[%src, %c]
      %ok = compare.lt %src, %N
      %minus = const -1.0, f32
      %v = select %ok, %x, %minus
      store %Y[%r, %c], %v
    }
    yield
  }
}
""")
def gather(rng: np.random.Generator) -> Args:
    index = rng.integers(-1, 9, 7).astype(np.int32)
    return {"X": normal(rng, (8, 11)), "I": index, "Y": normal(rng, (7, 11))}


def expected(name: str, args: Args) -> Args:
    """The outputs `name` must give for `args`, computed without the IR."""
    x = args["X"].astype(np.float64) if "X" in args else None
    match name:
        case "matmul":
            return {"C": args["A"].astype(np.float64) @ args["B"].astype(np.float64)}
        case "stencil":
            p = np.pad(x, 1, constant_values=2.5)
            around = p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]
            return {"Y": x + args["k"] * (around - 4 * x)}
        case "transpose":
            return {"Y": x.T}
        case "chain":
            t = x + args["B"]
            return {"Y": np.where(t > 0, np.minimum(t, args["limit"]), np.exp2(t) - 1)}
        case "running":
            best, where = [], []
            for row in args["X"]:
                stop = np.flatnonzero(row > 1.5)
                seen = row[: stop[0] + 1] if stop.size else row
                best.append(seen.max())
                where.append(seen.argmax())
            return {"Y": np.exp(x - np.array(best)[:, None]).sum(1), "I": np.array(where)}
        case "threads":
            padded = np.pad(args["X"], (0, 3))
            sums = sum(padded[j : j + 150] for j in range(4))
            odd = np.arange(150) % 64 % 2 == 1
            return {"Y": np.where(odd, sums, args["X"] // 3)}
        case "gather":
            i = args["I"]
            inside = (i >= 0) & (i < 8)
            rows = np.where(inside[:, None], x[np.where(inside, i, 0)], 0.0)
            return {"Y": np.where((i < 8)[:, None], rows, -1.0)}
    raise KeyError(name)
