"""Tensors of torch that are no plain memory, before and after a launch of the same kernel; kernels
under torch.compile."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

torch = pytest.importorskip("torch")

M, N = T.dynamic("M, N")


@tilec.kernel
def double(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32"), BN: T.constexpr = 32):
    with T.Kernel(T.ceildiv(N, BN), M, threads=32) as (bx, by):
        for j in T.Parallel(BN):
            B[by, bx * BN + j] = A[by, bx * BN + j] * 2


def fake() -> Any:
    with torch._subclasses.fake_tensor.FakeTensorMode():
        return torch.empty(4, 32)


class Wrapper(torch.Tensor):
    """A tensor whose elements are another tensor's."""

    @staticmethod
    def __new__(cls, shape: tuple[int, ...]) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32)

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError("no operations")


@tilec.kernel(out=["Y"])
def allocating(X: T.Tensor((32,), "float32"), Y: T.Tensor((32,), "float32")):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(32):
            Y[i] = X[i] + 1


@pytest.mark.parametrize("calls_before", [0, 2])
def test_outputs_are_no_fake_tensors(calls_before: int) -> None:
    """Memory that there is not would have been written."""
    x = torch.ones(32)
    for _ in range(calls_before):
        assert allocating(x).sum() == 64
    fake_mode = torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)
    with fake_mode, pytest.raises(tilec.LaunchError, match="Y has no memory: it is a FakeTensor"):
        allocating(x)
    assert allocating(x).sum() == 64


def without_storage() -> Any:
    x = torch.zeros(4, 32)
    x.untyped_storage().resize_(0)
    return x


complex_ = torch.ones(4, 32, dtype=torch.complex64) * (1 + 2j)
TRACED = r"A has a shape but no memory: it is a {}(.*\n)+.*tilec\.torch\.register\(double, …\)"
NO_MEMORY = r"A has a shape but no memory(.*\n)+.*kernel\.compile"
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "fake": (fake, TRACED.format("FakeTensor")),
    "meta": (lambda: torch.empty(4, 32, device="meta"), NO_MEMORY),
    "wrapper": (lambda: Wrapper((4, 32)), NO_MEMORY),
    "masked": (
        lambda: torch.masked.masked_tensor(torch.ones(4, 32), torch.ones(4, 32) > 0), NO_MEMORY,
    ),
    "without storage": (without_storage, NO_MEMORY),
    "functional": (
        lambda: torch._to_functional_tensor(torch.ones(4, 32)), TRACED.format("functional tensor"),
    ),
    "negative": (lambda: complex_.conj().imag, r"lazy negation(.*\n)+.*resolve_neg"),
    "negative view": (lambda: torch._neg_view(torch.ones(4, 32)), r"lazy negation"),
    "conjugate": (lambda: complex_.conj(), r"lazy negation or conjugation"),
    "complex": (lambda: complex_, r"A: expected float32, got complex64"),
    "sparse": (lambda: torch.ones(4, 32).to_sparse(), r"sparse_coo tensor has no strides"),
    "csr": (lambda: torch.ones(4, 32).to_sparse_csr(), r"sparse_csr tensor has no strides"),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.ones(4, 32), 0.1, 0, torch.qint8),
        r"A: expected float32, got qint8",
    ),
    "mkldnn": (lambda: torch.ones(4, 32).to_mkldnn(), r"_mkldnn tensor has no strides"),
    "nested": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), r"a nested tensor",
    ),
}  # fmt: skip


def launched() -> Any:
    """The kernel after launches on plain tensors of the shape and strides of the others."""
    kernel = tilec.kernel(double.function)
    for _ in range(3):
        a = torch.ones(4, 32)
        kernel(a, torch.empty(4, 32))
        kernel(complex_.imag, torch.empty(4, 32))
    return kernel


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    make, message = REFUSED[case]
    b = torch.empty(4, 32)
    for kernel in (tilec.kernel(double.function), launched()):
        for _ in range(2):
            with pytest.raises(tilec.LaunchError, match=message) as error:
                kernel(make(), b)
            assert error.value.hint


