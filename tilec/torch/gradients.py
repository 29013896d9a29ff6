"""How an operator's gradient is computed: by another operator, whose parameters say what it needs.

    forward:  C = product(A, B)
    backward: dA, dB = product_backward(A, B, dC)

`A` and `B` are what the forward was given, `dC` is the gradient of what it returned, `dA` and `dB`
are those of its arguments. Only what the backward takes is kept alive for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from tilec.ir.errors import LaunchError
from tilec.runtime.arguments import REQUIRED, Parameter

_FORMS = ("d{}", "d_{}", "grad_{}", "{}_grad")
Formula = tuple[Callable[..., Any], Callable[..., Any]]


class Described(Protocol):
    """An operator (`tilec.torch.Operator`), as far as gradients ask."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    mutates: frozenset[str]
    parameters: tuple[Parameter, ...]
    overload: Any


def gradient_of(name: str, of: Sequence[str]) -> str | None:
    """Which of the names `of` the parameter `name` is the gradient of."""
    return next((n for n in of if name in [form.format(n) for form in _FORMS]), None)


def by_operator(forward: Described, backward: Described) -> Formula:
    """`backward(ctx, *grads)` and `setup_context(ctx, inputs, output)` that call an operator.
    Raises LaunchError where it takes or returns what nobody can give or use."""
    if backward.mutates:
        raise LaunchError(
            f"{backward.name}, the backward of {forward.name}, writes "
            f"{', '.join(sorted(backward.mutates))}; it is to return gradients",
            hint="name them in out=[…] where it is registered, and the call allocates them",
        )
    saved, grads = [], {}
    for p in backward.parameters:
        of = gradient_of(p.name, forward.outputs)
        if p.name in forward.inputs or p.name in forward.outputs:
            saved.append(p.name)
        elif of is not None:
            grads[p.name] = forward.outputs.index(of)
        elif p.default is REQUIRED:
            names = ", ".join([*forward.inputs, *forward.outputs])
            raise LaunchError(
                f"{backward.name} takes {p.name}, which is nothing of {forward.name}",
                hint=f"it has {names}; the gradient of {forward.outputs[0]} is "
                f"d{forward.outputs[0]}",
            )
    given = {}
    for number, name in enumerate(backward.outputs):
        of = gradient_of(name, forward.inputs)
        if of is None:
            raise LaunchError(
                f"{backward.name} returns {name}, which is no gradient of an argument of "
                f"{forward.name}",
                hint=f"call it d{forward.inputs[0]}: its arguments are {', '.join(forward.inputs)}",
            )
        given[of] = number
    everything = (*forward.inputs, *forward.outputs)

    def setup_context(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        values = dict(zip(everything, (*inputs, *_several(output))))
        tensors = [n for n in saved if isinstance(values[n], torch.Tensor)]
        ctx.save_for_backward(*[values[n] for n in tensors])
        ctx.tensors = tensors
        ctx.others = {n: values[n] for n in saved if n not in tensors}

    def run(ctx: Any, *incoming: Any) -> Any:
        arguments = {**dict(zip(ctx.tensors, ctx.saved_tensors)), **ctx.others}
        arguments.update({name: incoming[number] for name, number in grads.items()})
        found = _several(backward.overload(**arguments))
        return tuple(found[given[n]] if n in given else None for n in forward.inputs)

    return run, setup_context


def saving_all(names: Sequence[str]) -> Callable[..., None]:
    """A `setup_context` that keeps all tensors for `ctx.saved_tensors`, those given and then those
    returned, and the other arguments by name in `ctx.arguments`."""

    def setup_context(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        tensors = [v for v in (*inputs, *_several(output)) if isinstance(v, torch.Tensor)]
        ctx.save_for_backward(*tensors)
        pairs = zip(names, inputs)
        ctx.arguments = {n: v for n, v in pairs if not isinstance(v, torch.Tensor)}

    return setup_context


def _several(output: Any) -> tuple[Any, ...]:
    return (output,) if isinstance(output, torch.Tensor) else tuple(output)
