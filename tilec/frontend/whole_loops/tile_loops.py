"""The loops over tiles that those inside of a whole loop become (`tiles`), as syntax."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tilec.frontend.whole_loops.folds import Pick
from tilec.frontend.whole_loops.nests import (
    Put,
    chain_of,
    elements_of,
    index_of,
    indices_of,
    tensor_of,
    unravelled,
)
from tilec.frontend.whole_loops.scans import PAD, Scans, makers
from tilec.ir.ops.tile import COMBINED
from tilec.support.syntax import every, headed, names_in, parsed

_OPERATORS = {"sum": "+", "prod": "*", "bitand": "&", "bitor": "|", "bitxor": "^"}  # of folds


class Step(NamedTuple):
    """What is done for each element of a tile that is `whole`, and of one that sticks out, as the
    lines of a loop; and `behind` that, for all of it."""

    whole: Sequence[str]
    edge: Sequence[str]
    behind: Sequence[str]


class Summed(NamedTuple):
    """Sums of products of a tile: what stands in front of a loop over tiles, what makes one tile's,
    and the fragments, by the names that stand for their elements; whether loads come ahead of the
    loop over tiles."""

    before: list[ast.stmt]
    each: list[ast.stmt]
    tiles: dict[str, str]
    ahead: bool


@dataclass
class TileLoops(Scans):
    """`block` and `part`: what stands for the block's number, and for which of those it is that
    share columns; `scan`: for what makes running values. A tile has `outer` iterations, or columns,
    and `inner` elements of each, of `rows` iterations of the loop around it; `o`, `n` and `step`
    name a place in it, and its number. `alone`: it goes along the last index of the iterations
    alone, not along all of them as one. `totals`: the names that stand for sums of products;
    `gemms` writes what gives these for tiles, of rows and of a loop's elements that begin at two
    numbers."""

    block: str = ""
    part: str = ""
    combined: str = ""
    scan: str = ""
    held: dict[str, str] = field(default_factory=dict)  # variables, and the fragments they are in
    written_out: dict[str, ast.expr] = field(default_factory=dict)  # names, for what they stand
    frozen: set[str] = field(default_factory=set)  # variables that these need as they are
    running: dict[str, str] = field(default_factory=dict)  # variables, and places of tiles
    outer: int = 1
    inner: int = 1
    rows: int = 1
    columns: bool = False
    alone: bool = False
    totals: frozenset[str] = frozenset()
    gemms: Callable[[set[str], str, str, tuple[int, int]], Summed] = lambda *given: Summed(
        [], [], {}, False
    )
    parts: int = 1
    o: str = ""
    n: str = ""
    step: str = ""

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
        return parsed(made, at)

    def _write_out(self, name: str, value: ast.expr) -> None:
        """Let `name`, whose dtype nobody has written, stand for what it is."""
        self.frozen |= names_in(value) & self.held.keys()
        self.written_out[name] = self._put(value)

    def _names(self) -> Put:
        """Elements of fragments for variables; written out names before them."""
        places = {name: f"{tile}[{self.o}]" for name, tile in self.held.items()} | self.running
        held = {name: ast.parse(place, mode="eval").body for name, place in places.items()}
        return Put({**held, **self.written_out})

    def _put(self, node: ast.expr) -> ast.expr:
        """The author's expression, with elements of fragments for variables."""
        found = self._names().visit(copy.deepcopy(node))
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
        return parsed(text, at)

    def _each_once(self, s: ast.stmt) -> list[ast.stmt]:
        """A statement for each of the block's iterations that there are."""
        guarded = headed(f"if {self._inside()}:", [self._names().visit(copy.deepcopy(s))], s)
        head = f"for {self.o} in {self.language}.Parallel({self.outer}):"
        return [headed(head, [*parsed(self._places(), s), guarded], s)]

    def _numbers(self) -> tuple[str, str, str]:
        """The number of the block among those that go along the iterations it has, the number of
        the others, and how many iterations there are."""
        if not self.alone:
            return self.block, "0", " * ".join(f"({ast.unparse(e)})" for e in self.nest.extents)
        extent = ast.unparse(self.nest.extents[-1])
        across = f"{self.language}.ceildiv({extent}, {self.outer})"
        own = self.block if len(self.nest.indices) == 1 else f"{self.block} % {across}"
        return own, f"({self.block} // {across})", f"({extent})"

    def _places(self) -> str:
        """The indices of an iteration."""
        own, number, _ = self._numbers()
        first = f"{own} * {self.outer} + {self.o}"
        if not self.alone:
            return self._apart(self.nest.indices, f"({first})")
        *others, last = self.nest.indices
        rest = "" if self.totals else f"; {self._apart(others, number)}"
        return f"{last} = {first}{rest}"

    def _apart(self, indices: Sequence[str], number: str) -> str:
        extents = [f"({ast.unparse(e)})" for e in self.nest.extents[: len(indices)]]
        return unravelled(indices, extents, number)

    def _of_block(self) -> list[ast.stmt]:
        """The indices that all iterations of a block share, where sums of products need them."""
        text = self._apart(self.nest.indices[:-1], self._numbers()[1])
        return parsed(text, self.nest.body[0]) if self.totals else []

    def _inside(self) -> str:
        """Whether there is such an iteration."""
        own, _, total = self._numbers()
        if self.alone:
            return f"{self.nest.indices[-1]} < {total}"
        return "True" if self.outer == 1 else f"{own} * {self.outer} + {self.o} < {total}"

    def _is_whole(self) -> str:
        """Whether all iterations of the block are there."""
        own, _, total = self._numbers()
        return "True" if self.outer == 1 else f"({own} + 1) * {self.outer} <= {total}"

    def _folding(
        self, loop: ast.For, behind: Sequence[ast.stmt]
    ) -> tuple[list[ast.stmt], list[ast.stmt]] | None:
        """A loop over tiles, up to where blocks that share it come together, and what the last one
        of them does then."""
        chain = chain_of(loop)
        if self._read(chain, behind) is None:
            return None
        running = self._running(chain)
        if running and self.columns:
            return None  # a thread goes down each, beside its neighbours
        tile = self.inner, self.rows
        if running:
            self.inner, self.rows = self._fitting(running, self.outer, self.inner), 1
        elif not self._levels(chain)[0]:
            self.rows = 1
        self.inner *= self.rows
        made = self._folded(chain, running)
        (self.inner, self.rows), self.running = tile, {}
        return made

    def _folded(
        self, chain: Sequence[ast.For], running: set[str]
    ) -> tuple[list[ast.stmt], list[ast.stmt]] | None:
        """As `_folding`; `running`: the variables that a scan has at each element."""
        loop = chain[-1]
        before, after, last = list[ast.stmt](), list[ast.stmt](), list[ast.stmt]()
        whole, edge = list[str](), list[str]()  # what is done in a tile, and in one that sticks out
        names, steps, carried = list[tuple[ast.stmt, str]](), list[Step](), list[str]()
        runs = {name: self.fresh(name) for name in sorted(running)}
        asked = {p.best: p for s in loop.body if (p := self._asked_inside(s)) is not None}
        self.asked = {*asked}
        own, _, _ = self._numbers()
        starts = f"{own} * {self.outer}", f"{self.step} * {self.inner}"
        wanted = names_in(*loop.body) & self.totals
        summed = self.gemms(wanted, *starts, (self.outer, self.inner))
        before += summed.before
        self.running |= {x: f"{t}[{self.o}, {self.n}]" for x, t in summed.tiles.items()}
        for name, run in runs.items():
            self.running[name] = self._at(name, f"{run}[{self.o}, {self.n} + {PAD - 1}]")
        self.wanted = self.fresh("wanted")
        self.shared: list[str] = []
        self.kinds: list[str] = []
        shape, place = self._tile()
        dim = int(not self.columns)
        first = list[str]()
        for s in loop.body:
            if (pick := self._pick(s, chain)) is not None:
                if {pick.best, pick.at} & self.frozen:
                    return None
                lines = self._pick_lines(pick, shape, place, loop)
                if lines is None:
                    return None
                before += parsed(lines[0], s)
                whole.append(lines[1])
                edge.append(lines[2])
                after += parsed(lines[3], s)
                continue
            fold = self._fold(s)
            if fold is None:
                made = self._in_loop(s)
                if _divides(made):
                    more, loads = self._ahead(made, shape, place, loop)
                    before, first = before + more, first + loads
                whole.append(ast.unparse(made))
                edge += self._stored_if(made)
                names.append((s, whole[-1]))
                continue
            name, word, value = fold
            if name in self.frozen:
                return None
            if name in runs:
                found = self._scan(name, runs[name], word, value, names)
                if found is None:
                    return None
                begun, step, carry, ended = found
                before, after = before + parsed(begun, s), after + parsed(ended, s)
                steps.append(step)
                carried.append(carry)
                continue
            tile, kept = self.fresh("parts"), self.held[name]
            before += self._fragment(tile, shape, self.sums[name], s)
            own, text = f"{tile}[{place}]", ast.unparse(self._put(value))
            symbol = _OPERATORS.get(word, "")
            self.kinds.append(COMBINED.get(word, word))
            start = self._neutral(word, self.sums[name])
            if start is None:
                return None
            before += parsed(f"{self.language}.fill({tile}, {start})", s)
            folded = f"{self.language}.{word}({own}, {text})"  # no part begins as what is no number
            if symbol or name in asked:
                got = self.fresh("sums")
                before += self._fragment(got, (self.outer,), self.sums[name], s)
                after += parsed(f"{self.language}.reduce_{word}({tile}, {got}, dim={dim})", s)
                if name not in asked:
                    folded = f"{own} {symbol} ({text})"
                last += self._joined(kept, got, symbol, asked.get(name), s)
                self.shared.append(got)
            else:  # of blocks that share it each has what it began with
                reduced = f"{tile}, {kept}, dim={dim}, clear=False"
                after += parsed(f"{self.language}.reduce_{word}({reduced})", s)
                self.shared.append(kept)
            whole.append(f"{own} = {folded}")
            edge.append(f"{own} = {self.language}.if_then_else({self.wanted}, {folded}, {own})")
        steps.append(Step(whole, edge, carried))
        tiles = self._over_tiles(chain, first, steps, summed)
        return [*before, *tiles, *after], last

    def _joined(
        self, kept: str, got: str, symbol: str, asked: Pick | None, at: ast.stmt
    ) -> list[ast.stmt]:
        """Puts what a variable begins with and what a loop has folded together."""
        begun, all_of_it = f"{kept}[{self.o}]", f"{got}[{self.o}]"
        both = f"{begun} {symbol} {all_of_it}"
        if asked is not None:
            test = f"{all_of_it} {asked.compared} {begun}"
            both = f"{self.language}.if_then_else({test}, {all_of_it}, {begun})"
        each = f"for {self.o} in {self.language}.Parallel({self.outer}):\n    {begun} = {both}"
        return parsed(each, at)

    def _scan(
        self, name: str, run: str, word: str, value: ast.expr, names: Sequence[tuple[ast.stmt, str]]
    ) -> tuple[str, Step, str, str] | None:
        """What stands before a loop to have all values of a variable that runs in `run`, what is
        done in a tile, then at its end, and behind the loop. `names`: the statements of the loop
        before the fold, as they are written for a tile."""
        t, o, outer, end = self.language, self.o, self.outer, self.inner + PAD
        dtype, start = ast.unparse(self.sums[name]), self._neutral(word, self.sums[name])
        if start is None:
            return None
        own, first = f"{run}[{o}, {self.n} + {PAD}]", f"{run}[{o}, {PAD - 1}]"
        each = f"for {o} in {t}.Parallel({outer}):\n    "
        made = makers(value, names)
        text = f"{t}.cast({ast.unparse(self._put(value))}, {dtype})"
        step = Step(
            [*made, f"{own} = {text}"],
            [*made, f"{own} = {t}.if_then_else({self.wanted}, {text}, {start})"],
            [f"{self.scan}({run}[0:{outer}, {PAD - 1}:{end}], {word!r}, 1)"],
        )
        self.running[name] = self._at(name, own)
        begun = f"{run} = {t}.alloc_shared({(outer, end)}, {dtype})\n"
        begun += f"{each}{first} = {self.held[name]}[{o}]"
        ended = f"{each}{self.held[name]}[{o}] = {self._at(name, first)}"
        return begun, step, f"{each}{first} = {run}[{o}, {end - 1}]", ended

    def _at(self, name: str, place: str) -> str:
        """A variable that runs, whose scan is at a place: one that a condition compares with stays
        what is no number."""
        dtype, t = self.dtype_of(self.sums[name]), self.language
        if name not in self.asked or dtype is None or not dtype.is_float:
            return place
        begun = f"{self.held[name]}[{self.o}]"
        return f"{t}.if_then_else({t}.isnan({begun}), {begun}, {place})"

    def _pick_lines(
        self, p: Pick, shape: tuple[int, ...], place: str, loop: ast.For
    ) -> tuple[str, str, str, str] | None:
        """What stands before a loop, in a tile that is whole and in one that sticks out, and behind
        the loop to find the place of an element: each element of a tile has its own, then the first
        or last of those that are the most is it."""
        t, o = self.language, self.o
        most, where, got, at, better = map(self.fresh, ("most", "where", "got", "at", "better"))
        dtypes = [self.sums[x] for x in (p.best, p.at)]
        of_equal = "min" if p.first else "max"
        least, none = self._neutral(p.word, dtypes[0]), self._neutral(of_equal, dtypes[1])
        if least is None or none is None:
            return None
        dim = int(not self.columns)
        allocated = zip(
            (most, where, got, at), (shape, shape, (self.outer,), (self.outer,)), dtypes * 2
        )
        before = [f"{x} = {t}.alloc_fragment({s}, {ast.unparse(d)})" for x, s, d in allocated]
        before += [f"{t}.fill({most}, {least})", f"{t}.fill({where}, {none})"]
        value, own = ast.unparse(self._put(p.value)), f"{most}[{place}]"
        index = ast.unparse(loop.target)
        whole = f"""
{better} = ({value}) {p.compared} {own}
{where}[{place}] = {t}.if_then_else({better}, {index}, {where}[{place}])
{own} = {t}.if_then_else({better}, {value}, {own})
""".strip()
        edge = whole.replace(f"{better} = ", f"{better} = {self.wanted} and ", 1)
        best, kept = self.held[p.best], self.held[p.at]
        found = "" if p.first else f"{at}[{o}] != {none} and "  # what is no number is not the last
        behind = f"""
{t}.reduce_{p.word}({most}, {got}, dim={dim})
for {place} in {t}.Parallel({", ".join(map(str, shape))}):
    {where}[{place}] = {t}.if_then_else({own} == {got}[{o}], {where}[{place}], {none})
{t}.reduce_{of_equal}({where}, {at}, dim={dim})
for {o} in {t}.Parallel({self.outer}):
    {better} = {found}{got}[{o}] {p.compared} {best}[{o}]
    {kept}[{o}] = {t}.if_then_else({better}, {at}[{o}], {kept}[{o}])
    {best}[{o}] = {t}.if_then_else({better}, {got}[{o}], {best}[{o}])
"""
        return "\n".join(before), whole, edge, behind

    def _over_tiles(
        self,
        chain: Sequence[ast.For],
        first: Sequence[str],
        steps: Sequence[Step],
        summed: Summed,
    ) -> list[ast.stmt]:
        """The loops over tiles, of which a block has its share: what is `summed`, what is done
        `first`, then in steps."""
        around, flat, _ = self._levels(chain)
        extents = [self._range(s) for s in flat]
        extent = " * ".join(extents)
        index = index_of(flat[0]) if len(flat) == 1 else self.fresh("flat")
        shape, place = self._tile()
        ranges = ", ".join(map(str, shape))
        long, number = self.inner // self.rows, self.step
        count = f"{self.language}.ceildiv({extent}, {long})"
        loops = {index_of(s): self._range(s) for s in around}
        along = [f"{index} = {number} * {long} + {self.n}"]
        inside, whole = f"{index} < {extent}", f"({number} + 1) * {long} <= {extent}"
        if self.rows > 1:  # of the loop around: each has a part of the tile
            (row, rows), group = loops.popitem(), self.fresh("group")
            loops[group] = f"{self.language}.ceildiv({rows}, {self.rows})"
            along = [f"{index} = {number} * {long} + {self.n} % {long}"]
            along.append(f"{row} = {group} * {self.rows} + {self.n} // {long}")
            inside += f" and {row} < {rows}"
            whole += f" and ({group} + 1) * {self.rows} <= {rows}"
        turn, turns = number, count
        found = "pass"
        if self.parts > 1:
            turn = self.fresh("turn")
            turns = " * ".join([*loops.values(), count])
            turns = f"{self.language}.ceildiv({turns} - {self.part}, {self.parts})"
            counts, at = [*loops.values(), count], f"({turn} * {self.parts} + {self.part})"
            found = unravelled([*loops, number], counts, at)
        if len(flat) > 1:
            along.append(unravelled([index_of(s) for s in flat], extents, index))

        def over(lines: Sequence[str]) -> str:
            if not lines:
                return ""
            body = "\n            ".join("\n".join(lines).splitlines())
            return f"""
        for {place} in {self.language}.Parallel({ranges}):
            {self._places()}
            {"; ".join(along)}
            {body}"""

        inside += f" and {self._inside()}"
        loop = f"Pipelined({turns}, num_stages=2)" if summed.ahead else f"serial({turns})"
        text = f"""
for {turn} in {self.language}.{loop}:
    {found}
    {over(first).strip()}"""
        for step in steps:
            text += f"""
    if {whole} and {self._is_whole()}:{over(step.whole)}
    else:{over([f"{self.wanted} = {inside}", *step.edge])}
    """
            text += "\n".join(step.behind).replace("\n", "\n    ")
        made = parsed(text, chain[-1])
        next(every(ast.For, *made)).body[1:1] = summed.each
        for s, (name, times) in [*zip(around, loops.items())][::-1] if self.parts == 1 else ():
            head = f"for {name} in {self.language}.serial({times}):"
            made = [headed(head, made, s)]
        return made

    def _range(self, s: ast.For) -> str:
        return f"({ast.unparse(self._extent(s))})"

    def _tile(self) -> tuple[tuple[int, int], str]:
        """A tile's shape, and the place in it of a block's iteration and a loop's."""
        if self.columns:
            return (self.inner, self.outer), f"{self.n}, {self.o}"
        return (self.outer, self.inner), f"{self.o}, {self.n}"

    def _ahead(
        self, s: ast.stmt, shape: tuple[int, ...], place: str, loop: ast.For
    ) -> tuple[list[ast.stmt], list[str]]:
        """Fragments for the elements of a row that a statement reads, which get their names there,
        and what fills them. A quotient is a branch, behind which nothing is loaded."""
        made, loads = list[ast.stmt](), list[str]()
        names = dict[str, str]()
        for e in elements_of(s):
            plain = all(isinstance(i, ast.Name) for i in indices_of(e))
            ends = ast.unparse(indices_of(e)[-1]) in (index_of(loop), self.nest.indices[-1])
            tensor = tensor_of(e)
            if isinstance(e.ctx, ast.Load) and plain and ends and tensor not in self.held.values():
                if len(indices_of(e)) > 1 and ast.unparse(e) not in names:
                    tile = names[ast.unparse(e)] = self.fresh("ahead")
                    dtype = ast.parse(f"{tensor}.dtype", mode="eval").body
                    made += self._fragment(tile, shape, dtype, s)
                    loads.append(f"{tile}[{place}] = {ast.unparse(e)}")
        assert isinstance(s, ast.Assign) and isinstance(target := s.targets[0], ast.Subscript)
        tiles = {text: f"{tile}[{place}]" for text, tile in names.items()}
        put = Put({text: ast.parse(tile, mode="eval").body for text, tile in tiles.items()})
        s.value, target.slice = put.visit(s.value), put.visit(target.slice)
        return made, loads

    def _stored_if(self, s: ast.stmt) -> list[str]:
        """A statement where not all elements are wanted: what is not is computed, so that loads
        need not wait for tests, and not stored."""
        if isinstance(s, ast.Expr):
            return [f"if {self.wanted}: {ast.unparse(s)}"]
        if not (isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Subscript)):
            return [ast.unparse(s)]
        value = self.fresh("value")
        stored = f"if {self.wanted}: {ast.unparse(s.targets[0])} = {value}"
        return [f"{value} = {ast.unparse(s.value)}", stored]

    def _in_loop(self, s: ast.stmt) -> ast.stmt:
        made = copy.deepcopy(s)
        if isinstance(made, ast.Expr):
            made.value = self._put(made.value)
        if isinstance(made, ast.AnnAssign | ast.Assign) and made.value is not None:
            made.value = self._put(made.value)
        if isinstance(made, ast.Assign):
            made.targets = [
                self._put(t) if isinstance(t, ast.Subscript) else t for t in made.targets
            ]
        return made


def _divides(s: ast.stmt) -> bool:
    """Whether a statement stores a quotient."""
    stores = isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Subscript)
    return stores and any(every(ast.Div, s))
