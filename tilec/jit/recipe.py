"""A launch less its addresses and scalars: what is left to do when only these are new."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from tilec.ir.errors import LaunchError
from tilec.jit.fastpath import ALIGNMENTS, told_apart
from tilec.jit.packing import Packing
from tilec.runtime.arguments import Call, Parameter, check_scalar
from tilec.runtime.block import ArgumentBlock
from tilec.runtime.driver import Grid, Kernel, Ready, argument_values, launched_grid
from tilec.runtime.expressions import names_in
from tilec.runtime.image import Image
from tilec.runtime.tensors import Tensor

LIMIT = 4096  # entries of a table
_AS_THEY_ARE = (int, float)  # numbers that a block takes if they fit in the parameter
_GRIDS = 64  # with free launches


class Launchable(Protocol):
    """What is launched: a `CompiledKernel`."""

    image: Image

    def loaded(self, index: int) -> Kernel: ...

    def grid(self, call: Call, given: Grid | None) -> Grid: ...


class Recipe:
    """Makes launches of one variant on one device for arrays of the same shapes, strides, dtypes
    and alignments.

    In `values` the addresses of the call's arrays are followed by the scalars among `parameters`,
    each with what tells it apart. `given` is the launch's grid, None where it is the kernel's own.

    `take(recipe, values)` is the launch for these values; None if they need another variant, or a
    message. It takes the block of a launch that has been made, and writes the addresses into it.
    """

    def __init__(
        self,
        variant: Launchable,
        call: Call,
        parameters: Sequence[Parameter],
        given: Grid | None,
        stream: int,
    ) -> None:
        self._variant, self._stream = variant, stream
        names = [*call.tensors]
        self.arrays = len(names)
        # Nothing here may keep the arrays' memory alive.
        tensors = {n: _at(t, t.pointer) for n, t in call.tensors.items()}
        self._call = dataclasses.replace(call, tensors=tensors, first=None)
        self._kernel = variant.loaded(call.index)
        self._grid = variant.grid(call, given)
        self._launched = launched_grid(self._kernel, self._grid)
        self._packing = Packing(self._kernel, self._call) if variant.image.packed else None
        if self._packing is not None:
            tensors = self._packing.tensors
        self._template = argument_values(self._kernel, tensors, call.scalars, self._grid)
        params = list(enumerate(variant.image.params))
        self._extents = [(n, p.dim) for n, p in params if p.role == "grid"]
        numbers = {p.arg: n for n, p in params if p.role == "scalar"}
        # Their numbers are None where the kernel does not use them.
        self._scalars, at = [], len(names)
        for p in parameters:
            if p.kind != "scalar":
                continue
            self._scalars.append((at, p, numbers.get(p.name)))
            at += 1 + len(told_apart(p))
        # The scalars that the grid follows from, or that something is assumed of, and grids for
        # them.
        texts = (() if given is not None else (variant.image.grid,)) + variant.image.assumed
        read = {name for text in texts for name in names_in(text)}
        self._given = given
        self._deciding = [i for i, p, _ in self._scalars if p.name in read]
        self._grids: dict[tuple[Any, ...], Grid] = {}
        self._free: dict[Grid, list[Launch]] = {}  # launches on a grid
        self.can_overlap = variant.image.may_alias
        self.written = variant.image.written
        arrays = [p.name for p in parameters if p.kind == "tensor"]  # None among them
        self.places = [arrays.index(name) for name in self.written]
        self.take: Callable[[Recipe, Sequence[Any]], Launch | None] = self._write_take(names)

    def _write_take(self, names: Sequence[str]) -> Callable[..., Launch | None]:
        """`take`. For three arrays, of which the last is written, and has a tensor map that only
        the driver can move, it is

            def take(recipe, values):
                a0, a1, a2, *_ = values
                if (a0 - a0_was | a1 - a1_was | a2 - a2_was) & 15 or not (a0 and a1 and a2):
                    return None
                if least_0_2 < a0 - a2 < most_0_2 or least_1_2 < a1 - a2 < most_1_2:
                    return None
                launch = recipe.blank(values)
                if launch is None:
                    return None
                words = launch.words
                words[at0] = a0
                words[at1] = a1
                if move2(launch.values + at2, a2):
                    return None
                return launch

        What is packed has its address in the arguments of the launch that copies it.
        """
        image, tensors = self._variant.image, self._call.tensors
        address = {name: f"a{i}" for i, name in enumerate(names)}
        given: dict[str, Any] = {f"{a}_was": tensors[name].pointer for name, a in address.items()}
        apart = " | ".join(f"{a} - {a}_was" for a in address.values())
        # Pairs of arrays that the variant was compiled to be apart, or not: between which distances
        # of their addresses they share bytes.
        written = {a.name for a in image.arguments if a.written}
        spans = {name: _offsets(tensors[name]) for name in names}
        shared = []
        for i, x in enumerate(names):
            for j, y in enumerate(names[:i]):
                if x in written or y in written:
                    pair = f"_{j}_{i}"
                    given[f"least{pair}"] = spans[x][0] - spans[y][1]
                    given[f"most{pair}"] = spans[x][1] - spans[y][0]
                    shared.append(f"least{pair} < a{j} - a{i} < most{pair}")
        overlap = " or ".join(shared) or "False"
        lines = [
            f"    {', '.join(address.values())}, *_ = values",
            f"    if ({apart}) & {ALIGNMENTS} or not ({' and '.join(address.values())}):",
            "        return None",
            f"    if {f'not ({overlap})' if self.can_overlap else overlap}:",
            "        return None",
            "    launch = recipe.blank(values)",
            "    if launch is None:",
            "        return None",
            "    words = launch.words",
        ]
        if self._packing is not None:
            for i, (name, at) in enumerate(self._packing.sources):
                lines.append(f"    launch.sources[{i}][{at // 8}] = {address[name]}")
        for n, p in enumerate(image.params):
            if p.role in ("tensor", "tensor_map") and p.arg not in image.packed:
                at, a, move = self._kernel.layout.offsets[n], address[p.arg], None
                encoded = self._template[n]
                if isinstance(encoded, bytes):
                    move = self._kernel.map_mover(encoded)
                if move is None:
                    given[f"at{n}"] = at // 8
                    lines.append(f"    words[at{n}] = {a}")
                else:
                    given |= {f"move{n}": move, f"at{n}": at}
                    lines += [f"    if move{n}(launch.values + at{n}, {a}):", "        return None"]
        lines.append("    return launch")
        make = _function(("def take(recipe, values):", *lines), tuple(given))
        take: Callable[..., Launch | None] = make(*given.values())
        return take

    def blank(self, values: Sequence[Any]) -> Launch | None:
        """A launch with these scalars, and with addresses of another one; None if they need a
        message."""
        try:
            grid = self._grid_for(values) if self._deciding else self._grid
            free = self._free.get(grid)
            if free is None:
                free = put(self._free, grid, [], _GRIDS)
            try:
                launch = free.pop()
            except IndexError:  # all are under way, in other threads
                launch = self._launch(grid)
            for i, p, number in self._scalars:
                value = values[i]
                if number is None or type(value) not in _AS_THEY_ARE or p.dtype == "bool":
                    value = check_scalar(p, value)
                if number is not None:
                    self._kernel.layout.put(launch.block, number, value)
        except (LaunchError, OverflowError, struct.error):
            return None
        launch.free = free
        return launch

    def _grid_for(self, values: Sequence[Any]) -> Grid:
        """The grid for these scalars. Raises LaunchError where it has no block."""
        key = tuple([values[i] for i in self._deciding])
        found: Grid | None = self._grids.get(key)
        if found is None:
            scalars = {p.name: check_scalar(p, values[i]) for i, p, _ in self._scalars}
            call = dataclasses.replace(self._call, scalars=scalars)
            found = put(self._grids, key, self._variant.grid(call, self._given), LIMIT)
        if 0 in found:
            raise LaunchError("nothing to launch")
        return found

    def _launch(self, grid: Grid) -> Launch:
        values, launched = self._template, self._launched
        if grid != self._grid:
            values, launched = values.copy(), launched_grid(self._kernel, grid)
            for number, dim in self._extents:
                values[number] = grid[dim]
        block = self._kernel.layout.block(values)
        if self._packing is None:
            return Launch(block, self._kernel.ready(launched, block, self._stream))
        blocks = self._packing.blocks()
        ready = self._packing.ready(launched, block, blocks, self._stream)
        return Launch(block, ready, [b.words() for b in blocks])


@functools.lru_cache(maxsize=256)
def _function(lines: tuple[str, ...], given: tuple[str, ...]) -> Callable[..., Any]:
    """A function of the values `given` that makes the function with this text."""
    text = "".join(f"    {line}\n" for line in lines)
    space: dict[str, Any] = {}
    exec(f"def make({', '.join(given)}):\n{text}    return take\n", space)
    made: Callable[..., Any] = space["make"]
    return made


class Launch:
    """A launch, and its block, whose first value is at the address `values`; `sources` are the
    blocks of the launches that pack for it. It may be called once; then it is among the `free`
    ones."""

    __slots__ = ("block", "free", "ready", "sources", "values", "words")

    def __init__(
        self, block: ArgumentBlock, ready: Ready, sources: Sequence[memoryview] = ()
    ) -> None:
        self.block, self.ready, self.values, self.words = block, ready, block.values, block.words()
        self.sources = sources
        self.free: list[Launch] | None = None

    def __call__(self) -> int:
        code = self.ready()
        free, self.free = self.free, None  # or it would refer to itself
        if free is not None:
            free.append(self)
        return code


class Launches(dict[tuple[Any, ...], Ready]):
    """Launches made ready for calls with equal facts, by their values.

    Asked for values that are not there it makes the launch, by the recipe for addresses of these
    alignments; None where there is none. It keeps some of those that come again.
    """

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._arrays = 0  # whose addresses values begin with
        self._recipes: dict[tuple[int, ...], tuple[Recipe, ...]] = {}
        self._last: Recipe | None = None
        self.written: Callable[[Sequence[Any]], Sequence[Any]] | None = None
        """Of a call's arrays those that are written; None: those that mostly are."""

    def __missing__(self, values: tuple[Any, ...]) -> Ready | None:
        last = self._last
        launch = None if last is None else last.take(last, values)
        if launch is None:
            launch = self._take(values)
            if launch is None:
                return None
        if not self._prepared.worth_keeping(values):
            return launch
        self._prepared.count()
        self[values] = launch.ready
        return launch.ready

    def _take(self, values: tuple[Any, ...]) -> Launch | None:
        for recipe in self._recipes.get(self._alignments(values), ()):
            launch = recipe.take(recipe, values)
            if launch is not None:
                self._last = recipe
                return launch
        return None

    def remember(self, values: tuple[Any, ...], ready: Ready, recipe: Recipe) -> None:
        """Find this launch, and launches like it, from now on."""
        self[values] = ready
        self._arrays = recipe.arrays
        if recipe.written != self._prepared.written:
            self.written = lambda arrays: [arrays[i] for i in recipe.places]
        aligned = self._alignments(values)
        found = [r for r in self._recipes.get(aligned, ()) if r.can_overlap != recipe.can_overlap]
        self._recipes[aligned] = (*found, recipe)

    def drop(self) -> None:
        """Forget all launches, and how to make more."""
        self.clear()
        self._recipes.clear()
        self._last = None

    def _alignments(self, values: tuple[Any, ...]) -> tuple[int, ...]:
        return tuple([a & ALIGNMENTS for a in values[: self._arrays]])


