"""T.sync_threads in a kernel of which the compiler makes roles: the author's threads meet, and
those that only bring tiles do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

N = T.dynamic("N")


def rotated(**schedule: Any) -> Any:
    """A product, and to each row a number that threads have passed on n times."""

    @tilec.kernel
    def kernel(
        A: T.Tensor((256, N), "float16"),
        B: T.Tensor((N, 128), "float16"),
        C: T.Tensor((256, 128), "float32"),
        n: T.int32,
    ):
        with T.Kernel(2, threads=128) as b:
            if schedule:
                T.annotate_schedule(**schedule)
            tx = T.get_thread_binding()
            s = T.alloc_shared((128,), "float32")
            x = T.alloc_shared((128, 64), "float16")
            y = T.alloc_shared((64, 128), "float16")
            c = T.alloc_fragment((128, 128), "float32")
            s[tx] = tx
            for _ in T.serial(n):
                T.sync_threads()
                v = s[(tx + 1) % 128]
                T.sync_threads()
                s[tx] = v
            T.sync_threads()
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(N, 64), num_stages=3):
                T.copy(A[b * 128, k * 64], x)
                T.copy(B[k * 64, 0], y)
                T.gemm(x, y, c)
            for i, j in T.Parallel(128, 128):
                c[i, j] += s[i]
            T.copy(c, C[b * 128, 0])

    return kernel


def arguments(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    A = rng.integers(-3, 3, (256, 256)).astype(np.float16)
    B = rng.integers(-3, 3, (256, 128)).astype(np.float16)
    passed = (np.arange(256) % 128 + 3) % 128
    return A, B, A.astype(np.float32) @ B.astype(np.float32) + passed[:, None]


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
@pytest.mark.parametrize("specialise", [None, True, False])
def test_numbers(target: str, specialise: bool | None, rng: np.random.Generator) -> None:
    A, B, wanted = arguments(rng)
    C = np.zeros((256, 128), np.float32)
    given = {} if specialise is None or target != "cuda:sm_90a" else {"specialise": specialise}
    report = tilec.simulate(rotated(**given), A, B, C, 3, target=target)
    assert not report.findings, report
    np.testing.assert_array_equal(C, wanted)


def test_it_has_roles() -> None:
    specs = [tilec.spec((256, 256), "float16"), tilec.spec((256, 128), "float16")]
    specs.append(tilec.spec((256, 128), "float32"))
    found = rotated().compile(*specs, target="cuda:sm_90a")
    assert found.resources.threads == 256 and "specialised" in found.stages["plan"].split("\n")[0]
    assert found.asm.count("bar.sync") >= 3


@pytest.mark.gpu
def test_on_the_gpu(rng: np.random.Generator, torch: Any) -> None:
    A, B, wanted = arguments(rng)
    a, b = (torch.from_numpy(x).cuda() for x in (A, B))
    for _ in range(200):
        C = torch.full((256, 128), float("nan"), device="cuda")
        rotated_once(a, b, C, 3)
        torch.cuda.synchronize()
    np.testing.assert_array_equal(C.cpu().numpy(), wanted)


rotated_once = rotated()
