"""Products of every dtype on an NVIDIA GPU against float64 (int64): all orders, ragged sizes, A in
registers, sums in two levels, outputs of every dtype. Outputs are poisoned before."""

import numpy as np
import pytest
from test_row_products import (
    E4,
    E5,
    Product,
    chained,
    check,
    from_registers,
    kept_in_registers,
    read_back,
    transposed,
    values,
)
from test_tf32 import declared, with_ties

from tilec.ir import semantics as num

torch = pytest.importorskip("torch")

import tilec  # noqa: E402

pytestmark = pytest.mark.gpu


def on_gpu(a: np.ndarray) -> torch.Tensor:
    """The array's bits on the GPU; torch and NumPy share no name for the narrow floats."""
    words = {
        "bfloat16": (np.int16, torch.bfloat16),
        "float8_e4m3fn": (np.uint8, torch.float8_e4m3fn),
        "float8_e5m2": (np.uint8, torch.float8_e5m2),
    }
    if a.dtype.name not in words:
        return torch.from_numpy(a.copy()).cuda()
    bits, kind = words[a.dtype.name]
    return torch.from_numpy(a.view(bits).copy()).cuda().view(kind)


def back(t: torch.Tensor) -> np.ndarray:
    return t.cpu().double().numpy() if t.dtype.is_floating_point else t.cpu().numpy()


def run(p: Product, size: tuple[int, int, int], tolerance: float = 0.0) -> None:
    arrays = p.arrays(*size)
    a, b, c = (on_gpu(arrays[k]) for k in "ABC")
    tilec.kernel(p.kernel())(a, b, c)
    first = back(c)
    want = p.want(arrays)
    if tolerance:
        error = np.linalg.norm(first - want) / np.linalg.norm(want)
        assert np.isfinite(first).all() and error <= tolerance, error
    elif p.tf32:
        error = np.linalg.norm(first - want) / np.linalg.norm(want)
        assert error <= 2e-5, error  # of the sum; an operand that is not rounded would give 7e-4
    else:
        check(first, want, p)
    tilec.kernel(p.kernel())(a, b, c)
    assert np.array_equal(first, back(c)), "another result the second time"


