"""Two products that overlap, of operands that threads decode in shared memory, on an NVIDIA GPU:
warpgroups that meet for what they decode and take turns at the products do not wait for each other
for ever, and no tile is taken for another's. Exact results, each launched many times."""

from __future__ import annotations

from typing import Any

import pytest

import tilec
import tilec.language as T

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

M, N = T.dynamic("M, N")
RUNS = 200


def decoding(rows: int, keys: str, values: str) -> Any:
    """Products without a maximum, whose numbers are exact."""

    @tilec.kernel
    def decoded(
        Q: T.Tensor((M, 64), "float16"),
        K: T.Tensor((N, 64), keys),
        V: T.Tensor((N, 64), values),
        C: T.Tensor((M, 64), "float32"),
    ):
        with T.Kernel(T.ceildiv(M, rows), threads=2 * rows) as b:
            q, k = T.alloc_shared((rows, 64), "float16"), T.alloc_shared((64, 64), keys)
            k_16, v_16 = (T.alloc_shared((64, 64), "float16") for _ in range(2))
            v = T.alloc_shared((64, 64), values)
            s, p = T.alloc_fragment((rows, 64), "float32"), T.alloc_fragment((rows, 64), "float16")
            o = T.alloc_fragment((rows, 64), "float32")
            T.annotate_schedule(overlap=True)
            T.copy(Q[b * rows, 0], q)
            T.clear(o)
            for n in T.Pipelined(T.ceildiv(N, 64), num_stages=2):
                T.copy(K[n * 64, 0], k)
                T.copy(V[n * 64, 0], v)
                T.copy(k, k_16)
                T.gemm(q, k_16, s, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(rows, 64):
                    s[i, j] = s[i, j] * 0.125
                T.copy(s, p)
                T.copy(v, v_16)
                T.gemm(p, v_16, o)
            T.copy(o, C[b * rows, 0])

    return decoded


@pytest.mark.parametrize("dtypes", [("int8", "float16"), ("int8", "int8"), ("float16", "int8")])
@pytest.mark.parametrize("rows", [64, 128, 192])
def test_whoever_decodes_and_takes_turns_ends(rows: int, dtypes: tuple[str, str]) -> None:
    kernel, m = decoding(rows, *dtypes), 132 * 2 * rows - 5
    for n in (1, 70, 192, 2050):
        q = torch.randint(-1, 2, (m, 64), device="cuda").half()
        k = torch.randint(-2, 3, (n, 64), device="cuda").to(getattr(torch, dtypes[0]))
        v = torch.arange(n, device="cuda")[:, None] // 64 % 5 + torch.randint_like(k, 2)
        v = v.to(getattr(torch, dtypes[1]))
        want = (q.double() @ k.double().T * 0.125 @ v.double()).float()
        c = torch.empty(m, 64, device="cuda")
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        for _ in range(RUNS):
            c.fill_(torch.nan)
            kernel(q, k, v, c)
            wrong += (c != want).any()
        assert int(wrong) == 0
