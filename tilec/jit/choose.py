"""Which variant a call gets: the compile-time arguments left to tilec (`T.auto`) and the plan.

Both follow from the sizes of the call by the predicted time (`tilec.tune`). A choice is kept by
everything it depends on, in memory and in the disk cache, so that a program whose kernels all come
from the cache neither traces nor predicts."""

from __future__ import annotations

import functools
import itertools
import json
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from tilec.builtins.choices import Auto
from tilec.ir.caller import told_as_internal
from tilec.ir.errors import LaunchError, ResourceError
from tilec.jit.collector import collector_paused
from tilec.jit.compiled import FEW_SPILLED, CompiledKernel
from tilec.jit.disk import load_choices, store_choices
from tilec.jit.fingerprint import describe
from tilec.jit.launchpath import spread_grid
from tilec.jit.packing import MOST_BYTES, copied, packable, packed_copy
from tilec.jit.specialise import Asked, Chosen, SpecialisationKey
from tilec.runtime.arguments import Call
from tilec.support.lazy import Lazy
from tilec.target import CACHE_LINE, find_target

if TYPE_CHECKING:
    from tilec import tune
    from tilec.frontend import Signature
    from tilec.ir import schedule
    from tilec.ir.core import Func
    from tilec.ir.schedule import Plan
    from tilec.jit import build
    from tilec.tune import Choice, packing
else:  # loaded by the first choice that is not in the cache
    tune = Lazy("tilec.tune")
    packing = Lazy("tilec.tune.packing")
    build = Lazy("tilec.jit.build")
    schedule = Lazy("tilec.ir.schedule")

MOST_VARIANTS = 24  # tiles and plans that one kernel is compiled for under otherwise equal facts
_MOST_REMEMBERED = 4096
_MOST_CHOOSERS = 32  # each holds the traced kernel
_MOST_TRACED = 256  # most of which a chooser holds, too

Grid = tuple[int, int, int]
Variant = tuple[tuple[tuple[str, int], ...], "Plan | None", tuple[str, ...]]


