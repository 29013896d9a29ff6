"""What an access to memory in a parallel loop allows: how wide it may be, and which tests it
needs."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tilec.ir import ops
from tilec.ir.affine import Affine
from tilec.ir.analysis import facts_of
from tilec.ir.builder import Builder
from tilec.ir.copy_engines import alignment, gcd2, innermost_contiguous
from tilec.ir.core import Func, Op, Substitution, Value, walk
from tilec.ir.effects import changing_tensors
from tilec.ir.instr.memory import RED_WIDTHS
from tilec.ir.intervals import low_bit
from tilec.ir.layout import has_runs
from tilec.ir.neighbours import Neighbours, holds_between, run_of
from tilec.ir.types import BufferType
from tilec.passes.check_registers import is_roomy
from tilec.passes.utils.addressing import Tensors, clone_expression
from tilec.target import Target

MAX_VECTOR_BYTES = 16
MOST_APART = 8
"""Elements between neighbours of a loop that may make vectors with what is between them."""


@dataclass(frozen=True)
class VectorAccess:
    """One access to memory in a parallel loop: the widest vector it may use, the tests it needs,
    the bytes that divide its place, where that is not what its width says, whether rows end between
    two such vectors, and how many neighbours have one element."""

    width: int
    checks: tuple[
        tuple[int, bool, bool], ...
    ]  # (dimension, below zero possible, past the end possible)
    bytes: int = 0
    whole: bool = False
    per: int = 1


class MemoryFacts:
    """Facts about one function that decide how its elements are accessed. `blocks`: an index of a
    block is known to be below the grid's extent. (Where products leave few registers it had better
    not be: what is loaded without a test leaves its loop, and takes a register there.)"""

    def __init__(self, func: Func, target: Target | None = None) -> None:
        self.func = func
        self.blocks = not func.body.has(ops.Gemm)
        if func.body.has(ops.Mma, ops.Wgmma):
            self.blocks = is_roomy(func)
        self.facts = facts_of(func)
        self.tensors = Tensors(func)
        self.red_vector = target is not None and target.has("red_vector")
        self._neighbours: dict[tuple[Value, int], Neighbours] = {}

    @functools.cached_property
    def used(self) -> frozenset[Value]:
        """The values that something asks for."""
        return frozenset(v for o in walk(self.func.body) for v in o.operands)

    @functools.cached_property
    def written(self) -> set[Value]:
        """The tensors that may change while the kernel runs."""
        return changing_tensors(self.func)

    def adds_vectors(self, o: ops.Atomic) -> bool:
        """Whether one instruction may do what `o` does for neighbours."""
        t = o.dest.buffer
        plain = o.kind == "add" and t.space == "global" and t.dtype in RED_WIDTHS
        return self.red_vector and plain and o.result not in self.used

    def moves(self, v: Value, arg: Value) -> bool:
        """Whether `v` changes with `arg`."""
        return self.facts.slope(v, arg) != 0

    def one_branch(self, o: Op, arg: Value | None) -> bool:
        """Whether vectors of neighbours along `arg` may take a branch of `o` together: where its
        condition, the same for all or made of comparisons, holds for all of them."""
        return (
            isinstance(o, ops.If)
            and not o.results
            and (arg is None or holds_between(self.facts, o.cond, arg))
            and not any(x.regions for region in o.regions for x in region.ops)
        )

    def together(self, o: Op, arg: Value | None, width: int) -> bool:
        """Whether vectors of `width` neighbours along `arg` may run a loop, and the loops and
        branches in it, together."""
        same = arg is None or all(self._agree(v, arg, width) for v in ops.decides(o))
        if not same or not isinstance(o, ops.For | ops.If):
            return self.one_branch(o, arg)
        inside = (x for region in o.regions for x in region.ops if x.regions)
        return all(self.together(x, arg, width) for x in inside)

    def _agree(self, v: Value, arg: Value, width: int) -> bool:
        """Whether `v` is the same for all of so many neighbours."""
        return not self.moves(v, arg) or self.neighbours(arg, width).same(v)

    def memory(self, o: ops.ElementAccess, arg: Value | None, limit: int) -> VectorAccess:
        """What is known of an access; `arg` is the loop index along which registers are
        neighbours."""
        buffer = o.buffer
        t = buffer.buffer
        width, whole = 1, False
        if arg is not None and limit > 1:
            width = min(limit, MAX_VECTOR_BYTES * 8 // t.dtype.bits)
            others = any(self.moves(v, arg) for v in o.indices[:-1])
            if self.facts.slope(o.indices[-1], arg) != 1 or others:
                width = self._side_by_side(o, arg, width)
            else:
                start = self.facts.form(o.indices[-1]).without(arg)
                width = gcd2(width, start.divisor(self.facts.divisor))
            width, whole = self._vector(o, width), True
        return self._access(o, width, whole)

    def _access(self, o: ops.ElementAccess, width: int, whole: bool, per: int = 1) -> VectorAccess:
        t = o.buffer.buffer
        if t.space != "global":
            return VectorAccess(width, (), per=per)
        whole = whole and self.facts.size_divisor(t.shape[-1]) % width == 0
        return VectorAccess(width, self.checks(o, t), whole=whole, per=per)

    def packed(self, o: ops.ElementAccess, arg: Value | None, limit: int) -> VectorAccess | None:
        """The vector that `limit` neighbours along `arg` load together where several of them are
        parts of one element, as nibbles are of words (`W[i, j // 8]`); None if there is none."""
        if (
            arg is None
            or not isinstance(o, ops.Load)
            or any(self.moves(v, arg) for v in o.indices[:-1])
        ):
            return None
        run = run_of(self.facts, o.indices[-1], (arg,))
        if run is None or run.per == 1 or limit % run.per:
            return None
        start = run.start.divisor(self.facts.divisor)
        width = self._vector(o, gcd2(limit // run.per, start))
        return self._access(o, width, True, run.per) if width > 1 else None

    def _vector(self, o: ops.ElementAccess, most: int) -> int:
        """How many elements one access takes, of so many that lie side by side."""
        t = o.buffer.buffer
        width = min(most, MAX_VECTOR_BYTES * 8 // t.dtype.bits)
        if width > 1 and t.space == "global":
            known = alignment(t) * 8 // t.dtype.bits if innermost_contiguous(t) else 1
            width = min(width, max(known, 1))
        while width > 1 and t.layout is not None and not has_runs(t.layout, width):
            width //= 2
        return width

    def stride(self, o: ops.ElementAccess, arg: Value | None) -> int:
        """How far apart neighbours along `arg` are in memory, where they are `MOST_APART` at most;
        1 where they lie side by side, where there is no such number, and on chip."""
        t = o.buffer.buffer
        if arg is None or t.space != "global" or not innermost_contiguous(t):
            return 1
        if any(self.moves(v, arg) for v in o.indices[:-1]):
            return 1
        slope = self.facts.slope(o.indices[-1], arg)
        return slope if slope is not None and 1 < slope <= MOST_APART else 1

    def _unit(self, o: ops.ElementAccess, arg: Value) -> int:
        """Elements, up to a vector, that divide the place of the first of many neighbours, but for
        the number that its index adds."""
        t = o.buffer.buffer
        rest = Affine(0, self.facts.form(o.indices[-1]).without(arg).terms)
        most = min(MAX_VECTOR_BYTES, alignment(t)) * 8 // t.dtype.bits
        return gcd2(max(most, 1), rest.divisor(self.facts.divisor) if rest.terms else most)

    def apart(self, o: ops.ElementAccess, arg: Value | None, limit: int) -> int:
        """How many neighbours along `arg` fill vectors together with others of the same stride, as
        `A[2 * i]` and `A[2 * i + 1]` do; 1 where they do not."""
        stride = self.stride(o, arg)
        if arg is None or stride == 1:
            return 1
        return max(1, min(limit, self._unit(o, arg) // low_bit(stride)))

    def of_byte(self, o: ops.ElementAccess, arg: Value | None, limit: int) -> int:
        """2 where two neighbours along `arg` are parts of one byte of shared memory."""
        t = o.buffer.buffer
        narrow = isinstance(o, ops.Load) and t.space == "shared" and t.dtype.bits == 8
        if arg is None or limit < 2 or not narrow or not any(self.moves(v, arg) for v in o.indices):
            return 1
        return 2 if all(map(self.neighbours(arg, 2).same, o.indices)) else 1

    def aligned(self, o: ops.ElementAccess, arg: Value, width: int, number: int) -> int:
        """The bytes that divide the place of the access of neighbour `number` of `width`, at some
        stride from each other."""
        stride = self.stride(o, arg)
        start = gcd2(self._unit(o, arg), stride * width)
        at = gcd2(start, self.facts.form(o.indices[-1]).const + stride * number)
        return max(1, at * o.buffer.dtype.bits // 8)

    def _side_by_side(self, o: ops.ElementAccess, arg: Value, most: int) -> int:
        """How many neighbours along `arg` are elements that lie side by side, though that is not
        so of all iterations."""
        while most > 1:
            near = self.neighbours(arg, most)
            if near.counts_up(o.indices[-1]) and all(map(near.same, o.indices[:-1])):
                break
            most //= 2
        return most

    def neighbours(self, arg: Value, width: int) -> Neighbours:
        """What is known within so many neighbours along a loop's index."""
        found = self._neighbours.get((arg, width))
        if found is None:
            found = Neighbours(self.facts, self.written, arg, width)
            self._neighbours[arg, width] = found
        return found

    def needs(self, p: ops.Parallel) -> list[Need]:
        """The tests that a loop's accesses need, none if it is known to lie inside."""
        if p.inside:
            return []
        return [
            (o, check)
            for o in walk(p.body)
            if isinstance(o, ops.ElementAccess) and in_memory(o)
            for check in self.memory(o, None, 1).checks
        ]

    def checks(self, o: ops.ElementAccess, t: BufferType) -> tuple[tuple[int, bool, bool], ...]:
        """The dimensions whose index is not proved to lie inside, and on which side it may not."""
        found = []
        for d, (index, extent) in enumerate(zip(o.indices, t.shape)):
            # A run-time extent may be 0: then even index 0 is not inside.
            above, below = self.facts.inside(index, extent, self.blocks)
            if not (above and below):
                found.append((d, not above, not below))
        return tuple(found)

    def inside_at_corners(
        self,
        b: Builder,
        p: ops.Parallel,
        inner: dict[Value, Op],
        at: Substitution,
        left: set[tuple[Op, int]] | None = None,
    ) -> list[Value] | None:
        """Whether all accesses of a loop lie inside their tensors: conditions, tested at the tile's
        corners; None if that cannot be told. Values of `inner` are computed anew, with those of
        `at` in their place. `left`: gets the accesses, and their dimensions, of which no corner
        tells, where it tells of some accesses all."""
        conds: list[Value] = []
        done: set[tuple[object, ...]] = set()
        first: Substitution = {**at, **{a: b.const(0) for a in p.body.args}}
        last: Substitution = {**at, **{a: b.const(e - 1) for a, e in zip(p.body.args, p.extents)}}
        needs = self.needs(p)
        untold = {(o, d) for o, (d, _, _) in needs if not self._is_told(o.indices[d], p)}
        if untold and (left is None or {o for o, _ in needs} == {o for o, _ in untold}):
            return None
        left = set() if left is None else left
        left |= untold
        for o, (d, low, high) in needs:
            index, extent = o.indices[d], o.buffer.buffer.shape[d]
            if (o, d) in left:
                continue
            if (key := (index, extent, low, high)) in done:
                continue
            done.add(key)
            if high:
                if (most := clone_expression(b, index, inner, last)) is None:
                    return None
                end = self.tensors.number(b, extent, most.dtype)
                conds.append(b.compare("lt", most, end))
                if low:  # one that wraps around between the corners ends below 0
                    conds.append(b.compare("ge", most, 0))
            if low:
                if (least := clone_expression(b, index, inner, first)) is None:
                    return None
                conds.append(b.compare("ge", least, 0))
        return conds

    def _is_told(self, index: Value, p: ops.Parallel) -> bool:
        """Whether an index is least at a loop's first iteration, and largest at the last one."""
        slopes = [self.facts.slope(index, a) for a in p.body.args]
        return all(slope is not None and slope >= 0 for slope in slopes)


