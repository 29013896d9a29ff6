"""What `tilec.autotune` takes in the place of a list (`space`), and what tells problems apart
(`key`)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

M, N = T.dynamic("M, N")


@tilec.kernel
def scale(
    X: T.Tensor((M, N), "float32"),
    Y: T.Tensor((M, N), "float32"),
    by: T.int32,
    BN: T.constexpr,
):
    with T.Kernel(T.ceildiv(N, BN), M) as (bx, row):
        for j in T.Parallel(BN):
            Y[row, bx * BN + j] = X[row, bx * BN + j] * by


@pytest.fixture
def threads() -> Iterator[Executor]:
    """In the place of processes, of which each tuning would start its own."""
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "cache"))


def tuned(**options: Any) -> Any:
    return tilec.autotune(space={"BN": [32, 64]}, **options)(tilec.kernel(scale.function))


def called(kernel: Any, m: int, n: int, by: int = 3, step: int = 1) -> None:
    x = np.random.default_rng(m + n).standard_normal((m, n * step)).astype(np.float32)[:, ::step]
    y = np.zeros((m, n), np.float32)
    kernel(x, y, by)
    np.testing.assert_array_equal(y, x * np.float32(by))


def test_every_combination_is_tried() -> None:
    kernel = tilec.autotune(space={"BN": [32, 64, 128], "threads": (64, 128)}, budget=None)(
        tilec.kernel(scale.function)
    )
    called(kernel, 3, 300)
    (found,) = kernel.results
    assert set(found.config) == {"BN", "threads"} and len(found.trials) == 6


@pytest.mark.parametrize(
    ("key", "problems"),
    [(None, 4), (["N"], 2), (["M", "N"], 4), (["X"], 4), ([], 1), (["N", "by"], 3)],
)
def test_calls_of_one_problem(key: Any, problems: int, threads: Executor) -> None:
    kernel = tuned(key=key, executor=threads)
    for m, n, by in ((3, 100, 2), (4, 100, 2), (5, 100, 7), (3, 101, 2), (3, 100, 2)):
        called(kernel, m, n, by)
        called(kernel, m, n, by)
    assert len(kernel.results) == problems
    again = tuned(key=key, executor=threads)  # the next program
    for m, n, by in ((3, 100, 2), (4, 100, 2), (5, 100, 7), (3, 101, 2)):
        called(again, m, n, by)
    assert len(again.results) == problems and all(not r.trials for r in again.results)


def test_other_facts_of_one_problem_take_the_constants_alone(threads: Executor) -> None:
    """A plan that was measured with rows that begin anywhere is not one for others."""
    kernel = tuned(key=["M"], executor=threads)
    called(kernel, 4, 64)
    called(kernel, 4, 61)
    called(kernel, 4, 61, step=2)
    called(kernel, 4, 64)
    assert len(kernel.results) == 1
    called(kernel, 5, 64)
    assert len(kernel.results) == 2


def test_wrong_spaces_and_keys() -> None:
    for space in ({}, [], {"BN": 64}, {"BN": []}, {"BN": "64"}):
        with pytest.raises(tilec.LaunchError, match="space of tilec.autotune"):
            tilec.autotune(space=space)
    with pytest.raises(tilec.LaunchError, match="both configs and space"):
        tilec.autotune(space={"BN": [64]}, configs=[{"BN": 64}])
    with pytest.raises(tilec.LaunchError, match="names 'BM', which is no compile-time parameter"):
        tilec.autotune(space={"BM": [64]})(scale)
    with pytest.raises(tilec.LaunchError, match="key of autotune is 'N', not a list of names"):
        tuned(key="N")
    with pytest.raises(tilec.LaunchError, match="names 'K', which scale has not") as e:
        tuned(key=["K"])
    assert "X, Y, by, M, N" in e.value.hint
