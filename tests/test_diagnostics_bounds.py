"""Rule 10 of messages (see `test_diagnostics`): accesses of tensors that are dropped are warned of,
where every iteration makes them out of bounds, and where the user's own condition lets some do."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from mistake_programs import load

import tilec
import tilec.language as T


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")


DROPPED: dict[str, tuple[str, str, str]] = {
    "before the start": ("X[0] = X[-101]", "X[-101]", "reads index -1 in dimension 0 of X"),
    "behind the end": ("X[100] = 1.0", "X[100]", "writes index 100 in dimension 0 of X"),
    "a loop behind the end": (
        "for i in T.Parallel(4):\n            X[100 + i] = 1.0", "X[100 + i]", "writes index 100",
    ),
    "a tile before the start": ("T.copy(X[-116:-100], t)", "X[-116:-100]", "reads index -1"),
    "a tile behind the end": ("T.copy(t, X[112])", "T.copy(t, X[112])", "writes index 112"),
}  # fmt: skip

TENSORS = """\
import tilec
import tilec.language as T

m = T.dynamic("m")


@tilec.kernel
def kernel(X: T.Tensor((100,), "float32"), Y: T.Tensor((4, m), "float32")):
    with T.Kernel(7, threads=32) as b:
        t = T.alloc_shared((16,), "float32")
        T.copy(X[b * 16], t)
        for i in T.Parallel(16):
            X[b * 16 + i] = t[i]
        for k in range(4):
            for i in T.Parallel(32):
                Y[0, k * 32 + i] = X[k * 32 + i]
"""


def compile_tensors(text: str) -> None:
    specs = tilec.spec((100,), "float32"), tilec.spec((4, 50), "float32")
    load(text)[0].compile(*specs, target="cpu")


@pytest.mark.parametrize("case", DROPPED)
def test_a_dropped_access_is_warned_of(case: str) -> None:
    body, under, says = DROPPED[case]
    with pytest.warns(tilec.BoundsWarning) as caught:
        compile_tensors(f"{TENSORS}        {body}\n")
    shown = str(caught[0].message)
    assert says in shown and "always out of bounds" in shown and "valid indices are 0 to" in shown
    assert under in shown.split("\n")[1] and "^" in shown.split("\n")[2]
    assert caught[0].filename.startswith("/home/user/program") and caught[0].lineno in (17, 18)


GUARDED = """\
import tilec
import tilec.language as T


@tilec.kernel
def kernel(X: T.Tensor((100,), "float32"), Y: T.Tensor((4, 50), "float32"), n: T.int32 = 3):
    with T.Kernel(4, 2, threads=32) as (bx, by):
