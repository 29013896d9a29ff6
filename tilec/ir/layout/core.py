"""The layout type: a frozen value, checked when made, equal to every other value that places
elements alike."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tilec.ir.errors import LayoutError
from tilec.ir.layout import fit, reshaping
from tilec.ir.layout.normal import OWNERS, Digit, is_inside, normal_form, packed
from tilec.ir.layout.terms import Term, forward_terms, inverse_terms, weighted

__all__ = ["Layout"]

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Layout:
    """Where the elements of a tile live; the package's opening explains it.

    `shape`: extents in elements. `digits`: within an owner minor digit first. `atom`: one power of
    two for each dimension; digits of radix 2 whose step lies inside the atom combine by XOR, all
    others add (and their steps are multiples of the atom). `pad`: (p, q): after every p elements of
    offset q are skipped. `align`: bytes of base alignment that a memory layout needs for its
    offsets to be true.

    The constructor brings digits and atom into normal form and raises LayoutError unless every
    element is reached, by as many index combinations as the digits with step zero (replicas) say.
    """

    shape: tuple[int, ...]
    digits: tuple[Digit, ...]
    atom: tuple[int, ...] = ()
    pad: tuple[int, int] | None = None
    align: int = 16

    def __post_init__(self) -> None:
        atom = self.atom or (1,) * len(self.shape)
        digits, atom = normal_form(self.shape, tuple(self.digits), atom)
        object.__setattr__(self, "digits", digits)
        object.__setattr__(self, "atom", atom)
        if self.pad is not None and (self.pad[0] < 1 or self.pad[1] < 0):
            raise LayoutError(f"padding {self.pad}: the run must be at least 1, the gap at least 0")
        if self.pad is not None and (self.pad[1] == 0 or self.pad[0] >= self.size("offset")):
            object.__setattr__(self, "pad", None)
        if self.align < 1 or self.align & (self.align - 1):
            raise LayoutError(f"an alignment of {self.align} bytes is not a power of two")

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.shape, self.digits, self.atom, self.pad, self.align))

    # --- numbers ---

    @property
    def rank(self) -> int:
        """The number of dimensions of what is laid out."""
        return len(self.shape)

    @property
    def is_memory(self) -> bool:
        """Whether elements live at offsets (else in registers of lanes of warps)."""
        return all(d.owner == "offset" for d in self.digits)

    @property
    def is_held(self) -> bool:
        """Whether elements live in registers of lanes of warps."""
        return all(d.owner != "offset" for d in self.digits)

    def of(self, owner: str) -> tuple[tuple[Digit, int], ...]:
        """The owner's digits, minor first, each with its weight in the owner's index."""
        return self._weighted[owner]

    @functools.cached_property
    def _weighted(self) -> dict[str, tuple[tuple[Digit, int], ...]]:
        return {owner: weighted(self.digits, owner) for owner in OWNERS}

    def size(self, owner: str) -> int:
        """Registers of a thread, lanes, warps or offsets: the product of the owner's radices."""
        return prod(d.radix for d, _ in self._weighted[owner])

    def words(self, bits: int) -> int:
        """Registers of 32 bits that a thread takes for its elements, of so many bits each."""
        return -(-self.size("reg") * bits // 32)

    def replicas(self, owner: str) -> int:
        """How many of the owner's indices hold each element, everything else being equal."""
        return prod(d.radix for d, _ in self._weighted[owner] if d.replicates)

    def span(self) -> int:
        """Elements of memory that one copy takes, padding included: copies may follow each other at
        this distance."""
        size = self.size("offset")
        if self.pad is None:
            return size
        every, skip = self.pad
        return size + -(-size // every) * skip

    # --- where things are ---

    def __call__(self, **index: int) -> tuple[int, ...]:
        """The coordinate at these indices, e.g. `layout(reg=3, lane=17)`; owners not named count as
        0."""
        added, crossed = [0] * self.rank, [0] * self.rank
        for owner, value in index.items():
            for d, weight in self._weighted[owner]:
                n = value // weight % d.radix
                if n:
                    inside = is_inside(d, self.atom)
                    for i, s in enumerate(d.step):
                        if inside:
                            crossed[i] ^= s
                        else:
                            added[i] += n * s
        return tuple(a + c for a, c in zip(added, crossed))

    def flat(self, *owners: str) -> Ints:
        """The row-major number of the element at every index combination of the owners (their array
        dimensions). Read only."""
        found = self._flats.get(owners)
        if found is None:
            found = self._flats[owners] = self._flat(owners)
            found.setflags(write=False)
        return found

    @functools.cached_property
    def _flats(self) -> dict[tuple[str, ...], Ints]:
        return {}

    @functools.cached_property
    def _strides(self) -> tuple[int, ...]:
        return reshaping.strides_of(self.shape)

    def _flat(self, owners: tuple[str, ...]) -> Ints:
        widths = [a.bit_length() - 1 for a in self.atom]
        total: Ints = np.zeros((1,) * len(owners), np.int32)
        crossed: Ints = np.zeros((1,) * len(owners), np.int32)
        for axis, owner in enumerate(owners):
            add: Ints = np.zeros(1, np.int32)
            bits: Ints = np.zeros(1, np.int32)
            for d, _ in self._weighted[owner]:
                n = np.arange(d.radix, dtype=np.int32)[:, None]
                if is_inside(d, self.atom):
                    step = packed(d.step, widths)
                    add, bits = np.tile(add, 2), (bits ^ n * np.int32(step)).ravel()
                else:
                    step = sum(s * t for s, t in zip(d.step, self._strides))
                    add, bits = (add + n * np.int32(step)).ravel(), np.tile(bits, d.radix)
            place = tuple(-1 if i == axis else 1 for i in range(len(owners)))
            total = total + add.reshape(place)
            crossed = crossed ^ bits.reshape(place)
        if any(widths):
            total = total + self._atom_flat[crossed]
        return np.ascontiguousarray(total)

    @functools.cached_property
    def _atom_flat(self) -> Ints:
        """Row-major number of the element at each packed atom coordinate."""
        at: Ints = np.arange(prod(self.atom), dtype=np.int32)
        out: Ints = np.zeros_like(at)
        for a, stride in zip(self.atom, self._strides):
            out += at % np.int32(a) * np.int32(stride)
            at //= np.int32(a)
        return out

    def table(self, *owners: str) -> Ints:
        """Coordinates for all index combinations of the owners: shape (size of owner 0, size of
        owner 1, …, rank)."""
        flat = self.flat(*owners)
        if not self.shape:
            return np.zeros((*flat.shape, 0), np.int32)
        return np.stack(np.unravel_index(flat, self.shape), axis=-1).astype(np.int32)

    def offsets(self) -> Ints:
        """The offset (in elements, padding included) of every coordinate: an array of `shape`. Read
        only."""
        return self._offsets

    @functools.cached_property
    def _offsets(self) -> Ints:
        out = self._first("offset").reshape(self.shape)
        if self.pad is not None:
            out = out + out // np.int32(self.pad[0]) * np.int32(self.pad[1])
        out.setflags(write=False)
        return out

    def owners_of(self) -> tuple[Ints, Ints, Ints]:
        """(reg, lane, warp) of the first replica of every coordinate: arrays of `shape`."""
        first = self._first("warp", "lane", "reg").reshape(self.shape)
        regs, lanes = np.int32(self.size("reg")), np.int32(self.size("lane"))
        return first % regs, first // regs % lanes, first // (regs * lanes)

    def _first(self, *owners: str) -> Ints:
        """For every element the lowest index combination (owners major first) that holds it."""
        flat = self.flat(*owners).ravel()
        out: Ints = np.zeros(prod(self.shape), np.int32)
        out[flat[::-1]] = np.arange(flat.size - 1, -1, -1, dtype=np.int32)
        return out

    def offset(self, coordinate: Iterable[int]) -> int:
        """The offset of one coordinate, in elements, padding included."""
        at = tuple(coordinate)
        total = 0
        for t in self.inverse_terms():
            value = t(at[int(t.source)])
            total = total ^ value if t.xor else total + value
        return total if self.pad is None else total + total // self.pad[0] * self.pad[1]

    # --- arithmetic for code ---

    def forward_terms(self, dim: int) -> tuple[Term, ...]:
        """The coordinate along `dim` as terms of the owners' indices; see
        `tilec.ir.layout.terms`."""
        found = self._forward.get(dim)
        if found is None:
            found = self._forward[dim] = forward_terms(self.digits, self.atom, OWNERS, dim)
        return found

    @functools.cached_property
    def _forward(self) -> dict[int, tuple[Term, ...]]:
        return {}

    def inverse_terms(self) -> tuple[Term, ...]:
        """The offset (elements, before padding) as terms of the coordinates, XOR terms last."""
        return self._inverse

    @functools.cached_property
    def _inverse(self) -> tuple[Term, ...]:
        return inverse_terms(self.shape, self.digits, self.atom)

    # --- layouts made from this one ---

    def _like(
        self, shape: tuple[int, ...], digits: Iterable[Digit], atom: tuple[int, ...]
    ) -> Layout:
        return Layout(shape, tuple(digits), atom, self.pad, self.align)

    def drop(self, dim: int) -> Layout:
        """What a reduction over `dim` leaves behind: indices that differed along it alone become
        replicas.

        Raises LayoutError where a swizzle ties `dim` to another dimension.
        """
        digits = (Digit(d.owner, d.radix, _without(d.step, dim)) for d in self.digits)
        return self._like(_without(self.shape, dim), digits, _without(self.atom, dim))

    def once(self, owner: str) -> Layout:
        """Without the owner's replicas: none of its indices holds an element twice."""
        digits = (d for d in self.digits if d.owner != owner or not d.replicates)
        return self._like(self.shape, digits, self.atom)

    def restrict(self, extents: Iterable[int]) -> Layout:
        """The layout of a sub-tile of these extents at the origin (and, up to a constant, at every
        multiple of them).

        A digit that leads out of the sub-tile stays as a replica, so that every index keeps its
        weight; above the last used offset nothing is kept. Raises LayoutError where digits do not
        divide.
        """
        wanted = tuple(extents)
        if len(wanted) != self.rank or any(not 0 < e <= n for e, n in zip(wanted, self.shape)):
            raise LayoutError(f"{wanted} is no part of a tile of shape {self.shape}")
        try:
            digits = reshaping.restricted(self.digits, self.atom, wanted)
        except reshaping.UnevenError as error:
            raise LayoutError(f"{self.exact()} {error}") from None
        return self._like(wanted, digits, self.atom)

    def permute(self, order: Iterable[int]) -> Layout:
        """The layout whose dimension i is this one's dimension `order[i]`."""
        turn = tuple(order)
        digits = (Digit(d.owner, d.radix, _pick(d.step, turn)) for d in self.digits)
        return self._like(_pick(self.shape, turn), digits, _pick(self.atom, turn))

    def transpose(self) -> Layout:
        """The layout with its dimensions in opposite order."""
        return self.permute(range(self.rank)[::-1])

    def reshape(self, shape: Iterable[int]) -> Layout:
        """The same places for a tile of another shape, elements taken in row-major order.

        Raises LayoutError where digits do not divide.
        """
        wanted = tuple(shape)
        if prod(wanted) != prod(self.shape):
            raise LayoutError(
                f"a layout of shape {self.shape} cannot take the shape {wanted}: other size"
            )
        try:
            digits, atom = reshaping.reshaped(self.digits, self.atom, self.shape, wanted)
        except reshaping.UnevenError as error:
            raise LayoutError(f"{self.exact()} {error}") from None
        return self._like(wanted, digits, atom)

    def tile(self, times: Iterable[int], owner: str) -> Layout:
        """This layout repeated: a tile `times[i]` as large along dimension i, the repetitions
        counted by new major digits of `owner`, last dimension first."""
        counts = tuple(times)
        more = []
        for i in reversed(range(self.rank)):
            step = tuple(self.shape[i] if j == i else 0 for j in range(self.rank))
            more.append(Digit(owner, counts[i], step))
        shape = tuple(e * n for e, n in zip(self.shape, counts))
        return self._like(shape, (*self.digits, *more), self.atom)

    def replicate(self, times: int, owner: str) -> Layout:
        """This layout held `times` times by a new major digit of `owner`."""
        digit = Digit(owner, times, (0,) * self.rank)
        return self._like(self.shape, (*self.digits, digit), self.atom)

    @staticmethod
    def from_function(shape: object, fn: Callable[..., Any]) -> Layout:
        """The memory layout in which the element at (i, j, …) lies at offset `fn(i, j, …)`.

        `fn` is evaluated over the whole domain (on NumPy arrays where it can take them). Raises
        LayoutError for a shape of anything but positive ints, if `fn` fails or two elements share
        an offset, or if the function is none that digits, XOR and padding can say.
        """
        extents = fit.extents(shape)
        offsets = fit.evaluate(extents, fn)
        pad, coordinates = fit.sequence(extents, offsets)
        for limit in fit.limits(extents):
            try:
                made = Layout(extents, *fit.digits(extents, coordinates, limit), pad)
            except LayoutError:
                continue
            if np.array_equal(made.offsets(), offsets):
                return made
        raise fit.misfit(extents)

    # --- text ---

    def __str__(self) -> str:
        return self._text

    @functools.cached_property
    def _text(self) -> str:
        for name in _NAMERS:
            found = name(self)
            if found is not None:
                return found
        return self.exact()

    def exact(self) -> str:
        """All of the layout in words, e.g. `16x8[reg 2:(0,1) 2:(8,0), lane 4:(0,2) 8:(1,0)]`."""
        parts = []
        for owner in OWNERS:
            digits = [f"{d.radix}:({','.join(map(str, d.step))})" for d, _ in self.of(owner)]
            if digits:
                parts.append(f"{owner} {' '.join(digits)}")
        if any(a > 1 for a in self.atom):
            parts.append(f"atom {dims_text(self.atom)}")
        if self.pad is not None:
            parts.append(f"pad {self.pad[0]}+{self.pad[1]}")
        if self.align != 16:
            parts.append(f"align {self.align}")
        return f"{dims_text(self.shape)}[{', '.join(parts)}]"

    @staticmethod
    def parse(text: str) -> Layout:
        """The layout that `str` prints as `text`. Raises ValueError where it is no layout's
        text."""
        text = text.strip()
        try:
            call = _CALL.fullmatch(text)
            if call is not None and call[1] in _BY_NAME:
                return _BY_NAME[call[1]](call[2])
            whole = _EXACT.fullmatch(text)
            if whole is None:
                raise ValueError(f"{text!r} is neither a layout's name nor its digits")
            return _parse_exact(whole[1], whole[2])
        except LayoutError as error:
            raise ValueError(str(error)) from error


def _without(entries: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return entries[:dim] + entries[dim + 1 :]


def _pick(entries: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(entries[i] for i in order)


# --- text ---

_NAMERS: list[Callable[[Layout], str | None]] = []
_BY_NAME: dict[str, Callable[[str], Layout]] = {}
_Namer = TypeVar("_Namer", bound=Callable[[Layout], str | None])

_CALL = re.compile(r"([\w.]+)(?:\(([^()]*)\))?")
_EXACT = re.compile(r"([\dx]+|\(\))\[(.*)\]")
_DIGIT = re.compile(r"(\d+):\(([\d,]*)\)")


def named(name: str, parse: Callable[[str], Layout]) -> Callable[[_Namer], _Namer]:
    """Register how layouts called `name` are recognised (the decorated function: layout -> text or
    None) and how the text between the brackets of `name(…)` is read back."""

    def register(recognise: _Namer) -> _Namer:
        _NAMERS.append(recognise)
        _BY_NAME[name] = parse
        return recognise

    return register


def name_constants(table: dict[str, Layout]) -> None:
    """Give single layouts their names; of two names for equal layouts the first is printed."""
    names = {layout: name for name, layout in reversed(table.items())}
    _NAMERS.insert(0, names.get)
    for name in table:
        _BY_NAME[name] = functools.partial(_constant, table[name])


def _constant(layout: Layout, _arguments: str) -> Layout:
    return layout


def dims_text(extents: tuple[int, ...]) -> str:
    """`64x32`, `()` for no dimension."""
    return "x".join(map(str, extents)) or "()"


def parse_dims(text: str) -> tuple[int, ...]:
    """`64x32` as a tuple, `()` as the empty one."""
    return () if text.strip() == "()" else tuple(int(e) for e in text.split("x"))


def _parse_exact(shape: str, rest: str) -> Layout:
    digits: list[Digit] = []
    atom: tuple[int, ...] = ()
    pad: tuple[int, int] | None = None
    align = 16
    for part in re.split(r",\s+", rest) if rest.strip() else ():
        word, _, value = part.partition(" ")
        if word in OWNERS:
            for radix, step in _DIGIT.findall(value):
                digits.append(Digit(word, int(radix), tuple(int(s) for s in step.split(",") if s)))
        elif word == "atom":
            atom = parse_dims(value)
        elif word == "pad":
            every, _, skip = value.partition("+")
            pad = (int(every), int(skip))
        elif word == "align":
            align = int(value)
        else:
            raise ValueError(f"a layout has no part {part!r}")
    return Layout(parse_dims(shape), tuple(digits), atom, pad, align)
