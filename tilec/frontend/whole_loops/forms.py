"""Which program a loop over whole tensors becomes (`whole_loops`)."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tilec.frontend.arithmetic import common_dtype, static_int
from tilec.frontend.branches import same_value
from tilec.frontend.builtins.reduce import combine_parts, scan_tile
from tilec.frontend.builtins.statements import in_a_block
from tilec.frontend.recovery import Form
from tilec.frontend.statements import Statements
from tilec.frontend.values import Buffer, Scalar, is_literal
from tilec.frontend.whole_loops import nests
from tilec.frontend.whole_loops.across import with_columns
from tilec.frontend.whole_loops.blocks import Blocks
from tilec.frontend.whole_loops.dtypes import changes_literals, with_casts, with_dtypes
from tilec.frontend.whole_loops.ends import with_ends_of_rows
from tilec.frontend.whole_loops.folds import Folds
from tilec.frontend.whole_loops.groups import by_one_row, in_groups
from tilec.frontend.whole_loops.inner import Inner, without_sums
from tilec.frontend.whole_loops.missed import missed_product
from tilec.frontend.whole_loops.operands import Operand, Tiling, sides_of, with_both
from tilec.frontend.whole_loops.order import across_rows, in_ways, one_by_one
from tilec.frontend.whole_loops.pairs import find_pairs
from tilec.frontend.whole_loops.places import as_folds
from tilec.frontend.whole_loops.products import Product, find_product
from tilec.frontend.whole_loops.rescaled import in_two_loops
from tilec.ir.errors import PerformanceWarning, warn
from tilec.ir.types import FLOAT32, FLOAT64, INT32, DType, find_dtype, magnitude_of, unit_of
from tilec.support.syntax import assigned_names, every, name_nodes, names_in
from tilec.target import Target

_SMALL = 64  # of an extent, below which no one waits for a loop
_MOST_BLOCKS = Target.grid_limits[2]  # along the third dimension of a grid
_FULL = 128  # of rows or columns, that fill a tile
_LONG = 1 << 20  # more than all known lengths
_LEAST = 16  # rows, columns, or what is added up, for which tiles are computed
_MOST_APART = 16  # statements of as many rows as the CPU's vectors have lanes, a load for each
_MANY = 128  # tiles, that occupy a GPU
_USUAL = 8192  # where nothing is known of a row's length


class WholeLoops(Statements):
    """Chooses the form of a loop over whole tensors, by what its tensors are. `row_lanes`: how many
    lanes may share one that goes along rows; 0, none may; `together`: how many blocks run at once.
    `magnitudes`: of sizes by name, about how large they are, and a power of two that divides."""

    row_lanes = together = 0

    def blocks_of(self, node: ast.For, tiles: Mapping[str, str]) -> Form:
        """A loop over whole tensors as a kernel with a grid, and what names in it stand for that
        are not the author's. `tiles`: the parameters for a product's tile sizes."""
        functions = {n.name for n in every(ast.FunctionDef, node)}
        self.whole_names = assigned_names([node]) | functions
        known = {*self.names}

        def named(callee: ast.expr) -> object:
            plain = isinstance(callee, ast.Name | ast.Attribute)
            free = names_in(callee).isdisjoint(known) and self._is_fixed(callee)
            scalar = self.names.get(callee.id) if isinstance(callee, ast.Name) else None
            if isinstance(scalar, Scalar) and self._is_fixed(callee):
                return scalar
            return self.expression(callee) if plain and free else None

        nest = nests.nest_of(node, named)
        assert nest is not None, "the signature has seen it"
        self.whole_indices, self.whole_extents = nest.indices, nest.extents
        extents = [self.expression(e) for e in nest.extents]
        forms = self.left_out.forms
        if node not in forms:  # whose loops and statements are those that are marked
            forms[node] = self._form(node, nest, named, extents, tiles)
        if tiles and {*tiles.values()}.isdisjoint(n.id for n in name_nodes(forms[node][0])):
            self.attributes["idle"] = tuple(tiles.values())
        return forms[node]

    def _is_fixed(self, node: ast.expr) -> bool:
        """Whether an expression is the same for the whole of the loop: it names nothing of its
        own, the iterations' indices among them, or of what its statements have become."""
        return self.whole_names.isdisjoint(names_in(node))

    def _form(
        self, node: ast.For, nest: nests.Nest, named: nests.Named, extents: list[object],
        tiles: Mapping[str, str],
    ) -> Form:  # fmt: skip
        used = self.frame.source.used_names() | self.names.keys()
        items = every(ast.Subscript, *nest.body)
        if any(isinstance(named(n.value), list | tuple) for n in items):  # no tensors' elements
            if nests.is_elementwise(nest, named):
                return self._elements(node, nest)
            return self._by_threads(node, nest, named)
        for single in in_ways(nest, named, used, self._decided):
            self.whole_names |= assigned_names([*single.body])
            used = used | self.whole_names
            typed = self._typed(in_two_loops(single, named), named)
            product = self._product(typed, named, used) if tiles else None
            if product is not None:
                product = self._without_bounds(product)
                break
        blocks = Blocks(node, typed, used, self.threads)
        if product is not None and (tiled := self._tiled(product, typed, named)):
            edges = not self._stays_inside(product.epilogue, nest.indices, extents)
            key = node, product.text, tiled.text, tuple(tiles.items()), edges
            written = self.frame.source.written
            if key not in written:
                written[key] = blocks.product(product, tiled, tiles, edges, named), blocks.names
            return written[key]
        if nests.is_elementwise(nest, named):
            return self._as_folds(node, nest, named) or self._elements(node, nest)
        inner = self._of_sums(node, nest, named) if self.row_lanes else None
        if inner is not None:
            return inner
        self._tell_missed(typed, named, nest)
        made = self._of_pairs(blocks, named) or self._over_tiles(blocks, named)
        if made is None and self.row_lanes:
            made = blocks.rows(named, self._static, self.row_lanes)
        return self._by_threads(node, nest, named) if made is None else (made, blocks.names)

    def _by_threads(self, node: ast.For, nest: nests.Nest, named: nests.Named) -> Form:
        """A nest of which a thread does whole iterations: several, where its loops are short."""
        used = self.frame.source.used_names()
        single = one_by_one(nest, named, used)
        typed = self._typed(single, named)
        cast = with_casts(single, typed)
        apart = not self.row_lanes and nests.goes_along_rows(cast)
        most = _MOST_APART if apart else nests.MOST_COPIES
        straight = nests.written_out(cast, named, self._static, most)
        if straight is not None and not changes_literals(cast, named):
            return self._elements(node, straight)
        blocks = Blocks(node, nest, used, self.threads)
        unit, about = self._about(nest.extents[-1])[1], self._number(nest.extents)
        several = typed if self.row_lanes else None
        return blocks.threads(several, unit, about, self._bits), blocks.names

    def _bits(self, tensor: str) -> int:
        """Those of an element; 0 where nobody knows."""
        return getattr(getattr(self.names.get(tensor), "dtype", None), "bits", 0)

    def _of_sums(self, node: ast.For, nest: nests.Nest, named: nests.Named) -> Form | None:
        """A nest with sums of products inside of its loops."""

        def find(inner: nests.Nest) -> tuple[Product, Tiling, int] | None:
            typed = self._typed(inner, named)
            product = self._product(typed, named, used)
            if product is None or product.alone or inner.indices[-1] not in product.columns:
                return None
            if not all(self._is_fixed(e) for _, e in product.inner):
                return None
            if self._number([e for _, e in product.inner]) < _LEAST:
                return None
            product = self._without_bounds(product)
            tiled = self._tiled(product, typed, named, inner.indices[-1])
            if tiled is None:
                return None
            tensors = (self.names.get(o.tensor.id) for o in product.operands if o.tensor)
            dtypes = [getattr(x, "dtype", FLOAT32) for x in tensors]
            dtypes += [self._dtype_of(d) or FLOAT32 for d in tiled.dtypes.values() if d]
            return product, tiled, max(d.bits for d in dtypes) // 8

        used = self.frame.source.used_names() | self.names.keys() | self.whole_names

        def fresh(base: str) -> str:
            name = nests.fresh_name(base, used)
            used.add(name)
            self.whole_names.add(name)
            return name

        nest = with_ends_of_rows(nest, named, self._decided, self._dtype_of)
        nest = one_by_one(nest, named, used, self._decided)
        self.whole_names |= assigned_names([*nest.body])
        used |= self.whole_names
        groups = in_groups(nest, self._is_fixed, self._is_last(nest), fresh)
        for whole in (nest, *groups, by_one_row(nest, fresh)):
            columns = with_columns(whole, named, fresh)
            for rows in (columns, whole) if columns is not whole else (whole,):
                found = without_sums(rows, named, find, fresh)
                if found is None:
                    continue
                typed = self._typed(in_two_loops(found[0], named), named)
                shared = {n for i in found[1] for o in i.product.operands for n in o.names}
                apart = [i for i in typed.indices if i not in shared]
                for across in (*apart, *[""] * (rows is whole)):
                    blocks = Blocks(node, typed, {*used}, self.threads)
                    made = self._over_tiles(blocks, named, found[1], across)
                    if made is not None:
                        return made, blocks.names
        return None

    def _is_last(self, nest: nests.Nest) -> Callable[[str], bool]:
        """What says of an index of a nest that beyond its extent nothing is done but stores that
        are out of bounds."""
        extents = dict(zip(nest.indices, nest.extents))

        def is_last(index: str) -> bool:
            places = [e for e in nests.elements_of(*nest.body) if isinstance(e.ctx, ast.Store)]
            if any(every(ast.Expr, *nest.body)):
                return False
            return all(self._is_bound(e, {index: self.expression(extents[index])}) for e in places)

        return is_last

    def _typed(self, nest: nests.Nest, named: nests.Named) -> nests.Nest:
        """The nest with the dtypes of its variables, where nothing is a float64."""
        values = (self.names.get(n.id) for n in name_nodes(*nest.body))
        if any(getattr(v, "dtype", None) is FLOAT64 for v in values):
            return nest
        return with_dtypes(nest, named, self._dtype_of, self.index_dtype)

    def _elements(self, node: ast.For, nest: nests.Nest) -> Form:
        """A nest without loops as tiles of elements."""
        nest = across_rows(nest)
        extents = [self.expression(e) for e in nest.extents]
        blocks = Blocks(node, nest, self.frame.source.used_names(), self.threads)
        found = [self._about(e) for e in nest.extents]
        about, unit = [n or _USUAL for n, _ in found], found[-1][1]
        sizes = [any(same_value(e, s) for s in self.sizes.values()) for e in extents]
        edges = not self._stays_inside(nest.body, nest.indices, extents)
        return blocks.elements(about, unit, sizes, edges, in_a_block), blocks.names

    def _as_folds(self, node: ast.For, nest: nests.Nest, named: nests.Named) -> Form | None:
        """A nest that adds to a few elements, as loops that fold into them."""
        used = self.frame.source.used_names()
        found = as_folds(nest, named, lambda base: nests.fresh_name(base, used))
        if found is None:
            return None
        blocks = Blocks(node, found, used | {*found.indices}, self.threads)
        made = self._over_tiles(blocks, named)
        return None if made is None else (made, blocks.names)

    def _static(self, extent: ast.expr) -> int | None:
        return static_int(self.expression(extent)) if self._is_fixed(extent) else None

    def _of_pairs(self, blocks: Blocks, named: nests.Named) -> ast.With | None:
        """A nest that compares rows with rows, in tiles of which there are enough for a GPU."""

        def length(extent: ast.expr) -> int:
            return self._about(extent)[0] or _LONG

        found = find_pairs(blocks.nest, named, length) if self.row_lanes else None
        if found is None or any(self._dtype_of(dtype) is None for dtype in found.kept.values()):
            return None
        outputs = self._number(blocks.nest.extents)
        side = next((n for n in (64, 32) if outputs >= n * n * _MANY), 16)
        sizes = {"BM": side, "BN": side, "BK": 32}
        return blocks.pairs(found, {x: ast.Constant(n) for x, n in sizes.items()})

    def _over_tiles(
        self, blocks: Blocks, named: nests.Named, inner: Sequence[Inner] = (), across: str = ""
    ) -> ast.With | None:
        """A nest whose loops go along rows or columns of tiles; `inner`: sums that they have,
        `across`: the index of columns that share these."""
        if not self.row_lanes:
            return None

        def magnitude(extent: ast.expr) -> tuple[int, int]:
            size, unit = self._about(extent)
            return magnitude_of(size) if size else 0, unit

        limits = tuple(map(self._limit, blocks.nest.extents)), self.together
        return blocks.tiles(
            named, self._static, self.row_lanes, magnitude, self._dtype_of, combine_parts,
            scan_tile, inner, across, *limits,
        )  # fmt: skip

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
        usual = _USUAL, 1
        if not self._is_fixed(extent):
            return usual
        value = self.expression(extent)
        return self.known_sizes.get(value.value, usual) if isinstance(value, Scalar) else usual

    def _product(self, nest: nests.Nest, named: nests.Named, used: set[str]) -> Product | None:
        return find_product(
            nest, named, self._decided, self._dtype_of, lambda base: nests.fresh_name(base, used)
        )

    def _decided(self, test: ast.expr) -> bool | None:
        """What is known of a condition before the kernel runs."""
        known = self.expression(test) if self._is_fixed(test) else None
        return bool(known) if is_literal(known) else None

    def _tell_missed(self, nest: nests.Nest, named: nests.Named, written: nests.Nest) -> None:
        """Warn of a large sum of products that is no T.gemm, where it could be one on a GPU;
        `written`: the nest as its author has it."""
        found = missed_product(nest, named) if self.row_lanes else None
        if found is None or self._number(found.inner) < _SMALL:
            return
        if self._number(nest.extents) < _SMALL**2:
            return
        dtypes = [getattr(self.names.get(name), "dtype", None) for name in found.tensors]
        if all(d and (d.bits == 8 or (d.is_float and d.bits <= 32)) for d in dtypes):
            why = found.why
            hint = (
                "let acc += x * y add elements of two tensors of one dtype, cast to the sum's, and "
                "scale what it gives behind the loop"
            )
            narrow = {d for d in dtypes if d and d.bits < 32}
            wide = "float32" if any(d.is_float for d in narrow) else "int32"
            place = found.statement.lineno, found.statement.col_offset
            own = (s for s in every(ast.Assign | ast.AugAssign, *written.body))
            said = next((s for s in own if (s.lineno, s.col_offset) == place), found.statement)
            cast = nests.with_factors_cast(said, found.tensors, wide)
            if cast is not None and len(narrow) == len({*dtypes}):
                names = " or ".join(sorted(d.name for d in narrow))
                why = f"each is made {names} before it is added"
                hint = f"let the sum be {wide}, and write {cast}"
            message = f"threads add up these products one by one, no T.gemm does: {why}"
            with self.at(found.statement):
                warn(PerformanceWarning, message, self.loc, hint)

    def _number(self, extents: Sequence[ast.expr]) -> int:
        """About how many iterations loops have."""
        return math.prod(self._about(e)[0] or _USUAL for e in extents)

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
        return replace(p, sums=tuple(sums))

    def _tiled(
        self, p: Product, nest: nests.Nest, named: nests.Named, column: str = ""
    ) -> Tiling | None:
        """The rows and the columns that tiles go along, and how operands come into these; None
        where T.gemm does not give what the loop does, or a grid does not count the others.
        `column`: the one to go along, beside one row."""
        extents = dict(zip(nest.indices, nest.extents))
        left, right = (set().union(*(o.names for o in each)) for each in zip(*p.pairs))
        if not {*extents} & (left ^ right) <= {*p.rows, *p.columns}:
            return None

        def length(index: str) -> int:
            known = self._about(extents[index])[0] or _LONG
            return known if known >= _MOST_BLOCKS else min(known, _FULL)

        dtypes, inner = self._tile_dtypes(p, nest, named), p.inner[-1]
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
            if min(map(self._number, loops)) < _LEAST:
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
        return Tiling(lines[0], lines[1], copied, frozenset(parts), dtypes, ended)

    def _is_of(self, o: Operand, dtype: ast.expr | None) -> bool:
        """Whether an operand is an element of a dtype, or that is what it has."""
        buffer = None if o.tensor is None else self.names.get(o.tensor.id)
        return dtype is None or getattr(buffer, "dtype", None) is self._dtype_of(dtype)

    def _ends(self, o: Operand, inner: tuple[str, ast.expr]) -> bool:
        """Whether an operand is an element of a tensor that ends where the sum does."""
        buffer = None if o.tensor is None else self.names.get(o.tensor.id)
        if not isinstance(buffer, Buffer) or len(buffer.shape) != len(o.indices):
            return False
        at, extent = o.where(inner[0]), self.expression(inner[1])
        return at is not None and o.is_along(inner[0]) and same_value(extent, buffer.shape[at])

    def _tile_dtypes(
        self, p: Product, nest: nests.Nest, named: nests.Named
    ) -> dict[str, ast.expr | None] | None:
        """The dtypes of operands' tiles, None where an element's own; None where T.gemm does not
        give what is added up: operands cast to the dtype of the sum, two elements of one dtype, or
        what is computed in that of the sum."""
        folds = Folds(nest, named, lambda e: None, 1, "", "", str, dtype_of=self._dtype_of)
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

    def _written_dtype(self, dtype: DType) -> ast.expr:
        """A dtype as syntax, the same for the same one."""
        return self.whole_dtypes.setdefault(dtype, ast.Constant(dtype.name))

    def _dtype_of(self, node: ast.expr) -> DType | None:
        value = self.expression(node) if self._is_fixed(node) else None
        return find_dtype(value) if isinstance(value, str | DType) else None

    def _stays_inside(
        self, statements: Sequence[ast.stmt], indices: Sequence[str], extents: Sequence[object]
    ) -> bool:
        """Whether iterations beyond the extents would do nothing: they are assignments of elements
        at indices that are out of bounds then."""
        for s in statements:
            if not isinstance(s, ast.Assign | ast.AugAssign):
                return False
            for target in s.targets if isinstance(s, ast.Assign) else [s.target]:
                if not isinstance(target, ast.Subscript) or not isinstance(target.value, ast.Name):
                    return False
                if not self._is_bound(target, dict(zip(indices, extents))):
                    return False
        return True

    def _is_bound(self, place: ast.Subscript, extents: Mapping[str, object]) -> bool:
        """Whether an element is out of bounds wherever one of such indices is beyond its extent."""
        buffer = self.names.get(nests.tensor_of(place))
        written = nests.indices_of(place)
        if not isinstance(buffer, Buffer) or len(written) != len(buffer.shape):
            return False
        inside = {
            w.id
            for w, e in zip(written, buffer.shape)
            if isinstance(w, ast.Name) and w.id in extents and same_value(e, extents[w.id])
        }
        return inside == extents.keys()
