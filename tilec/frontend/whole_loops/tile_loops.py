"""The loops over tiles that those inside of a whole loop become (`tiles`), as syntax."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from tilec.frontend.whole_loops.across import Fold
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
from tilec.frontend.whole_loops.rows import Reset
from tilec.frontend.whole_loops.scans import PAD, makers
from tilec.frontend.whole_loops.shared_scans import OPERATORS, Begun, SharedScans
from tilec.frontend.whole_loops.tile_places import Summed
from tilec.ir.ops.tile import COMBINED
from tilec.support.syntax import copied, every, headed, names_in, parsed

_BESIDE = 64  # columns of what is folded beside sums of products, whose tiles are large


@dataclass
class TileLoops(SharedScans):
    """Writes what a loop folds."""

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
            if self.totals and self.totals.isdisjoint(names_in(*chain[-1].body)):
                self.inner = min(self.inner, _BESIDE)
        self.inner *= self.rows
        self.in_a_row = self.meets and bool(running)
        by_others = self._begun_by_others(loop, running) if self.in_a_row else Begun([], [])
        made = None if by_others is None else self._folded(chain, running)
        (self.inner, self.rows), self.running, self.in_a_row = tile, {}, False
        if made is None or by_others is None:
            return None
        return [*by_others.before, *made[0], *by_others.behind], made[1]

    def _folded(
        self, chain: Sequence[ast.For], running: set[str]
    ) -> tuple[list[ast.stmt], list[ast.stmt]] | None:
        """As `_folding`; `running`: the variables that a scan has at each element."""
        loop = chain[-1]
        names, folds = list[tuple[ast.stmt, str]](), list[Fold]()
        runs = {name: self.fresh(name) for name in sorted(running)}
        asked = {p.best: p for s in loop.body if (p := self._asked_inside(s)) is not None}
        self.asked = {*asked}
        own, _, _ = self._numbers()
        starts = f"{own} * {self.outer}", f"{self.step} * {self.inner}"
        wanted = names_in(*loop.body) & self.totals
        summed = self.gemms(wanted, *starts, (self.outer, self.inner))
        self.running |= {x: f"{t}[{self.o}, {self.n}]" for x, t in summed.tiles.items()}
        for name, run in runs.items():
            self.running[name] = self._at(name, f"{run}[{self.o}, {self.n} + {PAD - 1}]")
        self.wanted = self.fresh("wanted")
        self.shared: list[str] = []
        self.kinds: list[str] = []
        resets = dict[str, Reset]()
        for s in loop.body:
            made: Fold | None = None
            if (reset := self._reset(s)) is not None:
                resets[reset.name] = reset
                continue
            if (pick := self._pick(s, chain)) is not None:
                if self.frozen.isdisjoint({pick.best, pick.at}):
                    made = self._looked_for(pick, s, loop)
            elif (fold := self._fold(s)) is None:
                made = self._done(s, loop)
                names.append((s, made.whole[0]))
            elif (name := fold[0]) in self.frozen:
                return None
            elif name in runs:
                made = self._scan(*fold, runs[name], names, resets.get(name), s)
            elif name in self.wide:
                made = self._added_across(*fold, loop)
            else:
                made = self._in_parts(*fold, asked.get(name), s)
            if made is None:
                return None
            folds.append(made)
        made_of = [
            *summed.before, *(s for f in folds for s in f.before),
            *self._over_tiles(chain, folds, summed),
            *(s for f in folds for s in f.after), *self._met(self.shared, self.kinds, loop),
            *(s for f in folds for s in f.found),
        ]  # fmt: skip
        places = [f for f in folds if f.place]
        kinds = [COMBINED.get(f.of_equal, f.of_equal) for f in places]
        made_of += self._met([f.place for f in places], kinds, loop)
        made_of += [s for f in folds for s in f.settled]
        return made_of, [s for f in folds for s in f.last]

    def _met(self, shared: Sequence[str], kinds: Sequence[str], at: ast.stmt) -> list[ast.stmt]:
        """Blocks that share iterations and wait for one another have what all have folded."""
        if not self.meets or not shared:
            return []
        given = f"[{', '.join(shared)}], {self.parts}, {[*kinds]}, True"
        return parsed(f"{self.combined}({given})", at)

    def _in_parts(
        self, name: str, word: str, value: ast.expr, asked: Pick | None, s: ast.stmt
    ) -> Fold | None:
        """A fold of each element of tiles by itself, and of these behind the loop."""
        shape, place = self._tile()
        dim, tile, kept = int(not self.columns), self.fresh("parts"), self.held[name]
        own, text = f"{tile}[{place}]", ast.unparse(self._put(value))
        start = self._neutral(word, self.sums[name])
        self.kinds.append(COMBINED.get(word, word))
        if start is None:
            return None
        before, last = self._fragment(tile, shape, self.sums[name], s), list[ast.stmt]()
        before += parsed(f"{self.language}.fill({tile}, {start})", s)
        folded = self._both(own, word, text)  # no part begins as what is no number
        if word in OPERATORS or asked is not None:
            got, how = self.fresh("sums"), ""
            before += self._fragment(got, (self.outer,), self.sums[name], s)
            last += self._joined(kept, got, word, asked, s)
        else:  # of blocks that share it each has what it began with
            got, how = kept, ", clear=False"
        after = parsed(f"{self.language}.reduce_{word}({tile}, {got}, dim={dim}{how})", s)
        self.shared.append(got)
        edge = f"{own} = {self.language}.if_then_else({self.wanted}, {folded}, {own})"
        return Fold(before, [f"{own} = {folded}"], [edge], after=after, last=last)

    def _joined(
        self, kept: str, got: str, word: str, asked: Pick | None, at: ast.stmt
    ) -> list[ast.stmt]:
        """Puts what a variable begins with and what a loop has folded together."""
        begun, all_of_it = f"{kept}[{self.o}]", f"{got}[{self.o}]"
        both = self._both(begun, word, all_of_it)
        if asked is not None:
            test = f"{all_of_it} {asked.compared} {begun}"
            both = f"{self.language}.if_then_else({test}, {all_of_it}, {begun})"
        each = f"for {self.o} in {self.language}.Parallel({self.outer}):\n    {begun} = {both}"
        return parsed(each, at)

    def _scan(
        self, name: str, word: str, value: ast.expr, run: str,
        names: Sequence[tuple[ast.stmt, str]], reset: Reset | None, s: ast.stmt,
    ) -> Fold | None:  # fmt: skip
        """All values of a variable that runs in `run`. `names`: the statements of the loop before
        the fold, as they are written for a tile; `reset`: where it begins anew."""
        t, o, outer, end = self.language, self.o, self.outer, self.inner + PAD
        dtype, start = ast.unparse(self.sums[name]), self._neutral(word, self.sums[name])
        if start is None:
            return None
        own, first = f"{run}[{o}, {self.n} + {PAD}]", f"{run}[{o}, {PAD - 1}]"
        each = f"for {o} in {t}.Parallel({outer}):\n    "
        needed = [value] if reset is None else [value, reset.test, reset.start]
        made = makers(ast.Tuple(needed, ast.Load()), names)
        text = f"{t}.cast({ast.unparse(self._put(value))}, {dtype})"
        box = f"0:{outer}, {PAD - 1}:{end}"
        cut, anew, begins = list[str](), "", ""
        if reset is not None:
            flags, begin = self.fresh("begins"), ast.unparse(self._put(reset.start))
            anew = f"{flags} = {t}.alloc_shared({(outer, end)}, 'bool')\n{each}"
            anew += f"{flags}[{o}, {PAD - 1}] = False\n"
            flag, begins = f"{flags}[{o}, {self.n} + {PAD}]", f", begins={flags}[{box}]"
            test = f"{t}.cast({ast.unparse(self._put(reset.test))}, 'bool')"
            begun = f"{t}.cast({begin}, {dtype})"
            cut = [f"{flag} = {test}"]
            text = f"{t}.if_then_else({test}, {self._both(begun, word, text)}, {text})"
        self.running[name] = self._at(name, own)
        begun = f"{anew}{run} = {t}.alloc_shared({(outer, end)}, {dtype})\n"
        begun += f"{each}{first} = {self.held[name]}[{o}]"
        ended = f"{each}{self.held[name]}[{o}] = {self._at(name, first)}"
        return Fold(
            parsed(begun, s),
            [*made, *cut, f"{own} = {text}"],
            [*made, *cut, f"{own} = {t}.if_then_else({self.wanted}, {text}, {start})"],
            [f"{self.scan}({run}[{box}], {word!r}, 1{begins})"],
            after=parsed(ended, s),
            carried=[f"{each}{first} = {run}[{o}, {end - 1}]"],
        )

    def _at(self, name: str, place: str) -> str:
        """A variable that runs, whose scan is at a place: one that a condition compares with stays
        what is no number."""
        dtype, t = self.nest.dtype_of(self.sums[name]), self.language
        if name not in self.asked or dtype is None or not dtype.is_float:
            return place
        begun = f"{self.held[name]}[{self.o}]"
        return f"{t}.if_then_else({t}.isnan({begun}), {begun}, {place})"

    def _looked_for(self, p: Pick, s: ast.stmt, loop: ast.For) -> Fold | None:
        """The place of an element: each element of a tile has its own, then the first or last of
        those that are the most is it."""
        t, o, (shape, place) = self.language, self.o, self._tile()
        most, where, got, at, better = map(self.fresh, ("most", "where", "got", "at", "better"))
        dtypes = [self.sums[x] for x in (p.best, p.at)]
        of_equal = p.of_equal
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
        index = ast.unparse(self._put(p.place))
        whole = f"""
{better} = ({value}) {p.compared} {own}
{where}[{place}] = {t}.if_then_else({better}, {index}, {where}[{place}])
{own} = {t}.if_then_else({better}, {value}, {own})
""".strip()
        edge = whole.replace(f"{better} = ", f"{better} = {self.wanted} and ", 1)
        best, kept = self.held[p.best], self.held[p.at]
        found = "" if p.first else f"{at}[{o}] != {none} and "  # what is no number is not the last
        self.shared.append(got)
        self.kinds.append(COMBINED.get(p.word, p.word))
        after = parsed(f"{t}.reduce_{p.word}({most}, {got}, dim={dim})", s)
        last = f"""
