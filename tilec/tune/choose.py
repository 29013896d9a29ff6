"""The choice for one launch: compile-time arguments left to tilec (`T.auto`) and the plan.

Each combination of the values is traced once and kept; for each problem size all of them are
estimated on numbers. Where there are too many to trace, one argument after the other is changed,
from a middle tile, until none of them gets better alone."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.ir.clusters import SINGLE, Dims
from tilec.ir.core import Func
from tilec.ir.errors import CompileError
from tilec.ir.schedule import Plan, name_of
from tilec.passes.expand_sparse import expand_sparse
from tilec.passes.join_blocks import LOADED, join_blocks, ways_to_join
from tilec.passes.join_branches import as_taken
from tilec.passes.mem2reg import mem2reg
from tilec.passes.pad_tiles import pad_tiles
from tilec.passes.recognise_idioms import recognise_idioms
from tilec.passes.split_tiles import split_tiles
from tilec.target import Target
from tilec.tune.cost import Estimate
from tilec.tune.rank import Candidate, Ranked
from tilec.tune.tried import Tile, Tried
from tilec.tune.work import Numbers, Values

MOST_TRACED = 40  # combinations that are all tried
_MIDDLE = 128  # where the search through more of them starts
_ROUNDS = 4
NEAR = 1.1  # times the best: about as fast
ALIKE = 1.03  # times another tile's best: as fast
LACKING = 1.02  # so much worse is what may spill, and then is compiled for nothing
FEW_WAVES = 2  # of tiles: how many multiprocessors have none decides
MORE_WAVES = 8  # of large tiles: it may decide,
LARGE_TILE = 128 * 256
WORTH = 0.95  # if a fine tile takes so much of the time by prediction, which errs by as much
LARGEST = 256  # of a tile's sides
FINE_TRIED = 6  # tiles with a side between the listed values
BETWEEN = (96, 160)  # tried for every argument,
FOUND = 1.6  # times faster than the tiles where it began: the most that a search won (115 products)
REACH = 2  # so many values away from a fine tile
KEPT = 12  # configurations that people are shown
JOINED = 0.97  # if joined blocks take so much of the time by prediction, they are
TILES = 4  # that are tried, if the assembler finds fault with the best ones,
ALMOST = 1 + 1e-6  # times as long: more than `math.isclose` takes for equal
LESS = 7 / 8  # of the last one's fragments, behind the second

Grid = Callable[[Mapping[str, int]], Sequence[int] | None]


@dataclass(frozen=True)
class Choice:
    """What was chosen: `constants` for the arguments left open, the configurations that were
    `found` to run, best first (ranked as they are asked for, if they are `Tried`), of these
    `candidates`, and what the passes `refused`."""

    constants: Mapping[str, int]
    found: Iterable[Ranked]
    candidates: Sequence[Candidate] = ()
    refused: tuple[Ranked, ...] = ()

    @property
    def ranked(self) -> tuple[Ranked, ...]:
        """All that can run."""
        return tuple(self.found)

    @property
    def rejected(self) -> tuple[Ranked, ...]:
        """All that cannot, with their reasons."""
        return (*self.refused, *(r for c in self.candidates for r in c.rejected))

    def plans(self, constants: Mapping[str, int]) -> tuple[Plan, ...]:
        """Plans for these constants that take about as long as the best, which is first, and no
        longer than the next of `tiles`, which is tried where they do not do."""
        near, below = _near(self.found, constants), self._next_seconds(constants)
        fast = (
            r for r in near if r.estimate and (r is near[0] or r.estimate.seconds <= ALIKE * below)
        )
        return tuple(r.plan for r in fast if r.plan is not None)

    @property
    def ways(self) -> list[tuple[Plan, ...]]:
        """Where nothing was left open, the `plans` for each way to make several of the author's
        blocks one, best first, as far as they are better than his own, which are last: two for
        each of two ways, since what spills under one plan mostly does under the others."""
        found: dict[Dims, list[Ranked]] = {}
        for r in self.found:
            if r.plan is not None and (SINGLE not in found or r.plan.joined == SINGLE):
                found.setdefault(r.plan.joined, []).append(r)
        own = found.pop(SINGLE, None)
        joined = [replace(self, found=rows).plans({})[:2] for rows in found.values()][:2]
        return [*joined, replace(self, found=own).plans({})] if own else joined

    def has_alike(self, constants: Mapping[str, int]) -> bool:
        """Whether the next of `tiles` is predicted to be as fast."""
        best = next((r.estimate for r in _near(self.found, constants)), None)
        return best is not None and self._next_seconds(constants) <= ALIKE * best.seconds

    def _next_seconds(self, constants: Mapping[str, int]) -> float:
        """What the next of `tiles` is predicted to take; infinite if there is none."""
        later = itertools.dropwhile(lambda tile: tile != constants, self.tiles())
        other = next(itertools.islice(later, 1, None), None)
        if other is None:
            return math.inf
        known = (r.estimate for r in self.found if r.constants == other)
        return next((e.seconds for e in known if e), math.inf)

    def tiles(self) -> Iterator[Mapping[str, int]]:
        """The chosen constants, then others that are worth a try where those do not do, best
        first."""
        return itertools.chain([self.constants], _others(self.found, self.constants))

    @property
    def best(self) -> Estimate | None:
        """Of the fastest configuration; None where nothing is known of it."""
        first = (*itertools.islice(self.found, KEPT), *_near(self.found, self.constants))
        known = (r.estimate for r in first if r.estimate is not None)
        return min(known, key=lambda e: e.seconds, default=None)

    def text(self) -> str:
        """For people: one line for each of the best configurations, for each of those with the
        chosen constants, and for some that cannot run."""
        every = enumerate(self.found)
        shown = [r for n, r in every if n < KEPT or r.constants == self.constants]
        return "\n".join(map(str, (*shown, *self.rejected[:KEPT]))) + "\n"


class Chooser:
    """Chooses for one kernel, one target and one set of facts about its arguments. `trace` gives
    the kernel's TILE form for values of the open arguments, whose possible values are `open`; those
    in `fine` may also have multiples of a number, where there are few tiles. Of configurations that
    take about as long, those win that load less: so much of the time of loads is added. `joins`:
    the author's tiles, which are all fixed, may be made larger."""

    def __init__(
        self,
        trace: Callable[[Mapping[str, int]], Func],
        open: Mapping[str, Sequence[int]],
        target: Target,
        fine: Mapping[str, int] | None = None,
        loading: float = 0.0,
        joins: bool = False,
    ) -> None:
        self._trace, self._open, self._target = trace, dict(open), target
        self._fine, self._loading = fine or {}, loading
        self._candidates: dict[Tile, Candidate | CompileError] = {}
        # To make several blocks one; None until it is asked for.
        self._ways: dict[Dims, Candidate] | None = None if joins else {}

    def choose(
        self,
        values: Values,
        grid: Grid,
        starts: Sequence[Mapping[str, int]] = (),
        below: float = math.inf,
    ) -> Choice | None:
        """The choice for sizes and scalars with these `values`; `grid` gives the grid of
        the launch for values of the open arguments, None if the kernel has its own. Given `starts`,
        the search begins at the first; it is left out where they are far from `below` so many
        seconds, and is done from the middle, too, where it comes below.

        None if it is left out, and where nothing is known that tells the plans apart. Raises
        CompileError if no combination of the arguments compiles.
        """
        numbers: dict[Tile, Numbers | None] = {}

        def less(at: Tile) -> float:
            numbers[at], least = self._numbers(at, values, grid)
            return least

        def rank(at: Tile) -> list[Ranked]:
            return self._ranked(at, numbers[at], values)

        found = Tried(less, rank, self._order)
        self._leave_out_idle(starts)
        if math.prod(map(len, self._open.values())) <= MOST_TRACED:
            for at in itertools.product(*self._open.values()):
                found.come_by(at)
        else:
            lists = [sorted(v) for v in self._open.values()]
            at = middle = self._middle
            if starts:
                tiles = [tuple(s[name] for name in self._open) for s in starts]
                if min(map(found.seconds, tiles)) > FOUND * below:
                    return None
                at = tiles[0]
            at = self._descend(at, lists, found)
            if starts and found.seconds(at) < below:  # worth another search
                at = found.fastest((at, self._descend(middle, lists, found)))
            self._refine(at, found, numbers)
        best = next(iter(found), None)
        if best is None:
            return self._nothing(found.least)
        return Choice(dict(best.constants), found, self._seen(found.least))

    @property
    def _middle(self) -> Tile:
        lists = map(sorted, self._open.values())
        return tuple(min(v, key=lambda x: abs(math.log2(x / _MIDDLE))) for v in lists)

    def _leave_out_idle(self, starts: Sequence[Mapping[str, int]]) -> None:
        """Arguments that the kernel does not take under these facts, as a search's first candidate
        says, have one value: all others are the same kernel."""
        if math.prod(map(len, self._open.values())) > MOST_TRACED:
            first = tuple(starts[0][name] for name in self._open) if starts else self._middle
            candidate = self._candidate(first)
            if isinstance(candidate, Candidate):
                for name in candidate.func.attrs.get("idle", ()):
                    self._open[name] = [first[[*self._open].index(name)]]

    def as_compiled(self, choice: Choice, most: int) -> Choice:
        """`choice` with what its first configurations take by the passes, without those that the
        passes refuse: `most` that they accept, or `KEPT` if these are fewer."""
        fits: list[Ranked] = []
        refused: list[Ranked] = []
        ranked = iter(choice.found)
        while len(fits) < min(most, KEPT) and (r := next(ranked, None)) is not None:
            candidate = self._candidate(tuple(r.constants[name] for name in self._open))
            if r.plan is not None and r.plan.joined != SINGLE and self._ways is not None:
                candidate = self._ways[r.plan.joined]
            assert isinstance(candidate, Candidate)
            r = candidate.as_compiled(r)
            (refused if r.estimate is None else fits).append(r)
        return replace(choice, found=(*fits, *ranked), refused=tuple(refused))

    def _descend(
        self,
        at: Tile,
        lists: Sequence[Sequence[int]],
        found: Tried,
        reach: int | None = None,
    ) -> Tile:
        """From a tile to faster neighbours: another of its `lists`' values for one argument, at
        most `reach` values away; one argument up and another down; two arguments' values exchanged.
        Where none is faster, on from one that is as fast."""
        left: set[Tile] = set()
        for _ in range(_ROUNDS):
            left.add(at)
            for i, values in enumerate(lists):
                if reach is not None:
                    k = bisect.bisect_left(values, at[i])
                    values = values[max(k - reach, 0) : k + reach + 1]
                at = found.fastest((at, *((*at[:i], v, *at[i + 1 :]) for v in values)))
            moves = _pair_moves(at, lists)
            at = found.fastest((at, *moves))
            if at in left:
                most = ALMOST * found.seconds(at)
                near = (t for t in moves if t not in left and found.come_by(t) <= most)
                alike = (t for t in near if math.isclose(found.seconds(t), found.seconds(at)))
                at = next(alike, at)
            if at in left:
                break
        return at

    def _refine(self, at: Tile, found: Tried, numbers: Mapping[Tile, Numbers | None]) -> None:
        """Values between the listed ones where there are few tiles: those sides of a tile that take
        the least time by its sizes alone; then a few for every argument, near by. Where there are
        more, they are forgotten again unless they are worth it."""
        first = found.first(at)
        if not first or not self._fine:
            return
        extents, before = self._extents(at, numbers, first.sides), {*found.least}
        if first.waves * math.prod(at[i] for i in extents) > MORE_WAVES * LARGE_TILE:
            return
        fine = found.fastest((at, *self._fine_tiles(at, extents, first.tiles)))
        lists = [
            sorted({*values, *(BETWEEN if self._fine.get(name) else ())})
            for name, values in self._open.items()
        ]
        fine = self._descend(fine, lists, found, REACH)
        if first.waves > FEW_WAVES and found.seconds(fine) > WORTH * first.seconds:
            for tile in found.least.keys() - before:
                del found.least[tile]

    def _fine_tiles(self, at: Tile, extents: Mapping[int, int], tiles: int) -> list[Tile]:
        """Tiles that take less time than `at`, of which a launch has so many, by their sizes alone:
        how often they fill the machine, times the larger of their area and what they load."""
        if not extents:
            return []

        def count(sides: Sequence[int]) -> int:
            return math.prod(-(-e // s) for e, s in zip(extents.values(), sides))

        def seconds(sides: Sequence[int]) -> float:
            waves = tiles / count(own) * count(sides) / self._target.multiprocessors
            # Where there are few tiles, several blocks share the sum of one.
            waves = math.ceil(waves) if waves > 0.5 else 2 * waves
            loaded = LOADED * sum(sides) if len(sides) > 1 else 0
            return waves * math.hypot(math.prod(sides), loaded)

        own = [at[i] for i in extents]
        names = list(self._open)
        found: list[Tile] = []
        for i in extents:
            if unit := self._fine.get(names[i], 0):
                fine = range(2 * unit, LARGEST + 1, unit)
                found += itertools.product(
                    *(fine if j == i else self._open[names[j]] for j in extents)
                )
        least = seconds(own)
        found = sorted((sides for sides in found if seconds(sides) < least), key=seconds)
        made = (dict(zip(extents, sides)) for sides in dict.fromkeys(found))
        every = (tuple(tile.get(j, x) for j, x in enumerate(at)) for tile in made)
        return list(itertools.islice(every, FINE_TRIED))

    def _extents(
        self, at: Tile, numbers: Mapping[Tile, Numbers | None], sides: Collection[int]
    ) -> dict[int, int]:
        """The extent that each of the open arguments divides which are sides of a tile: of `sides`
        the one that fits the numbers of tiles."""
        extents = {}
        for i, values in enumerate(self._open.values()):
            tiles = {}
            for v in values:
                if (n := numbers.get((*at[:i], v, *at[i + 1 :]))) is not None:
                    tiles[v] = n.blocks
            for extent in sorted(sides):
                counts = {v: -(-extent // v) for v in tiles}
                if len({*counts.values()}) > 1 and len({tiles[v] / counts[v] for v in tiles}) == 1:
                    extents[i] = extent
                    break
        return extents

    def _numbers(self, at: Tile, values: Values, grid: Grid) -> tuple[Numbers | None, float]:
        """A tile's numbers, None if it cannot run or nothing is known of it, and what no plan takes
        less than."""
        if at not in self._candidates and self._is_too_large(at):
            return None, math.inf
        candidate = self._candidate(at)
        if isinstance(candidate, CompileError):
            return None, math.inf
        numbers = candidate.numbers(values, grid(candidate.constants))
        if numbers is None:
            return None, math.inf
        return numbers, candidate.least(numbers) if self._open else 0.0

    def _ranked(self, at: Tile, numbers: Numbers | None, values: Values) -> list[Ranked]:
        candidate = self._candidates.get(at)
        if numbers is None or not isinstance(candidate, Candidate):
            return []
        own = candidate.ranked_at(numbers)
        return [*self._joined(own, values), *own]

    def _joined(self, own: Sequence[Ranked], values: Values) -> Iterator[Ranked]:
        """What larger tiles than the author's take, where they are worth it."""
        least = min((r.estimate.seconds for r in own if r.estimate), default=0.0)
        if self._ways is None:
            func = self._trace({})
            self._ways = {
                way: self._prepared(join_blocks(func.with_attrs(joined=way), self._target), {})
                for way in ways_to_join(func, self._target)
            }
        for way, larger in self._ways.items():
            for r in larger.ranked(values) or ():
                if r.plan and r.estimate and r.estimate.seconds <= JOINED * least:
                    plan = replace(r.plan, joined=way)
                    yield replace(r, plan=replace(plan, name=name_of(plan)))

    def _is_too_large(self, at: Tile) -> bool:
        """Whether a smaller tile has been found to have no room, for all that it is smaller in: a
        larger one is not traced to find that again. (Some arguments are no sides of tiles: one that
        grows has to make the tile that has no room larger than another.)"""
        for other, small in self._candidates.items():
            if isinstance(small, Candidate) and all(x <= y for x, y in zip(other, at)):
                grows = [i for i, (x, y) in enumerate(zip(other, at)) if x < y]
                fits = small.is_roomy or small.fits
                if not fits and all(self._enlarges(i, other) for i in grows):
                    return True
        return False

    def _enlarges(self, i: int, at: Tile) -> bool:
        """Whether a tile that is less than `at` in argument `i` alone is known to hold less."""
        large = self._candidates[at]
        below = (
            small
            for other, small in self._candidates.items()
            if other[i] < at[i] and other[:i] == at[:i] and other[i + 1 :] == at[i + 1 :]
        )
        return isinstance(large, Candidate) and any(
            isinstance(small, Candidate)
            and small.tile_bits < large.tile_bits
            and small.func.attrs.get("threads") == large.func.attrs.get("threads")
            for small in below
        )

    def _candidate(self, at: Tile) -> Candidate | CompileError:
        found = self._candidates.get(at)
        if found is None:
            constants = dict(zip(self._open, at))
            try:
                found = self._prepared(self._trace(constants), constants)
            except CompileError as error:
                found = error.with_traceback(None)  # which holds all that had been made
            self._candidates[at] = found
        return found

    def _prepared(self, func: Func, constants: Mapping[str, int]) -> Candidate:
        # What stands in variables may say where copies come from.
        func = recognise_idioms(mem2reg(func, self._target), self._target)
        func = pad_tiles(split_tiles(func, self._target), self._target)
        func = as_taken(expand_sparse(func, self._target), self._target)
        return Candidate(func, self._target, constants)

    def _seen(self, found: Mapping[Tile, object]) -> list[Candidate]:
        made = (self._candidates.get(at) for at in found)
        return [c for c in made if isinstance(c, Candidate)]

    def _order(self, r: Ranked) -> float:
        """By which configurations are sorted."""
        e, speeds = r.estimate, self._target.speeds
        if e is None:
            return math.inf
        loading = e.l2_bytes / (self._target.multiprocessors * speeds.l2 * speeds.clock)
        return e.seconds * (LACKING if e.lacking else 1.0) + self._loading * loading

    def _nothing(self, found: Mapping[Tile, object]) -> Choice | None:
        """No combination can be ranked: its errors, if there is nothing else to say."""
        for at in found:
            candidate = self._candidates.get(at)
            if isinstance(candidate, CompileError):
                raise candidate
        candidates = self._seen(found)
        if self._open and candidates:
            return Choice(dict(candidates[0].constants), (), ())
        return None


def _others(found: Iterable[Ranked], chosen: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
    """The constants to try behind those that are chosen, best first: the next best, then such as
    have smaller fragments."""
    given = [chosen]
    most = math.inf
    least: dict[Tile, float] = {}
    for r in found:
        if r.plan is None or r.estimate is None or r.constants in given:
            continue
        first = least.setdefault(tuple(r.constants.values()), r.estimate.seconds)
        if r.estimate.seconds > NEAR * first:
            continue  # it is none of the plans that are tried
        held = r.estimate.registers * (r.plan.threads or 1)
        if held <= most:
            given.append(r.constants)
            yield r.constants
            most = LESS * held
        if len(given) == TILES:
            return


def _near(found: Iterable[Ranked], constants: Mapping[str, int]) -> list[Ranked]:
    """Of the configurations with these constants, those that take about as long as the best, which
    is first; no others that would spill as well."""
    rows = found.sorted_of(tuple(constants.values())) if isinstance(found, Tried) else found
    same = [(r.estimate, r) for r in rows if r.constants == constants and r.estimate]
    best = min((e.seconds for e, _ in same), default=0.0)
    return [r for e, r in same if e.seconds <= NEAR * best and (not e.lacking or e is same[0][0])]


def _pair_moves(at: Tile, lists: Sequence[Sequence[int]]) -> list[Tile]:
    """One argument up and another down, by a step or one of them by two; values exchanged."""
    moves = []
    for i, j in itertools.permutations(range(len(at)), 2):
        up = [v for v in lists[i] if v > at[i]]
        down = [v for v in reversed(lists[j]) if v < at[j]]
        steps = [*itertools.product(up[:1], down[:2]), *itertools.product(up[1:2], down[:1])]
        moves += [{i: x, j: y} for x, y in steps]
        if i < j and at[j] in lists[i] and at[i] in lists[j]:
            moves.append({i: at[j], j: at[i]})
    return [tuple(m.get(k, v) for k, v in enumerate(at)) for m in moves]
