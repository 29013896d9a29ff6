"""What threads do by themselves in short loops and on conditions, as convolutions and reductions
written by index have it: their loads are on their way together, and numbers are what they were."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

GPUS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942")
THREADS = 64


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def stage(kernel: Any, *arrays: Any, name: str = "unroll_loads", **more: Any) -> str:
    return str(kernel.compile(*arrays, target="cuda:sm_90a", **more).stages[name])


def transposed(n: int, ci: int, co: int, h: int, w: int, k: int, stride: int, pad: int) -> Any:
    """A transposed convolution, an element for each thread."""
    oh, ow = (h - 1) * stride - 2 * pad + k, (w - 1) * stride - 2 * pad + k
    total = n * co * oh * ow

    @tilec.kernel
    def kernel(
        X: T.Tensor((n, ci, h, w), "float16"),
        W: T.Tensor((ci, co, k, k), "float16"),
        Y: T.Tensor((n, co, oh, ow), "float32"),
    ):
        with T.Kernel(T.ceildiv(total, THREADS), threads=THREADS) as b:
            at = b * THREADS + T.get_thread_binding(0)
            if at < total:
                x, y = at % ow, at // ow % oh
                c, image = at // ow // oh % co, at // ow // oh // co
                acc = T.alloc_local((1,), "float32")
                acc[0] = 0
                for i in T.serial(ci):
                    for kh in T.serial(k):
                        row = y + pad - kh
                        if row % stride == 0:
                            row = row // stride
                            if row >= 0 and row < h:
                                for kw in T.serial(k):
                                    column = x + pad - kw
                                    if column % stride == 0:
                                        column = column // stride
                                        if column >= 0 and column < w:
                                            acc[0] += T.float32(
                                                X[image, i, row, column]
                                            ) * T.float32(W[i, c, kh, kw])
                Y[image, c, y, x] = acc[0]

    return kernel, np.full((n, co, oh, ow), np.nan, np.float32)


def transposed_in_numpy(x: np.ndarray, w: np.ndarray, stride: int, pad: int) -> np.ndarray:
    (n, _, rows, columns), (_, co, k, _) = x.shape, w.shape
    made = np.zeros((n, co, (rows - 1) * stride + k, (columns - 1) * stride + k))
    for r in range(rows):
        for c in range(columns):
            part = np.einsum("ni,iokl->nokl", wide(x[:, :, r, c]), wide(w))
            made[:, :, r * stride : r * stride + k, c * stride : c * stride + k] += part
    return made[:, :, pad : made.shape[2] - pad, pad : made.shape[3] - pad]


SHAPES = [
    (2, 3, 4, 5, 7, 3, 1, 0),
    (1, 2, 3, 4, 5, 4, 2, 1),
    (1, 1, 1, 1, 1, 2, 3, 0),
    (1, 5, 2, 6, 3, 5, 3, 2),
]


@pytest.mark.covering(1)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("target", [*GPUS, "cpu"])
def test_transposed_convolutions(target: str, shape: Any, rng: np.random.Generator) -> None:
    n, ci, co, h, w, k, stride, pad = shape
    kernel, y = transposed(*shape)
    x = rng.standard_normal((n, ci, h, w)).astype(np.float16)
    weights = rng.standard_normal((ci, co, k, k)).astype(np.float16)
    run(kernel, target, x, weights, y)
    want = transposed_in_numpy(x, weights, stride, pad)
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)


def test_loads_on_conditions_stand_first() -> None:
    """Those of a row of the weights, and of the next: what lies inside in any case has no
    condition; the branches are gone."""
    kernel, y = transposed(*SHAPES[0])
    x, w = np.zeros((2, 3, 5, 7), np.float16), np.zeros((3, 4, 3, 3), np.float16)
    text = stage(kernel, x, w, y)
    first = text[: text.index("fma")]
    assert first.count("mem_load %X") == first.count("mem_load %W") == 9
    assert all("guard=" in line for line in first.splitlines() if "mem_load %X" in line)
    loads = [line for line in first.splitlines() if "mem_load %W" in line]
    assert all("guard=" not in line and "speculative=true" in line for line in loads)
    assert text.count("for.serial") == 1, "the channels'"
    kernel, y = transposed(*SHAPES[1])
    x, w = np.zeros((1, 2, 4, 5), np.float16), np.zeros((2, 3, 4, 4), np.float16)
    text = stage(kernel, x, w, y)
    assert text.count("mem_load %X") == 4 * 4 and text.count("for.serial") == 1
    assert len(re.findall(r"\bif ", text)) == 1 + 2 * 4, "a row that has none is left out at once"


@tilec.kernel
def of_branches_own(X: T.Tensor((4, 2), "float32"), Y: T.Tensor((64,), "float32")):
    """Where to load from is inside because of the outer branch, which goes like the inner one."""
    with T.Kernel(1, threads=64):
        t = T.get_thread_binding(0)
        s = T.alloc_local((1,), "float32")
        s[0] = 0
        for i in T.serial(3):
            at = t - 20 + i
            if at >= 0 and at < 8:
                row = at // 2
                for j in T.serial(2):
                    if t + j < 27:
                        s[0] += X[row, j]
        Y[t] = s[0]


@pytest.mark.parametrize("target", [*GPUS, "cpu"])
def test_a_branch_in_a_branch(target: str, rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((4, 2)).astype(np.float32), np.full(64, np.nan, np.float32)
    run(of_branches_own, target, x, y)
    want = np.zeros(64)
    for t in range(64):
        for at in range(t - 20, t - 17):
            if 0 <= at < 8:
                want[t] += sum(x[at // 2, j] for j in range(2) if t + j < 27)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)
    text = stage(of_branches_own, x, y)
    loads = [line for line in text.splitlines() if "mem_load" in line]
    assert len(loads) == 6 and all("guard=" in line for line in loads) and "if " not in text


@tilec.kernel
def by_quotients(
    X: T.Tensor((64,), "float32"), D: T.Tensor((64,), "int32"), Y: T.Tensor((64,), "float32")
):
    """Dividing by 0 is not done for those that do not ask for it."""
    with T.Kernel(1, threads=64):
        t = T.get_thread_binding(0)
        s = T.alloc_local((1,), "float32")
        s[0] = 0
        for i in T.serial(4):
            d = D[(t + i) % 64]
            if d > 0:
                s[0] += X[t // d]
        Y[t] = s[0]


@pytest.mark.parametrize("target", [*GPUS, "cpu"])
def test_divisions_keep_their_branches(target: str, rng: np.random.Generator) -> None:
    x, y = rng.standard_normal(64).astype(np.float32), np.full(64, np.nan, np.float32)
    d = rng.integers(-1, 5, 64).astype(np.int32)
    run(by_quotients, target, x, d, y)
    t = np.arange(64)
    want = np.zeros(64)
    for i in range(4):
        by = d[(t + i) % 64]
        want += np.where(by > 0, wide(x)[t // np.maximum(by, 1)], 0)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)
    if target != "cpu":
        text = stage(by_quotients, x, d, y)
        assert "if " in text[text.index("for.serial") if "for.serial" in text else 0 :]


ROWS, STEPS = 8, 37


@tilec.kernel
def in_place(X: T.Tensor((ROWS, STEPS * THREADS), "float32"), scale: T.float32):
    """Elements of a thread's own, each read before it is written."""
    with T.Kernel(ROWS, threads=THREADS) as b:
        t = T.get_thread_binding(0)
        for i in T.serial(STEPS):
            X[b, i * THREADS + t] = X[b, i * THREADS + t] * scale + 1.0


