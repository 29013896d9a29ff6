"""Mistakes in kernels: for each, what the message says, and the line it points at.

A case is the body of a kernel; the line that ends in `#!` is the one the message must name.
"""

from __future__ import annotations

import itertools
import linecache
import math
from typing import Any

import numpy as np
import pytest
from frontend_help import traced

import tilec.language as T
from tilec.frontend import read_signature
from tilec.ir.errors import CompileError
from tilec.ir.options import Options
from tilec.layout import make_swizzled_layout

HEADER = """
@decorate
def kernel(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float16"),
    X: T.Tensor((64,), "float32"),
    I: T.Tensor((64,), "int32"),
    H: T.Tensor((64,), "bfloat16"),
    n: T.int32,
    f: T.float32,
    BM: T.constexpr = 16,
):
    with T.Kernel(T.ceildiv(N, BM), T.ceildiv(M, BM), threads=128) as (bx, by):
        A_s = T.alloc_shared((16, 32), "float16")
        B_s = T.alloc_shared((32, 48), "float16")
        S = T.alloc_shared((8, 4), "float32")
        acc = T.alloc_fragment((16, 48), "float32")
        v = T.alloc_var("int32", 0)
"""

_files = itertools.count()


@T.macro
def bad_macro(buffer):
    T.copy(buffer, buffer[0])


@T.macro
def bumped(x: T.Ref):
    x = x + 1


@T.macro
def recursive(x):
    return recursive(x)


@T.macro
def early(x):
    if x:
        return 1


def plain_function(x):
    return x + 1


ARRAY = np.ones(3, np.float32)
WORDS = ["a", "b"]


def compile_text(text: str, name: str = "kernel") -> tuple[Any, str]:
    """A function from source text that Python can show, and the file name it got."""
    file = f"<mistake {next(_files)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    M, N, K = T.dynamic("M, N, K")
    scope: dict[str, Any] = {
        "T": T, "M": M, "N": N, "K": K, "np": np, "math": math,
        "bad_macro": bad_macro, "bumped": bumped, "recursive": recursive,
        "early": early, "plain_function": plain_function, "ARRAY": ARRAY, "WORDS": WORDS,
        "make_swizzled_layout": make_swizzled_layout, "decorate": lambda f: f, "DEBUG": False,
        "P": T.dynamic("P"),
    }  # fmt: skip
    exec(compile(text, file, "exec"), scope)
    return scope[name], file


def arrays() -> dict[str, np.ndarray]:
    half, single = np.float16, np.float32
    shapes = {"A": ((40, 64), half), "B": ((64, 48), half), "C": ((40, 48), half)}
    shapes |= {"X": ((64,), single), "I": ((64,), np.int32)}
    made = {n: np.ones(s, d) for n, (s, d) in shapes.items()}
    return made | {"H": np.ones((64,), np.dtype("bfloat16"))}


def fails(text: str, **options: Any) -> CompileError:
    """The error that tracing `text` raises; it names the marked line and stays short."""
    function, file = compile_text(text)
    known = {n: a for n, a in arrays().items() if n in text}
    with pytest.raises(CompileError) as caught:
        traced(function, known, **options)
    error = caught.value
    assert error.loc is not None and error.loc.file == file
    marked = [n for n, line in enumerate(text.splitlines(), 1) if line.rstrip().endswith("#!")]
    assert [error.loc.line] == marked, str(error)
    shown = str(error)
    assert shown.count("\n") < 12 and "^" in shown, shown
    return error


