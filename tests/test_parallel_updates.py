"""Updates in `T.Parallel` of elements that iterations may share: which are errors, which give a
warning, and which are left alone. The simulator finds the others (`test_sim_*`)."""

from __future__ import annotations

import itertools
import linecache
import warnings
from typing import Any

import numpy as np
import pytest
from frontend_help import traced

import tilec
import tilec.language as T

HEADER = """
def kernel(
    X: T.Tensor((64,), "int32"),
    P: T.Tensor((64, 32), "int32"),
    A: T.Tensor((64,), "float32"),
    H: T.Tensor((32,), "float32"),
    G: T.Tensor((64, 32), "float32"),
    s: T.int32,
):
    with T.Kernel(1) as bx:
        S = T.alloc_shared((32,), "float32")
        F = T.alloc_fragment((32,), "float32")
"""
ARRAYS = {
    "X": np.zeros(64, np.int32), "P": np.zeros((64, 32), np.int32), "A": np.zeros(64, np.float32),
    "H": np.zeros(32, np.float32), "G": np.zeros((64, 32), np.float32),
}  # fmt: skip
_files = itertools.count()


def trace_lines(*lines: str) -> str:
    text = HEADER + "".join(f"        {line}\n" for line in lines)
    file = f"<update {next(_files)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"T": T}
    exec(compile(text, file, "exec"), scope)
    traced(scope["kernel"], ARRAYS)
    return file


def parallel(head: str, *lines: str) -> list[str]:
    return [f"for {head}:", *(f"    {line}" for line in lines)]


