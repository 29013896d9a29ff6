"""What an operator returns, told from shapes alone: for FakeTensors, `meta` tensors and tracing.

Sizes may be symbols (`torch.SymInt`). They are compared only where a kernel says that two are
equal, and what an extent of a result is computed from stays a formula.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tilec.ir.errors import LaunchError
from tilec.jit.declared import constants_of, declared
from tilec.kernel import Kernel
from tilec.runtime.arguments import Sizes, check_expressions, check_tensor, solve_expressions
from tilec.runtime.devices import device_target
from tilec.runtime.expressions import evaluate
from tilec.runtime.tensors import Tensor, array_dtype, own_dtype


def fake_outputs(kernel: Kernel, given: Mapping[str, Any]) -> list[Any]:
    """Empty tensors like those that a call with these arguments, by name, allocates. Raises
    LaunchError for arguments that the call would refuse."""
    constants = constants_of(kernel, given)
    parameters = kernel.parameters_for(constants)
    arrays = {p.name: p for p in parameters if p.kind == "tensor"}
    first = next((given[name] for name in arrays if name in given), None)
    target = _target(first)
    sizes = Sizes()
    passed = [p.name for p in parameters if p.kind != "output"]
    tensors = {name: _shape_of(given[name]) for name in arrays}
    for check in (check_tensor, _solve, _check):
        for name, p in arrays.items():
            try:
                check(p, tensors[name], sizes, target)
            except LaunchError as e:
                e.message = f"{kernel.name}, argument {passed.index(name) + 1}: {e.message}"
                raise
    scalars = {p.name: given.get(p.name, p.default) for p in parameters if p.kind == "scalar"}
    fixed = {n: int(sizes.values[n]) for n, f in kernel.signature.sizes.items() if f}
    made = {p.name: (p.shape, p.dtype) for p in parameters if p.kind == "output"}
    if made.keys() != set(kernel.signature.returns):  # T.empty in the body
        made = dict(declared(kernel, constants, fixed).made)
    values = {**scalars, **sizes.values}
    outputs = []
    for name in kernel.signature.returns:
        shape, dtype = made[name]
        extents = [
            evaluate(e, values, f"{name}.shape") if isinstance(e, str) else int(e or 0)
            for e in shape or ()
        ]
        kind = getattr(torch, array_dtype(str(dtype), target))
        outputs.append(
            torch.empty(extents, dtype=kind, device=None if first is None else first.device)
        )
    return outputs


def _solve(p: Any, t: Tensor, sizes: Sizes, target: str) -> None:
    solve_expressions(p, t, sizes)


def _check(p: Any, t: Tensor, sizes: Sizes, target: str) -> None:
    check_expressions(p, t, sizes)


def _shape_of(value: Any) -> Tensor:
    """A tensor without its memory, which a FakeTensor has none of."""
    return Tensor(
        0,
        tuple(value.shape),
        tuple(value.stride()),
        own_dtype(value.dtype),
        value.element_size(),
        "meta",
        0,
        None,
    )


def _target(first: Any) -> str:
    """What decides how a dtype is stored: AMD's GPUs before CDNA4 have float8 of their own."""
    if first is None or first.device.type != "cuda" or not torch.version.hip:
        return "cpu"
    return device_target("hip", first.device.index or 0)
