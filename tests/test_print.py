"""T.print: the simulator prints for every GPU target what the cpu target prints, line by line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

N = T.dynamic("N")
TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")


@tilec.kernel
def tiles(A: T.Tensor((N,), "float16"), C: T.Tensor((N,), "float32"), f: T.float32):
    with T.Kernel(T.ceildiv(N, 70), threads=128) as bx:
        s = T.alloc_shared((70,), "float16")
        acc = T.alloc_fragment((3,), "float32")
        T.copy(A[bx * 70], s)
        T.print(s, msg="tile")
        T.print(f"{{block}} {bx} of 100%: {f}")
        T.clear(acc)
        for k in T.serial(70 // 7):
            if s[k * 7] > 1.0:
                T.print(f"block {bx} step {k}: {s[k * 7]}")
        for i in T.Parallel(70):
            C[bx * 70 + i] = s[i] * 2
            if s[i] > 1.7:
                T.print(f"{i} is large: {s[i]}")
        for i in T.Parallel(3):
            acc[i] = s[i] + 1
            T.print("three times")
        if bx == 1:
            T.print(A)
        T.print(acc)


@tilec.kernel
def threads(A: T.Tensor((N,), "int32")):
    with T.Kernel(2, threads=64) as bx:
        tx = T.get_thread_binding()
        n = T.alloc_var("int32", 0)
        if tx == 5:
            T.print("one thread")
        if tx > 60:
            T.print(bx, msg="a few")
        while n < tx - 60:
            T.print(n, msg="round")
            n = n + 1
        T.print(A[bx], msg="all of them, once")
        T.print(tx // 32, msg="each")


def calls() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    rng = np.random.default_rng(5)
    half = rng.standard_normal(150).astype(np.float16)
    return {
        "tiles": (tiles, (half, np.zeros(150, np.float32), 2.5)),
        "threads": (threads, (rng.integers(-9, 9, 7).astype(np.int32),)),
    }


@pytest.mark.parametrize("name", ["tiles", "threads"])
def test_all_targets_print_the_same(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    kernel, args = calls()[name]
    kernel(*args)
    want = sorted(capfd.readouterr().out.splitlines())
    if name == "tiles":
        assert "{block} 2 of 100%: 2.5" in want and want.count("three times") == 9
        assert sum(line.startswith("tile: s[") for line in want) == 210
    else:
        counts = {"one thread": 2, "a few: 1": 3, "round: 2": 2, "each: 1": 64}
        assert {k: want.count(k) for k in counts} == counts
        assert sum(line.startswith("all of them") for line in want) == 2
    for target in TARGETS:
        report = tilec.simulate(kernel, *args, target=target)
        capfd.readouterr()
        assert report.ok, str(report)
        assert sorted(report.printed) == want


def test_machine_code_for_amd_does_not_print() -> None:
    specs = tilec.spec((150,), "float16"), tilec.spec((150,), "float32")
    with pytest.raises(tilec.CompileError) as caught:
        tiles.compile(*specs, target="hip:gfx942")
    text = str(caught.value)
    assert text.startswith(f"{__file__}:23:9: hip:gfx942 has no function that prints")
    assert 'T.print(s, msg="tile")' in text and text.count("\n") < 12
    assert "tilec.simulate(tiles, …" in text and 'target="cpu"' in text
    assert tiles.compile(*specs, target="cuda:sm_90a").binary
