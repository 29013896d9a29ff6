"""pair_halves: float16 arithmetic of what a thread holds side by side is done two at a time.

Before: LOWERED, code of threads that computes with float16 elements of `local` arrays, as in

    for k in T.serial(8): total[0] += A_local[k] * B_local[k]

After: loops over such elements are written out, what was stored in a local array is used where it
is loaded again, four bytes that are put together are one word, and two products (sums, differences,
fused ones) of neighbours are one op of a vector of two. GPUs compute two halves in one instruction
of 32 bits, if both lie in one register on each side: halves of a word, results of such an op, the
same constant twice, and what is stored as elements 2n and 2n + 1 of a local array. The order of
additions is what it was, and so is each number, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Substitution, Value, makers, upstream, walk
from tilec.ir.fold import Number, fold
from tilec.ir.types import FLOAT16, UINT16, UINT32, ScalarType
from tilec.passes.utils.building import iteration
from tilec.passes.utils.dce import sweep
from tilec.target import Target

MOST_WRITTEN = 16  # iterations
_PAIRED = ("add", "sub", "mul")


def pair_halves(func: Func, target: Target) -> Func:
    every = list(walk(func.body))
    arrays = {o.result for o in every if isinstance(o, ops.Alloc) and o.type.space == "local"}
    if not arrays or not any(_is_half(o) for o in every):
        return func
    numbers: dict[Value, Number] = dict(ops.constants(func.body))
    subst: Substitution = {}
    body = func.body.rewrite(Op, lambda o: _written_out(o, arrays, numbers, subst), subst)
    paired = _Straight(arrays, numbers).block(body)
    return func if paired is None else sweep(func.with_body(paired))


def _is_half(o: Op) -> bool:
    """Whether GPUs do two such ops at once."""
    kind = isinstance(o, ops.Fma) or (isinstance(o, ops.Binary) and o.kind in _PAIRED)
    return kind and o.result.type == ScalarType(FLOAT16)


# --- loops over elements --------------------------------------------------------------------------


def _written_out(
    o: Op, arrays: set[Value], numbers: dict[Value, Number], subst: Substitution
) -> None | list[Op]:
    """The iterations of a short loop that names elements of local arrays by its index."""
    if not isinstance(o, ops.For) or not _names_elements(o, arrays):
        return None
    indices = o.indices(numbers.get)
    if not indices or len(indices) > MOST_WRITTEN:
        return None
    b = Builder(o.loc)
    carried = o.inits
    for i in indices:
        at = b.const(i, o.lo.dtype)
        numbers[at] = i
        statements, carried = iteration(o, at, carried)
        b.ops += [_folded(x, numbers) for x in statements]
    subst.update(zip(o.results, carried))
    return b.ops


def _folded(o: Op, numbers: dict[Value, Number]) -> Op:
    known = fold(o, numbers.get) if o.pure and len(o.results) == 1 else None
    if known is None:
        return o
    numbers[o.result] = known
    return ops.Const(known, o.result.dtype, results=o.results, loc=o.loc)


def _names_elements(o: ops.For, arrays: set[Value]) -> bool:
    """Whether there are no regions in the loop, and its index selects elements of arrays."""
    moved = {o.body.args[0]}
    found = False
    for x in o.body.ops:
        if x.region_fields:
            return False
        if isinstance(x, ops.Load | ops.Store) and x.buffer in arrays:
            found = found or bool(moved & {*x.indices})
        elif x.pure and moved & {*x.operands}:
            moved.update(x.results)
    return found


# --- blocks without branches ----------------------------------------------------------------------


class _Straight:
    """The blocks of a function, one by one. `stored`: what elements of the local arrays are, as far
    as a block has come; `partner`: for a half the one that lies beside it, above it."""

    def __init__(self, arrays: set[Value], numbers: Mapping[Value, Number]) -> None:
        self.arrays = arrays
        self.numbers = numbers
        self.paired = False

    def block(self, block: Block) -> Block | None:
        """None where no two halves are paired."""
        subst: Substitution = {}
        done = self._block(block, subst)
        return done if self.paired else None

    def _block(self, block: Block, subst: Substitution) -> Block:
        stored: dict[tuple[Value, tuple[Number, ...]], Value] = {}
        partner: dict[Value, Value] = {}
        statements: list[Op] = []
        for o in block.ops:
            o = o.with_operands(subst)
            if isinstance(o, ops.Load | ops.Store) and o.buffer in self.arrays:
                place = self._place(o)
                if isinstance(o, ops.Load):
                    if place is not None and place in stored:
                        subst[o.result] = stored[place]
                        continue
                elif place is None:
                    _forget(stored, {o.dest})
                else:
                    stored[place] = o.value
                    *rest, last = place[1]
                    below = stored.get((o.dest, (*rest, last - 1)))
                    if last % 2 and below is not None:
                        partner[below] = o.value
            elif o.region_fields:
                o = o.with_regions(lambda region: self._block(region, subst))
                _forget(stored, {*o.uses})
            else:
                _forget(stored, {*o.operands} & self.arrays)
            statements.append(o)
        return replace(
            block, ops=tuple(self._pairs(_whole_words(statements, self.numbers), partner))
        )

    def _place(self, o: ops.Load | ops.Store) -> tuple[Value, tuple[Number, ...]] | None:
        """Which element it is; None where its index is not a number."""
        at = tuple(self.numbers[i] for i in o.indices if i in self.numbers)
        return (o.buffer, at) if len(at) == len(o.indices) else None

    def _pairs(self, statements: list[Op], partner: dict[Value, Value]) -> list[Op]:
        """The ops with pairs of halves as vectors, each where the first of the two stood."""
        halves = [o for o in statements if _is_half(o)]
        if len(halves) < 2:
            return statements
        made = makers(statements)
        words: dict[Value, Value] = {}  # of the lower half
        for low, high, word in _halves_of_words(statements, made, self.numbers):
            partner[low], words[low] = high, word
            found = _masked(made.get(word), made, self.numbers)
            if found is not None:
                made[word] = found
        masked = {*words.values()}
        statements = [made[o.result] if masked & {*o.results} else o for o in statements]
        by_operands = {_key(o, o.operands, self.numbers): o for o in reversed(halves)}
        vectors: dict[Value, Value] = {}
        out: list[Op] = []
        there: set[Value] = set()
        gone: set[Op] = set()

        def emit(o: Op) -> None:
            if o not in gone:
                gone.add(o)
                out.append(o)
                there.update(o.results)

        def vector(b: Builder, low: Value, high: Value) -> Value:
            if low not in vectors:
                if low in words:
                    vectors[low] = b.value(ops.Bitcast, words[low], FLOAT16)
                else:
                    vectors[low] = b.value(ops.Pack, (low, high))
            return vectors[low]

        for o in statements:
            if o in gone:
                continue
            other = self._other(o, partner, by_operands) if _is_half(o) else None
            before = None if other is None else _missing(other, made, there)
            if other is None or before is None or o in before or other in gone:
                emit(o)
                continue
            for x in before:
                emit(x)
            b = Builder(o.loc)
            given = [vector(b, x, y) for x, y in zip(o.operands, other.operands)]
            fields: dict[str, Any] = dict(zip(o.operand_fields, given))
            both = Value(given[0].type, o.result.name)
            b.ops.append(replace(o, results=(both,), **fields))
            for e, x in enumerate((o, other)):
                b.ops.append(ops.Extract(both, e, results=x.results, loc=x.loc))
                gone.add(x)
            partner[o.result], vectors[o.result] = other.result, both
            for x in b.ops:
                emit(x)
            self.paired = True
        return out

    def _other(
        self, o: Op, partner: Mapping[Value, Value], by_operands: Mapping[Any, Op]
    ) -> Op | None:
        """The op of the halves above those of `o`."""
        above = [v if v in self.numbers else partner.get(v) for v in o.operands]
        if None in above or all(v in self.numbers for v in o.operands):
            return None
        return by_operands.get(_key(o, above, self.numbers))


def _forget(stored: dict[Any, Value], changed: set[Value]) -> None:
    for place in [p for p in stored if p[0] in changed]:
        del stored[place]


def _key(o: Op, operands: Any, numbers: Mapping[Value, Number]) -> Any:
    kind = o.kind if isinstance(o, ops.Binary) else ""
    return type(o), kind, *(repr(numbers[v]) if v in numbers else v for v in operands)


def _missing(o: Op, made: Mapping[Value, Op], there: set[Value]) -> list[Op] | None:
    """The ops that must still be put in front of `o`, without it; None if one of them acts."""
    found = [x for x in upstream((o.result,), made, there) if x is not o]
    return found if all(x.pure for x in found) else None


def _halves_of_words(
    statements: list[Op], made: Mapping[Value, Op], numbers: Mapping[Value, Number]
) -> list[tuple[Value, Value, Value]]:
    """(lower half, upper half, word) of the words that are taken for two float16."""
    low: dict[Value, Value] = {}
    high: dict[Value, Value] = {}
    for o in statements:
        if not isinstance(o, ops.Bitcast) or o.result.type != ScalarType(FLOAT16):
            continue
        cut = made.get(o.operand)
        if not isinstance(cut, ops.Cast) or cut.dtype != UINT16 or cut.operand.dtype != UINT32:
            continue
        low[cut.operand] = o.result
        shift = made.get(cut.operand)
        if isinstance(shift, ops.Binary) and shift.kind == "shr" and numbers.get(shift.rhs) == 16:
            high[shift.lhs] = o.result
    return [(low[word], high[word], word) for word in low if word in high]


def _masked(o: Op | None, made: Mapping[Value, Op], numbers: Mapping[Value, Number]) -> Op | None:
    """(x & mask) | bits, of numbers, as one op."""
    match o:
        case ops.Binary(kind="or", lhs=lhs, rhs=bits) if bits in numbers:
            inner = made.get(lhs)
            if isinstance(inner, ops.Binary) and inner.kind == "and" and inner.rhs in numbers:
                mask, added = int(numbers[inner.rhs]), int(numbers[bits])
                return ops.AndOr(inner.lhs, mask, added, results=o.results, loc=o.loc)
    return None


# --- words made of bytes --------------------------------------------------------------------------


def _whole_words(statements: list[Op], numbers: Mapping[Value, Number]) -> list[Op]:
    """Four bytes, shifted and put together, are the bits of a vector: so LLVM sees one load."""
    made = makers(statements)
    out: list[Op] = []
    for o in statements:
        parts = _bytes_of(o.result, made, numbers) if isinstance(o, ops.Binary) else {}
        if sorted(parts) != [0, 8, 16, 24]:
            out.append(o)
            continue
        b = Builder(o.loc)
        packed = b.value(ops.Pack, tuple(parts[k] for k in sorted(parts)))
        out += [*b.ops, ops.Bitcast(packed, UINT32, results=o.results, loc=o.loc)]
    return out


def _bytes_of(
    v: Value, made: Mapping[Value, Op], numbers: Mapping[Value, Number], by: int = 0
) -> dict[int, Value]:
    """The bytes that are put together as the u32 `v`, by the bit they are shifted to; none if it is
    anything else."""
    o = made.get(v)
    match o:
        case ops.Binary(kind="or", lhs=lhs, rhs=rhs) if v.dtype == UINT32:
            left, right = (_bytes_of(x, made, numbers, by) for x in (lhs, rhs))
            return {} if not left or not right or {*left} & {*right} else {**left, **right}
        case ops.Binary(kind="shl", lhs=lhs, rhs=rhs) if rhs in numbers and v.dtype == UINT32:
            return _bytes_of(lhs, made, numbers, by + int(numbers[rhs]))
        case ops.Cast(operand=byte) if byte.dtype.kind == "uint" and byte.dtype.bits == 8:
            return {by: byte}
    return {}