# (body, part of the message, part of the help)
CASES: dict[str, tuple[str, str, str]] = {
    # --- names, words, keywords ---
    "undefined name": ("T.fill(acc, zerro)  #!", "'zerro' is not defined", ""),
    "called buffer": ("x = A_s(0, 1)  #!", "cannot be called inside a kernel", "A_s[…]"),
    "number of no dtype yet": (
        "x = 0xEDB88320 if n > 0 else 0  #!",
        "3988292384 does not fit int32",
        "or T.uint32(3988292384) and operands as wide",
    ),
    "assert at run time": (
        "assert v > 3  #!",
        "the condition of this assert is only known at run time",
        "T.device_assert(v > 3) for the rest",
    ),
    "number of no int8": ("x = T.int8(200)  #!", "200 does not fit int8", "write one that fits"),
    "misspelt buffer": ("T.clear(A_z)  #!", "'A_z' is not defined; did you mean 'A_s'?", ""),
    "misspelt word": ("T.cler(acc)  #!", "no attribute 'cler'; did you mean 'clear'?", ""),
    "misspelt keyword": (
        "T.copy(A[0, 0], A_s, disable_tmaa=True)  #!",
        "T.copy has no keyword 'disable_tmaa'; did you mean 'disable_tma'?",
        "src, dst, coalesced_width",
    ),
    "planned word": ("T.tcgen05_gemm(acc, S, acc)  #!", "T.tcgen05_gemm is not supported yet", ""),
    "group that is none": ("with T.ws(0, 2):  #!\n    pass", "not warpgroups that follow", ""),
    "no group": ("with T.ws():  #!\n    pass", "not warpgroups that follow", "write T.ws(0)"),
    "group with a name": ("with T.ws(0) as x:  #!\n    pass", "T.ws stands alone", ""),
    "group alone": ("T.ws(0)  #!", "T.ws stands in a with", "with T.ws(0):"),
    "arrivals at run time": ("b = T.alloc_barrier(n)  #!", "arrive_count of T.alloc_barrier", ""),
    "no arrivals": ("b = T.alloc_barrier([128, 0])  #!", "arrive_count of T.alloc_barrier", ""),
    "barrier in a branch": (
        "if bx == 0:\n    b = T.alloc_barrier(1)  #!",
        "stands in a loop or under a condition",
        "",
    ),
    "arrival at a tile": ("T.barrier_arrive(A_s)  #!", "mbarrier of T.barrier_arrive is A_s", ""),
    "arrival at several barriers": (
        "b = T.alloc_barrier([1, 1])\nT.barrier_arrive(b)  #!",
        "is b (barrier): 2 barriers",
        "b[i]",
    ),
    "barrier that is not there": (
        "b = T.alloc_barrier([1, 1])\nT.barrier_arrive(b[2])  #!",
        "this uses index 2 in dimension 0 of b (barrier): out of bounds",
        "",
    ),
    "barrier as a tile": ("b = T.alloc_barrier(1)\nT.clear(b)  #!", "b (barrier), not a tile", ""),
    "barrier as a number": ("b = T.alloc_barrier(1)\nx = b[0] + 1  #!", "a barrier of b, not", ""),
    "assigned barrier": (
        "b = T.alloc_barrier(1)\nb[0] = 1  #!",
        "a barrier of b cannot be assigned to",
        "",
    ),
    "parity of a float": (
        "b = T.alloc_barrier(1)\nT.barrier_wait(b, 0.5)  #!",
        "parity of T.barrier_wait is the float 0.5",
        "",
    ),
    "no bytes": (
        "b = T.alloc_barrier(1)\nT.mbarrier_expect_tx(b, 0)  #!",
        "tx of T.mbarrier_expect_tx is 0",
        "",
    ),
    "too many bytes": (
        "b = T.alloc_barrier(1)\nT.mbarrier_expect_tx(b, 1 << 20)  #!",
        "1,048,576 bytes, the most that a phase counts",
        "",
    ),
    "tma_copy without a barrier": ("T.tma_copy(A[0, 0], A_s)  #!", "needs the barrier", ""),
    "tma_copy of a fragment": (
        "b = T.alloc_barrier(1)\nT.tma_copy(A[0, 0], acc, barrier=b)  #!",
        "T.tma_copy goes from a tensor to shared memory",
        "",
    ),
    "store with a barrier": (
        "b = T.alloc_barrier(1)\nT.tma_copy(A_s, A[0, 0], barrier=b)  #!",
        "nothing is counted on the barrier",
        "leave barrier out",
    ),
    "async_copy between tiles": (
        "T.async_copy(A_s, A_s)  #!",
        "T.async_copy goes from a tensor to shared memory",
        "T.copy",
    ),
    "async_copy that converts": (
        "T.async_copy(C[0, 0], S)  #!",
        "T.async_copy converts nothing",
        'allocate S as "float16"',
    ),
    "groups at run time": ("T.ptx_wait_group(n)  #!", "num of T.ptx_wait_group must be", ""),
    "products at run time": ("T.wait_wgmma(n)  #!", "id of T.wait_wgmma must be", ""),
    "half a warp arrives": (
        "T.named_barrier_arrive(1, 48)  #!",
        "thread_count of T.named_barrier_arrive is 48",
        "write 32",
    ),
    "odd registers": ("T.set_max_nreg(100, 1)  #!", "registers move in eights", "write 96"),
    "registers up or down": ("T.set_max_nreg(96, 2)  #!", "is_inc of T.set_max_nreg", ""),
    "planned keyword": ("T.gemm(A_s, B_s, acc, wg_wait=0)  #!", "T.gemm(wg_wait=…) is not", ""),
    "missing argument": ("T.copy(A_s)  #!", "T.copy needs the argument 'dst'", ""),
    "too many arguments": ("T.clear(acc, 0)  #!", "T.clear takes at most 1", ""),
    "given twice": ("T.clear(acc, buffer=acc)  #!", "buffer is given twice", ""),
    "misspelt policy": (
        "T.gemm(A_s, B_s, acc, policy=T.GemmWarpPolicy.FullRows)  #!",
        "'FullRows' in a kernel; did you mean 'FullRow'?",
        "",
    ),
    "policy as string": (
        'T.gemm(A_s, B_s, acc, policy="full")  #!',
        "policy of T.gemm is",
        "Square",
    ),
    "buffer attribute": ("x = A.shap[0]  #!", "no attribute 'shap'; did you mean 'shape'?", ""),
    "arguments of a plain function": (
        "x = plain_function(n, 1)  #!",
        "plain_function: too many positional arguments",
        "plain_function(x)",
    ),
    "captured array": (
        "x = ARRAY  #!",
        "ARRAY is an ndarray, which a kernel cannot use",
        'pass it as a parameter: ARRAY: T.Tensor((3,), "float32")',
    ),
    "array of a module": ("x = np.pi + np.r_  #!", "r_ is a RClass, which a kernel cannot use", ""),
    "unbound size": ("x = n + P  #!", "nothing gives the size P a value", "T.Tensor((P, …)"),
    # --- shapes and dtypes ---
    "copy of unlike tiles": (
        "T.copy(A_s, B_s)  #!",
        "source is A_s (shared (16, 32) float16), the destination B_s (shared (32, 48) float16)",
        'allocate B_s as T.alloc_shared((16, 32), "float16")',
    ),
    "copy of a whole tensor": (
        "T.copy(A, A_s)  #!",
        "extent M is only known at run time",
        "A[start",
    ),
    "copy into too few dimensions": ("T.copy(A_s, X[0])  #!", "too few dimensions", ""),
    "copy from a number": (
        "T.copy(1.0, A_s)  #!",
        "the source is the float 1.0, not a buffer",
        "T.fill(buffer, value)",
    ),
    "rank": (
        "x = A[n]  #!",
        "1 index into A (global (M, K) float16), which has 2 dimensions",
        "write A[i, :]",
    ),
    "rank of a tile": ("T.copy(A[0, 0, 0], A_s)  #!", "3 indices into A", "A[i, j]"),
    "gemm over unlike K": (
        "T.gemm(A_s, B_s, acc, transpose_B=True)  #!",
        "A has K = 32 and B has K = 48",
        "transpose_B=False would make them agree",
    ),
    "gemm result shape": (
        "T.gemm(A_s, B_s, T.alloc_fragment((16, 16), 'float32'))  #!",
        "gemm gives a (16, 48) tile",
        'T.alloc_fragment((16, 48), "float32")',
    ),
    "gemm of unlike dtypes": (
        "Bh = T.alloc_shared((32, 48), 'bfloat16')\nT.gemm(A_s, Bh, acc)  #!",
        "gemm of float16 by bfloat16",
        "float16 tile",
    ),
    "gemm of integers by floats": (
        "Bi = T.alloc_shared((32, 48), 'int8')\nT.gemm(A_s, Bi, acc)  #!",
        "gemm of float16 by int8: both inputs must have one dtype",
        "copy Bi into a float16 tile first",
    ),
    "gemm of float8 in int32": (
        "A8 = T.alloc_shared((16, 32), 'float8_e4m3')\n"
        "B8 = T.alloc_shared((32, 48), 'float8_e5m2')\n"
        "bad = T.alloc_fragment((16, 48), 'int32')\n"
        "T.gemm(A8, B8, bad)  #!",
        "gemm of float8_e4m3 cannot accumulate in int32",
        "allocate C as float16 or float32",
    ),
    "gemm with exact sums in float16": (
        "half = T.alloc_fragment((16, 48), 'float16')\n"
        "T.gemm(A_s, B_s, half, fast_accum=False)  #!",
        "fast_accum=False adds partial sums in float32, but C is half",
        "allocate C as float32",
    ),
    "gemm accumulator dtype": (
        "bad = T.alloc_fragment((16, 48), 'int32')\nT.gemm(A_s, B_s, bad)  #!",
        "gemm of float16 cannot accumulate in int32",
        "float16 or float32",
    ),
    "gemm into shared": (
        "out = T.alloc_shared((16, 48), 'float32')\nT.gemm(A_s, B_s, out)  #!",
        "C of T.gemm is out (shared (16, 48) float32); the result must be a fragment",
        "T.alloc_fragment((16, 48)",
    ),
    "gemm of a tensor": ("T.gemm(A, B_s, acc)  #!", "extent M is only known at run time", ""),
    "gemm of a global tile": (
        "T.gemm(A[0:16, 0:32], B_s, acc)  #!",
        "A of T.gemm is A (global (M, K) float16); it must be shared or a fragment",
        "copy it into a shared tile",
    ),
    "unknown dtype": (
        'q = T.alloc_shared((4,), "flaot16")  #!',
        "did you mean 'float16'?",
        "known: bool",
    ),
    "run-time extent": (
        "q = T.alloc_shared((n, 4), 'float16')  #!",
        "an extent of T.alloc_shared is a run-time int32",
        "T.constexpr",
    ),
    "extent of a size": (
        "q = T.alloc_fragment((16, K), 'float16')  #!",
        "tiles have compile-time extents",
        "",
    ),
    "zero extent": ("q = T.alloc_shared((0, 4), 'float16')  #!", "is 0, the least is 1", ""),
    "half with bfloat": ("x = A[0, 0] + H[0]  #!", "float16 + bfloat16", "T.float32(x)"),
    "maths on an int": ("x = T.exp(n)  #!", "exp of a run-time int32", "T.exp(T.float32(x))"),
    "shift of a float": (
        "x = f << 2  #!",
        "<< of a run-time float32 and the int 2 needs integers",
        "",
    ),
    "bits of a float": ("x = f & 1  #!", "& of a run-time float32 and the int 1", "T.int32(x)"),
    "literal too large": ("I[0] = 3000000000  #!", "3000000000 does not fit int32", ""),
    "float into an int": ("I[0] = 1.5  #!", "1.5 is not an int32", ""),
    "division by zero": ("x = n // 0  #!", "// 0: division by zero", ""),
    "power of an int": ("x = n ** n  #!", "integer powers go from 0 to 64", "T.float32(x)"),
    "a tile as a number": (
        "x = acc + 1  #!",
        "this operand is acc (fragment (16, 48)",
        "acc[i, j]",
    ),
    "a slice as a number": ("x = X[0:4] + 1  #!", "is a region of X", "slice"),
    # --- indices ---
    "index out of bounds": (
        "S[8, 0] = 1.0  #!",
        "writes index 8 in dimension 0 of S (shared (8, 4) float32): out of bounds",
        "0 to 7",
    ),
    "negative index": ("x = S[-9, 0]  #!", "reads index -1 in dimension 0", "from the end"),
    "parallel out of bounds": (
        "for i in T.Parallel(8):\n    x = S[i + 1, 0]  #!\n    X[i] = x",
        "reads index 8 in dimension 0 of S",
        "0 to 7",
    ),
    "loop out of bounds": (
        "for i in range(2, 10, 2):\n    S[i, i // 2] = f  #!",
        "index 8 in dimension 0",
        "0 to 7",
    ),
    "region out of bounds": (
        "T.copy(A[0, 0], A_s[0:17, :])  #!",
        "touches index 16 in dimension 0",
        "",
    ),
    "float index": ("x = X[n / 2]  #!", "an index is a run-time float32, not an integer", "//"),
    "run-time slice": (
        "T.reduce_sum(A_s[0:n, :], A_s[0:8, 0])  #!",
        "extent of this slice",
        "start:start + n",
    ),
    "slice with no step": ("T.copy(A[0:8:0, 0], A_s)  #!", "the step of a slice", "positive"),
    "product of a slice with a step": (
        "T.reduce_sum(A_s[0:8:2, :], A_s[0:4, 0])  #!",
        "has a step",
        "T.copy",
    ),
    "empty slice": (
        "T.fill(S[4:4, :], 0)  #!",
        "this slice of S (shared (8, 4) float32) has 0",
        "",
    ),
    "ellipsis": ("T.copy(A[..., 0], A_s)  #!", "... cannot be an index", ":"),
    "indexing an element": ("x = A[0, 0][1]  #!", "cannot be indexed again", "A[i, j]"),
    "run-time index into a list": (
        "x = WORDS[n]  #!",
        "the index only at run time",
        "loop over it",
    ),
    # --- assignments and control flow ---
    "assigned in one branch": (
        "if n > 2:\n    x = 1\nX[0] = x  #!",
        "x has no value here: it is assigned only where the condition on line 20 holds",
        "",
    ),
    "assigned in a loop": (
        "for i in range(n):\n    x = i\nI[0] = x  #!",
        "x has no value here: it is assigned only inside the loop on line 20",
        "",
    ),
    "loop variable after its loop": (
        "for i in range(n):\n    pass\nI[0] = i  #!",
        "i has no value here: it is the variable of the loop on line 20",
        "",
    ),
    "read before assignment": ("x += 1  #!", "the name 'x' is not defined", ""),
    "dtype changes in a loop": (
        "x = A[0, 0]\nfor i in range(n):  #!\n    x = x + f",
        "x is float16 before this loop and float32 after an iteration",
        "T.float32(…)",
    ),
    "buffer changes in a loop": (
        "q = A_s\nfor i in range(n):  #!\n    q = B_s",
        "only numbers can change at run time",
        "another name",
    ),
    "buffer chosen at run time": (
        "if n > 1:\n    q = A_s\nelse:\n    q = B_s\nT.clear(q)  #!",
        "q has no value here: it is A_s",
        "",
    ),
    "unused value": ("n + 1  #!", "this value is not used", ""),
    "assigning a tile": ("acc[0:4, 0:4] = 0  #!", "cannot be assigned to as a whole", "T.fill"),
    "assigning to a list": ("WORDS[0] = 1  #!", "known at compile time and cannot be assigned", ""),
    "unpacking": ("a, b, c = n, 1  #!", "2 values for 3 names", ""),
    "endless loop": ("while True:  #!\n    v += 1", "this loop never ends", ""),
    "step of 0": ("for i in T.serial(0, 8, 0):  #!\n    v += i", "the step of this loop is 0", ""),
    "float bound": (
        "for i in range(f):  #!\n    v += i",
        "a bound of this loop is a run-time float32",
        "//",
    ),
    "loop over a number": (
        "for i in n:  #!\n    v += i",
        "cannot run over a run-time int32",
        "range(n)",
    ),
    "run-time stages": (
        "for k in T.Pipelined(4, num_stages=n):  #!\n    T.copy(A[0, k], A_s)",
        "num_stages of T.Pipelined is a run-time int32",
        "compile-time int",
    ),
    # --- T.Parallel ---
    "break in Parallel": (
        "for i in T.Parallel(8):\n    if i > n:\n        break  #!",
        "break in T.Parallel, whose iterations have no order",
        "if around",
    ),
    "copy in Parallel": (
        "for i in T.Parallel(8):\n    T.copy(A[0, 0], A_s)  #!",
        "T.copy works on whole tiles and cannot stand in T.Parallel (line 20)",
        "dst[i, j] = src[i, j]",
    ),
    "nested Parallel": (
        "for i in T.Parallel(8):\n    x = i\n    for j in T.Parallel(4):  #!\n        S[x, j] = 0",
        "T.Parallel inside T.Parallel (line 20)",
        "T.Parallel(m, n)",
    ),
    "run-time Parallel": (
        "for i in T.Parallel(n / 2):  #!\n    X[i] = 0",
        "an extent of T.Parallel is a run-time float32, not an integer",
        "//",
    ),
    "Parallel targets": (
        "for i in T.Parallel(8, 4):  #!\n    S[i, 0] = 0",
        "2 extents, the loop 1",
        "",
    ),
    "reduction in Parallel": (
        "s = 0.0\nfor i in T.Parallel(8):  #!\n    s += S[i, 0]",
        "s has a value before T.Parallel and every iteration changes it",
        "new name",
    ),
    "variable in Parallel": (
        "for i in T.Parallel(8):\n    v += i  #!",
        "v is changed by every iteration",
        "",
    ),
    "variable read behind Parallel": (
        "for i in T.Parallel(8):\n    v = i  #!\nS[0, 0] = v",
        "v is changed by every iteration",
        "before anything reads it",
    ),
    "variable read before Parallel writes it": (
        "for i in T.Parallel(8):\n    S[i, 0] = v\n    v = i  #!",
        "v is changed by every iteration",
        "before anything reads it",
    ),
    "variable in Parallel under a condition": (
        "for i in T.Parallel(8):\n    if i > 2:\n        v = i  #!\n    S[i, 0] = v",
        "v is changed by every iteration",
        "before anything reads it",
    ),
    "race": (
        "for i in T.Parallel(7):\n    S[i, 0] = S[i + 1, 0] * 2  #!",
        "iteration i = 0 of T.Parallel reads an element of S that iteration i = 1 writes (line 21)",
        "another buffer",
    ),
    "race with a fixed column": (
        "for i, j in T.Parallel(8, 4):\n    S[i, j] = S[i, 0] * 2  #!",
        "reads an element of S that iteration i = 0, j = 0 writes",
        "another buffer",
    ),
    "race through a view": (
        "V = T.reshape(S, (32,))\nfor i in T.Parallel(3):\n    S[1, i] = V[i + 5]  #!",
        "iteration i = 0 of T.Parallel reads an element of S that iteration i = 1 writes",
        "another buffer",
    ),
    "race through two views": (
        "V = T.reshape(S, (32,))\nW = T.reshape(V, (4, 8))\n"
        "for i, j in T.Parallel(8, 4):\n    S[i, j] = W[j, i]  #!",
        "reads an element of S that iteration",
        "another buffer",
    ),
    "copy onto itself through a view": (
        "V = T.reshape(S, (32,))\nT.copy(V[3:7], S[1, :])  #!",
        "T.copy of a (4) tile of S",
        "another buffer",
    ),
    "running sums onto a part of their source": (
        "T.cumsum(S[0:4, :], S[1:5, :], dim=1)  #!",
        "onto a part of itself",
        "another buffer",
    ),
    "write race": (
        "for i in T.Parallel(16):\n    S[i // 2, 0] = X[i]  #!",
        "iterations i = 0 and i = 1 of T.Parallel write the same element of S",
        "",
    ),
    "sum in a parallel loop": (
        "for i in T.Parallel(16):\n    S[0, 0] += X[i]  #!",
        "iterations i = 0 and i = 1 of T.Parallel write the same element of S",
        "add up a tile with T.reduce_sum",
    ),
    "thread index in Parallel": (
        "for i in T.Parallel(8):\n    X[i] = T.get_thread_binding(0)  #!",
        "cannot stand in T.Parallel",
        "before the loop",
    ),
    # --- Python that kernels do not have ---
    "try": (
        "try:  #!\n    v += 1\nexcept ValueError:\n    pass",
        "try is not allowed in a kernel",
        "use if",
    ),
    "arguments of a lambda": ("g = (lambda i: i)(1, 2)  #!", "lambda takes i; 2 by place", "(i)"),
    "lambda in Python's own": (
        "g = sorted((2, 1), key=lambda i: n - i)  #!",
        "lambda gives a run-time int32",
        "known at compile time",
    ),
    "comprehension": (
        "g = [i for i in range(n)]  #!",
        "a comprehension over a run-time range",
        "for loop",
    ),
    "run-time choice in a comprehension": (
        "g = [i for i in (1, 2) if n > i]  #!",
        "cannot choose its elements at run time",
        "for loop",
    ),
    "run-time number in a set": ("g = {n, 1}  #!", "a run-time int32 cannot be a key", "a string"),
    "number sought among run-time ones": (
        "g = [n, 1].index(1)  #!",
        "[n, 1].index of a run-time value",
        "one by one",
    ),
    "run-time number sought in a dict": (
        "g = {1: 2}.get(n, 3)  #!",
        "{1: 2}.get of a run-time value",
        "one by one",
    ),
    "run-time key": ("g = {n: 1}  #!", "a run-time int32 cannot be a key", "a string"),
    "return in a loop": (
        "for i in range(n):\n    if i > 3:\n        return  #!\nv += 1",
        "return in a loop that runs at run time",
        "break",
    ),
    "decorated function": ("@cached  #!\ndef g():\n    pass", "'cached' is not defined", ""),
    "arguments of a nested function": (
        "def g(a, b=1):\n    return a + b\ng(b=2)  #!",
        "g needs the argument 'a'",
        "write g(a, b)",
    ),
    "class": ("class G:  #!\n    pass", "class is not allowed in a kernel", "outside"),
    "import": ("import os  #!", "import is not allowed in a kernel", "outside"),
    "assert": ("assert n > 1  #!", "this assert is only known at run time", "compile time"),
    "assert of what is known": (
        "assert 1 > 2, f'one is {1}'  #!",
        "assertion failed: one is 1",
        "needs 1 > 2",
    ),
    "raise": ("raise ValueError(f'bad {3}')  #!", "ValueError: bad 3", "refused by its own code"),
    "raise at run time": (
        "if n > 1:\n    raise ValueError  #!",
        "raise under a condition that is only known at run time",
        "compile time",
    ),
    "global": ("global WORDS  #!", "global is not allowed in a kernel", "parameters"),
    "del": ("del A_s  #!", "del is not allowed in a kernel", "last use"),
    "match of a dict": (
        "match {'a': n}:  #!\n    case {'a': 1}:\n        pass",
        "match by the keys of a dict or by places in a class is not allowed",
        "elif",
    ),
    "is of numbers": ("if v is 3:  #!\n    pass", "the int 3 has no identity", "use =="),
    "too few for a star": ("a, b, *c = (1,)  #!", "1 value for at least 2 names", "as many names"),
    "name that one side of an or gives": (
        "if n > 1 or (y := n) > 0:\n    v += T.alloc_shared((4,), 'int32')  #!",
        "this operand is",
        "",
    ),
    "f-string": ('g = f"{n}"  #!', "an f-string of a run-time int32", "T.print"),
    "list of the code around": (
        "g = []\nfor i in range(n):\n    g.append(i)  #!",
        "g.append changes what was made outside",
        "a comprehension",
    ),
    "Python on a run-time value": (
        "x = math.gamma(f)  #!",
        "math.gamma(a run-time float32) is only known at run time",
        "known at compile time",
    ),
    "NumPy's word on a run-time value": (
        "x = np.abs(f)  #!",
        "np.abs(a run-time float32) is only known at run time",
        "use T.abs",
    ),
    "zip of loops": (
        "for i, j in zip(range(n), range(n)):  #!\n    pass",
        "zip of a loop",
        "inside",
    ),
    "reversed by a run-time step": (
        "for i in reversed(range(0, 9, n)):  #!\n    pass",
        "reversed of a range whose step is a run-time int32",
        "write range(last",
    ),
    "an exception of Python": (
        "x = math.sqrt(-1)  #!",
        "math.sqrt: ValueError: math domain error",
        "known at compile time",
    ),
    "an atomic of a whole tensor in T.Parallel": (
        "for q in T.Parallel(8):\n    T.atomic_add(A, q)  #!",
        "is A (global (M, K)",
        "name the element",
    ),
    "a wave of nothing": (
        "for q in T.Persistent([4], 0, 2):  #!\n    pass",
        "wave_size of T.Persistent is 0",
        "leave it out",
    ),
    "an int no float holds": ("x = f + 10**400  #!", "is larger than any float32", "T.infinity"),
    "a call of None": ("T.use_swizzle(4)()  #!", "is None; it cannot be called", "kernels call"),
    "a buffer in a text": ('x = A in "A"  #!', "A (global", "may hold"),
    "input": ("x = input()  #!", "input cannot be called in a kernel", "as a parameter"),
    "print to what is no file": ('print("x", file=3)  #!', "print: ", "Python's print"),
    "matmul operator": ("x = A_s @ B_s  #!", "@ is not an operator on tiles", "T.gemm"),
    "with of something else": ("with open('x'):  #!\n    pass", "open cannot be called", "files"),
    "float of a tile": (
        "x = float(A_s)  #!",
        "an argument of float is A_s (shared (16, 32) float16), not a number",
        "name an element",
    ),
    "local annotation": ("x: T.Tensor = 1  #!", "the annotation of x is the class", "a dtype"),
    "minimum of blocks": (
        "T.annotate_min_blocks_per_sm(64)  #!",
        "n of T.annotate_min_blocks_per_sm is 64, the most is 32",
        "write 2 or 3",
    ),
    "minimum of blocks in a loop": (
        "for i in range(n):\n    T.annotate_min_blocks_per_sm(2)  #!",
        "stands at the top level",
        "below with T.Kernel",
    ),
    "hit ratio": ("T.annotate_l2_hit_ratio({A: 2})  #!", "hit ratio of A is the int 2", "0 to 1"),
    "hit ratio of a tile": ("T.annotate_l2_hit_ratio({S: 1})  #!", "is about tensors", "name"),
    "false assumption": ("T.assume(1 > 2)  #!", "known to be false", "mend it"),
    "break in a grid": (
        "for i, j in T.grid(n, 2):\n    if i > 1:  #!\n        break",
        "break in T.grid",
        "T.serial(m)",
    ),
    "reference": ("bumped(1)  #!", "x of bumped is a T.Ref, this is the int 1", "A[i]"),
    "format spec": ('T.print(f"{f:.3f}")  #!', "format specs are not supported", "{x}"),
    # --- layouts, annotations ---
    "layout of a tensor": (
        "T.annotate_layout({A: make_swizzled_layout(A)})  #!",
        "is a tensor argument",
        "",
    ),
    "no dict": ("T.annotate_layout(A_s)  #!", "takes a dict of buffers, not A_s", "{buffer: …}"),
    "layout lambda rank": (
        "q = T.Layout((4, 4), lambda i: i)  #!",
        "must take 2 coordinates",
        "i, j",
    ),
    "run-time layout": (
        "q = T.Layout((4, 4), lambda i, j: i * n + j)  #!",
        "known at compile time",
        "",
    ),
    "safe value of a tile": (
        "T.annotate_safe_value({A_s: 1.0})  #!",
        "A_s (shared (16, 32) float16) has no",
        "",
    ),
    "swizzle order": ('T.use_swizzle(4, order="rows")  #!', "did you mean 'row'?", "'column'"),
    "panel size": ("T.use_swizzle(0)  #!", "panel_size of T.use_swizzle is 0, the least is 1", ""),
    # --- the kernel's own level ---
    "second kernel": ("with T.Kernel(4):  #!\n    pass", "has a T.Kernel already", "behind"),
    "output inside": ("Q = T.empty((4,), 'float32')  #!", "before T.Kernel", ""),
    "grid axis": ("x = T.program_id(3)  #!", "axis of T.program_id is 3", ""),
    "recursive macro": ("x = recursive(1)  #!", "recursive calls itself", "loop"),
}


