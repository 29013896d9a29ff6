"""Mistakes that new users make, each as an edit of one correct program.

`PROGRAM` compiles everywhere. A `Mistake` replaces a piece of it by what somebody who comes from
Triton, CUDA, TileLang or torch writes; `right` is the edit that the message's help asks for (none:
the program as it was).
"""

from __future__ import annotations

import itertools
import linecache
from dataclasses import dataclass
from typing import Any

import tilec
from tilec import CompileError

TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu")

PROGRAM = """\
import math

import numpy as np

import tilec
import tilec.language as T
from tilec.layout import make_swizzled_layout

M, N, K = T.dynamic("M, N, K")


def twice(x):
    return x + x


@tilec.kernel
def kernel(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float32"),
    bias: T.Tensor((256,), "float32"),
    scale: T.float32,
    BM: T.constexpr = 64,
    BN: T.constexpr = 64,
    BK: T.constexpr = 32,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=128) as (bx, by):
        A_s = T.alloc_shared((BM, BK), "float16")
        B_s = T.alloc_shared((BK, BN), "float16")
        row = T.alloc_shared((BN,), "float32")
        acc = T.alloc_fragment((BM, BN), "float32")
        T.annotate_layout({A_s: make_swizzled_layout(A_s)})
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, BK), num_stages=2):
            T.copy(A[by * BM, k * BK], A_s)
            T.copy(B[k * BK, bx * BN], B_s)
            T.gemm(A_s, B_s, acc)
        T.copy(bias[bx * BN], row)
        for i, j in T.Parallel(BM, BN):
            acc[i, j] = T.exp(acc[i, j]) * scale + row[j]
        T.copy(acc, C[by * BM, bx * BN])
"""

Edit = tuple[str, str]
INSERT = "        T.clear(acc)\n"
_files = itertools.count()


@dataclass(frozen=True)
class Mistake:
    """`under`: the characters above the carets. `says`: parts of the message, both operands among
    them where there are two. `fix`: part of the help; `right`: the edit it asks for."""

    name: str
    wrong: Edit
    under: str
    says: tuple[str, ...]
    fix: str
    right: Edit | None = None
    error: type[tilec.TilecError] = CompileError
    imports: str = ""

    def text(self) -> str:
        program = edited(PROGRAM, self.wrong)
        return f"import {self.imports}\n{program}" if self.imports else program

    def mended(self) -> str:
        return PROGRAM if self.right is None else edited(PROGRAM, self.right)


def edited(text: str, edit: Edit) -> str:
    old, new = edit
    assert text.count(old) == 1, (text.count(old), old)
    return text.replace(old, new)


def line(code: str) -> Edit:
    """An edit that inserts a line of the body."""
    return INSERT, f"        {code}\n{INSERT}"


def load(text: str) -> tuple[Any, str]:
    """The kernel of a program, and the name of its file."""
    file = f"/home/user/program{next(_files)}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"__name__": "program"}
    exec(compile(text, file, "exec"), scope)
    return scope["kernel"], file


def compiled(text: str, target: str) -> Any:
    """The program compiled for a ragged problem."""
    kernel, _ = load(text)
    sizes = {"M": 100, "N": 72, "K": 40}
    shapes = (("M", "K"), ("K", "N"), ("M", "N"))
    dtypes = ("float16", "float16", "float32")
    arrays = [tilec.spec([sizes[e] for e in s], d) for s, d in zip(shapes, dtypes)]
    return kernel.compile(*arrays, tilec.spec((256,), "float32"), target=target)


SHARED = "T.alloc_shared(("
GEMM = "T.gemm(A_s, B_s, acc)"
LOOP = "        for i, j in T.Parallel(BM, BN):\n"

