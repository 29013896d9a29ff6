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
they have begun. A tile's extents follow from about how large the loops are.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tilec.frontend.whole_loop_rows import Rows, indices_of, tensor_of
from tilec.frontend.whole_loops import counted, names_in
from tilec.ir.types import MAGNITUDES, DType

Magnitude = Callable[[ast.expr], tuple[int, int]]

# About how long the loops inside are: rows of a tile, columns, threads. Up to 1024 a tile sticks
# out of a row by little; one of longer rows is all of a row where it can be.
_ROW_TILES = {
    **{n: (max(8, 1024 // n), min(n, 128), 128) for n in MAGNITUDES if n <= 1024},
    **{n: (1, n, 256) for n in MAGNITUDES if 1024 < n <= 4096},
    **{n: (1, 8192, 512) for n in MAGNITUDES if n > 4096},
}
_LONGEST = (1, 16384, 1024)
_LONGEST_PARTS = 4  # of such a row: there will hardly be as many as a machine runs blocks
_COLUMNS = (128, 32, 16, 8)  # of a tile: the most that divide all, so that no tile sticks out,
_FEW = 1024  # fewest where there are not more than these;
_USUAL = 32  # and what a tile has where none of them does
_ELEMENTS, _THREADS = 2048, 256
_BLOCKS, _AT_EDGES = 256, 512  # enough for a machine; where loads wait for tests
_MOST_PARTS = 128  # which the last block reads
_HUGE = 1 << 20  # an extent beyond all magnitudes
_STEPS = 4  # of a tile that a part has, at least


class Tiled(NamedTuple):
    """A program over tiles: the iterations and the threads that a block has, the blocks that share
    them, whether iterations are columns, and what a block does."""

    outer: int
    threads: int
    parts: int
    columns: bool
    body: list[ast.stmt]


@dataclass
class Tiles(Rows):
    """Writes the body of one nest. `block` and `part`: what stands for the block's number, and for
    which of those it is that share columns; `outside`: indices that are one for a block."""

    magnitude: Magnitude = lambda extent: (0, 1)
    dtype_of: Callable[[ast.expr], DType | None] = lambda written: None
    block: str = ""
    part: str = ""
    combined: str = ""
    held: dict[str, str] = field(default_factory=dict)  # variables, and the fragments they are in
    written_out: dict[str, ast.expr] = field(default_factory=dict)  # names, for what they stand
    frozen: set[str] = field(default_factory=set)  # variables that these need as they are

    def tiled(self) -> Tiled | None:
        """None where the loops are of another form, or short."""
        loops = [s for s in self.nest.body if isinstance(s, ast.For)]
        columns = self._along_columns(loops)
        if columns is None or not loops or self._reads_what_it_writes():
            return None
        extents = [counted(s.iter, self.named) for s in loops]
        if any(e is None or self.own & {n.id for n in names_in(e)} for e in extents):
            return None
        known = [self.known(e) for e in extents if e is not None]
        if not columns and any(n is not None and n < self.lanes // 2 for n in known):
            return None  # a thread reads all of such a row at once
        found = [self.magnitude(e)[0] for e in extents if e is not None]
        length = 0 if 0 in found else max(found)
        if columns:
            width, unit = self.magnitude(self.nest.extents[-1])
            least = 1 if 0 < width <= _FEW else _USUAL
            outer = next((n for n in _COLUMNS if unit % n == 0 and n >= least), _USUAL)
            inner = _ELEMENTS // outer
            tile = outer, inner, _THREADS
            groups = -(-(width or _HUGE) // outer)
            blocks = _AT_EDGES if unit % outer else _BLOCKS
            most = min(_MOST_PARTS, (length or _HUGE) // (inner * _STEPS), blocks // groups)
        else:
            tile = _ROW_TILES.get(length, _LONGEST)
            most = 1 if length else _LONGEST_PARTS
        parts = self._parts(loops, most)
        self.outer, self.inner = tile[:2]
        self.columns, self.parts = columns, parts
        self.o, self.n, self.step = (self.fresh(x) for x in ("o", "n", "step"))
        body = self._statements()
        return None if body is None else Tiled(tile[0], tile[2], parts, columns, body)

    # --- what form it has -------------------------------------------------------------------------

    def _along_columns(self, loops: Sequence[ast.For]) -> bool | None:
        """Whether the last index of the matrices that loops inside go over is that of the
        iterations, not theirs; None where it is neither, or both."""
        inner = {s.target.id for s in loops if isinstance(s.target, ast.Name)}
        last: list[set[str]] = []
        for e in (e for s in loops for e in _elements(s)):
            names = [{n.id for n in _apart_from_elements(i)} for i in indices_of(e)]
            if len(names) > 1 and inner & set[str]().union(*names):
                last.append(names[-1])
        if last and all(inner & names for names in last):
            return None if any(self.nest.indices[-1] in names for names in last) else False
        return True if last and all(names == {self.nest.indices[-1]} for names in last) else None

    def _reads_what_it_writes(self) -> bool:
        """Which would be other threads' elements, in another loop."""
        found = [e for s in self.nest.body for e in _elements(s)]
        written = {tensor_of(n) for n in found if isinstance(n.ctx, ast.Store)}
        return not written.isdisjoint(tensor_of(n) for n in found if isinstance(n.ctx, ast.Load))

    def _parts(self, loops: Sequence[ast.For], most: int) -> int:
        """How many blocks share iterations, of `most`: where one loop folds all that there is, in
        one way."""
        folds = {kind for s in loops[0].body if (kind := self._kind(s))}
        before = self.nest.body[: self.nest.body.index(loops[0]) + 1]
        if len(loops) > 1 or len(folds) != 1 or self._store(before):
            return 1
        return 1 << max(most, 1).bit_length() - 1

    def _kind(self, s: ast.stmt) -> str:
        """How a statement of a loop folds, "" where it does not."""
        declared = {
            d.target.id: d.annotation
            for d in self.nest.body
            if isinstance(d, ast.AnnAssign) and isinstance(d.target, ast.Name)
        }
        found = replace(self, sums=declared)._fold(s)
        return "" if found is None else found[1]

    def _store(self, statements: Sequence[ast.stmt]) -> bool:
        """Whether any of them writes an element: of blocks that share columns one alone may."""
        return any(
            isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)
            for s in statements
            for n in ast.walk(s)
        )

    # --- statements -------------------------------------------------------------------------------

    def _statements(self) -> list[ast.stmt] | None:
        made: list[ast.stmt] = []
        behind: list[ast.stmt] | None = None  # what the last block alone does
        for at, s in enumerate(self.nest.body):
            match s:
                case ast.AnnAssign(ast.Name(name), dtype, ast.expr() as value):
                    if name in self.frozen or not self._is_pure(value):
                        return None
                    new = self._held(name, dtype, s)
                    new += self._each(f"{self.held[name]}[{self.o}]", value, s)
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
                    new = self._each(f"{self.held[name]}[{self.o}]", value, s)
                case ast.Assign([ast.Subscript(ast.Name()) as place], value):
                    if not self._is_pure(value):
                        return None
                    new = self._each(ast.unparse(self._put(place)), value, s, True)
                case ast.For():
                    loop = self._folding(s, self.nest.body[at + 1 :])
                    if loop is None:
                        return None
                    new, last = loop
                    if self.parts > 1:
                        made += new
                        behind, new = [], last
                    else:
                        new += last
                case _:
                    return None
            (made if behind is None else behind).extend(new)
        if behind is not None:
            shared = f"[{', '.join(self.shared)}], {self.parts}, {self.kind!r}"
            (ends,) = self._parsed(f"if {self.combined}({shared}):\n    pass", self.nest.body[0])
            assert isinstance(ends, ast.If)
            ends.body += behind
            made.append(ends)
        return made

    def _held(self, name: str, dtype: ast.expr, at: ast.stmt) -> list[ast.stmt]:
        """The fragment of a variable."""
        if name in self.held:
            return []
        self.held[name] = self.fresh(name)
        return self._fragment(self.held[name], (self.outer,), dtype, at)

    def _fragment(
        self, name: str, shape: tuple[int, ...], dtype: ast.expr, at: ast.stmt
    ) -> list[ast.stmt]:
        made = f"{name} = {self.language}.alloc_fragment({shape}, {ast.unparse(dtype)})"
        return self._parsed(made, at)

    def _write_out(self, name: str, value: ast.expr) -> None:
        """Let `name`, whose dtype nobody has written, stand for what it is."""
        self.frozen |= {n.id for n in names_in(value)} & self.held.keys()
        self.written_out[name] = self._put(value)

    def _put(self, node: ast.expr) -> ast.expr:
        """The author's expression, with elements of fragments for variables."""
        found = _Put(self.held, self.written_out, self.o).visit(copy.deepcopy(node))
        assert isinstance(found, ast.expr)
        return found

    def _each(
        self, target: str, value: ast.expr, at: ast.stmt, guarded: bool = False
    ) -> list[ast.stmt]:
        """An assignment for each of the block's iterations; of a variable, for those beyond the
        last one, too, which have tiles' elements."""
        guard = f"if {self._inside()}: " * (guarded and self.outer > 1)
        text = f"""
for {self.o} in {self.language}.Parallel({self.outer}):
    {self._places()}
    {guard}{target} = {ast.unparse(self._put(value))}
"""
        return self._parsed(text, at)

    def _places(self) -> str:
        """The indices of an iteration."""
        first = f"{self.block} * {self.outer} + {self.o}"
        if self.columns:
            across = f"{self.language}.ceildiv({ast.unparse(self.nest.extents[-1])}, {self.outer})"
            first = f"{self.block} % {across} * {self.outer} + {self.o}"
            if len(self.nest.indices) == 1:
                first = f"{self.block} * {self.outer} + {self.o}"
            made, number = [f"{self.nest.indices[-1]} = {first}"], f"({self.block} // {across})"
            indices = [*zip(self.nest.indices, self.nest.extents)][:-1]
        else:
            made, number = [], f"({first})"
            indices = [*zip(self.nest.indices, self.nest.extents)]
        for k in reversed(range(len(indices))):
            index, extent = indices[k]
            whole = f" % ({ast.unparse(extent)})" if k else ""
            made.append(f"{index} = {number}{whole}")
            number = f"({number} // ({ast.unparse(extent)}))"
        return "; ".join(made)

    def _inside(self) -> str:
        """Whether there is such an iteration."""
        if self.columns:
            return f"{self.nest.indices[-1]} < ({ast.unparse(self.nest.extents[-1])})"
        if self.outer == 1:
            return "True"
        total = " * ".join(f"({ast.unparse(e)})" for e in self.nest.extents)
        return f"{self.block} * {self.outer} + {self.o} < {total}"

    def _is_whole(self) -> str:
        """Whether all iterations of the block are there."""
        if self.outer == 1:
            return "True"
        if not self.columns:
            total = " * ".join(f"({ast.unparse(e)})" for e in self.nest.extents)
            return f"({self.block} + 1) * {self.outer} <= {total}"
        extent = ast.unparse(self.nest.extents[-1])
        across = f"{self.language}.ceildiv({extent}, {self.outer})"
        number = self.block if len(self.nest.indices) == 1 else f"{self.block} % {across}"
        return f"({number} + 1) * {self.outer} <= ({extent})"

    def _folding(
        self, loop: ast.For, behind: Sequence[ast.stmt]
    ) -> tuple[list[ast.stmt], list[ast.stmt]] | None:
        """A loop over tiles, up to where blocks that share it come together, and what the last one
        of them does then."""
        found = self._read(loop, behind)
        if found is None:
            return None
        before, after, last = list[ast.stmt](), list[ast.stmt](), list[ast.stmt]()
        whole, edge = list[str](), list[str]()  # what is done in a tile, and in one that sticks out
        self.wanted = self.fresh("wanted")
        self.shared: list[str] = []
        shape, place = self._tile()
        dim = int(not self.columns)
        first = list[str]()
        for s in loop.body:
            fold = self._fold(s)
            if fold is None:
                made = self._in_loop(s)
                if _divides(made):
                    more, loads = self._ahead(made, shape, place, loop)
                    before, first = before + more, first + loads
                whole.append(ast.unparse(made))
                edge += self._stored_if(made)
                continue
            name, word, value = fold
            if name in self.frozen:
                return None
            tile, kept = self.fresh("parts"), self.held[name]
            before += self._fragment(tile, shape, self.sums[name], s)
            own, text = f"{tile}[{place}]", ast.unparse(self._put(value))
            self.kind = "add" if word == "sum" else word
            if word == "sum":
                got = self.fresh("sums")
                before += self._parsed(f"{self.language}.clear({tile})", s)
                before += self._fragment(got, (self.outer,), self.sums[name], s)
                folded = f"{own} + ({text})"
                after += self._parsed(f"{self.language}.reduce_sum({tile}, {got}, dim={dim})", s)
                last += self._parsed(
                    f"for {self.o} in {self.language}.Parallel({self.outer}):\n"
                    f"    {kept}[{self.o}] = {kept}[{self.o}] + {got}[{self.o}]",
                    s,
                )
                self.shared.append(got)
            else:  # of blocks that share it each has what it began with
                least = self._least(word, self.sums[name])
                if least is None:
                    return None
                before += self._parsed(f"{self.language}.fill({tile}, {least})", s)
                folded = f"{self.language}.{word}({own}, {text})"
                reduced = f"{tile}, {kept}, dim={dim}, clear=False"
                after += self._parsed(f"{self.language}.reduce_{word}({reduced})", s)
                self.shared.append(kept)
            whole.append(f"{own} = {folded}")
            edge.append(f"{own} = {self.language}.if_then_else({self.wanted}, {folded}, {own})")
        tiles = self._over_tiles(loop, first, whole, edge)
        return [*before, *tiles, *after], last

    def _over_tiles(
        self, loop: ast.For, first: Sequence[str], whole: Sequence[str], edge: Sequence[str]
    ) -> list[ast.stmt]:
        """The loop over tiles, of which a block has its share: what is done `first`, then in a tile
        that is `whole`, and in one that sticks out."""
        extent = counted(loop.iter, self.named)
        assert extent is not None and isinstance(loop.target, ast.Name)
        index = loop.target.id
        shape, place = self._tile()
        ranges = ", ".join(map(str, shape))
        count = f"{self.language}.ceildiv({ast.unparse(extent)}, {self.inner})"
        number = self.step
        if self.parts > 1:
            count = f"{self.language}.ceildiv({count} - {self.part}, {self.parts})"
            number = f"({self.step} * {self.parts} + {self.part})"

        def over(lines: Sequence[str]) -> str:
            if not lines:
                return ""
            body = "\n            ".join("\n".join(lines).splitlines())
            return f"""
        for {place} in {self.language}.Parallel({ranges}):
            {self._places()}
            {index} = {number} * {self.inner} + {self.n}
            {body}"""

        inside = f"{index} < ({ast.unparse(extent)}) and {self._inside()}"
        text = f"""
for {self.step} in {self.language}.serial({count}):
    {over(first).strip()}
    if ({number} + 1) * {self.inner} <= ({ast.unparse(extent)}) and {self._is_whole()}:{over(whole)}
    else:{over([f"{self.wanted} = {inside}", *edge])}
"""
        return self._parsed(text, loop)

    def _tile(self) -> tuple[tuple[int, int], str]:
        """A tile's shape, and the place in it of a block's iteration and a loop's."""
        if self.columns:
            return (self.inner, self.outer), f"{self.n}, {self.o}"
        return (self.outer, self.inner), f"{self.o}, {self.n}"

    def _least(self, word: str, dtype: ast.expr) -> str | None:
        """What changes no largest ("max") or smallest element; None where no number is that."""
        found = self.dtype_of(dtype)
        if found is None or (found.is_float and found.bits < 16):
            return None
        if found.is_float:
            return f"{'-' * (word == 'max')}{self.language}.infinity({found.name!r})"
        end = "min" if word == "max" else "max"
        return f"{self.language}.{end}_value({found.name!r})"

    def _ahead(
        self, s: ast.stmt, shape: tuple[int, ...], place: str, loop: ast.For
    ) -> tuple[list[ast.stmt], list[str]]:
        """Fragments for the elements of a row that a statement reads, which get their names there,
        and what fills them. A quotient is a branch, behind which nothing is loaded."""
        assert isinstance(loop.target, ast.Name)
        made, loads = list[ast.stmt](), list[str]()
        names = dict[str, str]()
        for e in _elements(s):
            plain = all(isinstance(i, ast.Name) for i in indices_of(e))
            ends = ast.unparse(indices_of(e)[-1]) in (loop.target.id, self.nest.indices[-1])
            tensor = tensor_of(e)
            if isinstance(e.ctx, ast.Load) and plain and ends and tensor not in self.held.values():
                if len(indices_of(e)) > 1 and ast.unparse(e) not in names:
                    tile = names[ast.unparse(e)] = self.fresh("ahead")
                    dtype = ast.parse(f"{tensor}.dtype", mode="eval").body
                    made += self._fragment(tile, shape, dtype, s)
                    loads.append(f"{tile}[{place}] = {ast.unparse(e)}")
        _Renamed({text: f"{tile}[{place}]" for text, tile in names.items()}).visit(s)
        return made, loads

    def _stored_if(self, s: ast.stmt) -> list[str]:
        """A statement where not all elements are wanted: what is not is computed, so that loads
        need not wait for tests, and not stored."""
        if not (isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Subscript)):
            return [ast.unparse(s)]
        value = self.fresh("value")
        stored = f"if {self.wanted}: {ast.unparse(s.targets[0])} = {value}"
        return [f"{value} = {ast.unparse(s.value)}", stored]

    def _in_loop(self, s: ast.stmt) -> ast.stmt:
        made = copy.deepcopy(s)
        if isinstance(made, ast.AnnAssign | ast.Assign) and made.value is not None:
            made.value = self._put(made.value)
        if isinstance(made, ast.Assign):
            made.targets = [
                self._put(t) if isinstance(t, ast.Subscript) else t for t in made.targets
            ]
        return made


class _Put(ast.NodeTransformer):
    def __init__(self, held: dict[str, str], written_out: dict[str, ast.expr], at: str) -> None:
        self.held, self.written_out, self.at = held, written_out, at

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self.written_out:
            return copy.deepcopy(self.written_out[node.id])
        if node.id in self.held:
            return ast.parse(f"{self.held[node.id]}[{self.at}]", mode="eval").body
        return node


class _Renamed(ast.NodeTransformer):
    def __init__(self, elements: dict[str, str]) -> None:
        self.elements = elements

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        found = self.elements.get(ast.unparse(node)) if isinstance(node.ctx, ast.Load) else None
        return self.generic_visit(node) if not found else ast.parse(found, mode="eval").body


def _divides(s: ast.stmt) -> bool:
    """Whether a statement stores a quotient."""
    stores = isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Subscript)
    return stores and any(isinstance(n, ast.Div) for n in ast.walk(s))


def _elements(s: ast.stmt) -> list[ast.Subscript]:
    return [
        n for n in ast.walk(s) if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name)
    ]


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
