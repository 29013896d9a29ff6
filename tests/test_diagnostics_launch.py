"""Rules 7 and 8 of messages (see `test_diagnostics`): a launch names the argument by number and
name, what was expected, what came, and what to write; each parameter can be given by keyword."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import cuda_devices
from diagnostics_help import carets, frames_of_tilec

import tilec
import tilec.language as T

n_ = T.dynamic("n")


@tilec.kernel
def add(
    A: T.Tensor((n_, 8), "float32"),
    B: T.Tensor((n_, 8), "float32"),
    factor: T.float32,
    BN: T.constexpr = 16,
):
    with T.Kernel(T.ceildiv(n_, BN)) as b:
        for i, j in T.Parallel(BN, 8):
            B[b * BN + i, j] = A[b * BN + i, j] * factor


@tilec.kernel
def gridless(A: T.Tensor((n_, 8), "float32"), BN: T.constexpr = 16):
    with T.Kernel(threads=32) as b:
        for i, j in T.Parallel(BN, 8):
            A[b * BN + i, j] = 2.0


def values() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((7, 8), np.float32)


ARRAYS = (values(), values())
a, b = ARRAYS


class OnGpu:
    """An array on a device that this machine need not have."""

    def __init__(self, device: int = 0, address: int = 4096) -> None:
        self.__cuda_array_interface__ = {
            "shape": (7, 8), "typestr": "<f4", "data": (address, False), "strides": None,
            "version": 3,
        }  # fmt: skip


# (call, the argument named, what was expected, what came, part of the help)
LAUNCHES: dict[str, tuple[Callable[[], Any], str, str, str, str]] = {
    "None": (
        lambda: add(None, b, 1.0),
        "argument 1: A",
        "Tensor((n, 8), float32)",
        "None",
        "pass an array",
    ),
    "list": (
        lambda: add(a, [[1.0]], 1.0),
        "argument 2: B",
        "an array",
        "a list",
        "numpy.asarray(B, 'float32')",
    ),
    "number": (lambda: add(3, b, 1.0), "argument 1: A", "an array", "an int", "A: T.int32"),
    "array for a number": (
        lambda: add(a, b, b),
        "argument 3: factor",
        "a number",
        "an array of shape (7, 8)",
        "T.Tensor((…), 'float32')",
    ),
    "string": (
        lambda: add(a, b, "2"),
        "argument 3: factor",
        "a number",
        "a str",
        "a Python number",
    ),
    "dtype": (
        lambda: add(a.astype(np.float64), b, 1.0),
        "argument 1: A",
        "expected float32",
        "got float64",
        "A.to(torch.float32)",
    ),
    "rank": (
        lambda: add(a[None], b, 1.0),
        "argument 1: A",
        "expected 2 dimensions",
        "got 3",
        "A.squeeze()",
    ),
    "vector": (
        lambda: add(a, b[0], 1.0),
        "argument 2: B",
        "expected 2 dimensions",
        "got 1",
        "B[None, :]",
    ),
    "extent": (
        lambda: add(a[:, :5], b, 1.0),
        "argument 1: A",
        "expected 8",
        "got 5",
        "shape (n, 8)",
    ),
    "transposed": (
        lambda: add(np.ones((8, 7), np.float32), b, 1.0),
        "argument 1: A",
        "expected 8",
        "got 7",
        "pass A.T",
    ),
    "two sizes": (
        lambda: add(a, b[:3], 1.0),
        "argument 2: B",
        "expected n = 7 (from A.shape[0])",
        "got 3",
        "shape (7, 8)",
    ),
    "two devices": (lambda: add(OnGpu(), b, 1.0), "B is on cpu", "A is on", "cuda:0", "B.cuda()"),
    "other device": (lambda: add(a, OnGpu(), 1.0), "B is on cuda:0", "A is on", "cpu", "B.cpu()"),
    "another target": (
        lambda: add.compile(*ARRAYS, target="cuda:sm_80")(a, b, 1.0),
        "add was compiled for",
        "cuda:sm_80",
        "on cpu",
        ".cuda()",
    ),
    "missing": (
        lambda: add(a, b),
        "missing factor",
        "factor: float32",
        "2 arguments",
        "add(A, B, factor)",
    ),
    "grid as an argument": (
        lambda: gridless(a, grid=(1,)),
        "'grid'",
        "it has A, BN",
        "no parameter",
        "gridless[grid](…)",
    ),
    "num_warps": (
        lambda: add(a, b, 1.0, num_warps=4),
        "'num_warps'",
        "it has A",
        "no parameter",
        "threads=32",
    ),
    "grid of a float": (lambda: gridless[7 / 2](a), "grid", "one to three ints", "3.5", "T.cdiv"),
    "grid function": (
        lambda: gridless[lambda: (1,)](a),
        "the grid function failed",
        "TypeError",
        "1 was given",
        "lambda meta",
    ),
    "threads": (
        lambda: add(a, b, 1.0, threads="many"),
        "threads",
        "positive int",
        "'many'",
        "threads=128",
    ),
}


@pytest.mark.parametrize("again", [False, True], ids=["first call", "later call"])
@pytest.mark.parametrize("case", LAUNCHES)
def test_launch(case: str, again: bool) -> None:
    call, argument, expected, came, fix = LAUNCHES[case]
    if "device" in case and cuda_devices():
        pytest.skip("a made-up address, which a driver would be asked about")
    if again:
        add(a, b.copy(), 1.0)
        gridless[1](b.copy())
    with pytest.raises(tilec.LaunchError) as caught:
        call()
    error = caught.value
    shown = str(error)
    assert argument in error.message and expected in error.message and came in error.message
    assert fix in error.hint, shown
    assert shown.startswith(f"{__file__}:") and shown.count("\n") < 12
    assert carets(error) in Path(__file__).read_text(), "the call is underlined"
    assert frames_of_tilec(error) <= 5


def test_misaligned_and_empty_arrays() -> None:
    raw = np.zeros(7 * 8 * 4 + 1, np.uint8)
    crooked = np.ndarray((7, 8), np.float32, raw, offset=1)
    with pytest.raises(tilec.LaunchError, match="argument 1: A: the address .* multiple of 4"):
        add(crooked, b, 1.0)
    empty = np.zeros((0, 8), np.float32)
    add(empty, empty.copy(), 1.0)
    # Two floats off a multiple of 16 bytes: legal, by a narrower path.
    base, out = np.arange(58, dtype=np.float32), np.zeros(58, np.float32)
    add(base[2:].reshape(7, 8), out[2:].reshape(7, 8), 3.0)
    assert (out[2:] == 3 * base[2:]).all() and (out[:2] == 0).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda out: add(a, out, 2.0, 16),
        lambda out: add(A=a, B=out, factor=2.0),
        lambda out: add(a, out, factor=2.0, BN=16),
        lambda out: add(BN=16, factor=2.0, B=out, A=a),
        lambda out: add(a, B=out, factor=2.0, threads=64),
        lambda out: add.compile(a, B=b, target="cpu")(A=a, factor=2.0, B=out),
    ],
)
def test_keywords_at_launch(call: Callable[[np.ndarray], Any]) -> None:
    for _ in range(2):
        out = np.zeros_like(a)
        call(out)
        np.testing.assert_array_equal(out, a * 2)


def test_arrays_and_grids_that_are_none() -> None:
    one = np.ones((1, 8), np.float32)
    shared = np.lib.stride_tricks.as_strided(one, (7, 8), (0, 4))
    with pytest.raises(tilec.LaunchError, match="B is written, and along dimension 0 its 7") as e:
        add(a, shared, 1.0)
    assert "B.contiguous()" in e.value.hint
    add(shared, b.copy(), 1.0)  # reading it is fine
    with pytest.raises(tilec.LaunchError, match=r"a grid is one to three ints, got array\(\[3\]\)"):
        gridless[np.array([3])](a)
    with pytest.raises(tilec.LaunchError, match="an int of 401 digits does not fit factor"):
        add(a, b, 10**400)


OUTSIDE: dict[str, tuple[Callable[[], Any], str, str, str]] = {
    "negative extent": (
        lambda: T.Tensor((-4, 8), "float32"),
        'T.Tensor((-4, 8), "float32")',
        "the extent -4 of a tensor is negative",
        "T.dynamic",
    ),
    "dtype first": (
        lambda: T.Tensor("float32", (4,)),
        'T.Tensor("float32", (4,))',
        "the extents of a tensor are the string 'float32'",
        'T.Tensor((M, N), "float16")',
    ),
    "a size compared": (
        lambda: n_ > 3,
        "n_ > 3",
        "the size n has no value before the kernel is called",
        "compare it inside of the kernel",
    ),
    "a word on an array": (
        lambda: T.exp(values()),
        "T.exp(values())",
        "T.exp outside of a kernel takes Python numbers",
        "NumPy's or torch's function",
    ),
    "a macro": (
        lambda: halved(a),
        "halved(a)",
        "the macro halved means something only inside a kernel",
        "put @tilec.kernel above def halved",
    ),
    "a misspelt target": (
        lambda: add.compile(a, b, target="cdua"),
        'add.compile(a, b, target="cdua")',
        "unknown target 'cdua'; did you mean 'cuda'?",
        "",
    ),
}


@tilec.macro
def halved(x):
    return x / 2


@pytest.mark.parametrize("case", OUTSIDE)
def test_outside_of_kernels(case: str) -> None:
    call, under, says, fix = OUTSIDE[case]
    with pytest.raises((tilec.CompileError, tilec.TargetError)) as caught:
        call()
    shown = str(caught.value)
    assert says in shown and fix in shown and shown.startswith(f"{__file__}:")
    rows = shown.split("\n")
    assert rows[1][rows[2].index("^") : len(rows[2])] == under
    assert frames_of_tilec(caught.value) <= 3