"""
# A condition that lets an iteration out of bounds: (body, the access, index and iteration)
ESCAPES: dict[str, tuple[str, str, str, str]] = {
    "one behind": (
        "for i in T.Parallel(128):\n    if i < 100:\n        Y[0, i] = X[i + 1]",
        "X[i + 1]", "reads index 100", "i = 99",
    ),
    "tiles": (
        "for i in T.Parallel(32):\n    if bx * 32 + i < 100:\n        Y[0, i] = X[bx * 32 + i + 1]",
        "X[bx * 32 + i + 1]", "reads index 100", "bx = 3 and i = 3",
    ),
    "less or equal": (
        "for i in T.Parallel(128):\n    if i <= 100:\n        X[i] = 1.0",
        "X[i]", "writes index 100", "i = 100",
    ),
    "the other end": (
        "for i in T.Parallel(128):\n    if i + 1 < 100:\n        Y[0, i] = X[i + 1] - X[i - 1]",
        "X[i - 1]", "reads index -1", "i = 0",
    ),
    "one branch": (
        "for i in T.Parallel(64):\n    Y[0, i] = Y[1, i + 2] if i < 50 else 0.0",
        "Y[1, i + 2]", "reads index 50 in dimension 1", "i = 48",
    ),
    "the same condition": (
        "for i in T.Parallel(128):\n    if i < 100 and X[i + 1] > 0:\n        Y[0, 0] = 1.0",
        "X[i + 1]", "reads index 100", "i = 99",
    ),
    "else": (
        "for i in T.serial(100):\n    if i == 0:\n        pass\n    else:\n        X[i + 1] = 0.0",
        "X[i + 1]", "writes index 100", "i = 99",
    ),
    "two conditions": (
        "if by == 1:\n    for i in T.Parallel(128):\n        if 0 <= i < 100:\n"
        "            X[i] = X[i - 1]",
        "X[i - 1]", "reads index -1", "i = 0",
    ),
}  # fmt: skip

KEPT = {
    "guarded": "for i in T.Parallel(128):\n    if i < 99:\n        Y[0, i] = X[i + 1]",
    "not guarded": "for i in T.Parallel(128):\n    Y[0, i] = X[i + 1]",
    "a partial tile": "for i in T.Parallel(128):\n    if i > 0:\n        Y[0, i] = X[i - 1]",
    "a bound of the tile": "for i in T.Parallel(128):\n    if i < 120:\n        X[i] = 1.0",
    "of blocks": "for i in T.Parallel(32):\n    if bx < 4:\n        X[bx * 32 + i] = 1.0",
    "that may not run": (
        "if n > 2:\n    for i in T.Parallel(128):\n        if i < 100:\n            X[i + 1] = 0.0"
    ),
    "that never runs": (
        "if by > 4:\n    for i in T.Parallel(128):\n        if i < 100:\n            X[i + 1] = 0.0"
    ),
    "of some": (
        "for i in T.Parallel(128):\n    if i % 2 == 0:\n        if i < 100:\n"
        "            X[i + 1] = 0.0"
    ),
    "or": "for i in T.Parallel(128):\n    if i < 100 or n > 2:\n        X[i + 1] = 0.0",
    "a step": "for i in T.serial(0, 100, 2):\n    if i < 100:\n        X[i + 1] = 0.0",
    "a break": (
        "for i in T.serial(128):\n    if i < 100:\n        Y[0, 0] = X[i + 1]\n"
        "    if X[i] > 0:\n        break"
    ),
    "a safe value": (
        "T.annotate_safe_value({X: 1.0})\nfor i in T.Parallel(64):\n    if i < 50:\n"
        "        Y[0, i] = X[i - 1]"
    ),
}


def compile_guarded(body: str) -> None:
    indented = "".join(f"        {row}\n" for row in body.split("\n"))
    specs = tilec.spec((100,), "float32"), tilec.spec((4, 50), "float32")
    load(GUARDED + indented)[0].compile(*specs, target="cpu")


@pytest.mark.parametrize("case", ESCAPES)
def test_a_guard_that_is_too_wide_is_warned_of(case: str) -> None:
    body, under, index, where = ESCAPES[case]
    with pytest.warns(tilec.BoundsWarning) as caught:
        compile_guarded(body)
    shown = str(caught[0].message)
    assert index in shown and f"where {where}, although a condition guards it" in shown
    rows = shown.split("\n")
    assert rows[1][rows[2].index("^") : len(rows[2])] == under
    assert "valid indices are 0 to" in rows[3]


@pytest.mark.parametrize("case", KEPT)
def test_other_guards_are_not_warned_of(case: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile_guarded(KEPT[case])


RUN_TIME = """\
import tilec
import tilec.language as T

m, n = T.dynamic("m, n")


@tilec.kernel
def kernel(X: T.Tensor((m,), "float32"), Y: T.Tensor((m, n), "float32"), s: T.int32 = 3):
    with T.Kernel(T.ceildiv(m, 32), T.ceildiv(n, 64), threads=32) as (bx, by):
        for i, j in T.Parallel(8, 4):
            r = bx * 32 + i * 4 + j