Need = tuple[ops.ElementAccess, tuple[int, bool, bool]]


def in_memory(o: Op) -> bool:
    """Whether `o` loads or stores an element of shared or global memory."""
    buffer = o.buffer if isinstance(o, ops.ElementAccess) else None
    return buffer is not None and buffer.space in ("global", "shared")


# --- choices between a loaded element and 0, which are made by not loading it ---


class Mask(NamedTuple):
    """A loaded element that counts as 0 but where all of `conds` hold."""

    load: ops.Load
    conds: tuple[Value, ...]


def masked_loads(statements: Sequence[Op], known: MemoryFacts) -> dict[ops.Select, Mask]:
    """The choices between an element of a tensor, which nothing else uses, and what is there out of
    its bounds (0), on conditions that are known before the element is loaded. What its bounds ask
    for is none of them."""
    made: dict[Value, Op] = {}
    places: dict[Value, int] = {}
    uses: dict[Value, int] = {}
    for n, o in enumerate(statements):
        made |= dict.fromkeys(o.results, o)
        places |= dict.fromkeys(o.results, n)
        for v in o.uses:
            uses[v] = uses.get(v, 0) + 1
    found: dict[ops.Select, Mask] = {}
    for o in statements:
        load = made.get(o.on_true) if isinstance(o, ops.Select) else None
        if not isinstance(o, ops.Select) or not isinstance(load, ops.Load):
            continue
        other = made.get(o.on_false) or known.tensors.constants.get(o.on_false)
        zero = isinstance(other, ops.Const) and other.value == 0 and str(other.value)[0] != "-"
        if not zero or load.source.space != "global" or uses[load.result] > 1:
            continue
        asked_before = places.get(o.cond, -1) < places[load.result]
        if asked_before and load.source not in known.tensors.safe:
            conds = (
                c for c in conjuncts(o.cond, made) if not asks_inside(made.get(c), load, known)
            )
            found[o] = Mask(load, tuple(conds))
    return found


