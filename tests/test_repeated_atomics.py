"""An atomic that every thread of a block does alike is warned of, with its line; those that a
thread may mean are not."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path

import numpy as np
import pytest

import tilec
import tilec.language as T

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

BEGIN = """\
import tilec
import tilec.language as T

@tilec.kernel
def kernel(A: T.Tensor((256,), "float32"), Y: T.Tensor((8,), "float32"), N: T.Tensor(8, "int32")):
    with T.Kernel(4, threads={threads}) as block:
        a, s = T.alloc_fragment((64,), "float32"), T.alloc_fragment((1,), "float32")
        T.copy(A[block * 64], a)
        T.reduce_sum(a, s, dim=0)
"""
_names = itertools.count()


def warned(tmp_path: Path, body: str, target: str = "cpu", threads: int = 128) -> list[str]:
    path = tmp_path / f"atomics{next(_names)}.py"  # each line is warned of once
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    path.write_text(BEGIN.format(threads=threads) + lines)
    found: dict[str, object] = {}
    exec(compile(path.read_text(), str(path), "exec"), found)
    specs = [tilec.spec((256,), "float32"), tilec.spec((8,), "float32"), tilec.spec((8,), "int32")]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found["kernel"].compile(*specs, target=target)  # type: ignore[attr-defined]
    assert all(w.lineno == 10 for w in caught if w.category is tilec.CompileWarning)
    return [str(w.message) for w in caught if w.category is tilec.CompileWarning]


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
def test_a_sum_that_each_thread_adds(tmp_path: Path, target: str) -> None:
    (said,) = warned(tmp_path, "T.atomic_add(Y[0], s[0])", target)
    assert ".py:10:9: each thread of the block does this atomic add of the same value" in said
    assert "to the same element of Y: it is done 128 times" in said
    assert "    T.atomic_add(Y[0], s[0])\n    ^^^^^^^^" in said
    assert "help: for i in T.Parallel(1): T.atomic_add(Y[…], …) does it once for the block" in said
    assert "if each thread is to do it: for i in T.Parallel(128)" in said


@pytest.mark.parametrize(
    "body",
    [
        "T.atomic_add(Y[block], s[0] * 2)",
        "T.atomic_add(N[0], 1)",
        "T.atomic_xor(N[block], 1)",
        "if A[0] > 0: T.atomic_add(Y[1], A[block])",
        "for k in T.serial(3): T.atomic_add(Y[k], 1.0)",
    ],
)
def test_others_of_the_kind(tmp_path: Path, body: str) -> None:
    assert len(warned(tmp_path, body)) == 1


@pytest.mark.parametrize(
    "body",
    [
        "T.atomic_add(Y[0], s)",
        "for i in T.Parallel(1): T.atomic_add(Y[0], s[0])",
        "for i in T.Parallel(64): T.atomic_add(Y[0], a[i])",
        "T.atomic_max(Y[0], s[0])",
        "T.atomic_or(N[0], 4)",
        "if T.get_thread_binding(0) == 0: T.atomic_add(Y[0], s[0])",
        "T.atomic_add(Y[0], A[T.get_thread_binding(0)])",
        "ticket = T.atomic_add(N[0], 1, return_prev=True)\nN[ticket % 8] = 1",
        "T.atomic_add(N[0], 1, memory_order='release')",
    ],
)
def test_what_may_be_meant(tmp_path: Path, body: str) -> None:
    assert warned(tmp_path, body) == []


def test_a_block_of_one_thread(tmp_path: Path) -> None:
    assert warned(tmp_path, "T.atomic_add(Y[0], s[0])", threads=1) == []


@tilec.kernel
def once(A: T.Tensor((256,), "float32"), Y: T.Tensor((1,), "float32"), W: T.constexpr):
    with T.Kernel(4, threads=128) as block:
        a, s = T.alloc_fragment((64,), "float32"), T.alloc_fragment((1,), "float32")
        T.copy(A[block * 64], a)
        T.reduce_sum(a, s, dim=0)
        for _ in T.Parallel(W):
            T.atomic_add(Y[0], s[0])


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
@pytest.mark.parametrize("times", [1, 128])
def test_what_the_help_says_holds(target: str, times: int) -> None:
    a, y = np.arange(256, dtype=np.float32) % 7, np.zeros(1, np.float32)
    if target == "cpu":
        once(a, y, W=times)
    else:
        assert tilec.simulate(once, a, y, target=target, W=times).ok
    assert y[0] == times * a.sum()