@pytest.mark.parametrize("case", CASES)
def test_mistake(case: str) -> None:
    body, message, hint = CASES[case]
    text = HEADER + "".join(f"        {line}\n" for line in body.split("\n"))
    if case == "recursive macro":
        function, _ = compile_text(text)
        with pytest.raises(CompileError) as caught:
            traced(function, arrays())
        error = caught.value
        assert error.loc is not None and error.loc.caller is not None
        assert "in a macro called at <mistake" in str(error)
    else:
        error = fails(text)
    assert message in error.message, str(error)
    assert hint in error.hint, str(error)


def test_error_inside_a_macro_shows_the_call() -> None:
    text = HEADER + "        v += 1\n        bad_macro(S)\n"
    function, file = compile_text(text)
    with pytest.raises(CompileError) as caught:
        traced(function, arrays())
    error = caught.value
    assert error.loc is not None and error.loc.file.endswith("test_language_errors.py")
    assert error.loc.source_line().strip() == "T.copy(buffer, buffer[0])"
    assert f"in a macro called at {file}:21:9" in str(error)


def test_a_function_that_returns_in_some_cases_only() -> None:
    function, _ = compile_text(HEADER + "        x = early(n)\n")
    with pytest.raises(CompileError, match="early returns a value in some cases only"):
        traced(function, arrays())


