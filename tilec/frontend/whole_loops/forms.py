"""Which program a loop over whole tensors becomes (`whole_loops`)."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tilec.frontend.branches import same_value
from tilec.frontend.builtins.statements import in_a_block
from tilec.frontend.recovery import Form
from tilec.frontend.values import Buffer, Scalar
from tilec.frontend.whole_loops import nests
from tilec.frontend.whole_loops.across import with_columns
from tilec.frontend.whole_loops.blocks import Blocks
from tilec.frontend.whole_loops.dtypes import changes_literals, with_casts, with_dtypes
from tilec.frontend.whole_loops.ends import with_ends_of_rows
from tilec.frontend.whole_loops.groups import by_one_row, in_groups
from tilec.frontend.whole_loops.inner import without_sums
from tilec.frontend.whole_loops.ones import without_ones
from tilec.frontend.whole_loops.operands import Operand, Tiling, with_tables
from tilec.frontend.whole_loops.order import across_rows, in_ways, one_by_one
from tilec.frontend.whole_loops.pairs import Pairs, find_pairs
from tilec.frontend.whole_loops.places import as_folds
from tilec.frontend.whole_loops.products import Product, find_product
from tilec.frontend.whole_loops.reader import missed_product
from tilec.frontend.whole_loops.rescaled import in_two_loops
from tilec.frontend.whole_loops.tilings import LEAST, USUAL, Tilings
from tilec.ir.errors import PerformanceWarning, warn
from tilec.ir.types import FLOAT32, FLOAT64
from tilec.support.syntax import (
    assigned_names,
    every,
    functions_within,
    name_nodes,
    names_in,
    names_within,
)

_SMALL = 64  # of an extent, below which no one waits for a loop
_MOST_APART = 16  # statements of as many rows as the CPU's vectors have lanes, a load for each
_MANY = 128  # tiles, that occupy a GPU


class WholeLoops(Tilings):
    """Chooses the form of a loop over whole tensors, by what its tensors are. `row_lanes`: how many
    lanes may share one that goes along rows; 0, none may; `together`: how many blocks run at once.
    `magnitudes`: of sizes by name, about how large they are, and a power of two that divides."""

    row_lanes = together = 0

    def blocks_of(self, node: ast.For, tiles: Mapping[str, str]) -> Form:
        """A loop over whole tensors as a kernel with a grid, and what names in it stand for that
        are not the author's. `tiles`: the parameters for a product's tile sizes."""
        self.whole_names = assigned_names([node]) | functions_within(node)
        known = {*self.names}

        def named(callee: ast.expr) -> object:
            plain = isinstance(callee, ast.Name | ast.Attribute)
            free = names_in(callee).isdisjoint(known) and self._is_fixed(callee)
            scalar = self.names.get(callee.id) if isinstance(callee, ast.Name) else None
            if isinstance(scalar, Scalar) and self._is_fixed(callee):
                return scalar
            return self.expression(callee) if plain and free else None

        read = nests.nest_of(node, named)
        assert read is not None, "the signature has seen it"
        nest = replace(
            read, dtype_of=self._dtype_of, decided=self._decided, about=self._about,
            known=self._static, limit=self._limit, lanes=self.row_lanes, together=self.together,
            index=self.index_dtype,
        )  # fmt: skip
        self.whole_indices, self.whole_extents = nest.indices, nest.extents
        extents = [self.expression(e) for e in nest.extents]
        forms = self.left_out.forms
        if node not in forms:  # whose loops and statements are those that are marked
            forms[node] = self._form(node, nest, extents, tiles)
        if tiles and names_within(forms[node][0]).isdisjoint(tiles.values()):
            self.attributes["idle"] = tuple(tiles.values())
        return forms[node]

    def _form(
        self, node: ast.For, nest: nests.Nest, extents: list[object],
        tiles: Mapping[str, str],
    ) -> Form:  # fmt: skip
        used = self.frame.source.used_names() | self.names.keys()
        nest = with_tables(nest)
        owners = (nest.named(n.value) for n in every(ast.Subscript, *nest.body))
        if any(isinstance(x, list | tuple) for x in owners):  # of other than numbers
            if nests.is_elementwise(nest):
                return self._elements(node, nest)
            return self._by_threads(node, nest)
        written_out = nest
        nest = replace(nest, body=without_ones(nest.body, nest.indices, nest.named))
        typed, product, tiled = self._summed_in_groups(nest, bool(tiles))
        if tiles and nest.body is not written_out.body:  # which tiles may go along less of
            other = self._summed_in_groups(written_out, True)
            if self._work(*other)[:2] < self._work(typed, product, tiled)[:2]:
                typed, product, tiled = other
        if product is not None and tiled:
            extents = [self.expression(e) for e in typed.extents]
            edges = not self._stays_inside(product.epilogue, typed.indices, extents)
            text = "\n".join([product.text, *(t.text for t in tiled)])
            key = node, text, tuple(tiles.items()), edges
            written = self.frame.source.written
            if key not in written:
                blocks = Blocks(node, typed, used | self.whole_names, self.threads)
                grid = blocks.product(product.parts, tiled, tiles, edges)
                written[key] = grid, blocks.names
            return written[key]
        blocks = Blocks(node, typed, used | self.whole_names, self.threads)
        if nests.is_elementwise(nest):
            return self._as_folds(node, nest) or self._elements(node, nest)
        inner = self._of_sums(node, nest) if self.row_lanes else None
        if inner is not None:
            return inner
        self._tell_missed(typed, nest)
        made = self._of_pairs(blocks) or blocks.tiles() or blocks.rows()
        return self._by_threads(node, nest) if made is None else (made, blocks.names)

    def _summed_in_groups(
        self, nest: nests.Nest, tiles: bool
    ) -> tuple[nests.Nest, Product | None, list[Tiling]]:
        """The same of a nest, or of one whose divided indices are two each, if that is less."""
        found = self._summed(nest, tiles)
        if tiles and (groups := self._in_all_groups(nest)) is not nest:
            other = self._summed(groups, True)
            if self._work(*other) < self._work(*found):
                return other
        return found

    def _summed(
        self, nest: nests.Nest, tiles: bool
    ) -> tuple[nests.Nest, Product | None, list[Tiling]]:
        """A nest with dtypes, the sums of products that it is, if it may be `tiles`, and these."""
        product = None
        for single in in_ways(nest, {*self._used_names()}):
            self.whole_names |= assigned_names([*single.body])
            typed = self._typed(in_two_loops(single))
            product = self._product(typed, self._used_names()) if tiles else None
            if product is not None:
                product = self._without_bounds(product)
                break
        return typed, product, [] if product is None else self._tilings(product, typed)

    def _used_names(self) -> set[str]:
        return self.frame.source.used_names() | self.names.keys() | self.whole_names

    def _fresh(self, base: str) -> str:
        name = nests.fresh_name(base, self._used_names())
        self.whole_names.add(name)
        return name

    def _work(
        self, nest: nests.Nest, product: Product | None, tiled: Sequence[Tiling]
    ) -> tuple[float, bool, int]:
        """About how many multiplications tiles make of one that an iteration has, whether none goes
        along the last index, and how many indices no tile can go along, as both operands depend on
        them."""
        if product is None or not tiled:
            return math.inf, False, 0
        extents, made = dict(zip(nest.indices, nest.extents)), 0.0
        for p, t in zip(product.parts, tiled):
            lines = [self._number([extents[i] for i in x]) for x in (t.rows, t.columns)]
            *around, depth = [self._number([e]) for _, e in p.inner]
            empty = math.prod(max(LEAST, n) / max(n, 1) for n in lines)
            made += empty * math.prod(around) * max(LEAST, depth)
        along = (*product.rows, *product.columns)
        return made, nest.indices[-1] not in along, len(nest.indices) - len(along)

    def _in_all_groups(self, nest: nests.Nest) -> nests.Nest:
        """The nest with two indices in place of each that is divided."""
        while True:
            groups = in_groups(nest, self._is_fixed, self._is_last(nest), self._fresh)
            found = next(groups, None)
            if found is None:
                return nest
            nest = found

    def _by_threads(self, node: ast.For, nest: nests.Nest) -> Form:
        """A nest of which a thread does whole iterations: several, where its loops are short."""
        used = self.frame.source.used_names()
        single = one_by_one(nest, used, apart=False)
        typed = self._typed(single)
        cast = with_casts(single, typed)
        apart = not self.row_lanes and nests.goes_along_rows(cast)
        most = _MOST_APART if apart else nests.MOST_COPIES
        straight = nests.written_out(cast, most)
        if straight is not None and not changes_literals(cast):
            return self._elements(node, straight)
        blocks = Blocks(node, nest, used, self.threads)
        unit, about = self._about(nest.extents[-1])[1], self._number(nest.extents)
        several = typed if self.row_lanes else None
        return blocks.threads(several, unit, about, self._bits), blocks.names

    def _bits(self, tensor: str) -> int:
        """Those of an element; 0 where nobody knows."""
        return getattr(getattr(self.names.get(tensor), "dtype", None), "bits", 0)

    def _of_sums(self, node: ast.For, nest: nests.Nest) -> Form | None:
        """A nest with sums of products inside of its loops."""

        def find(inner: nests.Nest) -> tuple[Product | Pairs, Tiling, int] | None:
            typed = self._typed(inner)
            product, column = self._product(typed, used), inner.indices[-1]
            if product is not None and self._is_inside(product, column):
                product = self._without_bounds(product)
                tiled = self._tiled(product, typed, column)
                if tiled is not None:
                    dtypes = [d for d in tiled.dtypes.values() if d]
                    return product, tiled, self._widest(product.operands, dtypes)
            pairs = self._pairs(typed)
            if pairs is None or pairs.columns != (column,):
                return None
            if not all(self._is_fixed(e) for _, e in pairs.inner):
                return None
            return pairs, pairs.tiling, self._widest(pairs.operands, ())

        used, fresh = self._used_names(), self._fresh
        nest = one_by_one(with_ends_of_rows(nest), used)
        self.whole_names |= assigned_names([*nest.body])
        used |= self.whole_names
        groups = in_groups(nest, self._is_fixed, self._is_last(nest), fresh)
        for whole in (nest, *groups, by_one_row(nest, fresh)):
            columns = with_columns(whole, fresh)
            for rows in (columns, whole) if columns is not whole else (whole,):
                found = without_sums(rows, find, fresh)
                if found is None:
                    continue
                typed = self._typed(in_two_loops(found[0]))
                shared = {n for i in found[1] for o in i.product.operands for n in o.names}
                apart = [i for i in typed.indices if i not in shared]
                for across in (*apart, *[""] * (rows is whole)):
                    blocks = Blocks(node, typed, self._used_names(), self.threads)
                    made = blocks.tiles(found[1], across)
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

    def _typed(self, nest: nests.Nest) -> nests.Nest:
        """The nest with the dtypes of its variables."""
        values = (self.names.get(n.id) for n in name_nodes(*nest.body))
        return with_dtypes(nest, any(getattr(v, "dtype", None) is FLOAT64 for v in values))

    def _elements(self, node: ast.For, nest: nests.Nest) -> Form:
        """A nest without loops as tiles of elements."""
        nest = across_rows(nest)
        extents = [self.expression(e) for e in nest.extents]
        blocks = Blocks(node, nest, self.frame.source.used_names(), self.threads)
        found = [self._about(e) for e in nest.extents]
        about, unit = [n or USUAL for n, _ in found], found[-1][1]
        sizes = [any(same_value(e, s) for s in self.sizes.values()) for e in extents]
        edges = not self._stays_inside(nest.body, nest.indices, extents)
        return blocks.elements(about, unit, sizes, edges, in_a_block), blocks.names

    def _as_folds(self, node: ast.For, nest: nests.Nest) -> Form | None:
        """A nest that adds to a few elements, as loops that fold into them."""
        used = self.frame.source.used_names()
        found = as_folds(nest, lambda base: nests.fresh_name(base, used))
        if found is None:
            return None
        blocks = Blocks(node, found, used | {*found.indices}, self.threads)
        made = blocks.tiles()
        return None if made is None else (made, blocks.names)

    def _is_inside(self, p: Product, column: str) -> bool:
        """Whether a product is one of what a loop over `column` adds up, and no short one."""
        if p.alone or p.more or column not in p.columns:
            return False
        fixed = all(self._is_fixed(e) for _, e in p.inner)
        return fixed and self._number([e for _, e in p.inner]) >= LEAST

    def _widest(self, operands: Sequence[Operand], dtypes: Sequence[ast.expr]) -> int:
        """The bytes of the widest of operands' elements, and of such dtypes."""
        found = [self._kind_of(o, None) for o in operands if o.tensor is not None]
        found += map(self._dtype_of, dtypes)
        return max((d or FLOAT32).bits for d in found) // 8

    def _pairs(self, nest: nests.Nest) -> Pairs | None:
        """The rows that a nest compares with others, where it is known of what dtype what it keeps
        of these is."""
        found = find_pairs(nest) if self.row_lanes else None
        if found is None or any(self._dtype_of(dtype) is None for dtype in found.kept.values()):
            return None
        return found

    def _of_pairs(self, blocks: Blocks) -> ast.With | None:
        """A nest that compares rows with rows, in tiles of which there are enough for a GPU."""
        found = self._pairs(blocks.nest)
        if found is None:
            return None
        outputs = self._number(blocks.nest.extents)
        side = next((n for n in (64, 32) if outputs >= n * n * _MANY), 16)
        sizes = {"BM": side, "BN": side, "BK": 32}
        given = {x: ast.Constant(n) for x, n in sizes.items()}
        return blocks.product([found], [found.tiling], given, True)

    def _product(self, nest: nests.Nest, used: set[str]) -> Product | None:
        return find_product(nest, lambda base: nests.fresh_name(base, used))

    def _tell_missed(self, nest: nests.Nest, written: nests.Nest) -> None:
        """Warn of a large sum of products that is no T.gemm, where it could be one on a GPU;
        `written`: the nest as its author has it."""
        found = missed_product(nest) if self.row_lanes else None
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
