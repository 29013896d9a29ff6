"""`python -m tilec cache`: what is in the cache, and what is deleted."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.__main__ import main
from tilec.runtime.cache import DiskCache

N = T.dynamic("N")


@tilec.kernel
def doubled(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
    for i in T.Parallel(N):
        B[i] = A[i] * 2


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskCache:
    """A cache with three kernels: for two targets, the first of which is 40 days old, and one whose
    file is damaged."""
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "cache"))
    cache = DiskCache(tmp_path / "cache")
    kernel: Any = tilec.kernel(doubled.function)
    kernel.compile(*[tilec.spec((64,), "float32")] * 2, target="cuda:sm_80")
    long_ago = time.time() - 40 * 86_400
    for path, _ in (*cache.images(), *cache.notes()):
        os.utime(path, (long_ago, long_ago))
    kernel.compile(*[tilec.spec((64,), "float32")] * 2, target="hip:gfx90a")
    damaged = cache.path("ab" * 32)
    damaged.parent.mkdir(exist_ok=True)
    damaged.write_bytes(b"tilec")
    return cache


def told(capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    capsys.readouterr()
    assert main(["cache", *options, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_there_is(filled: DiskCache, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "--list")
    assert found["folder"] == str(filled.root) and not found["cleared"]
    assert found["kernels"] == 3 == len(found["entries"])
    assert found["bytes"] == sum(p.stat().st_size for p, _ in (*filled.images(), *filled.notes()))
    names = [(e["kernel"], e["target"]) for e in found["entries"]]
    assert names == [("", ""), ("doubled", "hip:gfx90a"), ("doubled", "cuda:sm_80")]
    assert main(["cache", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["kernel", "target", "size", "age"]
    assert lines[1].startswith("damaged") and lines[3].endswith("40 days")
    assert lines[-1].startswith("3 kernels and ") and str(filled.root) in lines[-1]


def test_old_ones_are_deleted_then_all(
    filled: DiskCache, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(capsys, "--older-than", "30")["kernels"] == 1
    assert len(filled.entries()) == 3, "only counted"
    assert told(capsys, "--clear", "--older-than", "30")["kernels"] == 1
    assert len(filled.entries()) == 2
    assert told(capsys, "--clear")["cleared"] and filled.images() == filled.notes() == []
    again: Any = tilec.kernel(doubled.function)
    x = np.arange(64, dtype=np.float32)
    again(x, y := np.zeros_like(x))
    assert np.array_equal(y, 2 * x)


def test_wrong_calls(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "--older-than", "-1"]) == 2
    assert "--older-than -1 is no number of days" in capsys.readouterr().err
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")
    assert main(["cache"]) == 2
    assert "there is no cache" in capsys.readouterr().err


def test_an_empty_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "none"))
    assert told(capsys, "--list", "--clear")["entries"] == []