def test_caret_range() -> None:
    error = fails(HEADER + "        T.gemm(A_s, B_s, acc + 1)  #!\n")
    lines = str(error).split("\n")
    at = lines.index("    T.gemm(A_s, B_s, acc + 1)  #!")
    assert lines[at + 1] == " " * (4 + len("T.gemm(A_s, B_s, ")) + "^^^"


def test_columns_beside_letters_of_several_bytes() -> None:
    error = fails(HEADER + "        x = 'größe', zerro  #!\n")
    assert str(error).split("\n")[2].strip() == "^^^^^"


# --- signatures, grids ---------------------------------------------------------------------------

SIGNATURES: dict[str, tuple[str, str]] = {
    "no annotation": ("def kernel(q):  #!\n    pass", "the parameter q has no annotation"),
    "wrong annotation": (
        "def kernel(q: [1, 2]):  #!\n    pass",
        "the annotation of q is a list of 2",
    ),
    "variable parameters": ("def kernel(*q):  #!\n    pass", "a kernel cannot take *q"),
    "pointer": ("def kernel(q: T.ptr):  #!\n    pass", "nothing says what q points to"),
    "async": ("async def kernel(q: T.int32):  #!\n    pass", "a plain function, not async"),
    "annotated twice": (
        "def kernel(X: T.Tensor((64,), 'float32')):\n    X: T.Tensor((64,), 'float32')  #!\n",
        "X is annotated twice",
    ),
    "returns a number": (
        "def kernel(X: T.Tensor((64,), 'float32')):\n    n = 1\n    return n  #!\n",
        "a kernel returns tensors, not n",
    ),
    "extent of a tensor": (
        "def kernel(X):\n    X: T.Tensor((1.5,), 'float32')  #!\n",
        "the extent 1.5 of a tensor is neither an int nor a size",
    ),
    "dtype of a tensor": (
        "def kernel(X):\n    X: T.Tensor((64,), 'flot32')  #!\n",
        "unknown dtype 'flot32'; did you mean 'float32'?",
    ),
}