I, IJ = "i in T.Parallel(64)", "i, j in T.Parallel(64, 32)"
ERRORS = {
    "histogram": (I, "H[X[i]] += 1.0"),
    "in shared memory": (I, "S[X[i]] += 1.0"),
    "in registers": (I, "F[X[i]] += 1.0"),
    "spelled out": (I, "H[X[i]] = H[X[i]] + A[i]"),
    "the largest": (I, "x = X[i]", "H[x] = T.max(H[x], A[i])"),
    "by way of a variable": (I, "v = H[X[i]]", "w = v * 2.0", "H[X[i]] = w + A[i]"),
    "an index in a variable": (I, "x = T.alloc_var('int32')", "x = X[i] % 32", "H[x] += 1.0"),
    "under a condition": (I, "if A[i] > 0.0:", "    H[X[i]] += A[i]"),
    "a condition about it": (I, "if A[i] > H[X[i]]:", "    H[X[i]] = A[i]"),
    "in a loop inside": (I, "for k in range(4):", "    H[P[i, k]] += 1.0"),
    "bounds of a loop inside": (I, "for k in T.serial(X[i], X[i] + 2):", "    H[k] += 1.0"),
    "rows": (IJ, "G[X[i], j] += 1.0"),
    "columns, in one row": (IJ, "G[i, X[j]] += 1.0"),
    "by a float": (I, "H[T.int32(A[i])] += 1.0"),
    "many iterations": ("i in T.Parallel(1 << 18)", "H[X[i]] += 1.0"),
}
WARNINGS = {
    "modulo": (I, "H[i % s] += 1.0"),
    "quotient": (I, "H[i // s] += 1.0"),
    "clamped": (I, "H[T.min(i, s)] += 1.0"),
    "turned round by what may be its end": (I, "H[(i + 1) % s] += 1.0"),
    "two strides": (I, "H[i // s * s + i % (2 * s)] += 1.0"),
    "steps that are too short": (I, "H[i + i // s % 2] += 1.0"),
    "one sum of some": (I, "if A[i] > 0.0:", "    H[0] += A[i]"),
    "pairs of some": (I, "if A[i] > 0.0 and X[i] != 3:", "    H[i // 2] += A[i]"),
    "each column by each": (I, "for k in range(4):", "    H[k] += G[i, k]"),
}
FINE = {
    "scatter": (I, "H[X[i]] = A[i]"),
    "gather": (I, "A[i] += H[X[i]]"),
    "one of each row": (I, "G[i, X[i]] += 1.0"),
    "the loop's rows": ("i, j in T.Parallel(64, 1)", "G[i, X[j]] += 1.0"),
    "from an offset that was read": (I, "H[X[0] + i] += 1.0"),
    "from one of a number": (I, "H[X[s] + i] = H[X[s] + i] + A[i]"),
    "a stride of the run time": (IJ, "H[i * s + j] += 1.0"),
    "turned round": (I, "H[(i + 3) % 64] += 1.0"),
    "turned round by a number": (I, "H[(i + s) % 64] += 1.0"),
    "halves of a butterfly": (
        I,
        "j = i // s * 2 * s + i % s",
        "a, b = H[j], H[j + s]",
        "H[j], H[j + s] = a + b, a - b",
    ),
    "by shifts": (I, "H[((i >> s) << (s + 1)) | (i & ((1 << s) - 1))] += 1.0"),
    "one colour of a board": (
        "i, j in T.Parallel(1 << 10, 1 << 9)",
        "G[i, 2 * j + (i + s) % 2] = -G[i, 2 * j + (i + s) % 2]",
    ),
    "one iteration": (I, "if i == 0 and A[i] > 0.0:", "    H[0] += A[i]"),
    "some of their own": (I, "if A[i] > 0.0:", "    H[i] += A[i]"),
    "a part of each": (I, "for k in T.serial(i, i + 1):", "    H[k] += 1.0"),
    "rows of a sparse matrix": (I, "for k in T.serial(X[i], X[i + 1]):", "    A[i] += H[k]"),
    "T.Parallel of one": ("i in T.Parallel(1)", "H[X[i]] += A[i]"),
    "T.serial": ("i in T.serial(64)", "H[X[i]] += 1.0"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_what_was_read_is_no_index_of_an_update(case: str) -> None:
    with pytest.raises(tilec.CompileError) as caught:
        trace_lines(*parallel(*ERRORS[case]))
    error = caught.value
    assert "iterations of T.Parallel update" in error.message and "read from" in error.message
    assert "T.serial" in error.hint and "T.atomic_add(H[i], x)" in error.hint
    assert error.loc is not None and "=" in error.loc.source_line()


@pytest.mark.parametrize("case", WARNINGS)
def test_what_may_be_shared_gives_a_warning(case: str) -> None:
    with pytest.warns(tilec.CompileWarning, match="iterations of T.Parallel update H") as caught:
        file = trace_lines(*parallel(*WARNINGS[case]))
    assert [w.filename for w in caught] == [file]
    assert "T.serial" in str(caught[0].message)


@pytest.mark.parametrize("case", FINE)
def test_others_are_left_alone(case: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace_lines(*parallel(*FINE[case]))


def test_numbers_that_follow_from_others_before_the_loop() -> None:
    """`half` is no number beside `s`; where it is one, they may fold the index."""
    lines = parallel(I, "k = i & (half - 1)", "H[((i >> s) << (s + 1)) + k + half] += 1.0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace_lines("half = 1 << s", *lines)
    butterfly = parallel(I, "H[i // half * 2 * half + i % half] += 1.0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace_lines("half = 1 << (s - 1 - X[0])", *butterfly)  # which may be no shift at all
    for half in ("half = X[0]", "half = s + 3"):
        with pytest.warns(tilec.CompileWarning, match="folded by a run-time number"):
            trace_lines(half, *lines)


def test_long_bodies_do_not_end_in_recursion() -> None:
    chain = ["x = A[i]", *["x = x * 2.0 + H[i]"] * 700, "H[i] = x"]
    trace_lines(*parallel(I, *chain))


def test_a_serial_loop_counts_right() -> None:
    @tilec.kernel
    def histogram(X: T.Tensor((512,), "int32"), H: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            for i in T.serial(512):
                H[X[i]] += 1

    x = np.random.default_rng(0).integers(0, 8, 512).astype(np.int32)
    h = np.zeros(8, np.int32)
    histogram(x, h)
    np.testing.assert_array_equal(h, np.bincount(x, minlength=8))
