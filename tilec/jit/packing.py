"""Launches that pack operands: what can be packed, and the copies before the kernel.

A packed operand is a copy whose rows begin at cache lines, in the workspace of the stream
(`runtime.workspace`). What is launched on a stream comes one after the other; the launches
of one call go to it without those of another between them."""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from tilec.ir.types import DTYPES, rows_along
from tilec.jit.specialise import SpecialisationKey
from tilec.runtime.arguments import Call, read_arguments
from tilec.runtime.block import TENSOR_MAP_BYTES, ArgumentBlock
from tilec.runtime.driver import DriverError, Grid, Ready, argument_block, launched_grid
from tilec.runtime.facts import FACT_LIMIT
from tilec.runtime.image import AbiParam, Argument
from tilec.runtime.tensors import Tensor, contiguous_strides
from tilec.runtime.workspace import ForOwner
from tilec.support.lazy import Lazy
from tilec.target import CACHE_LINE

packer = Lazy("tilec.jit.packer")

MOST_BYTES = 512 << 20  # of the copies of a launch: what they lie in stays allocated
MOST_ROWS, MOST_BATCH = 8 * 65535, 65535  # that the grid of the kernel which copies can count
_WORDS = {1: "uint8", 2: "uint16", 4: "uint32"}  # bits are copied, whatever they mean


def packable(key: SpecialisationKey, call: Call) -> tuple[str, ...]:
    """The tensors that can be packed: the rows begin anywhere, or their elements are no neighbours.
    None on the CPU, which has no TMA to gain."""
    found = []
    for a in key.arguments if key.target != "cpu" else ():
        if a.kind == "tensor" and not a.output and _begins_anywhere(a):
            t = call.tensors[a.name]
            *batch, rows, _ = t.shape
            if 0 not in t.shape and rows <= MOST_ROWS and math.prod(batch) <= MOST_BATCH:
                found.append(a.name)
    return tuple(found)


def copied(names: Sequence[str], call: Call) -> list[int]:
    """The bytes of each of these tensors, packed."""
    tensors = (packed_copy(call.tensors[n], 0) for n in names)
    return [t.shape[0] * t.strides[0] * t.itemsize for t in tensors]


def _begins_anywhere(a: Argument) -> bool:
    size = DTYPES[a.dtype].bits // 8
    if len(a.strides) not in (2, 3) or size not in _WORDS:
        return False
    along = rows_along(a.strides)
    known = [s * size for d, s in enumerate(a.strides) if isinstance(s, int) and d != along]
    odd = a.align < FACT_LIMIT or any(s % FACT_LIMIT for s in known)
    return odd or a.strides[-1] != 1