@pytest.mark.parametrize("case", SIGNATURES)
def test_signature_mistake(case: str) -> None:
    text, message = SIGNATURES[case]
    function, file = compile_text("\n" + text)
    with pytest.raises(CompileError) as caught:
        read_signature(function)
    error = caught.value
    line = next(n for n, t in enumerate(("\n" + text).splitlines(), 1) if t.rstrip().endswith("#!"))
    assert error.loc is not None and (error.loc.file, error.loc.line) == (file, line)
    assert message in error.message


X = "    X: T.Tensor((64,), 'float32')\n"
GRIDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "no grid": ("def kernel(X):  #!\n" + X + "    X[0] = 1.0\n", {}, "kernel has no grid"),
    "no grid, a loop": (
        "def kernel(X):  #!\n" + X + "    for i in T.serial(4):\n        X[i] = 1.0\n",
        {},
        "kernel has no grid, and is not loops over whole tensors alone",
    ),
    "grid twice": (
        "def kernel(X):\n" + X + "    with T.Kernel(4):  #!\n        X[0] = 1.0\n",
        {"grid": (4,)},
        "the grid is given twice",
    ),
    "grid not given": (
        "def kernel(X):\n" + X + "    with T.Kernel(threads=32):  #!\n        X[0] = 1.0\n",
        {},
        "the grid is not given",
    ),
    "four extents": (
        "def kernel(X):\n" + X + "    with T.Kernel(1, 2, 3, 4):  #!\n        X[0] = 1.0\n",
        {},
        "a grid has up to 3 extents, 4 were given",
    ),
    "zero extent": (
        "def kernel(X):\n" + X + "    with T.Kernel(0):  #!\n        X[0] = 1.0\n",
        {},
        "a grid extent is 0, the least is 1",
    ),
    "float extent": (
        "def kernel(X):\n" + X + "    with T.Kernel(64 / 2):  #!\n        X[0] = 1.0\n",
        {},
        "a grid extent is the float 32.0, not an integer",
    ),
    "grid from a tensor": (
        "def kernel(X):\n" + X + "    with T.Kernel(T.int32(X[0])):  #!\n        X[0] = 1.0\n",
        {},
        "the grid must follow from sizes and scalar parameters",
    ),
    "two items": (
        "def kernel(X):\n" + X + "    with T.Kernel(4, 4) as bx, by:  #!\n        X[0] = 1.0\n",
        {},
        "a with has one T.Kernel",
    ),
    "too many indices": (
        "def kernel(X):\n"
        + X
        + "    with T.Kernel(4, 4) as (bx, by, bz):  #!\n        X[0] = 1.0\n",
        {},
        "2 values for 3 names",
    ),
    "threads twice": (
        "def kernel(X):\n" + X + "    with T.Kernel(4, threads=64):  #!\n        X[0] = 1.0\n",
        {"threads": 128},
        "threads is 64 in T.Kernel and 128 in the decorator or launch",
    ),
    "threads": (
        "def kernel(X):\n" + X + "    with T.Kernel(4, threads=2048):  #!\n        X[0] = 1.0\n",
        {},
        "threads of T.Kernel is 2048, the most is 1024",
    ),
    "code after the grid": (
        "def kernel(X):\n" + X + "    with T.Kernel(4):\n        X[0] = 1.0\n    X[1] = 2.0  #!\n",
        {},
        "code after T.Kernel would belong to no block",
    ),
    "no value for a constexpr": (
        "def kernel(X, BM: T.constexpr):  #!\n"
        + X
        + "    with T.Kernel(BM):\n        X[0] = 1.0\n",
        {},
        "the constexpr parameter BM was given no value",
    ),
}