FRONTEND = (
    # Triton
    Mistake(
        "arange",
        line("offs = bx * BN + T.arange(0, BN)"),
        "T.arange",
        ("'arange'",),
        "for i in T.Parallel(BN)",
    ),
    Mistake(
        "load",
        ("T.copy(A[by * BM, k * BK], A_s)", "A_s = T.load(A + k * BK, mask=k < K)"),
        "T.load",
        ("'load'",),
        "T.copy(A[i, j], tile)",
    ),
    Mistake(
        "dot", (GEMM, "acc = T.dot(A_s, B_s, acc)"), "T.dot", ("'dot'",), "use T.gemm(A, B, C)"
    ),
    Mistake(
        "zeros",
        line("z = T.zeros((BM, BN), 'float32')"),
        "T.zeros",
        ("'zeros'",),
        'T.alloc_fragment((m, n), "float32")',
    ),
    Mistake(
        "to",
        ("T.exp(acc[i, j])", "acc[i, j].to(T.float16)"),
        "acc[i, j].to",
        ("acc (fragment (64, 64) float32)", "'to'"),
        'x.astype("float16")',
        ("T.exp(acc[i, j])", 'acc[i, j].astype("float16")'),
    ),
    Mistake(
        "num_warps",
        ("threads=128", "num_warps=4"),
        "num_warps=4",
        ("T.Kernel has no keyword 'num_warps'",),
        "threads=32 * num_warps",
        ("threads=128", "threads=32 * 4"),
    ),
    # CUDA
    Mistake(
        "threadIdx",
        line("tx = threadIdx.x"),
        "threadIdx",
        ("'threadIdx' is not defined",),
        "T.get_thread_binding(0)",
        line("tx = T.get_thread_binding(0)"),
    ),
    Mistake(
        "syncthreads",
        line("__syncthreads()"),
        "__syncthreads",
        ("'__syncthreads'",),
        "leave it out",
    ),
    Mistake(
        "four-dimensional block",
        ("threads=128", "threads=(2, 4, 4, 4)"),
        "(2, 4, 4, 4)",
        ("threads of T.Kernel", "one to three"),
        "threads=128",
    ),
    Mistake(
        "grid as a tuple",
        (
            "T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM),",
            "T.Kernel((T.ceildiv(N, BN), T.ceildiv(M, BM)),",
        ),
        "(T.ceildiv(N, BN), T.ceildiv(M, BM))",
        ("a grid extent is a tuple of 2",),
        "T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM))",
    ),
    # torch, NumPy
    Mistake(
        "torch.exp",
        ("T.exp(acc[i, j])", "torch.exp(acc[i, j])"),
        "torch.exp(acc[i, j])",
        ("torch.exp(an element of acc",),
        "use T.exp",
        imports="torch",
    ),
    Mistake(
        "np.exp",
        ("T.exp(acc[i, j])", "np.exp(acc[i, j])"),
        "np.exp(acc[i, j])",
        ("np.exp(an element of acc", "only known at run time"),
        "use T.exp",
    ),
    Mistake(
        "math.gamma",
        ("T.exp(acc[i, j])", "math.gamma(acc[i, j])"),
        "math.gamma(acc[i, j])",
        ("math.gamma(an element of acc",),
        "it runs as Python, on what is known at compile time",
        ("T.exp(acc[i, j])", "math.exp(acc[i, j])"),
    ),
    Mistake(
        "whole tile",
        (LOOP, f"        acc *= scale\n{LOOP}"),
        "acc",
        ("acc (fragment (64, 64) float32), not a number",),
        "for i, j in T.Parallel(64, 64)",
        (LOOP, f"        for i, j in T.Parallel(64, 64):\n            acc[i, j] *= scale\n{LOOP}"),
    ),
    Mistake(
        "transposed view",
        (GEMM, "T.gemm(A_s, B_s.T, acc)"),
        "B_s.T",
        ("B_s (shared (32, 64) float16)",),
        "transpose_B=True",
    ),
    Mistake(
        "tile as condition",
        line("if acc > 0:\n            T.clear(row)"),
        "acc",
        ("acc (fragment (64, 64) float32)",),
        "acc[i, j]",
    ),
    Mistake(
        "matmul operator",
        (GEMM, "acc = A_s @ B_s"),
        "A_s @ B_s",
        ("@ is not an operator on tiles",),
        "T.gemm(A, B, C)",
    ),
    # TileLang, and slips of the hand
    Mistake(
        "misspelt word",
        ("row = T.alloc_shared", "row = T.alloc_sharde"),
        "T.alloc_sharde",
        ("did you mean 'alloc_shared'?",),
        "",
    ),
    Mistake(
        "misspelt buffer",
        (GEMM, "T.gemm(A_s, B_z, acc)"),
        "B_z",
        ("'B_z' is not defined; did you mean 'B_s'?",),
        "",
    ),
    Mistake(
        "stages",
        ("num_stages=2", "stages=2"),
        "stages=2",
        ("T.Pipelined has no keyword 'stages'; did you mean 'num_stages'?",),
        "start, stop, num_stages",
    ),
    Mistake(
        "thread",
        ("threads=128", "thread=128"),
        "thread=128",
        ("did you mean 'threads'?",),
        "it has: threads",
    ),
    Mistake(
        "fp16",
        ('(BM, BK), "float16"', '(BM, BK), "fp16"'),
        '"fp16"',
        ("'fp16' is not a dtype; did you mean 'float16'?",),
        "known: bool",
    ),
    Mistake(
        "shape without parentheses",
        ('T.alloc_shared((BM, BK), "float16")', 'T.alloc_shared(BM, BK, "float16")'),
        "BK",
        ("the shape is one tuple",),
        'T.alloc_shared((BM, BK), "float16")',
    ),
    Mistake(
        "run-time tile",
        ("BM: T.constexpr", "BM: int"),
        "BM",
        ("an extent of T.alloc_shared is a run-time int32",),
        "T.constexpr",
    ),
    Mistake(
        "arguments of a plain function",
        ("T.exp(acc[i, j])", "twice()"),
        "twice()",
        ("twice: TypeError: twice() missing 1 required",),
        "runs here as Python",
        ("T.exp(acc[i, j])", "twice(acc[i, j])"),
    ),
    Mistake(
        "too many indices",
        ("bias[bx * BN]", "bias[0, bx * BN]"),
        "bias[0, bx * BN]",
        ("2 indices into bias (global (256,) float32), which has 1 dimension",),
        "write bias[i]",
    ),
    Mistake(
        "copy of unlike tiles",
        (
            LOOP,
            f"        out = {SHARED}BN, BM // 2), 'float32')\n        T.copy(acc, out)\n{LOOP}",
        ),
        "T.copy(acc, out)",
        ("acc (fragment (64, 64) float32)", "out (shared (64, 32) float32)"),
        'T.alloc_shared((64, 64), "float32")',
        (
            LOOP,
            f"        out = {SHARED}64, 64), 'float32')\n        T.copy(acc, out)\n{LOOP}",
        ),
    ),
    Mistake(
        "gemm over unlike K",
        ("B_s = T.alloc_shared((BK, BN)", "B_s = T.alloc_shared((BN, BK)"),
        GEMM,
        (
            "A has K = 32 and B has K = 64",
            "A_s (shared (64, 32) float16)",
            "B_s (shared (64, 32) float16)",
        ),
        "transpose_B=True",
        (GEMM, "T.gemm(A_s, B_s, acc, transpose_B=False)"),
    ),
    Mistake(
        "gemm of unlike dtypes",
        ('(BK, BN), "float16"', '(BK, BN), "bfloat16"'),
        GEMM,
        ("float16 by bfloat16", "A_s (shared (64, 32) float16)", "B_s (shared (32, 64) bfloat16)"),
        "float16 tile",
    ),
    Mistake(
        "gemm into integers",
        (
            'acc = T.alloc_fragment((BM, BN), "float32")',
            'acc = T.alloc_fragment((BM, BN), "int32")',
        ),
        GEMM,
        (
            "cannot accumulate in int32",
            "acc (fragment (64, 64) int32)",
            "A_s (shared (64, 32) float16)",
        ),
        "float16 or float32",
    ),
    Mistake(
        "gemm into shared memory",
        ("acc = T.alloc_fragment(", "acc = T.alloc_shared("),
        "acc",
        ("acc (shared (64, 64) float32); the result must be a fragment",),
        'T.alloc_fragment((64, 64), "float32")',
    ),
    Mistake(
        "out of bounds",
        ("+ row[j]", "+ row[j + 1]"),
        "row[j + 1]",
        ("reads index 64 in dimension 0 of row (shared (64,) float32)",),
        "0 to 63",
    ),
    Mistake(
        "race",
        (LOOP, f"        for j in T.Parallel(BN):\n            row[j // 2] = bias[j]\n{LOOP}"),
        "row[j // 2] = bias[j]",
        ("iterations j = 0 and j = 1 of T.Parallel write the same element of row",),
        "an element of its own",
    ),
)