class Choices:
    """The choices made for one kernel; `compiled` gives the variant under some facts."""

    def __init__(self, compiled: Callable[[SpecialisationKey], CompiledKernel]) -> None:
        self._compiled = compiled
        self._made: dict[Any, Chosen] = {}
        self._choosers: dict[SpecialisationKey, tune.Chooser] = {}
        self._stored: dict[SpecialisationKey, dict[str, Any]] = {}
        self._known: dict[SpecialisationKey, set[Variant]] = {}
        self._traced: build.Kept | None = None
        self._lock = threading.Lock()

    def key(self, asked: Asked) -> SpecialisationKey:
        """The facts of a call with all that was open chosen; the open entries of its constants get
        their values. Raises CompileError."""
        open_, base = asked.open, asked.key()
        if asked.target == "cpu" and not open_:
            return base
        if open_ and asked.grid is not None and not callable(asked.grid):
            raise LaunchError(
                f"{asked.signature.name}: the grid {asked.grid} does not follow {', '.join(open_)},"
                " which T.auto leaves open",
                hint=f"launch with a function of them: kernel[lambda meta: (…, meta[{[*open_][0]!r}"
                f"], …)](…), or pass {', '.join(f'{n}={a.values[0]}' for n, a in open_.items())}",
            )
        where = place_of(asked)

        def key_for(chosen: Chosen) -> SpecialisationKey:
            asked.call.constants.update(chosen.constants)
            return asked.key(chosen)

        chosen = self._made.get((base, where))
        if chosen is None:
            with collector_paused(), told_as_internal("choosing its schedule", asked.signature.loc):
                with self._lock:  # for which another thread may have had it
                    chosen = self._made.get((base, where))
                    choices = [chosen] if chosen else self._choose(base, where, asked)
                if isinstance(choices, list):
                    (chosen,) = choices
                else:
                    chosen = self._first_good(self._in_turn(choices), key_for)
            self._keep(base, where, chosen)
        return key_for(chosen)

    def adopt(self, asked: Asked, chosen: Chosen) -> None:
        """Let calls like `asked`, of which nothing is open, be what was `chosen` for them by
        measurement. The disk cache, in which are predictions, is not told."""
        with self._lock:
            self._made[asked.key(), place_of(asked)] = chosen

    def traced(
        self, signature: Signature, key: SpecialisationKey, chosen: Mapping[str, int] | None = None
    ) -> Func:
        """`trace_variant`, once for what is chosen and for what is compiled, and for all calls and
        targets of which the trace knows the same. Raises CompileError."""
        chosen = chosen or {}
        texts = ((n, describe(chosen[n]) if n in chosen else t) for n, t in key.constants)
        facts = replace(key, constants=tuple(texts), values={**key.values, **chosen})
        if self._traced is None or len(self._traced.funcs) >= _MOST_TRACED:
            self._traced = build.Kept()
        return build.trace_variant(signature, facts, self._traced)

    def _first_good(
        self, choices: Iterable[Chosen], key_for: Callable[[Chosen], SpecialisationKey]
    ) -> Chosen:
        """The first whose code fits in the registers, or nearly so where the next would be slower,
        under a plan that it was chosen for, or else such a one that spills least."""
        least: tuple[tuple[bool, int], Chosen] | None = None
        first: ResourceError | None = None
        try:
            for chosen in choices:
                try:
                    made = self._compiled(key_for(chosen))
                except ResourceError as error:
                    first = first or error
                    if not error.spilled:
                        continue
                    faults = False, error.spilled
                else:
                    other = _is_other(made.plan, chosen.ranked)
                    faults = other, made.resources.spilled_bytes or 0
                if least is None or faults < least[0]:
                    least = faults, chosen
                if faults <= (False, 0 if chosen.alike else FEW_SPILLED):
                    break
            if least is None:
                assert first is not None
                raise first
        finally:
            first = None  # it holds this frame, and all that was made for it
        best = least[1]
        return replace(best, only_ranked=False) if best.only_ranked else best

    def _keep(self, base: SpecialisationKey, where: str, made: Chosen) -> None:
        with self._lock:
            if len(self._made) >= _MOST_REMEMBERED:
                self._made.clear()
            self._made[base, where] = made
            self._known.setdefault(base, set()).add(_variant(made))
            stored = self._stored[base]
            if where not in stored:
                plan = None if made.plan is None else asdict(made.plan)
                stored[where] = [dict(made.constants), plan, [*made.packed]]
                store_choices(base, stored)

    def rank(
        self,
        base: SpecialisationKey,
        asked: Asked,
        starts: Sequence[Mapping[str, int]] = (),
        below: float = math.inf,
    ) -> Choice | None:
        """All configurations of a call, predicted; see `Chooser.choose`. Raises CompileError."""
        open_, call, grid = asked.open, asked.call, asked.grid
        chooser = self._choosers.get(base)
        if chooser is None:
            if len(self._choosers) >= _MOST_CHOOSERS:
                self._choosers.clear()
            chooser = self._choosers[base] = tune.Chooser(
                functools.partial(self.traced, asked.signature, base),
                {name: a.values for name, a in open_.items()},
                find_target(base.target),
                {name: a.fine for name, a in open_.items() if a.fine},
                packing.LOADING if base.packed else 0.0,
                not (open_ or build.leaves_sizes(asked.signature)),
            )

        def extents(constants: Mapping[str, int]) -> Grid | None:
            return None if grid is None else spread_grid(grid, {**call.constants, **constants})

        copies = {n: packed_copy(call.tensors[n], 0) for n in base.packed}
        given = replace(call, tensors={**call.tensors, **copies})
        return chooser.choose(functools.partial(_value, given), extents, starts, below)

    def recommend(self, asked: Asked, most: int) -> tune.Recommendations:
        """At most so many configurations that can run, best first, and as many that cannot. What
        they take is what the passes find; see `Chooser.as_compiled`. Raises CompileError."""
        base = asked.key()
        found = self.rank(base, asked)
        if found is None:
            return tune.Recommendations()
        found = self._choosers[base].as_compiled(found, most)
        return tune.Recommendations((*found.ranked[:most], *found.rejected[:most]))

    def _text(self, base: SpecialisationKey, asked: Asked) -> str:
        found = self.rank(base, asked)
        return "" if found is None else found.text()

    def _usual(
        self, made: Chosen, known: set[Variant], base: SpecialisationKey, asked: Asked
    ) -> Chosen:
        """The best of the variants that other sizes have asked for, in their groups."""
        found = self.rank(base, asked)
        alike = {_in_any_groups(v): v for v in known}
        for r in () if found is None else found.found:
            usual = Chosen(r.constants, r.plan, (), made.text, made.packed)
            if variant := alike.get(_in_any_groups(_variant(usual))):
                return replace(usual, plan=variant[1])
        return made

    def _in_turn(self, choices: Iterator[Chosen]) -> Iterator[Chosen]:
        while True:
            with self._lock:  # what is next may be ranked only now
                chosen = next(choices, None)
            if chosen is None:
                return
            yield chosen

    def _choose(
        self, base: SpecialisationKey, where: str, asked: Asked
    ) -> list[Chosen] | Iterator[Chosen]:
        """The one that was chosen before, or that there is; or else what to try, best first."""
        open_, stored = asked.open, self._stored.get(base)
        if stored is None:
            stored = self._stored[base] = load_choices(base)
        found_there = _read_choice(stored.get(where), open_)
        if found_there is not None:
            constants, plan, packed = found_there
            return [Chosen(constants, plan, (), self._again(base, packed, asked), packed)]
        stored.pop(where, None)  # what cannot be read is made anew
        found = self.rank(base, asked)
        if found is None:
            if open_:
                message = f"T.auto cannot choose {', '.join(open_)}: the grid is not known here"
                hint = f"pass them: {', '.join(f'{n}={a.values[0]}' for n, a in open_.items())}"
                raise LaunchError(message, hint=hint)
            return [Chosen({}, None)]
        packed, found = self._packed(found, base, asked)
        text = self._again(base, packed, asked)
        made = _one_by_one(found, packed, text)
        first = next(made)
        known = self._known.get(base, set())
        if len(known) >= MOST_VARIANTS and _variant(first) not in known:
            first = replace(first, only_ranked=False)
            return [self._usual(first, known, replace(base, packed=packed), asked)]
        if open_:
            several = any(True for _ in itertools.islice(found.tiles(), 1, None))
            return itertools.chain([first], made) if several else [first]
        ways = [Chosen({}, p[0], p, text, packed, True) for p in found.ways]
        if not ways:
            return [first]
        ways[-1] = replace(ways[-1], only_ranked=False)
        return iter(ways) if ways[1:] else ways

    def _again(
        self, base: SpecialisationKey, packed: tuple[str, ...], asked: Asked
    ) -> Callable[[], str]:
        """What a choice was made from, when somebody asks for it."""
        call = replace(asked.call, first=None, constants=dict(asked.call.constants))
        return functools.partial(
            self._text, replace(base, packed=packed), replace(asked, call=call)
        )

    def _packed(
        self, found: Choice, base: SpecialisationKey, asked: Asked
    ) -> tuple[tuple[str, ...], Choice]:
        """The tensors that had better be packed, and the choice with them; else `found`."""
        call, signature = asked.call, asked.signature
        names = packable(base, call)
        if names and (plain := found.best) is not None:
            func = self.traced(signature, base, found.constants)
            free = packing.operands(func) - build.stored(func)
            free -= {p.name for p in signature.parameters if p.strides is not None}
            names = tuple(n for n in names if n in free)
            sizes = copied(names, call)
            if 0 < sum(sizes) <= MOST_BYTES:
                speeds, packed = find_target(base.target).speeds, replace(base, packed=names)
                rows = dict(func.attrs.get("turned", ()))
                apart = (n for n in names if call.tensors[n].strides[-1] != 1)
                turned = copied([n for n in apart if n not in rows], call)
                below = packing.left(sizes, turned, plain, speeds)
                other = self.rank(packed, asked, [*found.tiles()], below)
                if other and other.best and packing.pays(sizes, turned, plain, other.best, speeds):
                    return names, other
        return (), found