@pytest.mark.parametrize("case", GRIDS)
def test_grid_mistake(case: str) -> None:
    text, options, message = GRIDS[case]
    assert message in fails("\n" + text, **options).message


@pytest.mark.parametrize("call", ["random.random()", "time.time()", "np.random.rand()"])
def test_what_differs_from_call_to_call(call: str) -> None:
    text = (
        "\nimport random, time\nimport numpy as np\n\ndef kernel(A: T.Tensor((4,), 'float32')):\n"
    )
    text += f"    with T.Kernel(1):\n        A[0] = {call}  #!\n"
    function, _ = compile_text(text)
    with pytest.raises(CompileError, match="would be what it is now in each launch") as e:
        traced(function, {"A": np.zeros(4, np.float32)})
    assert "T.rng_init" in e.value.hint


def test_out_names_a_parameter() -> None:
    function, _ = compile_text("\ndef kernel(Cat: T.Tensor((64,), 'float32')):\n    pass\n")
    with pytest.raises(CompileError, match="out names 'Cot'.*did you mean 'Cat'"):
        read_signature(function, Options(("Cot",)))
    with pytest.raises(CompileError, match="out names 'Cat' twice"):
        read_signature(function, Options(("Cat", "Cat")))


def test_words_outside_a_kernel() -> None:
    with pytest.raises(CompileError, match="T.copy means something only inside a kernel"):
        T.copy(1, 2)
    with pytest.raises(CompileError, match="T.tcgen05_gemm is not supported yet"):
        T.tcgen05_gemm(1)
    with pytest.raises(AttributeError, match="no builtin 'cpoy'; did you mean 'copy'"):
        T.cpoy  # noqa: B018
    with pytest.raises(CompileError, match="'2x' is no name for a size"):
        T.dynamic("M, 2x")


def test_source_that_cannot_be_read() -> None:
    scope: dict[str, Any] = {}
    exec("def kernel(x):\n    pass\n", scope)
    with pytest.raises(CompileError, match="the source of kernel cannot be read"):
        read_signature(scope["kernel"])
