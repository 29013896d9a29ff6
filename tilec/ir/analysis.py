"""What is known of scalar values before a kernel runs: their ranges and divisors.

`Facts` is an interval and power-of-two analysis in one pass over the function, for guards, vector
widths and unsigned division; asked for it, it says which sums values are (`tilec.ir.affine`).
How values go with an index is asked of `tilec.ir.neighbours`, over which group of threads they are
the same of `tilec.ir.uniformity`.

Integer ops wrap, and a wrapped value obeys no interval. So a bound is an int only where it is
proved, wrapping included: a value read from memory has its dtype's range, and an op that may leave
its dtype's range has that range too. Indices are the exception. Sizes, block indices and what is
computed from them have no upper bound here, written None, and are taken not to overflow: their
dtype is chosen so that no index does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

from tilec.ir import ops
from tilec.ir.affine import LINEAR, Affine, Forms, Origins
from tilec.ir.core import Block, Func, Op, Param, Value, upstream
from tilec.ir.intervals import MOST, RANGES, Range, add, decide, dtype_range, low_bit, negate, union
from tilec.ir.types import BufferType, Extent, ScalarType

_BLOCK_THREADS = 1024
_MOST = {ops.Lane: 64, ops.Warp: _BLOCK_THREADS // 32, ops.ClusterIndex: 8}  # of any target
_MOST_CONJUNCTS = 16


class Facts(Forms):
    """Ranges, divisors and linear forms of every integer scalar of `func`, as it stands now.

    Blocks count from 0 and, where the grid's extents are known, below them; sizes are at least 0, a
    loop index lies between its bounds, a dynamic stride is a multiple of what its tensor's `align`
    promises. Where a branch computes something, its condition holds; `anywhere`: or not.
    """

    def __init__(self, func: Func, anywhere: bool = False) -> None:
        super().__init__()
        self._anywhere = anywhere
        self._multiples: dict[Value, int] = {}
        self.assumed: list[tuple[Affine, Range]] = []  # sums, and where the author says they lie
        self._ranges: dict[Value, Range] = {}
        self._divisors: dict[Value, int] = {}
        self._grid: tuple[Value, ...] = ()
        self._defined = {**func.grid.defs, **func.body.defs}
        self._blocks: dict[int, Value] = {}
        self._stops: dict[Value, Value] = {}  # of loops, by their indices
        self._func = func
        threads = func.attrs.get("threads")
        self._threads = threads if isinstance(threads, int) and threads > 0 else _BLOCK_THREADS
        self._sizes = {p.value.name: p.value for p in func.params}
        self._home, self._top = _homes(func), func.body
        for p in func.params:
            self._param(func, p)
        for o in func.body.ops:
            if isinstance(o, ops.Assume) and {*self.form(o.lhs).terms} <= {*self._sizes.values()}:
                self._assume(o, func.body)  # the grid is made of such
        self._block(func.grid)
        # A persistent kernel is launched with as many blocks as run at once.
        self._grid = () if func.attrs.get("persistent") else ops.yielded(func.grid)
        self._block(func.body)

    def range(self, value: Value) -> Range:
        """(lo, hi), both included; None where there is no bound (see the module's opening)."""
        found = self._ranges.get(value)
        if found is not None:
            return found
        return dtype_range(value.dtype) if value.is_integer else (None, None)

    def divisor(self, value: Value) -> int:
        """Largest power of two known to divide `value` (`MOST` for zero)."""
        return self._divisors.get(value, 1)

    def size_divisor(self, extent: Extent) -> int:
        """Largest power of two known to divide an extent of a tensor."""
        return low_bit(extent) if isinstance(extent, int) else self.divisor(self._sizes[extent])

    @property
    def sizes(self) -> list[Value]:
        """The extents that tensors have at run time."""
        return [p.value for p in self._func.params if p.role == "size"]

    def constant(self, value: Value) -> int | None:
        """The one value it can have."""
        lo, hi = self.range(value)
        return lo if lo == hi else None

    def made_by(self, value: Value) -> Op | None:
        """The op whose result it is."""
        return self._defined.get(value)

    def non_negative(self, value: Value) -> bool:
        """Whether a signed division of it may be made unsigned."""
        lo = self.range(value)[0]
        return lo is not None and lo >= 0

    def below(self, value: Value, bound: int) -> bool:
        """Whether 0 <= value < bound always."""
        hi = self.range(value)[1]
        return self.non_negative(value) and hi is not None and hi < bound

    def inside(self, index: Value, extent: Extent, blocks: bool = False) -> tuple[bool, bool]:
        """Whether an index of a tensor is known to be at least 0, and to be less than an extent.
        `blocks`: also because the index of a block is less than the grid's extent."""
        lo, hi = self.range(index)
        above = lo is not None and lo >= 0
        below = isinstance(extent, int) and hi is not None and hi < extent
        if self.assumed and not (above and below):
            form = self.form(index)
            least = self.reach(form)[0]
            above = above or (least is not None and least >= 0)
            size = Affine(extent) if isinstance(extent, int) else self.form(self._sizes[extent])
            most = self.reach(form - size)[1]
            below = below or (most is not None and most < 0)
        if not above and self._stops:
            least = self.reach(self._at_ends(self.form(index), -1, self._stops))[0]
            above = least is not None and least >= 0
        if not below and not isinstance(extent, int):
            stops = self._stops | self._last_blocks() if blocks else self._stops
            end = self._at_ends(self.form(index), 1, stops) - self.form(self._sizes[extent])
            most = self.reach(end)[1]
            below = most is not None and most < 0
        return above, below

    def _last_blocks(self) -> dict[Value, Value]:
        return {self._blocks[d]: e for d, e in enumerate(self._grid) if d in self._blocks}

    def _at_ends(self, a: Affine, sign: int, stops: Mapping[Value, Value]) -> Affine:
        """A sum where the indices that it grows with (`sign` 1), or falls with (-1), are the last
        ones before their `stops`: n - 1 - i, of i below n, is 0 there."""
        for v, c in a.terms.items():
            if c * sign > 0 and v in stops:
                last = self.form(stops[v]) + Affine(-1)
                a = a + (last - Affine.of(v)).scaled(c)
        return a

    def reach(self, a: Affine) -> Range:
        """As of `Forms`; what the author says of a part of the sum counts, too."""
        lo, hi = super().reach(a)
        for form, (least, most) in self.assumed:
            for sign in (1, -1):
                rest = a - form.scaled(sign)
                if len(rest.terms) < len(a.terms):
                    low, high = super().reach(rest)
                    ends = (least, most) if sign == 1 else negate((least, most))
                    lo, hi = _narrowed((lo, hi), RANGES["add"]((low, high), ends))
        return lo, hi

    # --- linear forms -----------------------------------------------------------------------------

    @functools.cached_property
    def origins(self) -> Origins:
        """The indices of blocks and loops that values are computed from."""
        return Origins(self._func)

    @functools.cached_property
    def _linear(self) -> dict[Value, Op]:
        return {v: o for v, o in self._defined.items() if isinstance(o, LINEAR)}

    def form(self, value: Value) -> Affine:
        """The sum that an integer is; the same index of a block is the same unknown."""
        if value not in self._forms and value in self._linear:
            for o in upstream((value,), self._linear, self._forms):
                self.note(o)
        known = self.constant(value)
        return super().form(value) if known is None else Affine(known)

    def slope(self, value: Value, index: Value) -> int | None:
        """How much `value` grows from one iteration to the next of the loop whose index is
        `index`; None where that is not the same for all of them."""
        form = self.form(value)
        if any(v is not index and index in self.origins.of(v) for v in form.terms):
            return None
        return form.terms.get(index, 0)

    def rounding_up(self, o: Op) -> Op | None:
        """The division that `x // y + (x % y != 0)` is but for the rounding."""
        match o:
            case ops.Binary(kind="add", lhs=whole, rhs=more):
                match self._defined.get(whole), self._defined.get(more):
                    case ops.Binary(kind="floordiv") as division, ops.Cast(operand=flag):
                        match self._defined.get(flag):
                            case ops.Compare(kind="ne", lhs=rest):
                                left = self._defined.get(rest)
                                if isinstance(left, ops.Binary) and left.kind == "mod":
                                    same = left.operands == division.operands
                                    return division if same else None
        return None

    # --- one pass in textual order ----------------------------------------------------------------

    def _set(self, value: Value, found: Range, divisor: int = 1) -> None:
        t = value.type
        if type(t) is not ScalarType or not t.dtype.is_int:
            return
        limits = t.dtype.limits
        lo, hi = found
        if (lo is not None and lo < limits[0]) or (hi is not None and hi > limits[1]):
            found = limits  # it may wrap
        elif lo is None and t.dtype.kind != "int":
            found = limits  # below zero an unsigned value wraps
        self._ranges[value] = found
        if found[0] is not None and found[0] == found[1]:
            divisor = low_bit(found[0])
        self._divisors[value] = divisor if divisor < MOST else MOST

    def _param(self, func: Func, p: Param) -> None:
        if p.role in ("size", "elements"):
            multiples = dict(func.attrs.get("multiples", ()))
            self._set(p.value, (0, None), multiples.get(p.value.name, 1))
        elif p.role == "stride":
            divisor = 1
            for q in func.params:
                if q.role == "tensor" and q.arg == p.arg and isinstance(q.value.type, BufferType):
                    t = q.value.type
                    divisor = low_bit(max(t.align * 8 // t.dtype.bits, 1))
            self._set(p.value, (None, None), divisor)

    def _block(self, block: Block) -> None:
        for o in block.ops:
            if isinstance(o, ops.Assume):
                self._assume(o, block)
            if not o.region_fields:
                if len(o.results) == 1 and o.results[0].is_integer:
                    self._op(o, o.results[0])
                continue
            match o:
                case ops.For():
                    self._index(o)
                    self._carried(o)
                case ops.While():
                    self._carried(o)
                case ops.Parallel():
                    for arg, extent in zip(o.body.args, o.extents):
                        self._set(arg, (0, max(extent - 1, 0)))
            if not isinstance(o, ops.If):
                for region in o.regions:
                    self._block(region)
            else:
                self._where(o.cond, True, o.then)
                self._where(o.cond, False, o.orelse)
                for (a, b), (r,) in ops.handed_on(o):
                    self._either(r, a, b)

    def _where(self, cond: Value, holds: bool, block: Block) -> None:
        """What `block` computes where a condition holds, or does not: of what is compared it has
        those numbers alone for which it runs."""
        before: dict[Value, Range] = {}
        forms = len(self._forms)
        for o in () if self._anywhere else self._conjuncts(cond, holds):
            bounds = _BOUNDS.get(o.kind if holds else ops.NEGATED[o.kind])
            if bounds is None or not o.lhs.is_integer:
                continue
            left = RANGES["add"](self.range(o.rhs), bounds)
            right = RANGES["sub"](self.range(o.lhs), bounds)
            for v, found in ((o.lhs, left), (o.rhs, right)):
                narrow = _narrowed(self.range(v), found)
                if narrow != self.range(v) and narrow[0] != narrow[1]:
                    before.setdefault(v, self.range(v))
                    self._ranges[v] = narrow
        self._block(block)
        self._ranges |= before
        if before and len(self._forms) > forms:
            self._forms.clear()  # some may hold in the block alone

    def _conjuncts(self, cond: Value, holds: bool) -> list[ops.Compare]:
        """The comparisons that all hold, or do not, where `cond` does; of many the last ones."""
        found, left = list[ops.Compare](), [cond]
        while left and len(found) < _MOST_CONJUNCTS:
            match self._defined.get(left.pop()):
                case ops.Compare() as o:
                    found.append(o)
                case ops.Binary(kind=kind) as o if kind == ("and" if holds else "or"):
                    left += o.operands
        return found

    def _assume(self, o: ops.Assume, block: Block) -> None:
        """Where the statements of `block` run this holds, and so wherever something is used that is
        defined there. Of what is defined outside it may say what holds there only."""
        sum_of = self.form(o.lhs) - (Affine() if o.kind == "multiple" else self.form(o.rhs))
        if not any(self._home.get(v) is block for v in sum_of.terms) and block is not self._top:
            return
        single = next(iter(sum_of.terms.items())) if len(sum_of.terms) == 1 else None
        if o.kind == "multiple":
            by = self.form(o.rhs).constant
            if single is not None and single[1] == 1 and sum_of.const == 0 and by:
                v = single[0]
                self._divisors[v] = max(self.divisor(v), min(low_bit(by), MOST))
                self._multiples[v] = math.lcm(self._multiples.get(v, 1), by)
            return
        if o.kind not in _BOUNDS or not sum_of.terms:
            return
        least, most = _BOUNDS[o.kind]
        least, most = add(least, -sum_of.const), add(most, -sum_of.const)
        self.assumed.append((Affine(0, sum_of.terms), (least, most)))
        if single is not None and abs(single[1]) == 1:
            v, sign = single
            found = (least, most) if sign == 1 else negate((least, most))
            self._ranges[v] = _narrowed(self.range(v), found)

    def _whole_blocks(self, block: Affine, count: Value) -> None:
        """Blocks of a dimension of which there are as many as parts of a number that they divide
        begin so much before its end."""
        o = self._defined.get(count)
        o = None if o is None else self.rounding_up(o) or o
        if not isinstance(o, ops.Binary) or o.kind != "floordiv":
            return
        whole, by = self.form(o.lhs), self.form(o.rhs).constant
        if by and whole.const % by == by - 1:  # (n + by - 1) // by
            whole = Affine(whole.const - (by - 1), whole.terms)
        single = next(iter(whole.terms.items())) if len(whole.terms) == 1 else None
        if single is None or not by or whole.const:
            return
        if single[1] * self._multiples.get(single[0], 1) % by == 0:
            self.assumed.append((block.scaled(by) - whole, (None, -by)))

    def _index(self, o: ops.For) -> None:
        (lo, lo_most), (_, hi), step = self.range(o.lo), self.range(o.hi), self.range(o.step)[0]
        if step is None or step < 0:
            self._set(o.body.args[0], (None, None))
            return
        self._stops[o.body.args[0]] = o.hi
        last = add(hi, -1)
        exact = self.constant(o.step)
        if last is not None and lo is not None and lo == lo_most and exact:
            last = max(lo + (last - lo) // exact * exact, lo)
        self._set(o.body.args[0], (lo, last), min(self.divisor(o.lo), self.divisor(o.step)))

    def _carried(self, o: ops.For | ops.While) -> None:
        """Carried values that are only ever advanced by steps known before the loop."""
        for (init, after), holders in ops.handed_on(o):
            step = self._advance(after, {*holders}, 16)
            if not init.is_integer or step is None:
                continue
            grows, divisor = step
            found: Range = (self.range(init)[0], None) if grows else (None, None)
            for v in holders:
                self._set(v, found, min(divisor, self.divisor(init)))

    def _advance(self, value: Value, args: set[Value], depth: int) -> tuple[bool, int] | None:
        """Whether `value` is never below the carried value (one of `args`), and what divides their
        difference; None if that cannot be told."""
        if value in args:
            return True, MOST
        match self._defined.get(value) if depth else None:
            case ops.Binary(kind="add" | "sub" as kind, lhs=lhs, rhs=rhs):
                before = self._advance(lhs, args, depth - 1)
                by = rhs
                if before is None and kind == "add":
                    before, by = self._advance(rhs, args, depth - 1), lhs
                step = self._known(by)
                if before is None or step is None:
                    return None
                lo, hi, divisor = step
                up = lo is not None and lo >= 0 if kind == "add" else hi is not None and hi <= 0
                return before[0] and up, min(before[1], divisor)
            case ops.Select(on_true=a, on_false=b):
                pair = a, b
            case ops.If() as branch:
                n = branch.results.index(value)
                pair = ops.yielded(branch.then)[n], ops.yielded(branch.orelse)[n]
            case _:
                return None
        first, second = (self._advance(v, args, depth - 1) for v in pair)
        if first is None or second is None:
            return None
        return first[0] and second[0], min(first[1], second[1])

    def _known(self, value: Value) -> tuple[int | None, int | None, int] | None:
        """(lo, hi, divisor) of a constant or of a value already visited."""
        o = self._defined.get(value)
        if isinstance(o, ops.Const) and isinstance(o.value, int):
            return o.value, o.value, low_bit(o.value)
        known = self._ranges.get(value)
        return None if known is None else (*known, self.divisor(value))

    def _op(self, o: Op, result: Value) -> None:
        match o:
            case ops.Const(value=int() as n):
                self._set(result, (int(n), int(n)))
            case ops.Binary():
                self._binary(o, result)
            case ops.Unary(kind="neg", operand=x):
                self._set(result, negate(self.range(x)), self.divisor(x))
            case ops.Unary(kind="abs", operand=x):
                lo, hi = self.range(x)
                top = None if lo is None or hi is None else max(abs(lo), abs(hi))
                self._set(result, (0, top), self.divisor(x))
            case ops.Unary(kind="popcount" | "clz" | "ctz"):
                self._set(result, (0, result.dtype.bits))
            case ops.Select(on_true=a, on_false=b):
                self._either(result, a, b)
            case ops.Cast(operand=x) if x.is_integer and result.dtype.kind != "bool":
                self._cast(x, result)
            case ops.Compare(kind=kind, lhs=a, rhs=b) if a.is_integer:
                self._set(result, decide(kind, self.range(a), self.range(b)))
            case ops.BlockIndex(dim=dim):
                self._forms[result] = Affine.of(self._blocks.setdefault(dim, result))
                hi = self.range(self._grid[dim])[1] if dim < len(self._grid) else None
                self._set(result, (0, None if hi is None else max(hi - 1, 0)))
                if dim < len(self._grid) and self._multiples:
                    self._whole_blocks(self._forms[result], self._grid[dim])
            case ops.GridSize(dim=dim):
                lo, hi = self.range(self._grid[dim]) if dim < len(self._grid) else (1, None)
                self._set(result, (max(lo or 1, 1), hi))
            case ops.ThreadIndex():
                self._set(result, (0, self._threads - 1))
            case ops.Lane() | ops.Warp() | ops.ClusterIndex():
                self._set(result, (0, _MOST[type(o)] - 1))
            case ops.Lookup(table=table) if table:
                self._set(result, (min(table), max(table)), min(map(low_bit, table)))
            case _:
                self._set(result, dtype_range(result.dtype))

    def _either(self, result: Value, a: Value, b: Value) -> None:
        both = union(self.range(a), self.range(b))
        self._set(result, both, min(self.divisor(a), self.divisor(b)))

    def _cast(self, x: Value, result: Value) -> None:
        found = self.range(x)
        if result.dtype.bits < x.dtype.bits and None in found:
            found = dtype_range(result.dtype)
        self._set(result, found, self.divisor(x))

    def _remainder(self, o: ops.Binary) -> Value | None:
        """`d` where `o` is `x - (x // d) * d`."""
        product = self._defined.get(o.rhs) if o.kind == "sub" else None
        if not isinstance(product, ops.Binary) or product.kind != "mul":
            return None
        for part, d in ((product.lhs, product.rhs), (product.rhs, product.lhs)):
            match self._defined.get(part):
                case ops.Binary(kind="floordiv", lhs=x, rhs=by) if x is o.lhs and by is d:
                    return d
        return None

    def _binary(self, o: ops.Binary, result: Value) -> None:
        a, b = self.range(o.lhs), self.range(o.rhs)
        rule = RANGES.get(o.kind)
        found = rule(a, b) if rule else (None, None)
        if o.kind == "shl" and (b[1] is None or b[1] >= result.dtype.bits):
            found = None, None  # there may be no bits left
        modulus = self._remainder(o)
        if modulus is not None:
            divided_by = self.range(modulus)
            found = RANGES["mod"](a, divided_by)
            if divided_by[0] == 0:  # x - (x // 0) * 0 is x
                found = union(found, a)
        if rule is None or (found == (None, None) and o.kind not in ("add", "sub", "mul")):
            found = dtype_range(result.dtype)
        da, db = self.divisor(o.lhs), self.divisor(o.rhs)
        match o.kind:
            case "mul":
                divisor = da * db
            case "and":
                divisor = max(da, db)
            case "shl":
                divisor = da << min(max(b[0] or 0, 0), 62)
            case "floordiv" | "truncdiv" | "shr" if b[0] is not None and b[0] == b[1] and b[0] >= 0:
                by = 1 << min(b[0], 62) if o.kind == "shr" else b[0]
                divisor = da // by if by and by == low_bit(by) and da > by else 1
            case "add" | "sub" | "or" | "xor" | "min" | "max" | "mod" | "truncmod":
                divisor = min(da, db)
            case _:
                divisor = 1
        self._set(result, found, divisor)


# Of a - b where a kind b.
_BOUNDS: dict[str, Range] = {
    "lt": (None, -1), "le": (None, 0), "gt": (1, None), "ge": (0, None), "eq": (0, 0)
}  # fmt: skip


def _narrowed(a: Range, b: Range) -> Range:
    """What lies in both; `a`, where nothing does."""
    (lo, hi), (least, most) = a, b
    low = least if lo is None else lo if least is None else max(lo, least)
    high = most if hi is None else hi if most is None else min(hi, most)
    return a if low is not None and high is not None and low > high else (low, high)


def _homes(func: Func) -> dict[Value, Block]:
    """The block in which each value is defined; none where nothing asks for it."""
    if not any(func.body.every(ops.Assume)):
        return {}
    found: dict[Value, Block] = {}
    blocks = [func.body]
    for block in blocks:  # grows
        found.update((v, block) for v in (*block.args, *(r for o in block.ops for r in o.results)))
        blocks += [region for o in block.ops for region in o.regions]
    return found


@functools.lru_cache(maxsize=8)
def facts_of(func: Func, anywhere: bool = False) -> Facts:
    """The facts of `func`: passes that follow one another ask the same."""
    return Facts(func, anywhere)
