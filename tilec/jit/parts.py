"""A kernel with several T.Kernel: one launch after the other, on one stream.

Each T.Kernel is compiled as a kernel of its own from the same function. The first allocates what
T.empty and T.alloc_global make, and the outputs of the decorator; the others are given it. Once
each has a launch path, `partspath` has one for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilec.jit.compiled import CompiledKernel
from tilec.jit.launchpath import LaunchPath
from tilec.jit.partspath import write_parts_path
from tilec.jit.revision import Revision
from tilec.jit.specialise import spec
from tilec.runtime.expressions import evaluate


class Parts:
    """The kernels (`tilec.Kernel`) that a kernel of this signature is made of, in their order."""

    def __init__(self, signature: Any, kernels: Sequence[Any]) -> None:
        self.signature, self.kernels = signature, tuple(kernels)

    def launch(self, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A call: all launches, and what the kernel returns."""
        first, *others = self.kernels
        made = self._made(first[grid](*args, **kwargs) if grid else first(*args, **kwargs))
        given = self.given(args, kwargs)
        for kernel in others:
            kernel(**given, **made)
        values = tuple({**given, **made}[name] for name in self.signature.returns)
        return values[0] if len(values) == 1 else values or None

    def compile(
        self, args: Sequence[Any], target: str | None, kwargs: Mapping[str, Any]
    ) -> list[CompiledKernel]:
        """The variant of each for these arguments of `Kernel.compile`. Raises CompileError."""
        every = self.described(args, target, kwargs)
        return [k.variant(k.key_of(a, target, named)) for k, a, named in every]

    def described(
        self, args: Sequence[Any], target: str | None, kwargs: Mapping[str, Any]
    ) -> list[tuple[Any, Sequence[Any], Mapping[str, Any]]]:
        """Each kernel with its arguments of `Kernel.compile`: what the first allocates is described
        to the others. Raises CompileError."""
        first, *others = self.kernels
        variant = first.variant(first.key_of(args, target, kwargs))
        call = first.described(args, target, kwargs).call
        sizes = {**call.scalars, **call.sizes.values}
        made = {
            a.name: spec([_extent(e, sizes, a.name) for e in a.shape], a.dtype)
            for a in variant.image.arguments
            if a.output
        }
        facts = {**self.given(args, kwargs), **made}
        return [(first, args, kwargs), *((k, (), facts) for k in others)]

    def write_path(self, name: str, revision: Revision) -> LaunchPath | None:
        """The launch path of the kernel `name`, which is at this revision; None while a part has
        none."""
        first, returns = self.kernels[0], self.signature.returns
        module, made = first.function.__globals__, first.signature.returns
        return write_parts_path(
            name, self.kernels, made, returns, revision.parameters, module, revision.reads
        )

    def given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name."""
        order = [p.name for p in self.kernels[0].parameters]
        return {**dict(zip(order, args)), **kwargs}

    def _made(self, returned: Any) -> dict[str, Any]:
        """What the first kernel has allocated, by name."""
        names = self.kernels[0].signature.returns
        values = returned if len(names) > 1 else (returned,) * len(names)
        return dict(zip(names, values))


def _extent(extent: int | str, sizes: Mapping[str, Any], name: str) -> int:
    return extent if isinstance(extent, int) else int(evaluate(extent, sizes, f"{name}.shape"))
