"""Kernels of mathematics only that fold rows or columns: tiles of both, which blocks may share."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

B, M, N = T.dynamic("B, M, N")
f16, f32 = "float16", "float32"
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942")
Columns = T.Tensor((N,), "float32")
Rows = T.Tensor((M,), "float32")
Tile = T.Tensor((M, N), "float32")


@tilec.kernel
def layer_norm(X: Tile, W: Columns, Y: Tile):
    for i in T.Parallel(M):
        total: T.float32 = 0
        for j in range(N):
            total += X[i, j]
        mean = total / N
        squares: T.float32 = 0
        for j in range(N):
            x = X[i, j] - mean
            squares += x * x
        scale = T.rsqrt(squares / N + 1e-5)
        for j in range(N):
            Y[i, j] = (X[i, j] - mean) * scale * W[j]


@tilec.kernel
def cross_entropy(X: T.Tensor((M, N), "float16"), Label: T.Tensor((M,), "int64"), L: Rows):
    for i in T.Parallel(M):
        top: T.float32 = -T.infinity("float32")
        for j in range(N):
            top = T.max(top, T.float32(X[i, j]))
        total: T.float32 = 0
        for j in range(N):
            total += T.exp(T.float32(X[i, j]) - top)
        L[i] = T.log(total) + top - T.float32(X[i, Label[i]])


@tilec.kernel
def largest(X: Tile, Y: Columns):
    for j in T.Parallel(N):
        top: T.float32 = -1.0
        for i in range(M):
            top = T.max(top, X[i, j])
        Y[j] = top


@tilec.kernel
def mean_of_each(X: Tile, Y: Columns):
    for j in T.Parallel(N):
        total: T.float32 = 1.0
        for i in range(M):
            total += X[i, j]
        Y[j] = total / M


@tilec.kernel
def ends(X: Tile, Y: Columns, Z: Columns):
    for j in T.Parallel(N):
        low: T.float32 = T.infinity("float32")
        high: T.float32 = -T.infinity("float32")
        for i in range(M):
            low = T.min(low, X[i, j])
            high = T.max(X[i, j], high)
        Y[j] = low
        Z[j] = high


@tilec.kernel
def weighted(X: T.Tensor((B, M, N), "float32"), W: Rows, F: T.Tensor((B, N), "float32"),
             Y: T.Tensor((B, N), "float32")):  # fmt: skip
    for b, j in T.Parallel(B, N):
        total: T.float32 = 0
        for i in range(M):
            total += X[b, i, j] * W[i] * F[b, j]
        Y[b, j] = total


@tilec.kernel
def softmax_of_columns(X: Tile, Y: Tile):
    for j in T.Parallel(N):
        top: T.float32 = -T.infinity("float32")
        for i in range(M):
            top = T.max(top, X[i, j])
        total: T.float32 = 0
        for i in range(M):
            total += T.exp(X[i, j] - top)
        for i in range(M):
            Y[i, j] = T.exp(X[i, j] - top) / total


@tilec.kernel
def batches_of_columns(X: T.Tensor((B, M, N), "int32"), Y: T.Tensor((B, N), "int32")):
    for b, j in T.Parallel(B, N):
        low: T.int32 = 2147483647
        for i in range(M):
            low = T.min(low, X[b, i, j])
        Y[b, j] = low


@tilec.kernel
def batches_of_rows(X: T.Tensor((B, M, N), "float32"), Y: T.Tensor((B, M), "float32")):
    for b, i in T.Parallel(B, M):
        total: T.float32 = 0
        for j in range(N):
            total += X[b, i, j]
        Y[b, i] = total


def _random(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


Case = tuple[Any, list[np.ndarray], list[np.ndarray]]


def _norm(rng: np.random.Generator, m: int, n: int) -> Case:
    x, w = _random(rng, m, n), _random(rng, n)
    apart = x.astype(np.float64) - x.astype(np.float64).mean(1, keepdims=True)
    scale = 1 / np.sqrt((apart * apart).mean(1, keepdims=True) + 1e-5)
    return layer_norm, [x, w], [apart * scale * w]


def _entropy(rng: np.random.Generator, m: int, n: int) -> Case:
    x, label = _random(rng, m, n).astype(np.float16), rng.integers(0, n, m)
    wide = x.astype(np.float64)
    return cross_entropy, [x, label], [np.log(np.exp(wide).sum(1)) - wide[np.arange(m), label]]


def _of_columns(
    kernel: Any, *want: Callable[[np.ndarray], np.ndarray]
) -> Callable[[np.random.Generator, int, int], Case]:
    def case(rng: np.random.Generator, m: int, n: int) -> Case:
        x = _random(rng, m, n)
        return kernel, [x], [f(x.astype(np.float64)) for f in want]

    return case


def _batched_columns(rng: np.random.Generator, m: int, n: int) -> Case:
    x = rng.integers(-999, 999, (3, m, n)).astype(np.int32)
    return batches_of_columns, [x], [x.min(1)]


def _weighted(rng: np.random.Generator, m: int, n: int) -> Case:
    x, w, f = _random(rng, 3, m, n), _random(rng, m), _random(rng, 3, n)
    return weighted, [x, w, f], [np.einsum("bij,i->bj", x.astype(np.float64), w) * f]


def _batched_rows(rng: np.random.Generator, m: int, n: int) -> Case:
    x = _random(rng, 3, m, n)
    return batches_of_rows, [x], [x.astype(np.float64).sum(2)]


CASES = {
    "norm": _norm,
    "entropy": _entropy,
    "largest": _of_columns(largest, lambda x: np.maximum(x.max(0), -1)),
    "mean": _of_columns(mean_of_each, lambda x: (x.sum(0) + 1) / len(x)),
    "ends": _of_columns(ends, lambda x: x.min(0), lambda x: x.max(0)),
    "softmax": _of_columns(softmax_of_columns, lambda x: _softmax(x, 0)),
    "columns": _batched_columns,
    "rows": _batched_rows,
    "weighted": _weighted,
}


def _outputs(case: Case) -> list[np.ndarray]:
    """Arrays for the results, of what nobody would compute."""
    ints = case[1][0].dtype == np.int32
    return [
        np.full(w.shape, 77 if ints else np.nan, np.int32 if ints else np.float32) for w in case[2]
    ]


def _check(case: Case, target: str) -> None:
    kernel, given, want = case
    made = _outputs(case)
    if target == "cpu":
        kernel(*given, *made)
    else:
        report = tilec.simulate(
            kernel, *given, *made, target=target, schedules=2, check_outputs=True
        )
        assert report.ok, str(report)
    for got, w in zip(made, want):
        np.testing.assert_allclose(got, w, rtol=1e-4, atol=1e-4)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cpu", *TARGETS])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_ragged_tiles(case: Any, target: str, rng: np.random.Generator) -> None:
    made = case(rng, 7, 77)
    _check(made, target)
    if target != "cpu":
        outs = _outputs(made)
        text = made[0].compile(*made[1], *outs, target=target).stages["tile"]
        assert "parallel" in text and "thread_index" not in text


@pytest.mark.covering(1)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("m, n", [(1, 1), (70, 17), (300, 24), (3, 1100)])
def test_forms_for_magnitudes(case: Any, m: int, n: int, rng: np.random.Generator) -> None:
    _check(case(rng, m, n), "cuda:sm_90a")


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", [CASES["largest"], CASES["mean"]], ids=["largest", "mean"])
def test_blocks_share_tall_columns(case: Any, target: str, rng: np.random.Generator) -> None:
    made = case(rng, 1500, 24)
    stages = made[0].compile(*made[1], np.empty(24, np.float32), target=target).stages
    assert "combine_parts" in stages["tile"]
    _check(made, target)


@pytest.mark.parametrize("target", TARGETS)
def test_blocks_share_long_rows(target: str, rng: np.random.Generator) -> None:
    kernel, (x,), (want,) = _batched_rows(rng, 1, 65600)
    y = np.full((3, 1), np.nan, np.float32)
    assert "combine_parts" in kernel.compile(x, y, target=target).stages["tile"]
    assert tilec.simulate(kernel, x, y, target=target, check_outputs=True).ok
    np.testing.assert_allclose(y, want, rtol=1e-3, atol=1e-2)


@pytest.mark.covering(1)
@pytest.mark.parametrize("n", [8200, 65600])
@pytest.mark.parametrize("case", [_norm, _entropy], ids=["norm", "entropy"])
def test_longer_rows(case: Any, n: int, rng: np.random.Generator) -> None:
    _check(case(rng, 2, n), "cuda:sm_90a")


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a"])
def test_nothing_to_fold(target: str) -> None:
    x, y = np.empty((0, 5), np.float32), np.full(5, np.nan, np.float32)
    if target == "cpu":
        largest(x, y)
    else:
        assert tilec.simulate(largest, x, y, target=target).ok
    np.testing.assert_array_equal(y, np.full(5, -1))


def _compiled(kernel: Any, *shapes: tuple[int, ...]) -> Any:
    return kernel.compile(*[tilec.spec(s, "float32") for s in shapes], target="cuda:sm_90a")


def test_loads_are_wide_where_rows_are_aligned() -> None:
    for kernel, m, n in ((softmax_of_columns, 5000, 4096), (layer_norm, 50, 4096)):
        rest = ((m, n),) if kernel is softmax_of_columns else ((n,), (m, n))
        assert "ld.global.nc.v4.b32" in _compiled(kernel, (m, n), *rest).stages["ptx"]


@pytest.mark.parametrize(("rows", "tile"), [(4000, (8, 128)), (500, (2, 512)), (30, (1, 1024))])
def test_few_rows_have_few_to_a_block(rows: int, tile: tuple[int, int]) -> None:
    """Eight rows for each of few blocks left most of a machine idle."""

    @tilec.kernel
    def of_channels(X: T.Tensor((B, M, N), "float32"), Y: T.Tensor((M,), "float32")):
        for i in T.Parallel(M):
            total: T.float32 = 0
            for b in range(B):
                for j in range(N):
                    total += X[b, i, j]
            Y[i] = total

    text = _compiled(of_channels, (32, rows, 900), (rows,)).stages["tile"]
    assert f"parallel {tile} body" in text


def test_a_conversion_is_in_front_of_a_loop() -> None:
    """Of sums that one loop wants in another layout than the one that added them up."""

    @tilec.kernel
    def scaled(X: T.Tensor((M, N), "float16"), Y: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(M, 16), threads=256) as block:
            x = T.alloc_fragment((16, 128), "float32")
            s = T.alloc_fragment((16,), "float32")
            T.clear(x)
            for k in T.serial(T.ceildiv(N, 128)):
                for i, j in T.Parallel(16, 128):
                    if k * 128 + j < N:
                        x[i, j] += X[block * 16 + i, k * 128 + j]
            T.reduce_sum(x, s, dim=1)
            for k in T.serial(T.ceildiv(N, 256)):
                for i, j in T.Parallel(16, 256):
                    Y[block * 16 + i, k * 256 + j] = s[i] + j

    text = scaled.compile(*[tilec.spec((900, 777), "float16")] * 2, target="cuda:sm_90a")
    text = text.stages["infer_layouts"]
    before, loop = text[: text.rindex("for.serial")], text[text.rindex("for.serial") :]
    assert "_converted = alloc" in before and "_converted = alloc" not in loop
    x, y = np.ones((20, 300), np.float16), np.full((20, 300), np.nan, np.float16)
    assert tilec.simulate(scaled, x, y, target="cuda:sm_90a", check_outputs=True).ok
    np.testing.assert_array_equal(y, np.tile(300 + np.arange(300) % 256, (20, 1)))


def test_sizes_of_one_magnitude_share_a_variant() -> None:
    keys = [
        mean_of_each.key_of(
            [tilec.spec((m, n), "float32"), tilec.spec((n,), "float32")], "cuda:sm_90a", {}
        )
        for m, n in ((5000, 24), (6000, 24), (60000, 24), (5000, 400))
    ]
    assert len({k.text() for k in keys[:2]}) == 1
    assert len({k.text() for k in keys}) == 3


@tilec.kernel
def changed_later(X: Tile, S: Rows, Q: Rows):
    for i in T.Parallel(M):
        total: T.float32 = 0
        for j in range(N):
            total += X[i, j]
        half = total / 2
        for j in range(N):
            total += X[i, j]
        S[i] = half
        Q[i] = total


@tilec.kernel
def of_growing_length(X: Tile, S: Rows):
    for i in T.Parallel(M):
        total: T.float32 = 0
        for j in range(i + 1):
            total += X[i, j]
        S[i] = total


@tilec.kernel
def in_place(X: Tile, S: Rows):
    for i in T.Parallel(M):
        total: T.float32 = 0
        for j in range(N):
            total += X[i, j]
        for j in range(N):
            X[i, j] = X[i, j] / total
        S[i] = total


OTHERS = {
    "changed later": (changed_later, lambda x: [x, x.sum(1) / 2, x.sum(1) * 2]),
    "growing": (of_growing_length, lambda x: [x, np.tril(x).sum(1)]),
    "in place": (in_place, lambda x: [x / x.sum(1, keepdims=True), x.sum(1)]),
}


@pytest.mark.parametrize("kernel, want", OTHERS.values(), ids=OTHERS)
def test_other_folds_are_a_warps(kernel: Any, want: Any, rng: np.random.Generator) -> None:
    x = rng.random((40, 40)).astype(np.float32)
    expected = want(x.astype(np.float64))
    given = [x, *(np.full(e.shape, np.nan, np.float32) for e in expected[1:])]
    assert tilec.simulate(kernel, *given, target="cuda:sm_90a", schedules=2).ok
    for got, e in zip(given, expected):
        np.testing.assert_allclose(got, e, rtol=1e-4, atol=1e-5)
    assert "%lane" in kernel.compile(*given, target="cuda:sm_90a").stages["tile"]


@tilec.kernel
def stepped(X: Tile, S: Rows, Q: Rows):
    for i in T.Parallel(M):
        total: T.float32 = 0
        for j in range(N):
            x = X[i, j] * 0.5 + S[i]
            X[i, j] = x
            total += x * x
        Q[i] = total


def test_a_loop_may_change_its_own_elements(rng: np.random.Generator) -> None:
    x, s = _random(rng, 40, 70), rng.random(40).astype(np.float32)
    q, want = np.full(40, np.nan, np.float32), x * 0.5 + s[:, None]
    made = stepped.compile(x, s, q, target="cuda:sm_90a").stages["tile"]
    assert "%lane" not in made and "parallel" in made
    assert tilec.simulate(stepped, x, s, q, target="cuda:sm_90a", schedules=2).ok
    np.testing.assert_allclose(x, want, rtol=1e-6)
    np.testing.assert_allclose(q, (want.astype(float) ** 2).sum(1), rtol=1e-5)


def test_arrays_that_share_memory(rng: np.random.Generator) -> None:
    """Tiles would read what other threads have written."""
    x = _random(rng, 40, 24)
    want = _softmax(x.astype(np.float64), 0)
    assert tilec.simulate(softmax_of_columns, x, x, target="cuda:sm_90a").ok
    np.testing.assert_allclose(x, want, rtol=1e-4)


@tilec.kernel
def ranked(
    X: T.Tensor((M, N), f16), W: T.Tensor((N,), f32), R: T.Tensor((M, N), "int32"),
    S: T.Tensor((M, N), f32),
) -> None:  # fmt: skip
    """All of a row for each of its elements."""
    for r, i in T.Parallel(M, N):
        n, total, most = 0, 1.0, -T.infinity("float32")
        for j in range(N):
            n += T.int32(X[r, j] < X[r, i] or (X[r, j] == X[r, i] and j < i))
            total += T.abs(T.float32(X[r, j]) - T.float32(X[r, i])) * W[j]
        for j in range(N):
            if W[i] > 0:
                most = T.max(most, T.float32(X[r, j]) * W[i])
        R[r, i] = n
        S[r, i] = total + most


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "hip:gfx942"])
@pytest.mark.parametrize("m, n", [(3, 70), (2, 300), (0, 40), (1, 1)])
def test_iterations_that_go_along_the_same_share_it(target: str, m: int, n: int) -> None:
    """A tile has rows of them, which the elements that are theirs alone come to first."""
    rng = np.random.default_rng(m + n)
    x, w = rng.integers(-20, 20, (m, n)).astype(f16), rng.standard_normal(n).astype(f32)
    w[:1] = 1
    ranks, s = np.full((m, n), 77, "int32"), np.full((m, n), 77, f32)
    if target != "cpu" and n > 32:
        made = ranked.compile(x, w, ranks, s, target=target).stages["tile"]
        assert "alloc fragment<16x128xi32>" in made and "alloc fragment<16xf16>" in made
    run(ranked, target, x, w, ranks, s)
    np.testing.assert_array_equal(ranks, x.argsort(1, kind="stable").argsort(1, kind="stable"))
    wide = x.astype(float)
    total = 1 + (abs(wide[:, None] - wide[..., None]) * w).sum(-1)
    most = (wide[:, None] * w[:, None]).max(-1, initial=-np.inf)
    want = total + np.where(w > 0, most, -np.inf)
    np.testing.assert_allclose(s, want, rtol=1e-3, atol=1e-3)