class Keys(NamedTuple):
    """What the generated launch path has found of a call that it could not serve: the values and
    the facts under which it looks for the launch, what was left open, and the outputs that it has
    allocated."""

    values: tuple[Any, ...] | None = None
    facts: Any = None
    opened: Any = None
    made: Sequence[Any] | None = None


NO_KEYS = Keys()


class Prepared:
    """What a kernel has made ready, as the generated launch path (`fastpath`) looks for it.

    `memo`: launches by facts, then by values, which begin with the arrays' addresses.
    `plans`: functions that allocate a call's outputs, by facts. `chosen`: values of the arguments
    left open, by what they were chosen for, which stands for the facts where it decides the grid or
    the outputs. Each table is emptied when it is full. `written`: the arguments that most variants
    write.
    """

    def __init__(self, written: tuple[str, ...] = ()) -> None:
        self.written = written
        self.memo: dict[Any, Launches] = {}
        self.plans: dict[Any, tuple[Callable[[], Any], ...]] = {}
        self.chosen: dict[Any, dict[str, int]] = {}
        self._count = 0
        self._once: set[int] = set()  # hashes of values that were not kept
        self._again = 0  # launches with values that were among them

    def worth_keeping(self, values: tuple[Any, ...]) -> bool:
        """Whether to keep this launch: one in four of those whose values have come before. Keeping
        takes 4 us and saves 2 at each launch after it: a pool of arrays should not pay for all of
        its launches in one round."""
        key = hash(values)
        if key in self._once:
            self._again += 1
            return self._again % 4 == 0
        if len(self._once) >= LIMIT:
            self._once.clear()
        self._once.add(key)
        return False

    def count(self) -> None:
        """One more launch is kept."""
        self._count += 1
        if self._count > LIMIT:
            self.forget()

    def forget(self) -> None:
        """Let go of all launches, and of the variants they are of."""
        for launches in [*self.memo.values()]:  # other threads put more there
            launches.drop()  # somebody else may have it
        self.memo.clear()
        self._once.clear()
        self._count = 0

    def remember(
        self, keys: Keys, chosen: dict[str, int], makers: Iterable[Callable[[], Any]],
        ready: Ready, recipe: Callable[[], Recipe],
    ) -> None:  # fmt: skip
        """Find this launch, and launches like it, from now on, what was `chosen` where something
        was left open, and the functions that allocate the outputs of calls like this one."""
        told_by = keys.opened or (None if chosen else keys.facts)
        if keys.values is not None:
            self.count()
            made = recipe()
            with contextlib.suppress(TypeError):  # a constant that cannot be a key, such as a list
                launches = self.memo.setdefault(keys.facts, Launches(self))
                launches.remember(keys.values, ready, made)
        for table, told, found in (
            (self.plans, told_by, tuple(makers)), (self.chosen, keys.opened, chosen)
        ):  # fmt: skip
            with contextlib.suppress(TypeError):
                if told is not None:
                    put(table, told, found, LIMIT)


def put(table: dict[Any, Any], key: Any, value: Any, limit: int) -> Any:
    """`value`, which is in the table from now on; a full one is emptied before."""
    if len(table) >= limit:
        table.clear()
    table[key] = value
    return value


def _offsets(t: Tensor) -> tuple[int, int]:
    """First and last-plus-one byte of the array, from its address."""
    low, high = t.span()
    return low - t.pointer, high - t.pointer


def _at(t: Tensor, pointer: int) -> Tensor:
    return Tensor(pointer, t.shape, t.strides, t.dtype, t.itemsize, t.device, t.index, None)
