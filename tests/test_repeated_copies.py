"""forward_copies: a copy of what its buffer holds already is left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run_compiled

import tilec
import tilec.language as T
from tilec.ir.errors import PerformanceWarning

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
N, P = T.dynamic("N, P")


def pages(between: str) -> Any:
    """Sums of products with pages, each of which is asked for twice; `between`: what happens to the
    tile in the meantime."""

    @tilec.kernel
    def kernel(
        Q: T.Tensor((64, 64), "float16"),
        V: T.Tensor((N, 64), "float16"),
        table: T.Tensor((P,), "int32"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            q, v = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            c, s = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64, 64), "float32")
            p = T.alloc_fragment((64, 64), "float16")
            T.copy(Q, q)
            T.clear(c)
            for k in T.Pipelined(P, num_stages=2):
                row = table[k] * 64
                T.copy(V[row : row + 64, :], v)
                T.clear(s)
                T.gemm(q, v, s, transpose_B=True)
                T.copy(s, p)
                if between == "written":
                    T.fill(v, 1)
                if between == "another":
                    T.copy(V[row + 1 : row + 65, :], v)
                else:
                    T.copy(V[row : row + 64, :], v)
                T.gemm(p, v, c)
            T.copy(c, C)

    return kernel


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("between", ["nothing", "written", "another"])
@pytest.mark.filterwarnings("ignore::tilec.ir.errors.PerformanceWarning")
def test_twice(target: str, between: str) -> None:
    rng = np.random.default_rng(0)
    q, v = (rng.integers(-2, 3, (n, 64)).astype(np.float16) / 8 for n in (64, 320))
    table = np.array([3, 0, 2, 1], np.int32)
    c = np.zeros((64, 64), np.float32)
    run_compiled(pages(between), target, q, v, table, c)
    want = np.zeros((64, 64))
    for page in table:
        first = v[page * 64 :][:64].astype(float)
        second = v[page * 64 + 1 :][:64].astype(float) if between == "another" else first
        want += (q.astype(float) @ first.T).astype(np.float16).astype(float) @ second
    np.testing.assert_allclose(c, want, atol=1e-2)
    if target != "cpu":
        text = pages(between).compile(q, v, table, c, target=target).stages["forward_copies"]
        assert text.count("copy %V") == (1 if between == "nothing" else 2)


def test_the_first_runs_ahead(recwarn: pytest.WarningsRecorder) -> None:
    specs = [tilec.spec((64, 64), "float16"), tilec.spec((4096, 64), "float16")]
    specs += [tilec.spec((64,), "int32"), tilec.spec((64, 64), "float32")]
    asm = pages("nothing").compile(*specs, target="cuda:sm_90a").asm
    assert not [w for w in recwarn if issubclass(w.category, PerformanceWarning)]
    assert "cp.async" in asm