def packed_copy(t: Tensor, pointer: int) -> Tensor:
    """A copy of `t` at `pointer`, which is at a cache line: so are all its rows, since a row of a
    tile that straddles two lines takes two requests."""
    each = CACHE_LINE // t.itemsize
    *outer, columns = t.shape
    strides = contiguous_strides((*outer, -(-columns // each) * each))
    return replace(t, pointer=pointer, strides=strides, owner=None)


class Packing:
    """Launches of a loaded `kernel` with copies of what it has packed, for arrays like those of
    `call`, whose memory it does not keep alive. `tensors` are those that the kernel's own arguments
    are made for; `sources` says for each copy which array it reads, and where in its block the
    address is."""

    def __init__(self, kernel: Any, call: Call) -> None:
        self._kernel, self._names = kernel, kernel.image.packed
        sizes = zip(self._names, copied(self._names, call))
        self._room = [AbiParam("workspace", n, size, "pointer") for n, size in sizes]
        self.tensors = {n: replace(t, owner=None) for n, t in call.tensors.items()}
        self._copies = []
        self.sources = []
        for name in self._names:
            source = self.tensors[name]
            self.tensors[name] = packed_copy(source, CACHE_LINE)  # `ready` knows where
            copy = _copying(kernel.image.target, source, self.tensors[name])
            self._copies.append(copy)
            (at,) = _parameters(copy[0], "A")
            self.sources.append((name, copy[0].layout.offsets[at]))

    def blocks(self) -> list[ArgumentBlock]:
        """Blocks of arguments for the copies."""
        return [kernel.layout.copy(block) for kernel, _, block in self._copies]

    def ready(
        self, launched: Grid, block: ArgumentBlock, blocks: Sequence[ArgumentBlock], stream: int
    ) -> Ready:
        """A launch of `launched` blocks with the arguments in `block` behind copies with those in
        `blocks`. Raises DriverError."""
        kernel, workspaces = self._kernel, self._kernel.driver.workspaces

        def make(blocks: Sequence[ArgumentBlock], owner: Hashable) -> Ready:
            *given, own = blocks
            places = workspaces.addresses(kernel.index, ("packed", owner), self._room, 1)
            launches = []
            for name, at, (copy, grid, _), to in zip(self._names, places, self._copies, given):
                _move(copy, to, "P", at)
                _move(kernel, own, name, at)
                launches.append(copy.ready(grid, to, stream))
            launches.append(kernel.ready(launched, own, stream))
            return _InOrder(workspaces.in_order, launches)

        layouts = [*(copy.layout for copy, _, _ in self._copies), kernel.layout]
        return ForOwner(kernel.driver, stream, [*zip(layouts, (*blocks, block))], make)


def _copying(target: str, source: Tensor, to: Tensor) -> tuple[Any, Grid, ArgumentBlock]:
    """The kernel that copies `source` to `to`, its grid and its arguments."""
    source, to = _batch(source), _batch(to)
    turned = source.strides[-1] != 1 and source.strides[-2] == 1
    pack = (packer.turner if turned else packer.packer)(source.dtype)
    arrays = {"A": _turned(source) if turned else source, "P": to}
    variant = pack.compile(*arrays.values(), target=target)
    call = read_arguments(pack.name, pack.parameters, arrays, target)
    kernel, grid = variant.loaded(call.index), variant.grid(call, None)
    return kernel, launched_grid(kernel, grid), argument_block(kernel, call.tensors, {}, grid)


def _parameters(kernel: Any, name: str) -> list[int]:
    """The numbers of the parameters that hold the address of an array."""
    roles = ("tensor", "tensor_map")
    return [i for i, p in enumerate(kernel.image.params) if p.arg == name and p.role in roles]


def _move(kernel: Any, block: ArgumentBlock, name: str, address: int) -> None:
    """Let the array called `name` be at `address`, for launches from `block`. Raises
    DriverError."""
    for i in _parameters(kernel, name):
        at, move = kernel.layout.offsets[i], None
        if kernel.image.params[i].role == "tensor_map":
            begin = block.begin + at
            move = kernel.map_mover(bytes(block.memory[begin : begin + TENSOR_MAP_BYTES]))
        if move is None:
            block.words()[at // 8] = address
        elif move(block.values + at, address):
            raise DriverError(f"{kernel.image.name}: the tensor map of {name} cannot be moved")


class _InOrder:
    """Launches of which none goes between."""

    __slots__ = ("_launches", "_lock")

    def __init__(self, lock: threading.Lock, launches: Sequence[Ready]) -> None:
        self._lock, self._launches = lock, tuple(launches)

    def __call__(self) -> int:
        with self._lock:
            for launch in self._launches:
                code = launch()
                if code:
                    return code
        return 0


def _turned(t: Tensor) -> Tensor:
    """`t` with its rows for columns."""
    (*outer, rows, columns), (*steps, down, across) = t.shape, t.strides
    return replace(t, shape=(*outer, columns, rows), strides=(*steps, across, down))


def _batch(t: Tensor) -> Tensor:
    """`t` as a batch of matrices of words."""
    if len(t.shape) == 2:
        t = replace(t, shape=(1, *t.shape), strides=(t.shape[0] * t.strides[0], *t.strides))
    return replace(t, dtype=_WORDS[t.itemsize], writable=True)