def test_compiled_kernels_refuse_what_has_no_memory() -> None:
    spec = tilec.spec((4, 32), "float32")
    compiled = double.compile(spec, spec, target="cpu")
    for without in (spec, fake(), torch.empty(4, 32, device="meta")):
        with pytest.raises(tilec.LaunchError, match="A has a shape but no memory"):
            compiled(without, torch.empty(4, 32))
    assert double.compile(fake(), fake(), target="cpu").binary, "a shape is all that compile needs"


def test_a_negative_view_of_memory_seen_before() -> None:
    kernel = tilec.kernel(double.function)
    memory, out = torch.ones(4, 32), torch.empty(4, 32)
    for _ in range(3):
        kernel(memory, out)
    with pytest.raises(tilec.LaunchError, match="lazy negation"):
        kernel(torch._neg_view(memory), out)
    kernel(torch._neg_view(memory).resolve_neg(), out)
    assert (out == -2).all()


def test_plain_subclasses_and_tensors_that_require_grad() -> None:
    class Named(torch.Tensor):
        pass

    values = torch.randn(4, 32)
    for a in (
        values.as_subclass(Named),
        torch.nn.Parameter(values.clone()),
        values.clone().requires_grad_(),
        values.requires_grad_(False).expand(4, 32),
    ):
        for _ in range(3):
            b = torch.empty(4, 32)
            double(a, b)
            assert torch.equal(b, values * 2) and not b.requires_grad


OVERLAPPING = [
    ((4, 32), (0, 1)), ((4, 32), (1, 1)), ((4, 32), (16, 1)), ((3, 4), (3, 2)), ((4, 3), (2, 4)),
    ((2, 40000), (1, 1)), ((40000, 2), (2, 2)),
]  # fmt: skip
APART = [((2, 3), (3, 2)), ((3, 2), (2, 3)), ((4, 32), (32, 1)), ((4, 32), (1, 4)),
         ((1, 9), (0, 1)), ((4, 0), (0, 0)), ((3, 5), (7, 3)), ((2, 3), (5, 2))]  # fmt: skip


@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize(("shape", "strides"), [*OVERLAPPING, *APART])
def test_outputs_that_overlap_themselves(kind: str, shape: Any, strides: Any) -> None:
    if kind == "torch":
        memory: Any = torch.zeros(200_000)
        out, a = memory.as_strided(shape, strides), torch.ones(shape)
    else:
        memory = np.zeros(200_000, np.float32)
        view = np.lib.stride_tricks.as_strided
        out, a = view(memory, shape, [4 * s for s in strides]), np.ones(shape, np.float32)
    if (shape, strides) in OVERLAPPING:
        for _ in range(2):
            with pytest.raises(tilec.LaunchError, match="B is written, and .* one in memory") as e:
                double(a, out)
            assert "B.contiguous()" in e.value.hint
            assert not memory.any()
        double(out, a)  # read, they are fine
        assert not a.any()
    else:
        double(a, out)
        assert (out == 2).all()


@tilec.kernel(out=["C"])
def doubled(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 32), threads=32) as b:
        for i in T.Parallel(32):
            C[b * 32 + i] = A[b * 32 + i] * 2


def through_output(x: Any) -> Any:
    y = torch.empty_like(x)
    double(x + 1, y)
    return y + 1


def through_result(x: Any) -> Any:
    return doubled(x[0] + 1) + 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", [through_output, through_result])
@pytest.mark.parametrize("eager_calls", [0, 3])
def test_under_torch_compile(function: Any, eager_calls: int) -> None:
    torch._dynamo.reset()
    for _ in range(eager_calls):
        function(torch.ones(4, 32))
    compiled = torch.compile(function, backend="eager")
    for _ in range(3):
        x = torch.randn(4, 32)
        want = (x if function is through_output else x[0]) + 1
        torch.testing.assert_close(compiled(x), want * 2 + 1)


