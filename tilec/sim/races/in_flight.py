"""Accumulators of wgmma that may not be touched yet.

PTX ISA, "wgmma.mma_async": between the product and the `wgmma.wait_group` that covers it the
registers of the accumulator hold anything, but further products of the same warpgroup may add to
them. So what a product gives is marked, and whatever else computes with it, or stores it, finds the
mark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilec.ir.loc import UNKNOWN, Loc
from tilec.sim.program.undefined import read_at


@dataclass(eq=False)
class Flight:
    """One product: `times` is when each of its warpgroups committed it; `touch` reports that
    somebody has touched its registers, which he read at the location; that happens once."""

    times: Mapping[int, int]
    touch: Callable[[Loc], None] = field(repr=False)
    touched: bool = False

    def report(self, read: Loc) -> None:
        if not self.touched:
            self.touched = True
            self.touch(read)


class InFlight(np.ndarray[Any, Any]):
    """Registers of a product that nobody has waited for; parts of them and other views of their
    bits are still in flight. `read`: where they were read last."""

    flight: Flight | None
    read: Loc

    def __array_finalize__(self, made_from: Any) -> None:
        self.flight = getattr(made_from, "flight", None)
        self.read = getattr(made_from, "read", UNKNOWN)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return getattr(ufunc, method)(*map(touched, inputs), **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is not np.concatenate:  # lanes that meet: nothing is computed
            for x in args:
                touched(x)
        return func(*_plain(args), **kwargs)


def in_flight(registers: tuple[Any, ...], flight: Flight) -> tuple[Any, ...]:
    """The registers, marked."""
    marked = []
    for x in registers:
        view = np.asarray(x).view(InFlight)
        view.flight = flight
        marked.append(view)
    return tuple(marked)


def joint_flight(values: Sequence[Any]) -> Flight | None:
    """The flight of registers that lanes hold who meet; None if not all of them are in flight."""
    flights = [v.flight for v in values if isinstance(v, InFlight) and v.flight is not None]
    if len(flights) < len(values):
        return None
    first = flights[0]
    if all(f is first for f in flights):
        return first
    return Flight({g: t for f in flights for g, t in f.times.items()}, first.touch)


def read_register(x: Any, loc: Loc) -> Any:
    """What a record at `loc` has read from a stack slot: what is in flight, or undefined, remembers
    it."""
    if isinstance(x, InFlight):
        marked = x.view()
        marked.read = loc
        return marked
    return read_at(x, loc)


def settled(x: Any) -> Any:
    """A register (or a vector of such) without the mark."""
    if type(x) is tuple:
        return tuple(map(settled, x))
    return x.view(np.ndarray) if isinstance(x, InFlight) else x


def touched(x: Any) -> Any:
    """A register (or a vector of such) that is used for something else; without the mark."""
    if type(x) is tuple:
        return tuple(map(touched, x)) if any(isinstance(e, InFlight) for e in x) else x
    if isinstance(x, InFlight):
        if x.flight is not None:
            x.flight.report(x.read)
        return settled(x)
    return x


def waited(x: Any, done: Mapping[int, int]) -> Any:
    """A register after a wait that has the products up to the times `done` behind it."""
    if not isinstance(x, InFlight) or x.flight is None:
        return x
    over = all(done.get(group, 0) >= time for group, time in x.flight.times.items())
    return settled(x) if over else x


def _plain(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return type(x)(map(_plain, x))
    return settled(x)