def _one_by_one(
    found: Choice, packed: tuple[str, ...], text: Callable[[], str]
) -> Iterator[Chosen]:
    """The tiles of a choice, best first, each with its plans."""
    tiles = found.tiles()
    after = next(tiles, None)
    while (tile := after) is not None:
        after = next(tiles, None)
        plans = found.plans(tile)
        best, more = plans[0] if plans else None, bool(plans) and after is not None
        yield Chosen(tile, best, plans, text, packed, more, found.has_alike(tile))


def _read_choice(
    note: Any, open_: Mapping[str, Auto]
) -> tuple[dict[str, int], Plan | None, tuple[str, ...]] | None:
    """A choice as the disk cache holds it; None if there is none, or if it is damaged."""
    match note:
        case [dict() as constants, None | dict() as fields, list() as names] if (
            constants.keys() == open_.keys()
        ):
            if not all(type(n) is int and n > 0 for n in constants.values()):
                return None
            plan = None if fields is None else schedule.plan_in(fields)
            if (plan is None and fields is not None) or not all(isinstance(n, str) for n in names):
                return None
            return constants, plan, tuple(names)
    return None


def _is_other(plan: Plan | None, ranked: Sequence[Plan]) -> bool:
    """Whether a kernel has a plan that nobody predicted, because the `ranked` ones spill."""
    if plan is None or not ranked:
        return False
    return replace(plan, stages=0) not in {replace(p, stages=0) for p in ranked}


