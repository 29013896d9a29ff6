"""`tilelang.profiler`: inputs for a kernel, and how long a call takes."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

from tilec import bench
from tilec.ir.errors import LaunchError
from tilec.runtime.arguments import Parameter
from tilec.runtime.tensors import array_dtype


def do_bench(fn: Callable[[], Any], warmup: float = 25, rep: float = 100, **_: Any) -> float:
    """The median time of a call in milliseconds, as `tilec.bench.do_bench` measures it."""
    return _timed(fn, warmup, rep)


def _timed(fn: Callable[[], Any], warmup: float, rep: float, device: str | None = None) -> float:
    return float(bench.do_bench(fn, warmup, rep, device=device))


class TensorSupplyType(enum.Enum):
    """What a profiler puts into its inputs, as TileLang has it. Whole numbers are from -2 to 2,
    unsigned ones from 0 to 2 (bool: to 1); so are floats of `Integer`. `Auto` and `Uniform`: floats
    from -1 to 1; `Normal`: with mean -1 and deviation 1; `Randn`: with mean 0."""

    Integer = 1
    Uniform = 2
    Normal = 3
    Randn = 4
    Zero = 5
    One = 6
    Auto = 7


class Profiler:
    """Random inputs of a kernel's annotated shapes, and what it does with them. `extent` gives the
    value of an extent that is not a number. `device` is "cpu" for inputs and times of the CPU, else
    those are of the GPU if there is one."""

    def __init__(
        self,
        kernel: Callable[..., Any],
        parameters: Sequence[Parameter],
        extent: Callable[[int | str | None], int | str | None] = lambda written: written,
        supply: TensorSupplyType = TensorSupplyType.Auto,
        device: str | None = None,
    ) -> None:
        self.kernel, self.parameters, self.extent = kernel, parameters, extent
        self.supply, self.device = supply, device

    @property
    def func(self) -> Callable[..., Any]:
        """The kernel."""
        return self.kernel

    def inputs(self) -> list[Any]:
        """A torch tensor for each parameter, on the device, of the `supply`. Raises LaunchError
        where an extent has no value, or a parameter is no tensor."""
        import torch

        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        made = []
        for p in self.parameters:
            shape = [e for e in map(self.extent, p.shape or ()) if isinstance(e, int)]
            if p.kind != "tensor" or p.shape is None or len(shape) != len(p.shape):
                message = f"{p.describe()} has no sizes to make an input of"
                raise LaunchError(message, hint="give the inputs: input_tensors=[…]")
            dtype = getattr(torch, array_dtype(str(p.dtype), "cpu"))
            made.append(_supplied(self.supply, shape, dtype, device))
        return made

    def run_once(self) -> Any:
        """What the kernel gives for inputs."""
        return self.kernel(*self.inputs())

    def do_bench(
        self,
        func: Callable[..., Any] | None = None,
        warmup: float = 25,
        rep: float = 100,
        input_tensors: Sequence[Any] | None = None,
        **_: Any,
    ) -> float:
        """The median time in milliseconds of the kernel, or of `func`, with the inputs."""
        given = self.inputs() if input_tensors is None else list(input_tensors)
        called = self.kernel if func is None else func
        return _timed(lambda: called(*given), warmup, rep, self.device)

    def assert_allclose(
        self,
        reference: Callable[..., Any],
        atol: float = 1e-2,
        rtol: float = 1e-2,
        max_mismatched_ratio: float = 0.01,
        input_tensors: Sequence[Any] | None = None,
        **_: Any,
    ) -> None:
        """Raise AssertionError where more than `max_mismatched_ratio` of an output's elements
        differ from the reference's, given the same inputs."""
        given = self.inputs() if input_tensors is None else list(input_tensors)
        wanted, found = reference(*given), self.kernel(*given)
        if found is None:
            raise AssertionError("the kernel returns nothing to compare; name its outputs: out_idx")
        many = isinstance(found, tuple | list)
        pairs = zip(found, wanted, strict=True) if many else ((found, wanted),)
        for got, want in pairs:
            check_close(got, want, rtol, atol, max_mismatched_ratio)


def check_close(got: Any, want: Any, rtol: float, atol: float, ratio: float) -> None:
    """Raise AssertionError where more than `ratio` of the elements differ."""
    import torch

    near = torch.isclose(got.double(), want.double(), rtol, atol, equal_nan=True)
    wrong = int((~near).sum())
    if wrong > ratio * got.numel():
        raise AssertionError(f"{wrong} of {got.numel()} elements differ")


def get_tensor_supply(
    supply_type: TensorSupplyType = TensorSupplyType.Integer,
) -> Callable[[Parameter], Any]:
    """A function that makes an input of a kernel's parameter, as `Profiler.inputs` does. It raises
    LaunchError where an extent has no value."""

    def supply(parameter: Parameter) -> Any:
        return Profiler(lambda: None, [parameter], supply=supply_type).inputs()[0]

    return supply


def _supplied(supply: TensorSupplyType, shape: Sequence[int], dtype: Any, device: str) -> Any:
    import torch

    kinds = TensorSupplyType
    if supply in (kinds.Zero, kinds.One):
        return torch.full(shape, int(supply is kinds.One), device=device).to(dtype)
    if dtype.is_floating_point and supply is not kinds.Integer:
        drawn = torch.empty(shape, device=device)
        if supply in (kinds.Normal, kinds.Randn):
            return drawn.normal_(-1.0 if supply is kinds.Normal else 0.0, 1.0).to(dtype)
        return drawn.uniform_(-1.0, 1.0).to(dtype)
    least, above = (-2, 3) if dtype.is_signed else (0, 2 if dtype is torch.bool else 3)
    return torch.randint(least, above, shape, device=device).to(dtype)
