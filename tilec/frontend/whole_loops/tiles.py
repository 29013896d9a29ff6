"""Whole loops whose iterations fold the elements of rows or of columns, over tiles of both.

    for i in T.Parallel(M):                     parts = T.alloc_fragment((16, 128), "float32")
        total: T.float32 = 0                    …
        for j in range(N):                      for step in T.serial(T.ceildiv(N, 128)):
            total += X[i, j]                        for o, n in T.Parallel(16, 128):
        for j in range(N):                 ->           i, j = block * 16 + o, step * 128 + n
            Y[i, j] = X[i, j] / total                   if i < M and j < N: parts[o, n] += X[i, j]
        S[i] = total                            T.reduce_sum(parts, sums, dim=1)
                                                for o in T.Parallel(16): total[o] += sums[o]
                                                …

So loads are as wide as rows allow, neighbours' in one warp, several on their way, and a long row
has all threads of a block. Where the iterations go along the last index instead, they are a tile's
columns; several blocks take turns at the rows of such columns, and the last that comes ends what
they have begun. So they do at a few long rows; where several loops go along these, or one looks for
places, the blocks wait for one another behind each, and all of them go on. A tile's extents follow
from about how large the loops are.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from tilec.frontend.whole_loops import nests
from tilec.frontend.whole_loops.order import in_order
from tilec.frontend.whole_loops.places import in_variables
from tilec.frontend.whole_loops.tile_loops import TileLoops
from tilec.ir.types import MAGNITUDES, magnitude_of, next_power_of_2
from tilec.support.syntax import copied, every, headed, names_in, parsed, stored_names

# About how long the loops inside are: rows of a tile, columns, threads. Up to 1024 a tile sticks
# out of a row by little; one of longer rows is all of a row where it can be.
_ROW_TILES = {
    **{n: (max(8, 1024 // n), min(n, 128), 128) for n in MAGNITUDES if n <= 1024},
    **{n: (1, n, 256) for n in MAGNITUDES if 1024 < n <= 4096},
    **{n: (1, 8192, 512) for n in MAGNITUDES if n > 4096},
}
_LONGEST, _TILE = (1, 16384, 1024), 8192
_LONGEST_PARTS = 4  # of such a row, at least: there may be as many rows as a machine runs blocks
_REGISTERS = 65536  # of a multiprocessor, of which a thread has its share,
_BESIDE = 40  # and what it needs of these beside the parts;
_WIDE = 3  # those of a part of 64 bits, with what it is folded with
_FEW_PARTS = 8  # that are loaded at once: 16 bytes of halves
_COLUMNS = (128, 32, 16, 8)  # of a tile: the most that divide all, so that no tile sticks out,
_FEW = 1024  # fewest where there are not more than these;
_USUAL = 32  # and what a tile has where none of them does
_ELEMENTS, _THREADS = 2048, 256
_BLOCKS, _AT_EDGES = 256, 512  # enough for a machine; where loads wait for tests
_MOST_PARTS = 128  # which the last block reads
_LEAST_PARTS = 3  # that are worth a wait
_HUGE, _VERY_LONG = 1 << 20, 1 << 30  # extents beyond all magnitudes
_SHORT = 64  # rows that a thread goes down by itself, where iterations fill a machine,
_MANY = 1 << 16  # as so many do
_LONE = 8192  # iterations that do not fill a machine with a thread for each
_FAR = 32  # places between elements that no warp's load has both of
_STEPS = 4  # of a tile that a part has, at least
_TOGETHER = 8192  # elements of a tile of short rows, where there are few blocks
_SHARING = (16, 128, 128)  # a tile of iterations that read the same: a thread has 16 of it
_MANY_SHARE = 32  # for more iterations than these


class Tiled(NamedTuple):
    """A program over tiles: the iterations and the threads that a block has, the blocks that share
    them, whether they are of the last index alone, how many columns it has, and what it does."""

    outer: int
    threads: int
    parts: int
    alone: bool
    width: int
    body: list[ast.stmt]


class Tiles(TileLoops):
    """Writes the body of one nest; `outside`: indices that are one for a block."""

    def tiled(self) -> Tiled | None:
        """None where the loops are of another form, or short."""
        self.nest = in_variables(self.nest, self.language, self.fresh)
        self.nest = in_order(self._declared())
        if self.across and not self._go_across(128 if self.nest.lanes == 32 else 64):
            return None
        loops = [s for s in self.nest.body if isinstance(s, ast.For)]
        columns = False if self.totals else self._along_columns(loops)
        if columns is None or not loops or self._reads_what_it_writes():
            return None
        chains = [nests.chain_of(s) for s in loops]
        if not all(self._is_end(chain, self.across) for chain in chains):
            return None
        short = any(self._trips(chain) < self.nest.lanes // 2 for chain in chains)
        if short and not columns and not self.totals:
            return None  # a thread reads all of such a row at once
        if columns and max(map(self._trips, chains)) <= _SHORT:
            if (self._iterations() or _HUGE) >= _MANY:
                return None  # each goes down columns of its own, beside its neighbours
        found = [self._levels(chain) for chain in chains]
        lengths = [magnitude_of(size) if size else 0 for _, _, size in found]
        length = 0 if 0 in lengths else max(lengths)
        shared = False
        if columns:
            width, unit = self.magnitude(self.nest.extents[-1])
            least = 1 if 0 < width <= _FEW else _USUAL
            outer = next((n for n in _COLUMNS if unit % n == 0 and n >= least), _USUAL)
            tile = outer, _ELEMENTS // outer, _THREADS
            groups = -(-(width or _HUGE) // outer)
            blocks = _AT_EDGES if unit % outer else _BLOCKS
        elif self.totals:
            rows = self.magnitude(self.nest.extents[-1])[0] or _HUGE
            tile = self._of_sums(rows, length or _HUGE, self._may_meet(loops))
            others = max(1, (self._iterations() or _HUGE) // rows)
            groups, blocks = others * -(-rows // tile[0]), _BLOCKS
        elif shared := self._share(loops):
            rows = self.magnitude(self.nest.extents[-1])[0] or _HUGE
            loops = self._own_elements_first(loops)
            chains = [nests.chain_of(s) for s in loops]
            tile = self._fitting_rows(_SHARING)
            others = max(1, (self._iterations() or _HUGE) // rows)
            groups, blocks = others * -(-rows // tile[0]), _BLOCKS
        else:
            iterations = self._iterations() or _HUGE
            tile = self._fitting_rows(_ROW_TILES.get(length, _LONGEST))
            tile = _of_rows(tile, length, iterations)
            groups, blocks = -(-iterations // tile[0]), _BLOCKS
        around, _, size = found[0]
        most = min(_MOST_PARTS, blocks // groups)
        if around:
            most = min(most, self._turns(around, size, tile[1]))
        elif columns or length or self.totals:
            most = min(most, (size or _HUGE) // (tile[1] * _STEPS))
        else:
            most = max(_LONGEST_PARTS, most)
        parts = 1 if self.across else self._parts(loops, most)
        if parts == 1 and self._may_meet(loops):
            turns = max(self._turns(a, n or _VERY_LONG, min(tile[1], _TILE)) for a, _, n in found)
            few = self.nest.together // self._groups(columns, tile[0])
            if (most := min(few, turns // _STEPS, _MOST_PARTS)) >= _LEAST_PARTS:
                parts, self.meets = most, True
                if tile[1] > _TILE:
                    tile = self._fitting_rows(_ROW_TILES[_TILE])
        self.outer, self.inner = tile[:2]
        threads = tile[2]
        if around and self.outer == parts == 1:  # few blocks: each has more on its way
            deep = self._length(around[-1]) or _HUGE
            self.rows = max(1, min(_TOGETHER // self.inner, next_power_of_2(deep)))
            threads = max(threads, min(2 * _THREADS, self.rows * self.inner // 16))
        self.columns, self.parts = columns, parts
        self.alone = columns or bool(self.totals) or shared
        self.o, self.n, self.step = (self.fresh(x) for x in ("o", "n", "step"))
        body = self._statements([chain[-1] for chain in chains])
        if body is None:
            return None
        return Tiled(self.outer, threads, parts, self.alone, self.width, body)

    def _levels(self, chain: Sequence[ast.For]) -> tuple[list[ast.For], list[ast.For], int]:
        """Sums of products are of the elements of one loop."""
        if self.totals:
            return [*chain[:-1]], [chain[-1]], self._length(chain[-1])
        return super()._levels(chain)

    def _of_sums(self, rows: int, length: int, shared: bool) -> tuple[int, int, int]:
        """A tile of sums of products: about as many rows and columns as there are, and no more than
        a thread's registers hold with all that is folded; `shared`: by several blocks."""
        few = self._folded_at_once() < 2
        large = self.nest.lanes == 32 and not self.across  # warps of 64 have less shared memory
        many = shared or (self._iterations() or _HUGE) >= 128 * _BLOCKS
        outer = max(16, min(128 if large and many else 64, next_power_of_2(rows)))
        inner = max(16, min(128 if large and few else 64, next_power_of_2(length)))
        return outer, inner, 256 if outer == 128 else 128

    def _fitting_rows(self, tile: tuple[int, int, int]) -> tuple[int, int, int]:
        """A tile of rows whose parts of all that is folded at once a thread can hold."""
        outer, inner, threads = tile
        folded = self._folded_at_once()
        wide = any("64" in ast.unparse(d) for d in nests.declared(self.nest).values())
        while folded > 1 and threads > _THREADS:
            parts = outer * inner // threads
            if parts * folded * (_WIDE if wide else 1) + _BESIDE <= _REGISTERS // threads:
                break
            if parts > _FEW_PARTS:
                inner //= 2
            else:
                threads //= 2
        return outer, inner, threads

    def _folded_at_once(self) -> int:
        """How many fragments of a tile the loop has that folds the most: of a place one beside
        what is the most."""
        loops = every(ast.For, *self.nest.body)
        folds = [[bool(self._kind(x)) or 3 * isinstance(x, ast.If) for x in s.body] for s in loops]
        return max(map(sum, folds), default=0)

    # --- what form it has -------------------------------------------------------------------------

    def _share(self, loops: Sequence[ast.For]) -> bool:
        """Whether iterations that differ in their last index alone, of which there are many, go
        along the same elements."""
        *others, last = self.nest.indices
        rows = self.magnitude(self.nest.extents[-1])[0] or _HUGE
        if not others or rows <= _MANY_SHARE:
            return False
        inner = {nests.index_of(x) for s in loops for x in nests.chain_of(s)}
        names = (names_in(e.slice) for e in nests.elements_of(*loops))
        along = [x for x in names if x & inner]
        return bool(along) and not any(last in x for x in along)

    def _own_elements_first(self, loops: Sequence[ast.For]) -> list[ast.For]:
        """The loops, which elements that iterations alone name stand before: each is for all of a
        row."""
        own = {*stored_names(*self.nest.body), *nests.stored_tensors(*self.nest.body)}
        puts, made = dict[str, str](), list[ast.stmt]()
        for e in nests.elements_of(*loops):
            if own.isdisjoint(names_in(e)) and names_in(e.slice) & {*self.nest.indices}:
                if (text := ast.unparse(e)) not in puts:
                    puts[text] = self.fresh("own")
                    made += parsed(f"{puts[text]}: {nests.tensor_of(e)}.dtype = {text}", e)
        at = self.nest.body.index(loops[0])
        put = nests.Put(puts)
        body = [put.visit(copied(s)) if s in loops else s for s in self.nest.body]
        self.nest = replace(self.nest, body=(*body[:at], *made, *body[at:]))
        return [s for s in self.nest.body if isinstance(s, ast.For)]

    def _iterations(self) -> int:
        """About how many there are; 0, very many."""
        known = [self.nest.known(e) for e in self.nest.extents]
        return prod(n or self.magnitude(e)[0] for n, e in zip(known, self.nest.extents))

    def _turns(self, around: Sequence[ast.For], size: int, inner: int) -> int:
        """About how many tiles the loops around them make; as good as all for very many."""
        lengths = [self._length(s) for s in around]
        return _HUGE if 0 in lengths else prod(lengths) * -(-(size or _HUGE) // inner)

    def _trips(self, chain: Sequence[ast.For]) -> int:
        """Of all loops that go along a row or down a column; very many where that is not known."""
        known = [self.nest.known(self._extent(s)) for s in chain]
        return prod(_HUGE if n is None else n for n in known)

    def _along_columns(self, loops: Sequence[ast.For]) -> bool | None:
        """Whether the last index of the matrices that loops inside go over is that of the
        iterations, not theirs; None where it is neither, or both. Numbers at the end, `P[j, 0]`,
        do not count."""
        inner = {nests.index_of(s) for loop in loops for s in nests.chain_of(loop)}
        ours = inner | {*self.nest.indices}
        matrices, vectors = list[set[str]](), list[set[str]]()
        few = (self._iterations() or _HUGE) <= _LONE
        for e in nests.elements_of(*loops):
            names = {n.id for i in nests.indices_of(e) for n in _apart_from_elements(i)}
            if not inner & names:
                continue
            places = [*nests.indices_of(e)]
            while isinstance(places[-1], ast.Constant):
                places.pop()
            if len(places) > 1:
                matrices.append(_beside(places[-1], ours))
            elif few or not names.isdisjoint(self.nest.indices):
                vectors.append(_beside(places[-1], ours))
        last, own = matrices or vectors, self.nest.indices[-1]
        if last and all(inner & names for names in last):
            return None if any(own in names for names in last) else False
        return True if last and all(names == {own} for names in last) else None

    def _reads_what_it_writes(self) -> bool:
        """Which would be other threads' elements, but where one statement does both, at one place;
        of a loop, at a place of its own iteration."""
        found = nests.elements_of(*self.nest.body)
        both = nests.stored_tensors(*self.nest.body)
        both &= {nests.tensor_of(n) for n in found if isinstance(n.ctx, ast.Load)}
        for s in self.nest.body:
            own = [*nests.elements_of(s)]
            elsewhere = {nests.tensor_of(e) for e in found if e not in own}
            for name in {nests.tensor_of(e) for e in own} - elsewhere:
                places = {ast.unparse(e) for e in own if nests.tensor_of(e) == name}
                if len(places) == 1 and (not isinstance(s, ast.For) or self._is_own(name)):
                    both.discard(name)
        return any(not (self.totals and self._is_own(name)) for name in both)

    def _is_own(self, tensor: str) -> bool:
        """Whether all elements of a tensor that iterations name are their own, one in each loop:
        other threads of their block may have written them, behind which it meets."""
        found = [e for e in nests.elements_of(*self.nest.body) if nests.tensor_of(e) == tensor]
        texts = [[*map(ast.unparse, nests.indices_of(e))] for e in found]
        extents = zip(self.nest.indices, self.nest.extents)
        several = (i for i, e in extents if self.nest.known(e) != 1)
        for i in several:
            if not set.intersection(*({d for d, x in enumerate(t) if x == i} for t in texts)):
                return False
        inside = ([e for e in found if e in nests.elements_of(s)] for s in self.nest.body)
        return all(len({*map(ast.unparse, own)}) <= 1 for own in inside)

    def _parts(self, loops: Sequence[ast.For], most: int) -> int:
        """How many blocks share iterations, of `most`: where one loop folds all that there is."""
        folds = {self._kind(s) for s in nests.chain_of(loops[0])[-1].body}
        before = self.nest.body[: self.nest.body.index(loops[0]) + 1]
        if len(loops) > 1 or not folds - {""} or self._store(before) or self._is_running(loops[0]):
            return 1
        if not all(map(self._kind, every(ast.If, loops[0]))):
            return 1
        return 1 << max(most, 1).bit_length() - 1

    def _may_meet(self, loops: Sequence[ast.For]) -> bool:
        """Whether blocks that share iterations may wait for one another behind each loop."""
        known = self._declared()
        running = [s for s in loops if self._is_running(s)]
        if self.across or not all(known._is_cut(s) for s in running):
            return False
        read = {
            nests.tensor_of(e) for e in nests.elements_of(*loops) if isinstance(e.ctx, ast.Load)
        }
        if len(loops) == len(running) == 1:  # each block goes twice along elements of its own
            read.clear()
        folds = [
            bool(known._fold(x) or known._pick(x, nests.chain_of(s)))
            for s in loops
            for x in nests.chain_of(s)[-1].body
        ]
        return any(folds) and read.isdisjoint(nests.stored_tensors(*self.nest.body))

    def _groups(self, alone: bool, outer: int) -> int:
        """How many blocks there are at most that share nothing; as good as all where nobody
        knows."""
        *others, last = map(self.nest.limit, self.nest.extents)
        if 0 in (*others, last):
            return _HUGE
        if alone or self.totals:
            return prod(others) * -(-last // outer)
        return -(-prod([*others, last]) // outer)

    def _declared(self) -> Tiles:
        """This, as if all variables had been read."""
        return replace(self, sums=nests.declared(self.nest))

    def _kind(self, s: ast.stmt) -> str:
        """How a statement of a loop folds, "" where it does not."""
        found = self._declared()._fold(s)
        return "" if found is None else found[1]

    def _is_running(self, loop: ast.For) -> bool:
        return bool(self._declared()._running(nests.chain_of(loop)))

    def _store(self, statements: Sequence[ast.stmt]) -> bool:
        """Whether any of them writes an element: of blocks that share columns one alone may."""
        return any(
            isinstance(n, ast.Expr)
            or (isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store))
            for s in statements
            for n in ast.walk(s)
        )

    # --- statements -------------------------------------------------------------------------------

    def _statements(self, loops: Sequence[ast.For]) -> list[ast.stmt] | None:
        """What a block does; `loops`: that go along its rows."""
        made = [*self._of_block(), *self._ends_of_rows(loops)]
        behind: list[ast.stmt] | None = None  # what the last block alone does
        for at, s in enumerate(self.nest.body):
            match s:
                case ast.AnnAssign(ast.Name(name), dtype, ast.expr() as value):
                    if name in self.frozen or not self._is_pure(value):
                        return None
                    new = self._held(name, dtype, s)
                    new += self._each(self._place_of(name), value, s)
                    self.sums[name] = dtype
                    self.outside.add(name)
                case ast.Assign([ast.Name(name)], value):
                    if not self._is_pure(value) or name in self.frozen:
                        return None
                    self.outside.add(name)
                    if name not in self.held:
                        if name in self.written_out:
                            return None
                        self._write_out(name, value)
                        continue
                    new = self._each(self._place_of(name), value, s)
                case ast.Assign([ast.Subscript(ast.Name()) as place], value):
                    if not self._is_pure(value):
                        return None
                    new = self._each(ast.unparse(self._put(place)), value, s, True)
                case ast.For():
                    loop = self._folding(s, self.nest.body[at + 1 :])
                    if loop is None:
                        return None
                    new, last = loop
                    if self.parts > 1 and not self.meets:
                        made += new
                        behind, new = [], last
                    else:
                        new += last
                case ast.If() | ast.Expr() if self._acts_once(s):
                    new = self._each_once(s)
                case _:
                    return None
            (made if behind is None else behind).extend(new)
        if behind is not None:
            shared = f"[{', '.join(self.shared)}], {self.parts}, {self.kinds}"
            made.append(headed(f"if {self.combined}({shared}):", behind, self.nest.body[0]))
        return made


def _of_rows(tile: tuple[int, int, int], length: int, iterations: int) -> tuple[int, int, int]:
    """A tile of rows, of fewer and more of each where these would not fill a machine."""
    outer, inner, threads = tile
    if iterations < outer:
        return 1, max(length, _THREADS), _THREADS
    while iterations // outer < _BLOCKS and outer // 2 * min(2 * inner, length) >= 4 * threads:
        outer, inner = outer // 2, min(2 * inner, length)  # a vector for each thread
    return outer, inner, threads


def _beside(node: ast.expr, ours: set[str]) -> set[str]:
    """Which of the names `ours` an index goes along in small steps; of what is no sum with one of
    them in it, all that it names."""

    def near(n: ast.expr) -> set[str]:
        match n:
            case ast.BinOp(left, ast.Add() | ast.Sub(), right):
                return near(left) | near(right)
            case ast.BinOp(left, ast.Mult(), right):
                for factor, index in ((left, right), (right, left)):
                    if ours.isdisjoint(names_in(factor)):
                        value = factor.value if isinstance(factor, ast.Constant) else None
                        small = isinstance(value, int) and value < _FAR
                        return near(index) if small else set()
        return {x.id for x in _apart_from_elements(n)} & ours

    return near(node) or {x.id for x in _apart_from_elements(node)} & ours


def _apart_from_elements(node: ast.expr) -> list[ast.Name]:
    """The names in an index, but for those in elements that it is read from."""
    left: list[ast.AST] = [node]
    found = []
    while left:
        n = left.pop()
        if isinstance(n, ast.Name):
            found.append(n)
        elif not isinstance(n, ast.Subscript):
            left += ast.iter_child_nodes(n)
    return found