"""
RUN_TIME_ESCAPES = {
    "if r < m:\n    Y[r, 0] = X[r + 1]": ("X[r + 1]", "reads index m in dimension 0"),
    "if m > r:\n    X[r] = Y[r - 2, 0]": ("Y[r - 2, 0]", "reads index -2 in dimension 0"),
    "Y[r, 0] = X[r + 4] if r < m else 0.0": ("X[r + 4]", "reads index m + 3 in dimension 0"),
}
RUN_TIME_KEPT = (
    "if r + 1 < m:\n    Y[r, 0] = X[r + 1]",
    "if r < m - 1:\n    Y[r, 0] = X[r + 1]",
    "if r < n:\n    Y[r, 0] = X[r + 1]",  # another extent
    "if r < m and s > 2:\n    Y[r, 0] = X[r + 1]",  # may not run
    "if r - j < m:\n    Y[r, 0] = X[r - j + 1]",  # need not come to m - 1
    "q = by * 32 + i * 4 + j\nif q < m:\n    Y[q, 0] = X[q + 1]",  # blocks of another extent
)


def compile_run_time(body: str) -> None:
    indented = "".join(f"            {row}\n" for row in body.split("\n"))
    specs = tilec.spec((100,), "float32"), tilec.spec((100, 50), "float32")
    load(RUN_TIME + indented)[0].compile(*specs, target="cpu")


@pytest.mark.parametrize("body", RUN_TIME_ESCAPES)
def test_a_guard_by_a_run_time_extent_is_warned_of(body: str) -> None:
    under, says = RUN_TIME_ESCAPES[body]
    with pytest.warns(tilec.BoundsWarning) as caught:
        compile_run_time(body)
    rows = str(caught[0].message).split("\n")
    assert says in rows[0] and "although a condition guards it" in rows[0]
    assert rows[1][rows[2].index("^") : len(rows[2])] == under


@pytest.mark.parametrize("body", RUN_TIME_KEPT)
def test_other_run_time_guards_are_not_warned_of(body: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile_run_time(body)


def test_partial_tiles_are_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile_tensors(TENSORS)
        compile_tensors(f"{TENSORS}        X[0] = X[99]\n        T.copy(X[96], t)\n")


WHOLE = """\
import tilec
import tilec.language as T


@tilec.kernel
def kernel(A: T.Tensor((8, 1000), "float32"), C: T.Tensor((8, 1000), "float32")):
    for i, j in T.Parallel(8, {extent}):
        C[i, j + 1] = A[i, j]
"""


def test_a_store_beyond_a_tensor_in_a_whole_loop_names_the_iteration() -> None:
    """It writes nothing, and nothing else is lost; the tests and the tiles are not the author's."""
    a, c = np.ones((8, 1000), np.float32), np.zeros((8, 1000), np.float32)
    with pytest.warns(tilec.BoundsWarning) as caught:
        load(WHOLE.format(extent=1000))[0](a, c)
    shown = str(caught[0].message)
    assert "writes index 1000 in dimension 1 of C" in shown and "where j = 999: out of" in shown
    assert "let the loop end before" in shown and "block" not in shown
    assert (c[:, 1:] == 1).all() and (c[:, 0] == 0).all()
    c[:] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(WHOLE.format(extent=999))[0](a, c)
    assert (c[:, 1:] == 1).all() and (c[:, 0] == 0).all()


def test_what_never_runs_is_no_mistake() -> None:
    """Conditions that do not hold for any index, around accesses out of bounds."""

    @tilec.kernel
    def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((64,), "float32")
            for i in T.Parallel(128):
                if i < 64:
                    s[i] = A[i]
            for i in T.Parallel(128):
                j = i + 128
                if j < 64:
                    s[j] = A[j] + 1
                if 64 <= i < 128:
                    B[i - 64] = T.if_then_else(i + 64 < 64, s[i + 64], s[i - 64])

    a, b = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel(a, b)
        report = tilec.simulate(kernel, a, np.zeros(64, np.float32))
    assert report.ok and np.array_equal(a, b)