F32 = ("float32",) * 4
TILES = [
    Product("float16", "float16", "float16", "float16", (128, 256, 64), threads=256),
    Product("float16", "float16", "float16", "float32", (128, 128, 64), threads=256),
    Product(*F32, (128, 256, 32), threads=256, tf32=True),
    Product(*F32, (64, 64, 16)),
    Product("float64", "float64", "float64", "float64", (64, 64, 16)),
    Product("int8", "int8", "int32", "int32", (128, 256, 128), threads=256),
    Product("int8", "uint8", "int32", "int32", (128, 128, 64), threads=256),
    Product("uint8", "int8", "int32", "float32", (64, 24, 32)),
    Product("uint8", "uint8", "int32", "int8", (64, 40, 64)),
]
SIZES = [(256, 512, 384), (200, 264, 1040), (67, 35, 50), (1, 1, 1)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("p", TILES, ids=lambda p: f"{p.a}-{p.b}-{p.acc}-{p.out}")
def test_dtypes(p: Product, size: tuple[int, int, int]) -> None:
    long_sum = p.acc == "float16" and size[2] > 300
    run(p, size, 1e-2 if long_sum else 0.0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("b", [E4, E5])
@pytest.mark.parametrize("a", [E4, E5])
@pytest.mark.parametrize("fast", [True, False])
def test_float8(a: str, b: str, fast: bool, size: tuple[int, int, int]) -> None:
    """About 14 bits of a fast sum are right."""
    tile = (128, 256, 128) if fast else (128, 128, 128)
    p = Product(a, b, "float32", "float32", tile, threads=256, fast=fast)
    run(p, size, 4e-3 if fast else 1e-3)


@pytest.mark.parametrize("out", ["float16", "bfloat16", E4, E5])
def test_outputs(out: str) -> None:
    for a, acc in ((E4, "float32"), ("int8", "int32"), ("float16", "float16")):
        p = Product(a, a, acc, out, (64, 64, 64))
        if acc != "int32":
            run(p, (200, 264, 128), {"float16": 4e-3, "bfloat16": 6e-3}.get(out, 8e-2))
        elif out in ("float16", "bfloat16"):
            small = Product("int8", "int8", "int32", out, (64, 64, 32))
            run(small, (200, 264, 2), {"bfloat16": 4e-3}.get(out, 1e-3))


ORDERS = [(False, False), (False, True), (True, False), (True, True)]


@pytest.mark.parametrize(("ta", "tb"), ORDERS, ids=["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(
    ("a", "b", "acc", "out"),
    [
        ("float32", "float32", "float32", "float32"),
        (E4, E5, "float32", "float32"),
        (E5, E4, "float16", "float16"),
        ("int8", "uint8", "int32", "int32"),
        ("float16", "float16", "float16", "float16"),
    ],
)
def test_orders(a: str, b: str, acc: str, out: str, ta: bool, tb: bool) -> None:
    tf32 = a == "float32"
    p = Product(a, b, acc, out, (64, 64, 32), ta, tb, tf32=tf32)
    run(p, (208, 272, 192), 1e-2 if acc == "float16" else 2e-3 if a == E4 else 0.0)


@pytest.mark.parametrize("size", [(333, 512, 1024), (67, 136, 56), (1, 64, 8)])
@pytest.mark.parametrize("tile", [(16, 64, 64), (40, 128, 64), (168, 64, 64), (72, 128, 64)])
@pytest.mark.parametrize(("ta", "tb"), ORDERS, ids=["NN", "NT", "TN", "TT"])
def test_turned(ta: bool, tb: bool, tile: tuple[int, int, int], size: tuple[int, int, int]) -> None:
    """Tiles of as many rows as wgmma has columns."""
    run(Product("float16", "float16", "float32", "float16", tile, ta, tb), size)


@pytest.mark.parametrize("size", [(512, 768, 1024), (509, 771, 1022), (67, 35, 50)])
@pytest.mark.parametrize(("ta", "tb"), ORDERS, ids=["NN", "NT", "TN", "TT"])
def test_tf32_is_as_precise_as_the_library(ta: bool, tb: bool, size: tuple[int, int, int]) -> None:
    """The library rounds to nearest even; against float64 products of what was given."""
    p = Product(*F32, (128, 128, 32), ta, tb, threads=256, tf32=True)
    arrays = p.arrays(*size)
    a, b, c = (on_gpu(arrays[k]) for k in "ABC")
    tilec.kernel(p.kernel())(a, b, c)
    left, right = (a.T if ta else a), (b.T if tb else b)
    want = left.double() @ right.double()
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        theirs = (left @ right).double()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    # Where the library does not use TF32: what rounding gives for random normals.
    mine, library = (float((x.double() - want).norm() / want.norm()) for x in (c, theirs))
    assert mine <= 1.05 * max(library, 2.94e-4), (mine, library)


@pytest.mark.parametrize("k", [64, 50], ids=["TMA", "threads"])
def test_rounding_to_tf32(k: int) -> None:
    """Bit by bit: ties, subnormals, the largest values, infinities; a nan stays one."""
    a = with_ties(np.random.default_rng(k), 4096, k)
    bits = a.view(np.uint32)
    bits[1000:2000] &= np.uint32(0x807FFFFF)  # subnormals
    bits[2000:3000] |= np.uint32(0x7F000000)
    bits[2000:3000] &= np.uint32(0xFF7FFFFF)  # the largest exponent
    a[0, :4] = [np.inf, -np.inf, 3.4028234663852886e38, np.nan]
    d = on_gpu(np.zeros_like(a))
    c = on_gpu(np.zeros((4096, 56), np.float32))
    tilec.kernel(declared)(on_gpu(a), on_gpu(np.zeros((56, k), np.float32)), c, d)
    got, want = d.cpu().numpy(), num.round_tf32(a)
    assert np.isnan(got[0, 3]) and np.isnan(want).sum() == 1
    got[0, 3] = want[0, 3] = 0
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize(
    ("a", "tile", "b", "sums"),
    [
        ("float16", "float16", "float16", "float32"),
        ("int8", "bfloat16", "bfloat16", "float32"),
        ("float16", "float16", "float16", "float16"),
        ("float32", "float32", "float32", "float32"),
        ("float16", E5, E4, "float32"),
        ("int8", "int8", "uint8", "int32"),
    ],
)
def test_a_in_registers(a: str, tile: str, b: str, sums: str) -> None:
    rng = np.random.default_rng(3)
    left, right = values(rng, (200, 320), a, sums), values(rng, (136, 320), b, sums)
    if a == "int8":
        left //= 2
    c = on_gpu(values(rng, (200, 136), sums, ""))
    kernel = tilec.kernel(from_registers(a, tile, b, sums, a == "float32"))
    kernel(on_gpu(left), on_gpu(right), c)
    doubled = on_gpu(left).double() * 2
    kinds = {E5: torch.float8_e5m2}
    if tile in kinds:
        doubled = doubled.float().to(kinds[tile]).double()
    want = (doubled @ on_gpu(right).double().T).cpu().numpy()
    error = np.linalg.norm(back(c) - want) / np.linalg.norm(want)
    assert error <= (1e-2 if sums == "float16" else 2e-3 if a != "int8" else 1e-5), error


@pytest.mark.parametrize("changes", [False, True])
def test_a_is_not_written_while_a_product_reads_it(changes: bool) -> None:
    rng = np.random.default_rng(9)
    a, b = values(rng, (64, 64), "float16", ""), values(rng, (64 * 5, 64), "float16", "")
    c = on_gpu(values(rng, (64, 64), "float32", ""))
    tilec.kernel(kept_in_registers(changes))(on_gpu(a), on_gpu(b), c)
    blocks = b.astype(np.float64).reshape(5, 64, 64)
    scale = [2.0 ** (k + 1) if changes else 1.0 for k in range(5)]
    want = sum(s * a.astype(np.float64) @ x.T for s, x in zip(scale, blocks))
    assert np.linalg.norm(back(c) - want) / np.linalg.norm(want) < 1e-6


@pytest.mark.parametrize("turn", [False, True])
def test_registers_are_filled_from_shared_memory(turn: bool) -> None:
    rng = np.random.default_rng(6)
    m = 64 if turn else 200
    a, b = values(rng, (m, 128), "float16", ""), values(rng, (130, 128), "float16", "")
    c = on_gpu(values(rng, (m, 130), "float32", ""))
    tilec.kernel(read_back)(on_gpu(a), on_gpu(b), c, turn=turn)
    left = a.astype(np.float64)
    if turn:
        left = np.concatenate([left[:, :64].T, left[:, 64:].T], 1)
    want = left @ b.astype(np.float64).T
    assert np.linalg.norm(back(c) - want) / np.linalg.norm(want) < 1e-6


def test_a_product_of_a_product() -> None:
    rng = np.random.default_rng(2)
    q, k, v = (values(rng, (n, 64), "float16", "") for n in (200, 330, 330))
    c = on_gpu(values(rng, (200, 64), "float32", ""))
    tilec.kernel(chained)(on_gpu(q), on_gpu(k), on_gpu(v), c)
    want = np.maximum(q.astype(np.float64) @ k.astype(np.float64).T, 0) @ v.astype(np.float64)
    assert np.linalg.norm(back(c) - want) / np.linalg.norm(want) < 1e-3


def test_a_transposed_in_registers() -> None:
    rng = np.random.default_rng(4)
    a, b = values(rng, (64, 200), "float16", ""), values(rng, (130, 64), "float16", "")
    c = on_gpu(values(rng, (200, 130), "float32", ""))
    tilec.kernel(transposed)(on_gpu(a), on_gpu(b), c)
    want = a.astype(np.float64).T @ b.astype(np.float64).T
    assert np.linalg.norm(back(c) - want) / np.linalg.norm(want) < 1e-6