@tilec.kernel
def running(X: T.Tensor((THREADS, STEPS + 1), "float32")):
    """Each needs the one before it."""
    with T.Kernel(1, threads=THREADS):
        t = T.get_thread_binding(0)
        for i in T.serial(STEPS):
            X[t, i + 1] = X[t, i] * 0.5 + X[t, i + 1]


@tilec.kernel
def twice(X: T.Tensor((THREADS, STEPS), "float32")):
    """Read again behind the store."""
    with T.Kernel(1, threads=THREADS):
        t = T.get_thread_binding(0)
        for i in T.serial(STEPS):
            X[t, i] = X[t, i] + 1.0
            X[t, i] = X[t, i] * X[t, i]


@pytest.mark.parametrize("target", [*GPUS, "cpu"])
def test_in_place(target: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((ROWS, STEPS * THREADS)).astype(np.float32)
    want = wide(x) * 1.5 + 1
    run(in_place, target, x, 1.5)
    np.testing.assert_allclose(x, want, rtol=1e-5, atol=1e-5)
    x = rng.standard_normal((THREADS, STEPS + 1)).astype(np.float32)
    want = wide(x)
    for i in range(STEPS):
        want[:, i + 1] += want[:, i] * 0.5
    run(running, target, x)
    np.testing.assert_allclose(x, want, rtol=1e-4, atol=1e-4)
    x = rng.standard_normal((THREADS, STEPS)).astype(np.float32)
    want = (wide(x) + 1) ** 2
    run(twice, target, x)
    np.testing.assert_allclose(x, want, rtol=1e-4, atol=1e-5)


def test_only_own_elements_are_asked_for_early() -> None:
    x = np.zeros((ROWS, STEPS * THREADS), np.float32)
    text = stage(in_place, x, 1.5)
    assert text[: text.index("mem_store")].count("mem_load") == 32
    text = stage(running, np.zeros((THREADS, STEPS + 1), np.float32))
    assert text[: text.index("mem_store")].count("mem_load") <= 2
    text = stage(twice, np.zeros((THREADS, STEPS), np.float32))
    assert text[: text.index("mem_store")].count("mem_load") == 1


@tilec.kernel
def products_along(X: T.Tensor((16, 50, 40), "float16"), Y: T.Tensor((16, 40), "float32")):
    """Blocks are larger than the tensor: no iteration lies inside."""
    with T.Kernel(T.ceildiv(40, 32), T.ceildiv(16, 32), threads=128) as (bx, by):
        acc = T.alloc_fragment((32, 32), "float32")
        T.fill(acc, 1.0)
        for r in range(50):
            for i, j in T.Parallel(32, 32):
                b, n = by * 32 + i, bx * 32 + j
                x = T.if_then_else(b < 16 and n < 40, T.float32(X[b, r, n]), T.float32(1))
                acc[i, j] *= x
        for i, j in T.Parallel(32, 32):
            if by * 32 + i < 16 and bx * 32 + j < 40:
                Y[by * 32 + i, bx * 32 + j] = acc[i, j]


@pytest.mark.parametrize("target", [*GPUS, "cpu"])
def test_at_an_edge(target: str, rng: np.random.Generator) -> None:
    x = rng.uniform(0.8, 1.25, (16, 50, 40)).astype(np.float16)
    y = np.full((16, 40), np.nan, np.float32)
    run(products_along, target, x, y)
    np.testing.assert_allclose(y, np.prod(wide(x), 1), rtol=1e-4)


def test_chunks_of_a_loop_are_as_long_as_they_are() -> None:
    """Of 8 iterations of which some lie outside, 8 are asked for together, not 1 of 16."""
    x, y = np.zeros((16, 50, 40), np.float16), np.zeros((16, 40), np.float32)
    text = stage(products_along, x, y)
    assert "const 16, i32\n" in text  # the tensor's rows
    assert not re.search(r"binary\.mod %\w+, %c16", text), "no loop in steps of 16"


def convolved(h: int, w: int, c: int, k: int, f: int) -> Any:
    """An implicit product: what lies outside is 0 by an `else`, or by two."""
    oh, ow = h - k + 1, w - k + 1
    rows, depth = oh * ow, k * k * c

    @tilec.kernel
    def kernel(
        X: T.Tensor((h, w, c), "float16"),
        W: T.Tensor((depth, f), "float16"),
        Y: T.Tensor((rows, f), "float32"),
    ):
        with T.Kernel(T.ceildiv(rows, 64), threads=128) as b:
            a, weights = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, f), "float16")
            acc = T.alloc_fragment((64, f), "float32")
            T.clear(acc)
            for step in T.Pipelined(T.ceildiv(depth, 32), num_stages=2):
                for i, j in T.Parallel(64, 32):
                    m, d = b * 64 + i, step * 32 + j
                    if m < rows:
                        if d < depth:
                            a[i, j] = X[m // ow + d // (k * c), m % ow + d // c % k, d % c]
                        else:
                            a[i, j] = 0
                    else:
                        a[i, j] = 0
                T.copy(W[step * 32, 0], weights)
                T.gemm(a, weights, acc)
            T.copy(acc, Y[b * 64, 0])

    return kernel, np.full((rows, f), np.nan, np.float32)


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.covering(1)
@pytest.mark.parametrize("shape", [(9, 8, 3, 5, 64), (10, 7, 8, 3, 32), (5, 5, 1, 5, 32)])
@pytest.mark.parametrize("target", [*GPUS, "cpu"])
def test_one_store_for_both_branches(target: str, shape: Any, rng: np.random.Generator) -> None:
    h, w, c, k, f = shape
    kernel, y = convolved(*shape)
    x = rng.standard_normal((h, w, c)).astype(np.float16)
    weights = rng.standard_normal((k * k * c, f)).astype(np.float16)
    run(kernel, target, x, weights, y)
    windows = np.lib.stride_tricks.sliding_window_view(wide(x), (k, k), (0, 1))
    rows = windows.transpose(0, 1, 3, 4, 2).reshape(-1, k * k * c)
    np.testing.assert_allclose(y, rows @ wide(weights), rtol=2e-3, atol=2e-2)
    if target == "cuda:sm_90a":
        joined = stage(kernel, x, weights, y, name="join_stores")
        assert "if " not in joined and joined.count("store %a") == 1


@tilec.kernel
def two_places(X: T.Tensor((64,), "float32"), Y: T.Tensor((128,), "float32"), n: T.int32):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            if i < n:
                Y[i] = X[i]
            else:
                Y[i + 64] = -X[i]


@pytest.mark.parametrize("target", [*GPUS, "cpu"])
def test_stores_of_two_places_stay_two(target: str, rng: np.random.Generator) -> None:
    x, y = rng.standard_normal(64).astype(np.float32), np.zeros(128, np.float32)
    run(two_places, target, x, y, 20)
    want = np.concatenate([np.where(np.arange(64) < 20, x, 0), np.where(np.arange(64) < 20, 0, -x)])
    np.testing.assert_array_equal(y, want)


def concatenated(gap: int) -> Any:
    """Two tensors behind one another; with a `gap` of -1 the second begins in the first's last."""

    @tilec.kernel
    def kernel(
        A: T.Tensor((6, 50), "float32"),
        B: T.Tensor((5, 50), "float32"),
        Y: T.Tensor((11 + gap, 50), "float32"),
    ):
        with T.Kernel(1, threads=THREADS):
            t = T.get_thread_binding(0)
            if t < 50:
                for c in T.serial(6):
                    Y[c, t] = A[c, t]
                for c in T.serial(5):
                    Y[6 + gap + c, t] = B[c, t]

    return kernel


@pytest.mark.parametrize("gap", [0, -1])
@pytest.mark.parametrize("target", [*GPUS, "cpu"])
def test_stores_behind_one_another(target: str, gap: int, rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal((n, 50)).astype(np.float32) for n in (6, 5))
    y = np.full((11 + gap, 50), np.nan, np.float32)
    run(concatenated(gap), target, a, b, y)
    np.testing.assert_array_equal(y, np.concatenate([a[: 6 + gap], b]))


def by_one(values: int) -> Any:
    """A block of one thread: a softmax in three loops, in place."""

    @tilec.kernel
    def kernel(X: T.Tensor((3, values), "float32"), Y: T.Tensor((3, values), "float32")):
        with T.Kernel(3, threads=1) as b:
            most, total = T.alloc_local((1,), "float32"), T.alloc_local((1,), "float32")
            most[0] = X[b, 0]
            for j in range(1, values):
                most[0] = T.max(most[0], X[b, j])
            total[0] = 0
            for j in range(values):
                e = T.exp(X[b, j] - most[0])
                Y[b, j] = e
                total[0] += e
            for j in range(values):
                Y[b, j] = Y[b, j] / total[0]

    return kernel


@tilec.kernel
def through_memory(X: T.Tensor((40,), "int32"), Y: T.Tensor((40,), "int32")):
    """The one thread's notes, in order, with barriers that say nothing."""
    with T.Kernel(1, threads=1):
        notes = T.alloc_shared((40,), "int32")
        for j in range(40):
            notes[j] = X[39 - j]
        T.sync_threads()
        for j in range(1, 40):
            notes[j] = notes[j] + notes[j - 1]
        T.sync_threads()
        for j in range(40):
            Y[j] = notes[39 - j]


@tilec.kernel
def one_with_tiles(X: T.Tensor((40,), "float32"), Y: T.Tensor((40,), "float32")):
    with T.Kernel(1, threads=1):
        for i in T.Parallel(40):
            Y[i] = X[i] * 2
        Y[0] = 7


@pytest.mark.parametrize("target", [*GPUS, "cpu"])
def test_blocks_of_one_thread(target: str, rng: np.random.Generator) -> None:
    for values in (1, 2, 33, 100):
        x = rng.standard_normal((3, values)).astype(np.float32)
        y = np.full_like(x, np.nan)
        run(by_one(values), target, x, y)
        e = np.exp(wide(x) - wide(x).max(1, keepdims=True))
        np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-4)
    n, m = rng.integers(-99, 99, 40).astype(np.int32), np.zeros(40, np.int32)
    run(through_memory, target, n, m)
    np.testing.assert_array_equal(m, np.cumsum(n[::-1])[::-1])
    x, y = rng.standard_normal(40).astype(np.float32), np.zeros(40, np.float32)
    run(one_with_tiles, target, x, y)
    np.testing.assert_array_equal(y, [7, *(x * 2)[1:]])