def conjuncts(cond: Value, made: Mapping[Value, Op]) -> Iterator[Value]:
    """The conditions that are met together where `cond` is, by the ops that made them."""
    left = [cond]
    while left:
        v = left.pop()
        o = made.get(v)
        if isinstance(o, ops.Binary) and o.kind == "and":
            left += [o.rhs, o.lhs]
        else:
            yield v


def asks_inside(o: Op | None, access: ops.ElementAccess, known: MemoryFacts) -> bool:
    """Whether a condition says that an index of an access lies inside of its tensor, on one
    side."""
    return any(sides_asked(o, access, known))


def sides_asked(
    o: Op | None, access: ops.ElementAccess, known: MemoryFacts
) -> Iterator[tuple[int, bool]]:
    """The dimensions in which a condition says that an access lies inside of its tensor, with
    whether that is from below."""
    match o:
        case (
            ops.Compare(kind="lt", lhs=index, rhs=bound)
            | ops.Compare(kind="gt", lhs=bound, rhs=index)
        ):
            low = False
        case (
            ops.Compare(kind="ge", lhs=index, rhs=bound)
            | ops.Compare(kind="le", lhs=bound, rhs=index)
        ):
            low = True
        case _:
            return
    if not index.dtype.is_int:
        return
    form, number = known.facts.form(index), known.facts.constant(bound)
    for d, (own, extent) in enumerate(zip(access.indices, access.buffer.buffer.shape)):
        if own is index or known.facts.form(own) == form:
            size = number if isinstance(extent, int) else known.tensors.named[extent]
            if number == 0 if low else bound is size or number == extent:
                yield d, low
