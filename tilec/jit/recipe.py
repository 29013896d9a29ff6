"""A launch less its addresses and scalars: what is left to do when only these are new."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tilec.ir.errors import LaunchError
from tilec.jit.compiled import CompiledKernel
from tilec.jit.fastpath import ALIGNMENTS
from tilec.runtime.arguments import Call, Parameter, check_scalar
from tilec.runtime.driver import Grid, Ready, argument_values, launched_grid
from tilec.runtime.tensors import Tensor

_LIMIT = 4096  # entries of a table


class Recipe:
    """Makes launches of one variant on one device for arrays of the same shapes, strides, dtypes
    and alignments.

    `names` are the arrays, in the order of their addresses in `values`; `scalars` the scalar
    parameters, whose values follow. `given` is the launch's grid, None where it is the kernel's
    own.
    """

    def __init__(
        self,
        variant: CompiledKernel,
        call: Call,
        names: Sequence[str],
        scalars: Sequence[Parameter],
        given: Grid | None,
        stream: int,
    ) -> None:
        self._variant = variant
        # Nothing here may keep the arrays' memory alive.
        tensors = {n: _at(t, t.pointer) for n, t in call.tensors.items()}
        self._call = dataclasses.replace(call, tensors=tensors, first=None)
        self._kernel = variant.loaded(call.index)
        self._arrays, self._scalars, self._stream = len(names), tuple(scalars), stream
        self.can_overlap = variant.image.may_alias
        written = {a.name for a in variant.image.arguments if a.written}
        spans = {n: _offsets(call.tensors[n]) for n in names}
        # Pairs of arrays that the variant was compiled to be apart, or not: two numbers, and
        # between which distances from the first address to the second the arrays share bytes.
        self._pairs = [
            (i, j, spans[a][0] - spans[b][1], spans[a][1] - spans[b][0])
            for i, a in enumerate(names)
            for j, b in enumerate(names[:i])
            if a in written or b in written
        ]
        self._grid = variant.grid(call, given)
        self._launched = launched_grid(self._kernel, self._grid)
        # A grid that no scalar takes part in stays as it is.
        self._fixed_grid = given is not None or not any(
            p.name in variant.image.grid for p in scalars
        )
        self._template = argument_values(self._kernel, self._call.tensors, call.scalars, self._grid)
        position = {n: i for i, n in enumerate((*names, *(p.name for p in scalars)))}
        placed = [(n, p.role, position.get(p.arg, -1)) for n, p in enumerate(variant.image.params)]
        self._new = [(n, i) for n, role, i in placed if role in ("tensor", "scalar")]
        offsets = self._kernel.layout.offsets
        self._maps = [(offsets[n], i) for n, role, i in placed if role == "tensor_map"]
        self._extents = [(n, p.dim) for n, p in enumerate(variant.image.params) if p.role == "grid"]

    def ready(self, values: Sequence[Any]) -> Ready | None:
        """The launch for these addresses and scalars; None if they need another variant, or a
        message."""
        if 0 in values[: self._arrays]:  # an array without memory, such as a FakeTensor
            return None
        overlap = False  # of arrays of which one is written
        for i, j, least, most in self._pairs:
            if least < values[j] - values[i] < most:
                overlap = True
        if overlap != self.can_overlap:
            return None
        arguments, launched = self._template.copy(), self._launched
        try:
            if self._scalars:
                given = zip(self._scalars, values[self._arrays :])
                numbers = {p.name: check_scalar(p, v) for p, v in given}
                values = (*values[: self._arrays], *numbers.values())
                if not self._fixed_grid:
                    call = dataclasses.replace(self._call, scalars=numbers)
                    grid = self._variant.grid(call, None)
                    if 0 in grid:
                        return None
                    launched = launched_grid(self._kernel, grid)
                    for number, dim in self._extents:
                        arguments[number] = grid[dim]
            for number, source in self._new:
                arguments[number] = values[source]
            block = self._kernel.layout.block(arguments)
        except LaunchError:
            return None
        start = block.values
        for offset, source in self._maps:
            if self._kernel.move_map(start + offset, values[source]):
                return None
        return self._kernel.ready(launched, block, self._stream)


class Launches(dict[tuple[Any, ...], Ready]):
    """Launches made ready for calls with equal facts, by their values.

    Asked for values that are not there it makes the launch, by the recipe for addresses of these
    alignments; None where there is none.
    """

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._recipes: dict[tuple[int, ...], tuple[Recipe, ...]] = {}

    def __missing__(self, values: tuple[Any, ...]) -> Ready | None:
        for recipe in self._recipes.get(self._alignments(values), ()):
            ready = recipe.ready(values)
            if ready is not None:
                self._prepared.count()
                self[values] = ready
                return ready
        return None

    def remember(self, values: tuple[Any, ...], ready: Ready, recipe: Recipe) -> None:
        """Find this launch, and launches like it, from now on."""
        self[values] = ready
        aligned = self._alignments(values)
        found = [r for r in self._recipes.get(aligned, ()) if r.can_overlap != recipe.can_overlap]
        self._recipes[aligned] = (*found, recipe)

    def _alignments(self, values: tuple[Any, ...]) -> tuple[int, ...]:
        addresses = values[: self._prepared.arrays]
        bits = 0
        for a in addresses:
            bits |= a
        return tuple([a & ALIGNMENTS for a in addresses]) if bits & ALIGNMENTS else ()


class Prepared:
    """What a kernel has made ready, as the generated launch path (`fastpath`) looks for it.

    `memo`: launches by facts, then by values, which begin with the addresses of the `arrays`.
    `plans`: functions that allocate a call's outputs, by facts. `chosen`: values of the arguments
    left open, by what they were chosen for, which stands for the facts where it decides the grid or
    the outputs. Each table is emptied when it is full.
    """

    def __init__(self, arrays: int) -> None:
        self.arrays = arrays
        self.memo: dict[Any, Launches] = {}
        self.plans: dict[Any, tuple[Callable[[], Any], ...]] = {}
        self.chosen: dict[Any, dict[str, int]] = {}
        self._count = 0

    def count(self) -> None:
        """One more launch is kept."""
        self._count += 1
        if self._count > _LIMIT:
            self.forget()

    def forget(self) -> None:
        """Let go of all launches, and of the variants they are of."""
        self.memo.clear()
        self._count = 0

    def remember(self, values: tuple[Any, ...], facts: Any, ready: Ready, recipe: Recipe) -> None:
        """Find this launch, and launches like it, from now on."""
        self.count()
        with contextlib.suppress(TypeError):  # a constant that cannot be a key, such as a list
            self.memo.setdefault(facts, Launches(self)).remember(values, ready, recipe)

    def remember_outputs(self, what: Any, makers: Iterable[Callable[[], Any]]) -> None:
        """Find the functions that allocate the outputs of calls like this one."""
        with contextlib.suppress(TypeError):
            _put(self.plans, what, tuple(makers))

    def remember_chosen(self, opened: Any, constants: dict[str, int]) -> None:
        """Find what was chosen for calls like this one."""
        with contextlib.suppress(TypeError):
            _put(self.chosen, opened, constants)


def _put(table: dict[Any, Any], key: Any, value: Any) -> None:
    if len(table) >= _LIMIT:
        table.clear()
    table[key] = value


def _offsets(t: Tensor) -> tuple[int, int]:
    """First and last-plus-one byte of the array, from its address."""
    low, high = t.span()
    return low - t.pointer, high - t.pointer


def _at(t: Tensor, pointer: int) -> Tensor:
    return Tensor(pointer, t.shape, t.strides, t.dtype, t.itemsize, t.device, t.index, None)