def test_one_thread_waits_for_nobody() -> None:
    x = np.zeros((3, 100), np.float32)
    compiled = by_one(100).compile(x, x, target="cuda:sm_90a")
    assert "barrier" not in compiled.stages["unroll_loads"] and "bar.sync" not in compiled.asm
    text = compiled.stages["group_threads"]
    assert text.count("compare.eq") == 1 and len(re.findall(r"^  if ", text, re.MULTILINE)) == 1
    assert compiled.asm.count("ld.global.v4.b32") >= 8  # also of what was stored before
    assert compiled.asm.count("st.global.v4.b32") == 2 * 8


def decoded(total: int, shape: tuple[int, int, int]) -> Any:
    """An index taken apart: below `total` each part is below its extent."""
    _, b, c = shape

    @tilec.kernel
    def kernel(X: T.Tensor(shape, "float32"), Y: T.Tensor((total,), "float32")):
        with T.Kernel(T.ceildiv(total, THREADS), threads=THREADS) as block:
            at = block * THREADS + T.get_thread_binding(0)
            if at < total:
                Y[at] = X[at // c // b, at // c % b, at % c]

    return kernel


@pytest.mark.parametrize("target", [*GPUS, "cpu"])
def test_indices_in_a_branch(target: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((5, 6, 7)).astype(np.float32)
    y = np.full(128, np.nan, np.float32)

    @tilec.kernel
    def kernel(X: T.Tensor((5, 6, 7), "float32"), Y: T.Tensor((128,), "float32"), n: T.int32):
        with T.Kernel(1, threads=128):
            at = T.get_thread_binding(0)
            if at < 100:
                Y[at] = X[at // 42, at // 7 % 6, at % 7]
            else:
                Y[at] = at // 100 + n

    run(kernel, target, x, y, 5)
    np.testing.assert_array_equal(y, [*x.reshape(-1)[:100], *[6] * 28])


def test_a_branch_knows_its_condition() -> None:
    """Nothing asks again whether the parts of an index are inside."""
    x, y = np.zeros((5, 6, 7), np.float32), np.zeros(210, np.float32)
    text = stage(decoded(210, (5, 6, 7)), x, y)
    assert all("guard=" not in line for line in text.splitlines() if "mem_load %X" in line)
    text = stage(decoded(211, (5, 6, 7)), x, np.zeros(211, np.float32))
    assert any("guard=" in line for line in text.splitlines() if "mem_load %X" in line)


@tilec.kernel
def causal(
    X: T.Tensor((2, 3, 300), "float16"),
    W: T.Tensor((3, 4), "float16"),
    Y: T.Tensor((2, 3, 300), "float16"),
):
    """A short loop in T.Parallel, whose loads ask first whether they are there."""
    with T.Kernel(2, 3, threads=64) as (b, c):
        for t in T.Parallel(300):
            acc = 0.0
            for k in range(4):
                if t - 3 + k >= 0:
                    acc += T.float32(W[c, k]) * T.float32(X[b, c, t - 3 + k])
            Y[b, c, t] = acc


@tilec.kernel
def pooled(X: T.Tensor((3, 17, 20), "float32"), Y: T.Tensor((3, 9, 10), "float32")):
    with T.Kernel(3, threads=32) as c:
        for y, x in T.Parallel(9, 10):
            most = -T.infinity("float32")
            for r in range(3):
                for s in range(3):
                    row, column = 2 * y + r - 1, 2 * x + s - 1
                    if 0 <= row < 17 and 0 <= column < 20:
                        most = T.max(most, X[c, row, column])
            Y[c, y, x] = most


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.parametrize("target", [*GPUS, "cpu"])
def test_taps_that_ask_first(target: str, rng: np.random.Generator) -> None:
    """No branch is left in what a tile's iterations do, and nothing comes of what is not there:
    what stands around a tensor is infinite."""
    x = rng.standard_normal((2, 3, 300)).astype(np.float16)
    w = rng.standard_normal((3, 4)).astype(np.float16)
    w[0, 0] = np.inf  # of an element that is not there
    y = np.full((2, 3, 300), np.nan, np.float16)
    run(causal, target, x, w, y)
    padded = np.concatenate([np.zeros((2, 3, 3)), wide(x)], axis=2)
    want = np.zeros(x.shape)
    for k in range(4):
        there = slice(max(3 - k, 0), None)
        want[..., there] += (wide(w)[:, k : k + 1] * padded[:, :, k : k + 300])[..., there]
    np.testing.assert_allclose(wide(y), want, rtol=2e-3, atol=4e-3)

    image = rng.standard_normal((3, 17, 20)).astype(np.float32)
    small = np.full((3, 9, 10), np.nan, np.float32)
    run(pooled, target, image, small)
    around = np.full((3, 19, 22), -np.inf)
    around[:, 1:-1, 1:-1] = image
    windows = np.lib.stride_tricks.sliding_window_view(around, (3, 3), (1, 2))[:, ::2, ::2]
    np.testing.assert_array_equal(small, windows.max((3, 4))[:, :9, :10])
    if target == "cuda:sm_90a":
        for kernel, arrays in ((causal, (x, w, y)), (pooled, (image, small))):
            after = stage(kernel, *arrays)
            loop = after[after.index("for.") :]
            ahead = loop[: loop.index(" fma " if kernel is causal else "binary.max")]
            assert ahead.count("guard=") >= 3 and "types=(f32)" not in loop, after