for {place} in {t}.Parallel({", ".join(map(str, shape))}):
    {where}[{place}] = {t}.if_then_else({own} == {got}[{o}], {where}[{place}], {none})
{t}.reduce_{of_equal}({where}, {at}, dim={dim})
"""
        behind = f"""
for {o} in {t}.Parallel({self.outer}):
    {better} = {found}{got}[{o}] {p.compared} {best}[{o}]
    {kept}[{o}] = {t}.if_then_else({better}, {at}[{o}], {kept}[{o}])
    {best}[{o}] = {t}.if_then_else({better}, {got}[{o}], {best}[{o}])
"""
        looked, settled = parsed(last, loop), parsed(behind, loop)
        return Fold(
            parsed("\n".join(before), s), [whole], [edge], after=after, found=looked, place=at,
            of_equal=of_equal, settled=settled,
        )  # fmt: skip

    def _over_tiles(
        self, chain: Sequence[ast.For], folds: Sequence[Fold], summed: Summed
    ) -> list[ast.stmt]:
        """The loops over tiles, of which a block has its share: what is `summed`, what is done
        `first`, then each scan, and all others together."""
        around, flat, _ = self._levels(chain)
        alone = len(chain) == 1
        extents = [self._range(s, alone) for s in flat]
        own, extent, least = map(" * ".join, zip(*(self._end(s, alone) for s in flat)))
        index = index_of(flat[0]) if len(flat) == 1 else self.fresh("flat")
        shape, place = self._tile()
        ranges = ", ".join(map(str, shape))
        long, number = self.inner // self.rows, self.step
        count = f"{self.language}.ceildiv({extent}, {long})"
        loops = {index_of(s): self._range(s, False) for s in around}
        along = [f"{index} = {number} * {long} + {self.n}"]
        inside, whole = f"{index} < {own}", f"({number} + 1) * {long} <= {least}"
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
            turns, t = " * ".join([*loops.values(), count]), self.language
            counts, at = [*loops.values(), count], f"({turn} * {self.parts} + {self.part})"
            if self.in_a_row:
                own = f"{t}.ceildiv({turns}, {self.parts})"
                at = f"({self.part} * {own} + {turn})"
                turns = f"{t}.max({t}.min({own}, {turns} - {self.part} * {own}), 0)"
            else:
                turns = f"{t}.ceildiv({turns} - {self.part}, {self.parts})"
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
    {over([x for f in folds for x in f.first]).strip()}"""
        others, scans = [f for f in folds if not f.carried], [f for f in folds if f.carried]
        all_of_it = Fold(
            [],
            [x for f in others for x in f.whole],
            [x for f in others for x in f.edge],
            [x for f in folds for x in f.carried or f.behind],
        )
        for step in (*scans, all_of_it):
            text += f"""
    if {whole} and {self._is_whole()}:{over(step.whole)}
    else:{over([f"{self.wanted} = {inside}", *step.edge])}
    """
            text += "\n".join(step.behind).replace("\n", "\n    ")
        made = parsed(text, chain[-1])
        behind = len(ast.parse(found).body)
        next(every(ast.For, *made)).body[behind:behind] = summed.each
        for s, (name, times) in [*zip(around, loops.items())][::-1] if self.parts == 1 else ():
            head = f"for {name} in {self.language}.serial({times}):"
            made = [headed(head, made, s)]
        return made

    def _done(self, s: ast.stmt, loop: ast.For) -> Fold:
        """A statement that folds nothing."""
        made = self._in_loop(s)
        before, loads = self._ahead(made, loop) if _divides(made) else ([], [])
        return Fold(before, [ast.unparse(made)], self._stored_if(made), first=loads)

    def _ahead(self, s: ast.stmt, loop: ast.For) -> tuple[list[ast.stmt], list[str]]:
        """Fragments for the elements of a row that a statement reads, which get their names there,
        and what fills them. A quotient is a branch, behind which nothing is loaded."""
        made, loads, (shape, place) = list[ast.stmt](), list[str](), self._tile()
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
        put = Put({text: f"{tile}[{place}]" for text, tile in names.items()})
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
        made = copied(s)
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