WITH_TORCH_COMPILE = """
import torch
import tilec
import tilec.language as T

N = T.dynamic("N")

@tilec.kernel(out=["Y"])
def twice(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 64), threads=64) as b:
        for i in T.Parallel(64):
            Y[b * 64 + i] = X[b * 64 + i] * 2

before = {before}
variant = twice.compile(torch.ones(100))    # its launch path has no module of the user's
for _ in range(before):
    twice(torch.ones(100))
    variant(torch.ones(100))
import torch._dynamo.convert_frame as convert

traced, convert_frame = [], convert.ConvertFrameAssert.__call__

def spy(self, frame, *args, **kwargs):
    traced.append(frame.f_code.co_name)
    return convert_frame(self, frame, *args, **kwargs)

convert.ConvertFrameAssert.__call__ = spy
compiled = torch.compile(lambda x: twice(x + 1) + 1, backend="eager")
for n in (100, 101):
    assert (compiled(torch.ones(n)) == 5).all()
print(*traced)

compiled = torch.compile(lambda x: variant(x + 1) + 1, backend="eager")
for n in (100, 101):
    assert (compiled(torch.ones(n)) == 5).all()
"""


@pytest.mark.parametrize("before", [0, 2])
def test_torch_compile_looks_into_no_launch(tmp_path: Path, before: int) -> None:
    """In a program whose launch path is older than torch's compiler, too: it compiled, frame by
    frame, what reads arguments, and warned of it."""
    path = tmp_path / "program.py"
    path.write_text(WITH_TORCH_COMPILE.replace("{before}", str(before)))
    run = [sys.executable, "-W", "error::UserWarning:torch._dynamo", str(path)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "<lambda>" in done.stdout
    assert not {"_launch", "_asked", "read_arguments", "_read_torch"} & {*done.stdout.split()}


@tilec.kernel
def one_of_two(
    X: T.Tensor((N,), "float32"),
    Y: T.Tensor((N,), "float32"),
    Z: T.Tensor((N,), "float32"),
    both: T.constexpr = False,
    first: T.constexpr = True,
):
    """What is written follows from constants."""
    with T.Kernel(T.ceildiv(N, 32), threads=32) as b:
        for i in T.Parallel(32):
            if first or both:
                Y[b * 32 + i] = X[b * 32 + i]
            if not first or both:
                Z[b * 32 + i] = X[b * 32 + i]


@tilec.kernel
def one_after_the_other(
    X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32"), Z: T.Tensor((N,), "float32")
):
    W = T.empty((N,), "float32")
    with T.Kernel(T.ceildiv(N, 32), threads=32) as b:
        for i in T.Parallel(32):
            W[b * 32 + i] = X[b * 32 + i]
            Y[b * 32 + i] = X[b * 32 + i]
    with T.Kernel(T.ceildiv(N, 32), threads=32) as b:
        for i in T.Parallel(32):
            Z[b * 32 + i] = W[b * 32 + i]


def test_versions_of_what_is_written() -> None:
    """By launches anew, and by those that are remembered."""
    x, y, z = (torch.ones(40) for _ in range(3))
    compiled = one_of_two.compile(x, y, z, target="cpu")
    cases = [
        (lambda: one_of_two(x, y, z), (0, 1, 0)),
        (lambda: one_of_two(x, y, z, both=True), (0, 1, 1)),
        (lambda: one_of_two(x, y, z, first=False), (0, 0, 1)),
        (lambda: one_of_two(x[:0], y[:0], z[:0]), (0, 0, 0)),  # nothing is launched
        (lambda: compiled(x, y, z), (0, 1, 0)),
        (lambda: one_after_the_other(x, y, z), (0, 1, 1)),
        (lambda: double(x.view(1, 40), y[:].view(1, 40)), (0, 1, 0)),  # views count as one
    ]
    for call, expected in cases:
        for _ in range(4):
            before = [t._version for t in (x, y, z)]
            call()
            assert tuple(t._version - v for t, v in zip((x, y, z), before)) == expected


@pytest.mark.parametrize("calls", [1, 3])
def test_autograd_sees_what_a_launch_has_written(calls: int) -> None:
    x, w = torch.ones(1, 32), torch.ones(1, 32, requires_grad=True)
    for _ in range(calls):
        kept = torch.ones(1, 32)
        loss = (w * kept).sum()  # which keeps `kept` for the gradient of `w`
        double(x, kept)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        double(x, torch.ones(1, 32))  # has no version
