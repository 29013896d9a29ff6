"""Kernels whose author has fixed more than registers hold: what is said of them, and that the
simulator and `tilec explain` make them once more as another program has compiled them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.explain import facts
from tilec.jit import build

SM80 = "cuda:sm_80"
K = T.dynamic("K")


def wide_product() -> Any:
    @tilec.kernel
    def product(
        A: T.Tensor((64, K), "float16"),
        B: T.Tensor((K, 512), "float16"),
        C: T.Tensor((64, 512), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 512), "float16")
            acc = T.alloc_fragment((64, 512), "float32")
            if T.get_thread_binding(0) == 128:  # threads show: there are as many as are asked for
                C[0, 0] = 1
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 32)):
                T.copy(A[0, k * 32], a)
                T.copy(B[k * 32, 0], b)
                T.gemm(a, b, acc)
            T.copy(acc, C)

    return product


@pytest.mark.filterwarnings("ignore:.*what is too much is kept in memory")
def test_a_variant_from_the_cache_spills_as_it_did(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a ResourceError in the second program, and in `explain` always."""
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path))
    A, B = (rng.integers(-4, 5, s).astype(np.float16) for s in ((64, 96), (96, 512)))
    C = np.zeros((64, 512), np.float32)
    with pytest.warns(tilec.CompileWarning, match="acc takes 256 registers of each of 128"):
        made = wide_product().compile(A, B, C, target=SM80)
    assert made.image.may_spill and "may_spill=true" in made.stages["check_registers"]
    again = wide_product()
    with monkeypatch.context() as alone:
        alone.setattr(build, "compile_variant", None)
        report = tilec.simulate(again, A, B, C, target=SM80)
    assert report.ok, report
    np.testing.assert_array_equal(C, A.astype(np.float32) @ B.astype(np.float32))
    found = facts.gather(again, (A, B, C), {}, SM80, blocks=0)
    assert found.compiled.image.may_spill


@tilec.kernel
def operands_in_registers(
    A: T.Tensor((256, 128), "float16"),
    B: T.Tensor((2, 128, 64), "float16"),
    C: T.Tensor((256, 64), "float32"),
):
    with T.Kernel(1, threads=256):
        a, acc = T.alloc_shared((256, 128), "float16"), T.alloc_fragment((256, 64), "float32")
        b, d = T.alloc_fragment((128, 64), "float16"), T.alloc_fragment((128, 64), "float16")
        T.copy(A, a)
        T.copy(B[0, 0, 0], b)
        T.copy(B[1, 0, 0], d)
        T.clear(acc)
        for _ in T.serial(4):
            T.gemm(a, b, acc)
            T.gemm(a, d, acc)
        T.copy(acc, C)


def test_what_every_warp_holds_is_said() -> None:
    """All extents are multiples of 16, and the threads would hold it if each had a part."""
    with pytest.warns(tilec.PerformanceWarning, match="b .128., d .128.") as said:
        operands_in_registers.compile(
            *(tilec.spec(s, "float16") for s in ((256, 128), (2, 128, 64))),
            tilec.spec((256, 64), "float32"),
            target=SM80,
        )
    texts = [str(w.message) for w in said]
    assert any(
        "every warp that multiplies by b holds it: let T.alloc_shared do so" in t for t in texts
    )
    assert not any("make its extents multiples of 16" in t for t in texts)
