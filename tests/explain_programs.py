"""Kernels whose pages are looked at, and what is known of them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

import tilec
import tilec.language as T
import tilec.layout
from tilec.explain.facts import Facts, gather
from tilec.ir.core import walk
from tilec.ir.ops import Alloc
from tilec.jit import build
from tilec.passes import run_plan
from tilec.target import find_target

M, N, K = T.dynamic("M, N, K")


@tilec.kernel
def product(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float16"),
    BM: T.constexpr = 64,
):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, BM), threads=128) as (bx, by):
        a = T.alloc_shared((BM, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        acc = T.alloc_fragment((BM, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 64), num_stages=3):
            T.copy(A[by * BM, k * 64], a)
            T.copy(B[k * 64, bx * 64], b)
            T.gemm(a, b, acc)
        T.copy(acc, C[by * BM, bx * 64])


@tilec.kernel
def attention(
    Q: T.Tensor((M, 64), "float16"),
    Ks: T.Tensor((N, 64), "float16"),
    V: T.Tensor((N, 64), "float16"),
    O: T.Tensor((M, 64), "float16"),
):
    with T.Kernel(T.ceildiv(M, 128), threads=256) as bx:
        q, o = T.alloc_shared((128, 64), "float16"), T.alloc_fragment((128, 64), "float32")
        k, v = (T.alloc_shared((128, 64), "float16") for _ in range(2))
        s, p = T.alloc_fragment((128, 128), "float32"), T.alloc_fragment((128, 128), "float16")
        T.annotate_schedule(overlap=True)
        T.copy(Q[bx * 128, 0], q)
        T.clear(o)
        for n in T.Pipelined(T.ceildiv(N, 128), num_stages=2):
            T.copy(Ks[n * 128, 0], k)
            T.gemm(q, k, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
            for i, j in T.Parallel(128, 128):
                s[i, j] = T.exp2(s[i, j])
            T.copy(s, p)
            T.copy(V[n * 128, 0], v)
            T.gemm(p, v, o, policy=T.GemmWarpPolicy.FullRow)
        T.copy(o, O[bx * 128, 0])


@tilec.kernel
def columns(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=64) as _:
        s = T.alloc_shared((64, 64), "float32")
        T.annotate_layout({s: tilec.layout.make_linear_layout(s)})
        T.copy(A, s)
        t = T.get_thread_binding()
        for j in T.serial(64):
            B[t, j] = s[t, j] + 1  # </script><b>one row a thread: conflicts</b>


def line_of(text: str, file: str = __file__) -> int:
    """The first line that has this text."""
    lines = Path(file).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if text in line)


COPY_A, COPY_B, GEMM = map(line_of, ("T.copy(A[by", "T.copy(B[k * 64", "T.gemm(a, b, acc)"))


def random(*shape: int, dtype: Any = np.float16) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


@functools.cache
def facts_of(name: str, target: str) -> Facts:
    match name:
        case "product":
            given = product, [random(256, 256)] * 2 + [np.zeros((256, 256), np.float16)]
        case "attention":
            given = attention, [random(256, 64)] * 3 + [np.zeros((256, 64), np.float16)]
        case _:
            square = random(64, 64, dtype=np.float32)
            given = columns, [square, square.copy()]
    return gather(given[0], given[1], {}, target, 0 if target == "cpu" else 1)


def buffers(name: str, target: str) -> dict[str, Any]:
    """The layouts of a kernel's buffers, by name."""
    kernel, facts = {"product": product, "attention": attention}[name], facts_of(name, target)
    specs = [tilec.spec(s, "float16") for s in [(256, 256)] * 3]
    key = kernel.key_of(specs, target, {})
    seen: dict[str, Any] = {}
    traced = build.trace_variant(kernel.signature, key)
    run_plan(traced, find_target(target), facts.compiled.plan, seen.__setitem__)
    return {
        o.result.name: o.type.layout for o in walk(seen["arrange"].body) if isinstance(o, Alloc)
    }