def _variant(chosen: Chosen) -> Variant:
    return tuple(chosen.constants.items()), chosen.plan, chosen.packed


def _in_any_groups(variant: Variant) -> Variant:
    """A variant without its rasterisation groups, which follow from the sizes."""
    constants, plan, packed = variant
    return constants, None if plan is None else replace(plan, raster_group=1), packed


def place_of(asked: Asked) -> str:
    """Everything but the facts that a choice depends on; of strides what says where in a cache line
    rows begin, so that slices of many arrays share a choice. A grid that is a function stands for
    itself by what it gives for the first values of the open arguments."""
    call, extents = asked.call, None
    if asked.grid is not None:
        first = {name: a.values[0] for name, a in asked.open.items()}
        extents = spread_grid(asked.grid, {**call.constants, **first})
    shapes = {
        name: (t.shape, [math.gcd(CACHE_LINE, n * t.itemsize) for n in t.strides])
        for name, t in call.tensors.items()
    }
    scalars = {n: v for n, v in call.scalars.items() if isinstance(v, int)}
    return json.dumps([shapes, scalars, extents])


def _value(call: Call, role: str, arg: str, dim: int) -> int | None:
    """The value of a parameter of the TILE form; None where the call does not give one (a scalar
    of zero is one that `compile` was not told). A size of 0 counts as 1: whatever is chosen takes
    no time then, and has to fit all the same."""
    match role:
        case "size" if arg in call.tensors:
            return call.tensors[arg].shape[dim] or 1
        case "stride" if arg in call.tensors:
            return call.tensors[arg].strides[dim]
        case "scalar" if isinstance(call.scalars.get(arg), int):
            return int(call.scalars[arg]) or None
    return None
