"""What is known of a whole loop's sizes and dtypes, and how the tiles of its products follow."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import replace

from tilec.frontend.arithmetic import common_dtype, static_int
from tilec.frontend.branches import same_value
from tilec.frontend.statements import Statements
from tilec.frontend.values import Buffer, Scalar, is_literal
from tilec.frontend.whole_loops import nests
from tilec.frontend.whole_loops.dtypes import with_both
from tilec.frontend.whole_loops.folds import Folds
from tilec.frontend.whole_loops.operands import Operand, Tiling, sides_of
from tilec.frontend.whole_loops.products import Product
from tilec.ir.types import FLOAT32, INT32, DType, find_dtype, unit_of
from tilec.support.syntax import names_in
from tilec.target import Target

LEAST = 16  # rows, columns, or what is added up, for which tiles are computed
_MOST_BLOCKS = Target.grid_limits[2]  # along the third dimension of a grid
_FULL = 128  # of rows or columns, that fill a tile
LONG = 1 << 20  # more than all known lengths
USUAL = 8192  # where nothing is known of a row's length


class Tilings(Statements):
    """Answers what the forms of whole loops ask of extents, conditions and operands."""

    def _is_fixed(self, node: ast.expr) -> bool:
        """Whether an expression is the same for the whole of the loop: it names nothing of its
        own, the iterations' indices among them, or of what its statements have become."""
        return self.whole_names.isdisjoint(names_in(node))

    def _static(self, extent: ast.expr) -> int | None:
        return static_int(self.expression(extent)) if self._is_fixed(extent) else None

    def _limit(self, extent: ast.expr) -> int:
        """What an extent does not exceed; 0 where nobody knows."""
        value = self.expression(extent) if self._is_fixed(extent) else None
        size = self.known_sizes.get(value.value) if isinstance(value, Scalar) else None
        return size[0] if size else self._static(extent) or 0

    def _about(self, extent: ast.expr) -> tuple[int, int]:
        """About how large an extent is that may be written as an expression: no smaller than it, 0
        if it exceeds all of `MAGNITUDES`; and a power of two that divides it."""
        known = self._static(extent)
        if known is not None:
            return known, unit_of(known)
        match extent:
            case ast.BinOp(left, ast.Mult(), right):
                (a, x), (b, y) = self._about(left), self._about(right)
                return a * b, unit_of(x * y)
            case ast.BinOp(left, ast.FloorDiv(), right):
                (a, _), n = self._about(left), self._static(right)
                return (-(-a // n) if n and n > 0 else a), 1
            case ast.BinOp(left, ast.Add(), ast.Constant(int())) | ast.BinOp(left, ast.Sub()):
                return self._about(left)[0], 1
            case ast.Name(index) if index in self.whole_indices:
                return self._about(self.whole_extents[self.whole_indices.index(index)])[0], 1
        usual = USUAL, 1
        if not self._is_fixed(extent):
            return usual
        value = self.expression(extent)
        return self.known_sizes.get(value.value, usual) if isinstance(value, Scalar) else usual

    def _number(self, extents: Sequence[ast.expr]) -> int:
        """About how many iterations loops have."""
        return math.prod(self._about(e)[0] or USUAL for e in extents)

    def _decided(self, test: ast.expr) -> bool | None:
        """What is known of a condition before the kernel runs."""
        known = self.expression(test) if self._is_fixed(test) else None
        return bool(known) if is_literal(known) else None

    def _dtype_of(self, node: ast.expr) -> DType | None:
        value = self.expression(node) if self._is_fixed(node) else None
        return find_dtype(value) if isinstance(value, str | DType) else None

    def _written_dtype(self, dtype: DType) -> ast.expr:
        """A dtype as syntax, the same for the same one."""
        return self.whole_dtypes.setdefault(dtype, ast.Constant(dtype.name))

    def _has_all(self, low: ast.expr | None, size: object, high: ast.expr | None) -> bool:
        """Whether all places of a dimension are at `low` or above it, and below `high`."""
        if low is not None and ((first := self._static(low)) is None or first > 0):
            return False
        match high:
            case ast.BinOp(end, ast.Add(), ast.Constant(int(more))) if more > 0:
                high = end
        return high is None or (self._is_fixed(high) and same_value(self.expression(high), size))

    def _without_bounds(self, p: Product) -> Product:
        """The product without conditions that an element is inside of its tensor: as what is
        outside counts as 0."""

        def is_inside(test: ast.expr, o: Operand) -> bool:
            buffer = None if o.tensor is None else self.names.get(o.tensor.id)
            if not isinstance(buffer, Buffer) or len(buffer.shape) != len(o.indices):
                return False
            shape = dict(zip(map(ast.unparse, o.indices), buffer.shape))
            compared = sides_of(test)
            return bool(compared) and all(
                ast.unparse(at) in shape and self._has_all(low, shape[ast.unparse(at)], high)
                for low, at, high in compared
            )

        def bare(o: Operand) -> Operand:
            return replace(o, tests=tuple(t for t in o.tests if not is_inside(t, o)))

        sums = (replace(s, left=bare(s.left), right=bare(s.right)) for s in p.sums)
        return replace(p, sums=tuple(sums), more=tuple(map(self._without_bounds, p.more)))

    def _tilings(self, p: Product, nest: nests.Nest) -> list[Tiling]:
        """That of each loop's product; none where T.gemm does not give what one of them does, or
        their tiles go along other rows and columns."""
        found = [self._tiled(x, nest) for x in p.parts]
        made = [t for t in found if t is not None]
        alike = len({(t.rows, t.columns) for t in made}) == 1
        return made if alike and len(made) == len(found) else []

    def _tiled(self, p: Product, nest: nests.Nest, column: str = "") -> Tiling | None:
        """The rows and the columns that tiles go along, and how operands come into these; None
        where T.gemm does not give what the loop does, or a grid does not count the others.
        `column`: the one to go along, beside one row."""
        extents = dict(zip(nest.indices, nest.extents))
        left, right = (set().union(*(o.names for o in each)) for each in zip(*p.pairs))
        if not {*extents} & (left ^ right) <= {*p.rows, *p.columns}:
            return None

        def length(index: str) -> int:
            known = self._about(extents[index])[0] or LONG
            return known if known >= _MOST_BLOCKS else min(known, _FULL)

        dtypes, inner = self._tile_dtypes(p, nest), p.inner[-1]
        if dtypes is None:
            return None

        def is_part(o: Operand, line: Sequence[str]) -> bool:
            along = all(o.where(i) not in (None, o.where(inner[0])) for i in line)
            return along and not o.tests and o.where(inner[0]) is not None

        def is_copied(o: Operand, line: Sequence[str]) -> bool:
            return is_part(o, line) and self._ends(o, inner) and self._is_of(o, dtypes[o.text])

        sides = p.rows, p.columns
        lines: list[tuple[str, ...]] = [(max(reversed(x), key=length),) for x in sides]
        lines[1] = (column,) if column else lines[1]
        if not all(is_copied(o, line) for o, line in p.sided):
            others = sides[bool(column) :]  # beside a column a thread would have each row
            loops = *([extents[i] for i in x] for x in others), [e for _, e in p.inner]
            if min(map(self._number, loops)) < LEAST:
                return None
            if not column:
                lines = [x if length(x[0]) == _FULL else all_ for x, all_ in zip(lines, sides)]
        apart = [self._static(e) for i, e in extents.items() if i not in (*lines[0], *lines[1])]
        if math.prod(n for n in apart if n is not None) > _MOST_BLOCKS:
            return None
        along = [(o, lines[side is p.columns]) for o, side in p.sided]
        single = [(o, x) for o, x in along if len(x) == 1]
        copied = frozenset(o.text for o, x in single if is_copied(o, x))
        parts = {e.text for o, x in single for e in o.elements() if is_part(e, x)}
        ended = frozenset(o.text for o, _ in along if self._ends(o, inner))
        kinds = {o.text: self._kind_of(o, dtypes[o.text]) for o, _ in along}
        return Tiling(lines[0], lines[1], copied, frozenset(parts), dtypes, ended, kinds)

    def _kind_of(self, o: Operand, dtype: ast.expr | None) -> DType | None:
        """The dtype of an operand's tile."""
        buffer = None if o.tensor is None else self.names.get(o.tensor.id)
        return getattr(buffer, "dtype", None) if dtype is None else self._dtype_of(dtype)

    def _is_of(self, o: Operand, dtype: ast.expr | None) -> bool:
        """Whether an operand is an element of a dtype, or that is what it has."""
        return dtype is None or self._kind_of(o, None) is self._dtype_of(dtype)

    def _ends(self, o: Operand, inner: tuple[str, ast.expr]) -> bool:
        """Whether an operand is an element of a tensor that ends where the sum does."""
        buffer = None if o.tensor is None else self.names.get(o.tensor.id)
        if not isinstance(buffer, Buffer) or len(buffer.shape) != len(o.indices):
            return False
        at, extent = o.where(inner[0]), self.expression(inner[1])
        return at is not None and o.is_along(inner[0]) and same_value(extent, buffer.shape[at])

    def _tile_dtypes(self, p: Product, nest: nests.Nest) -> dict[str, ast.expr | None] | None:
        """The dtypes of operands' tiles, None where an element's own; None where T.gemm does not
        give what is added up: operands cast to the dtype of the sum, two elements of one dtype, or
        what is computed in that of the sum."""
        folds = Folds(nest)
        made: dict[str, ast.expr | None] = {}
        for s in p.sums:
            total, both = self._dtype_of(s.dtype), (s.left, s.right)
            given, other = (folds.dtype(o.value, ()) for o in both)
            cast = [
                dtype if o.dtype is None else self._dtype_of(o.dtype)
                for o, dtype in zip(both, (given, other))
            ]
            if total is None or given is None or total not in cast:
                return None
            wider = FLOAT32 if given.is_float and given.bits <= 16 else given
            wider = INT32 if given.is_int and given.bits == 8 else wider
            elements = all(o.tensor is not None for o in both)
            found: ast.expr | None = s.dtype
            if elements and given is other and {*cast} <= {given, total} and total is wider:
                found = None
            computed = total is INT32 or (total.is_float and total.bits >= 32)
            if not (computed if found else given.is_float or given.bits == 8):
                return None
            if elements and other is not None and total is FLOAT32 and {*cast} == {total}:
                narrow = with_both(given, other)
                found = found if narrow is None else self._written_dtype(narrow)
            if any(d is None or common_dtype(d, total) is not total for d in cast):
                return None
            for o, dtype in zip(both, (given, other)):
                own = None if o.tensor is not None and dtype is total else found
                if made.setdefault(o.text, own) is not own:
                    return None  # another sum has it in another dtype
        return made
