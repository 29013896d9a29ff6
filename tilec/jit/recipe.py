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
    """Makes launches of one variant on one device for arrays of the same shapes, strides and
    dtypes.

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
        tensors = {n: _moved(t, t.pointer) for n, t in call.tensors.items()}
        self._call = dataclasses.replace(call, tensors=tensors, first=None)
        self._kernel = variant.loaded(call.index)
        self._names, self._scalars = tuple(names), tuple(scalars)
        self._stream = stream
        written = {a.name for a in variant.image.arguments if a.written}
        spans = {n: _offsets(call.tensors[n]) for n in names}
        # Pairs of arrays that must not overlap, as far as the variant was compiled for that.
        self._apart = [
            (i, *spans[a], j, *spans[b])
            for i, a in enumerate(names)
            for j, b in enumerate(names[:i])
            if not variant.image.may_alias and (a in written or b in written)
        ]
        # A grid that no scalar takes part in stays as it is.
        self._fixed_grid = given is not None or not any(
            p.name in variant.image.grid for p in scalars
        )
        self._grid = variant.grid(call, given)
        self._template = argument_values(self._kernel, self._call.tensors, call.scalars, self._grid)
        position = {n: i for i, n in enumerate((*names, *(p.name for p in scalars)))}
        self._places = [
            (number, p.role, p.dim, position.get(p.arg, -1))
            for number, p in enumerate(variant.image.params)
            if p.role in ("tensor", "tensor_map", "scalar", "grid")
        ]

    def ready(self, values: Sequence[Any]) -> Ready | None:
        """The launch for these addresses and scalars; None if they need another variant, or a
        message."""
        if 0 in values[: len(self._names)]:  # an array without memory, such as a FakeTensor
            return None
        for i, low, high, j, other_low, other_high in self._apart:
            if (
                values[i] + low < values[j] + other_high
                and values[j] + other_low < values[i] + high
            ):
                return None
        try:
            first = len(self._names)
            numbers = {p.name: check_scalar(p, v) for p, v in zip(self._scalars, values[first:])}
            grid = self._grid
            if not self._fixed_grid:
                grid = self._variant.grid(dataclasses.replace(self._call, scalars=numbers), None)
            if 0 in grid:
                return None
            block = self._kernel.layout.block(self._arguments(values, grid))
        except LaunchError:
            return None
        return self._kernel.ready(launched_grid(self._kernel, grid), block, self._stream)

    def _arguments(self, values: Sequence[Any], grid: Grid) -> list[Any]:
        """The values of the kernel's parameters: the first launch's, the new ones in their
        places."""
        arguments = self._template.copy()
        for number, role, dim, source in self._places:
            match role:
                case "tensor_map":
                    t = self._call.tensors[self._names[source]]
                    arguments[number] = self._kernel.tensor_map(number, _moved(t, values[source]))
                case "grid":
                    arguments[number] = grid[dim]
                case _:
                    arguments[number] = values[source]
        return arguments


class Prepared:
    """What a kernel has made ready, as the generated launch path (`fastpath`) looks for it.

    `memo`: launches by (values, facts). `recipes`: by the alignments of the `arrays` addresses
    that `values` begins with, and facts. `plans`: functions that allocate a call's outputs, by
    facts. `chosen`: values of the arguments left open, by what they were chosen for, which stands
    for the facts where it decides the grid or the outputs. Each table is emptied when it is full.
    """

    def __init__(self, arrays: int) -> None:
        self._arrays = arrays
        self.memo: dict[Any, Ready] = {}
        self.plans: dict[Any, tuple[Callable[[], Any], ...]] = {}
        self.recipes: dict[Any, Recipe] = {}
        self.chosen: dict[Any, dict[str, int]] = {}

    def again(self, values: Sequence[Any] | None, facts: Any) -> Ready | None:
        """The launch for new values, if one with equal facts has been made; None if not."""
        if values is None or facts is None:
            return None
        recipe = self.recipes.get(self._recipe_key(values, facts))
        ready = None if recipe is None else recipe.ready(values)
        if ready is not None:
            _put(self.memo, (values, facts), ready)
        return ready

    def remember(
        self, values: Sequence[Any], facts: Any, ready: Ready, recipe: Recipe | None
    ) -> None:
        """Find this launch, and launches like it, from now on."""
        try:
            _put(self.memo, (values, facts), ready)
        except TypeError:
            return  # a constant that cannot be a key, such as a list
        if recipe is not None:
            _put(self.recipes, self._recipe_key(values, facts), recipe)

    def remember_outputs(self, what: Any, makers: Iterable[Callable[[], Any]]) -> None:
        """Find the functions that allocate the outputs of calls like this one."""
        with contextlib.suppress(TypeError):
            _put(self.plans, what, tuple(makers))

    def remember_chosen(self, opened: Any, constants: dict[str, int]) -> None:
        """Find what was chosen for calls like this one."""
        with contextlib.suppress(TypeError):
            _put(self.chosen, opened, constants)

    def _recipe_key(self, values: Sequence[Any], facts: Any) -> Any:
        return tuple(v & ALIGNMENTS for v in values[: self._arrays]), facts


def _put(table: dict[Any, Any], key: Any, value: Any) -> None:
    if len(table) >= _LIMIT:
        table.clear()
    table[key] = value


def _offsets(t: Tensor) -> tuple[int, int]:
    """First and last-plus-one byte of the array, from its address."""
    low, high = t.span()
    return low - t.pointer, high - t.pointer


def _moved(t: Tensor, pointer: int) -> Tensor:
    return Tensor(pointer, t.shape, t.strides, t.dtype, t.itemsize, t.device, t.index, None)
