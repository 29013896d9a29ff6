"""T.sync_threads at a barrier whose number is known at run time only."""

from __future__ import annotations

import linecache
import re
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.core import walk
from tilec.ir.ops import Barrier
from tilec.jit.build import trace_variant

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
HALVES = "T.sync_threads(tx // 128 + n, 128)"
PAIRS = np.arange(256, dtype=np.int32)


@tilec.kernel
def by_thread(A: T.Tensor((256,), "int32"), B: T.Tensor((256,), "int32"), n: T.int32):
    """Each 64 threads turn their numbers around n times, at a barrier of their own."""
    with T.Kernel(1, threads=256):
        tx = T.get_thread_binding(0)
        s = T.alloc_shared((256,), "int32")
        x = T.alloc_var("int32", A[tx])
        for _ in T.serial(n):
            s[tx] = x
            T.sync_threads(tx // 64 + 1, 64)
            x = s[tx // 64 * 64 + 63 - tx % 64] + 1
            T.sync_threads(tx // 64 + 1, 64)
        B[tx] = x


def turned(a: np.ndarray, n: int) -> np.ndarray:
    for _ in range(n):
        a = a.reshape(4, 64)[:, ::-1].ravel() + 1
    return a


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", [0, 1, 5])
def test_numbers(target: str, n: int, rng: np.random.Generator) -> None:
    a, b = rng.integers(0, 100, 256).astype(np.int32), np.full(256, -1, np.int32)
    run(by_thread, target, a, b, n)
    np.testing.assert_array_equal(b, turned(a, n))


def test_the_number_is_in_a_register() -> None:
    args = (*[tilec.spec((256,), "int32")] * 2, 3)
    key = by_thread.key_of(args, "cuda:sm_90a", {})
    func = trace_variant(by_thread.signature, key)
    found = [o for o in walk(func.body) if isinstance(o, Barrier)]
    assert [(o.id, o.threads, o.number is None) for o in found] == [(0, 64, False)] * 2
    asm = by_thread.compile(*args, target="cuda:sm_90a").asm
    assert re.search(r"bar\.sync %r\d+, %r\d+;", asm)


@tilec.kernel
def one_of_the_block(A: T.Tensor((256,), "int32"), B: T.Tensor((256,), "int32"), n: T.int64):
    """All threads meet at barrier n."""
    with T.Kernel(1, threads=256):
        tx = T.get_thread_binding(0)
        s = T.alloc_shared((256,), "int32")
        s[tx] = A[tx]
        T.sync_threads(n)
        B[tx] = s[255 - tx]


@pytest.mark.parametrize("target", TARGETS)
def test_of_the_whole_block(target: str) -> None:
    b = np.full(256, -1, np.int32)
    run(one_of_the_block, target, PAIRS, b, 7)
    np.testing.assert_array_equal(b, PAIRS[::-1])


def findings(body: str, n: int = 1) -> list[tilec.Finding]:
    space: dict[str, Any] = {"tilec": tilec, "T": T}
    lines = "".join(f"        {x}\n" for x in body.split("\n"))
    text = (
        '@tilec.kernel\ndef kernel(A: T.Tensor((256,), "int32"), n: T.int32):\n'
        "    with T.Kernel(1, threads=256):\n        tx = T.get_thread_binding(0)\n"
        f'        s = T.alloc_shared((256,), "int32")\n{lines}'
    )
    filename = "numbered_barriers_program.py"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    exec(compile(text, filename, "exec"), space)
    report = tilec.simulate(space["kernel"], PAIRS.copy(), n, target="cuda:sm_90a")
    return list(report.findings)


@pytest.mark.parametrize(
    "body, n, kind, words",
    [
        ("T.sync_threads(tx // 64 + n, 128)", 1, "deadlock", "barrier 1"),
        ("T.sync_threads(n)", 16, "barrier divergence", "no barrier 16 of 256"),
        ("T.sync_threads(n)", -1, "barrier divergence", "no barrier -1 of 256"),
        # The halves meet apart, and one reads what the other has written.
        (f"s[tx] = tx\n{HALVES}\nA[tx] = s[255 - tx]", 1, "data race", "s"),
        (HALVES, 2, "", ""),
    ],
)
def test_the_simulator_counts_by_number(body: str, n: int, kind: str, words: str) -> None:
    found = findings(body, n)
    if not kind:
        assert not found
        return
    assert kind in {f.kind for f in found}
    assert any(words in str(f) for f in found)


def test_a_warp_that_names_several() -> None:
    with pytest.warns(tilec.CompileWarning, match="come to one barrier together") as w:
        found = findings("T.sync_threads(tx % 4, 256)")
    assert "1 + tx // 32" in str(w[0].message)
    assert found[0].kind == "deadlock"
    with pytest.warns(tilec.CompileWarning, match="come to one barrier together"):
        findings("T.sync_threads(A[tx] // 128, 128)")


def mistake(body: str, *words: str) -> None:
    with pytest.raises(tilec.CompileError) as e:
        findings(body)
    for word in words:
        assert word in str(e.value), e.value


def test_messages() -> None:
    mistake("T.sync_threads(tx // 8, 32)", "barrier_id of T.sync_threads is 16", "0 to 15")
    mistake("T.sync_threads(n / 2)", "is a run-time float32", "write 1")
    mistake("T.sync_threads(n, 512)", "a run-time number is of 512 threads", "write 256")
    mistake("if tx < 128:\n    T.sync_threads(n)", "of 256 threads, and 128 of the block's 256")
    group = "if tx < 128:\n    x = T.alloc_shared((64,), 'int32')\n    T.copy(A[0:64], x)\n"
    mistake(group + "    T.copy(x, A[64:128])\nT.sync_threads(n)", "known at run time", "(1, …)")


def test_who_arrives_for_a_number_known_later() -> None:
    """An arrival that only a barrier of a run-time number may be waiting for is no mistake."""
    body = "if tx < 128:\n    T.named_barrier_arrive(1, 256)\nelse:\n    T.sync_threads(n, 256)"
    assert not findings(body)


@pytest.mark.parametrize("target", ["hip:gfx942"])
def test_a_group_of_a_target_without_numbers(target: str) -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((256,), "int32"), n: T.int32):
        with T.Kernel(1, threads=256):
            tx = T.get_thread_binding(0)
            if tx < 128:
                T.sync_threads(n, 128)
                A[tx] = 1

    with pytest.raises(tilec.CompileError, match="a barrier of 128 of 256 threads"):
        kernel.compile(tilec.spec((256,), "int32"), 1, target=target)


def test_what_tiles_touch_is_in_order_by_itself() -> None:
    """The numbers let halves of the block meet, and copies of whole tiles want all of it."""

    @tilec.kernel
    def kernel(A: T.Tensor((256,), "int32"), B: T.Tensor((256,), "int32"), n: T.int32):
        with T.Kernel(1, threads=256):
            tx = T.get_thread_binding(0)
            s = T.alloc_shared((256,), "int32")
            T.copy(A, s)
            T.sync_threads(tx // 128 + n, 128)
            for i in T.Parallel(256):
                B[i] = s[255 - i]

    b = np.zeros(256, np.int32)
    run(kernel, "cuda:sm_90a", PAIRS, b, 1)
    np.testing.assert_array_equal(b, PAIRS[::-1])
