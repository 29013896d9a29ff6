"""`for` over each of the builtins that it can run over, and over compile-time sequences."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from tilec import language as T
from tilec.frontend.arithmetic import integer, static_int
from tilec.frontend.body import grid_syncs
from tilec.frontend.branches import private_names, same_value, writes_first
from tilec.frontend.builtins.reducers import check_combined, too_many_shares
from tilec.frontend.builtins.scalar import block_index
from tilec.frontend.builtins.tile import new_variable
from tilec.frontend.context import ParallelScope
from tilec.frontend.index import Reach
from tilec.frontend.layouts import fragment_layout
from tilec.frontend.loops import Counted, Loops
from tilec.frontend.open_loops import is_open, loop_over_tiles
from tilec.frontend.races import ADD_UP, find_race, find_shared_update
from tilec.frontend.recovery import Again, check_known
from tilec.frontend.updates import find_update, updates_at
from tilec.frontend.values import (
    Buffer,
    Indices,
    LoopHeader,
    LoopIndex,
    Number,
    Scalar,
    Undefined,
    as_syntax,
    describe,
)
from tilec.ir.core import Value
from tilec.ir.errors import CompileError, CompileWarning, warn
from tilec.ir.layout import Fragment, Layout
from tilec.ir.loc import Loc
from tilec.ir.ops import GridSize, Parallel, Yield
from tilec.ir.types import INT32, ScalarType
from tilec.support.syntax import assigned_names, name_nodes, names_in

_MOST_COPIES = 512  # of a body that is traced for each index


class ForLoops(Loops):
    """Traces `for` statements."""

    def for_loop(self, node: ast.For) -> None:
        items = self.expression(node.iter)
        match items:
            case range():
                bounds = {"start": items.start, "stop": items.stop, "step": items.step}
                header = LoopHeader("serial", bounds, self.frame.loc(node.iter), of_python=True)
                self._range_loop(node, header, plain=True)
            case tuple() | list() | dict() | set() | frozenset() | str():
                self._unrolled(node, list(items))
            case LoopHeader(builtin="Parallel"):
                self._parallel(node, items)
            case LoopHeader(builtin="Persistent"):
                self._persistent(node, items)
            case LoopHeader(builtin="grid"):
                self._grid(node, items)
            case LoopHeader():
                self._range_loop(node, items)
            case _:
                message = f"a for loop cannot run over {describe(items)}"
                hint = "loop over range(n), T.serial, T.Parallel, T.Pipelined, a tuple or a list"
                raise self.error(message, hint, at=node.iter)

    # --- one index --------------------------------------------------------------------------------

    def _range_loop(self, node: ast.For, header: LoopHeader, plain: bool = False) -> None:
        """A loop with one index; `plain`: Python's own, of compile-time bounds."""
        args = header.arguments
        with self.at(header.loc):
            if header.builtin == "Pipelined" and self.parallel is not None:
                hint = "put T.Parallel inside of T.Pipelined, or loop with T.serial"
                raise self.error("T.Pipelined cannot stand in T.Parallel", hint)
            start = self._bound(args["start"], header.place("start"))
            stop = self._bound(args["stop"], header.place("stop"))
            step = self._bound(args.get("step", 1), header.place("step"), "the step")
            if step == 0:
                hint = "write one that is not"
                raise self.error("the step of this loop is 0", hint, header.place("step"))
            if not isinstance(node.target, ast.Name):
                message = "this loop has one index"
                raise self.error(message, "name one variable; T.Parallel has several", node.target)
            loop = self._upward(header, start, stop, step)
        known = [n for n in (start, stop, step) if isinstance(n, int)]
        if (plain or loop.kind == "unroll") and len(known) == 3:
            indices = range(*known)
            if node in self.left_out.written_out:
                self._unrolled(node, Indices(map(LoopIndex, indices)))
                return
            if len(indices) <= _MOST_COPIES:
                self.unrolls.append(node)
        try:
            with self.at(node.iter):
                self.counted_loop(loop, node.target, node.body)
        finally:
            if node in self.unrolls[-1:]:
                self.unrolls.pop()

    def _upward(
        self, header: LoopHeader, start: int | Scalar, stop: int | Scalar, step: int | Scalar
    ) -> Counted:
        """A loop whose index rises; one that falls, or may, counts its iterations instead."""
        kind, builtin = header.builtin.lower(), header.builtin
        attributes = {"num_stages": -1} if header.of_python else {}
        if kind == "pipelined":
            attributes = self._pipeline_attributes(header)
        if isinstance(step, int) and step > 0:
            return Counted(kind, builtin, start, stop, step, lambda i: i, attributes)
        if isinstance(step, int):
            trips = self.binary("ceildiv", self.binary("sub", start, stop), -step)
        else:
            trips = self.binary("ceildiv", self.binary("sub", stop, start), step)

        def counted(i: Scalar) -> object:
            return self.binary("add", start, self.binary("mul", i, step))

        return Counted(kind, builtin, 0, integer(trips), 1, counted, attributes)

    def _bound(self, value: object, place: Loc, which: str = "a bound") -> int | Scalar:
        number = self.number(value, "a loop bound", place)
        if isinstance(number, Scalar) and not number.dtype.is_float:
            known = static_int(number)
            return self.to_index(number) if known is None else known
        if isinstance(number, int):
            return int(number)
        hint = "write // instead of /, T.ceildiv(a, b), or int(x)"
        message = f"{which} of this loop is {describe(number)}, not an integer"
        raise self.error(message, hint, place)

    def _pipeline_attributes(self, header: LoopHeader) -> dict[str, Any]:
        args: Mapping[str, Any] = header.arguments
        stages = -1 if args["num_stages"] is None else static_int(args["num_stages"])
        if stages is None or (stages < 0 and args["num_stages"] is not None):
            hint = "write a compile-time int: 2 or more to prefetch; without one tilec chooses"
            raise self._wrong(header, "num_stages", hint)
        lists: dict[str, tuple[int, ...]] = {}
        for name in ("order", "stage"):
            found = _ints(args[name] or ())
            if found is None:
                hint = f"write {name}=[…], an int for each statement of the loop"
                raise self._wrong(header, name, hint, ", not a list of ints")
            lists[name] = found
        group: list[tuple[int, ...]] = []
        for part in args["group"] or ():
            found = _ints(part)
            if found is None:
                hint = "write group=[[0], [1, 2], …], the numbers of the loop's statements"
                raise self._wrong(header, "group", hint, ", not lists of ints")
            group.append(found)
        if lists["stage"]:
            wanted = max(lists["stage"]) + 1
            if stages < 0:
                stages = wanted
            elif stages < wanted:
                raise self.error(
                    f"stage {wanted - 1} of T.Pipelined is reached by copies that run "
                    f"{wanted - 1} iterations ahead, num_stages={stages} has no room for them",
                    f"write num_stages={wanted}, or leave it out",
                )
        reversible = args["reversible"]
        if not isinstance(reversible, bool):
            raise self._wrong(header, "reversible", "write reversible=True", ", not a bool")
        return {"num_stages": stages, "reversible": reversible, "group": group, **lists}

    def _wrong(self, header: LoopHeader, name: str, hint: str, why: str = "") -> CompileError:
        """The error that says what an argument of a loop's header is, and `why` it cannot be."""
        said = f"{name} of T.{header.builtin} is {describe(header.arguments[name])}{why}"
        return self.error(said, hint, header.place(name))

    def _grid(self, node: ast.For, header: LoopHeader) -> None:
        """Nested loops, one for each extent."""
        extents: Any = header.arguments["extents"]
        targets = self._targets(node, "T.grid", len(extents))
        for s in node.body:
            if _breaks_out(s):
                hint = "write them out, and break in each: for i in T.serial(m): for j in …"
                raise self.error("break in T.grid, which is several loops", hint, s)
        loop = node
        for d in reversed(range(len(extents))):
            body: list[ast.stmt] = node.body if loop is node else [loop]
            counted = ast.copy_location(as_syntax(header.counted(d)), node.iter)
            loop = ast.copy_location(ast.For(targets[d], counted, body, []), node)
        self.for_loop(loop)

    # --- compile-time sequences -------------------------------------------------------------------

    def _unrolled(self, node: ast.For, items: tuple[object, ...] | list[object]) -> None:
        """One copy of the body for each item."""
        flags = self._flags("for")
        self.names[flags.live] = True

        def from_item(k: int) -> None:
            for j in range(k, len(items)):
                self._iterate(flags, node.target, items[j], node.body)
                live = self.names[flags.live]
                if live is False:
                    return
                if isinstance(live, Scalar):
                    self.branch(live, lambda: from_item(j + 1))  # noqa: B023 (called at once)
                    return

        from_item(0)
        for hidden in (flags.live, flags.run):
            self.names.pop(hidden, None)

    # --- T.Parallel -------------------------------------------------------------------------------

    def _nested(self, node: ast.For, header: LoopHeader) -> tuple[ast.For, LoopHeader]:
        """A loop whose whole body is one more T.Parallel, as one loop over the indices of both."""
        (inner, *rest) = node.body
        if rest or not isinstance(inner, ast.For) or not isinstance(inner.iter, ast.Call):
            return node, header
        callee = inner.iter.func
        apart = names_in(node.target).isdisjoint(names_in(inner.iter))
        plain = isinstance(callee, ast.Name | ast.Attribute) and apart
        if not plain or self.expression(callee) is not T.Parallel:
            return node, header
        added = self.expression(inner.iter)
        assert isinstance(added, LoopHeader)
        inner, added = self._nested(inner, added)
        ours: Mapping[str, Any] = header.arguments
        theirs: Mapping[str, Any] = added.arguments
        places = dict(header.places)
        for d in range(len(theirs["extents"])):
            places[f"extents[{len(ours['extents']) + d}]"] = added.place(f"extents[{d}]")
        extents = (*ours["extents"], *theirs["extents"])
        width = theirs["coalesced_width"] or ours["coalesced_width"]
        arguments = {**ours, **theirs, "extents": extents, "coalesced_width": width}
        arguments["loop_layout"] = None  # of one of the loops
        targets = [
            *self._targets(node, "T.Parallel", len(ours["extents"])),
            *self._targets(inner, "T.Parallel", len(theirs["extents"])),
        ]
        both = ast.For(ast.Tuple(targets, ast.Store()), node.iter, inner.body, [])
        return ast.copy_location(both, node), LoopHeader("Parallel", arguments, header.loc, places)

    def _between_grid_syncs(self, node: ast.For) -> list[ast.stmt]:
        """The loop as loops over the statements between those that are T.sync_grid(): all blocks
        have done the first with all of its iterations when one begins with the second."""
        pieces, body, made = list[ast.stmt](), list[ast.stmt](), set[str]()

        def close() -> None:
            for n in name_nodes(*body) if made else ():
                lost = n.id in made and isinstance(n.ctx, ast.Load)
                if lost and not writes_first(body, n.id):
                    message = f"each iteration has its own {n.id}, gone behind T.sync_grid()"
                    raise self.error(message, "keep it in a fragment: x[i] = …", n)
            if body:
                part = ast.For(node.target, node.iter, [*body], [])
                pieces.append(ast.copy_location(part, node))
                made.update(assigned_names(body))
                body.clear()

        for s in node.body:
            if grid_syncs([s], self.expression):
                close()
                pieces.append(s)
            else:
                body.append(s)
        close()
        return pieces

    def _parallel(self, node: ast.For, header: LoopHeader) -> None:
        node, header = self._nested(node, header)
        pieces = self._between_grid_syncs(node) if self.parallel is None else [node]
        if len(pieces) > 1:
            for piece in pieces:
                if isinstance(piece, ast.For):
                    self._parallel(piece, header)
                else:
                    self.block([piece])
            return
        given: Any = header.arguments["extents"]
        tiled = self.left_out.in_tiles.get(node.iter, ())
        opened = [d for d, e in enumerate(given) if d in tiled or is_open(e)]
        if self.parallel is None and opened:
            targets = self._targets(node, "T.Parallel", len(given))
            self.for_loop(loop_over_tiles(self, node, targets, header, opened))
            return
        extents = self._parallel_extents(header)
        targets = self._targets(node, "T.Parallel", len(extents))
        if 0 in extents:
            self.forget(node.body, tuple(targets))
            return
        width = static_int(header.arguments["coalesced_width"] or 0)
        if width is None or width < 0:
            message = "coalesced_width of T.Parallel must be a compile-time int"
            hint = "write the elements of one access: 1, 2, 4, 8, or leave it out"
            raise self.error(message, hint, header.place("coalesced_width"))
        wanted = self._loop_layout(header, tuple(extents))
        place = self.loc
        args = [Value(ScalarType(INT32), t.id if isinstance(t, ast.Name) else "") for t in targets]
        flags = self._flags("Parallel")
        before = dict(self.names)
        scope = self.parallel = ParallelScope(node.lineno, extents=tuple(extents))
        with self.inside() as builder:
            for arg, extent in zip(args, extents):
                reach = Reach(0, extent - 1, True, self.depth, dense=True, name=arg.name)
                scope.indices.append(self.to_index(self.scalar(arg, reach)))
            shared = self._private_variables(node)
            self._iterate(flags, ast.Tuple(targets, ast.Store()), tuple(scope.indices), node.body)
            self.names.update(shared)
            self._check_rebinding(node, before)
            builder.emit(Yield, loc=place)
        self.parallel = None
        self.builder.ops += scope.before.ops
        for close in scope.closing:
            close()
        made = self.emit(
            Parallel, extents, builder.block(args), coalesced_width=width, wanted=wanted
        )
        assert isinstance(made, Parallel)
        if scope.updates and (update := find_shared_update(made, scope.updates, self.indices)):
            self.left_out.added_up.add(scope.updates[update])
            raise Again
        if not isinstance(node.iter, ast.Constant) and wanted is None:  # no tile of one
            if rest := too_many_shares(self, scope):
                self.left_out.in_tiles[node.iter] = tuple(rest)
                raise Again
        if race := find_race(made, self.indices, self.shown):
            hint = "read from another buffer, or split the loop in two"
            if "write the same" in race.message:
                hint = "give each iteration an element of its own, or loop with T.serial"
                if updates_at(made, race.loc):
                    hint = ADD_UP
            raise self.error(race.message, hint, at=race.loc)
        self._check_updates(made)
        check_combined(self, scope, made)
        self.builder.ops += scope.behind
        self.forget(node.body, tuple(targets))

    def _private_variables(self, node: ast.For) -> dict[str, object]:
        """Variables from before the loop, of which its iterations get their own (see `private`)."""
        known = (n for n in assigned_names(node.body) if n in self.names)
        kept = {n: b for n in known if isinstance(b := self.names[n], Buffer) and b.variable}
        named = private_names(self.frame.source.node, node) if kept else []
        kept = {n: kept[n] for n in named if n in kept}
        for name, old in kept.items():
            own = new_variable(self, old.dtype, None)
            own.value.name = name
            self.names[name] = own
        return dict(kept)

    def _loop_layout(self, header: LoopHeader, extents: tuple[int, ...]) -> Layout | None:
        """Which thread the author wants to run which iteration."""
        given, place = header.arguments.get("loop_layout"), header.place("loop_layout")
        if given is None:
            return None
        if not isinstance(given, Fragment):
            hint = "write T.Fragment((m, n), forward_fn=lambda i, j: (thread, index))"
            raise self._wrong(header, "loop_layout", hint)
        return fragment_layout(self, "the loop", extents, given, place)

    def _targets(self, node: ast.For, what: str, count: int) -> list[ast.expr]:
        """The variables of a loop over `what`, which has `count` extents."""
        targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
        if len(targets) != count:
            message = (
                f"{what} has {count} extent{'s' * (count != 1)}, the loop {len(targets)} "
                f"variable{'s' * (len(targets) != 1)}"
            )
            raise self.error(message, f"write for {', '.join('ijklmn'[:count])} in …", node.target)
        return targets

    def _check_updates(self, loop: Parallel) -> None:
        found = find_update(loop, self.indices, [b.ops for b in self.builders])
        if found is None:
            return
        hint = (
            "write T.atomic_add(H[i], x), or loop with T.serial\n"
            "if no two indices are equal, write the results to another buffer"
        )
        if found.sure:
            raise self.error(found.message, hint, at=found.loc)
        warn(CompileWarning, found.message, found.loc, hint)

    def _parallel_extents(self, header: LoopHeader) -> tuple[int, ...]:
        with self.at(header.loc):
            if self.parallel is not None:
                hint = "write one loop: for i, j in T.Parallel(m, n)"
                raise self.error(f"T.Parallel inside T.Parallel (line {self.parallel.line})", hint)
            given = header.arguments["extents"]
            assert isinstance(given, tuple)
            if not given:
                raise self.error("T.Parallel needs at least one extent", "write T.Parallel(m, n)")
            extents = []
            for d, e in enumerate(given):
                place = header.place(f"extents[{d}]")
                found = static_int(e)
                if found is None:
                    hint = "write // instead of /, T.ceildiv(a, b), or int(x)"
                    if isinstance(e, tuple | list):
                        known = ("…" if (n := static_int(v)) is None else str(n) for v in e)
                        hint = f"write T.Parallel({', '.join(known)})"
                    message = f"an extent of T.Parallel is {describe(e)}, not an integer"
                    raise self.error(message, hint, place)
                if found < 0:
                    message = f"an extent of T.Parallel is {found}, the least is 0"
                    raise self.error(message, "write at least 0; indices count from 0", place)
                extents.append(found)
            return tuple(extents)

    def _check_rebinding(self, node: ast.For, before: dict[str, object]) -> None:
        for name in sorted(assigned_names(node.body) & set(before)):
            old, new = before[name], self.names.get(name)
            check_known((new,))
            if not isinstance(old, Undefined) and not same_value(old, new):
                message = f"{name} has a value before T.Parallel and every iteration changes it"
                hint = "iterations have no order: use a new name inside, or sum up in a fragment"
                raise self.error(message, hint)

    # --- T.Persistent -----------------------------------------------------------------------------

    def _persistent(self, node: ast.For, header: LoopHeader) -> None:
        args = header.arguments
        with self.at(header.loc):
            if self.parallel is not None:
                hint = "put T.Parallel inside of T.Persistent"
                raise self.error("T.Persistent cannot stand in T.Parallel", hint)
            domain = args["domain"]
            if not isinstance(domain, tuple | list) or not domain:
                message = f"the domain of T.Persistent is {describe(domain)}, not a list of extents"
                raise self.error(message, "write T.Persistent([gx, gy])", header.place("domain"))
            extents = [self._bound(e, header.place("domain")) for e in domain]
            group = static_int(args["group_size"])
            if group is None or group < 1:
                message = "group_size of T.Persistent must be a compile-time int of at least 1"
                hint = "write group_size=8, or leave it out"
                raise self.error(message, hint, header.place("group_size"))
            total: Number = 1
            for e in extents:
                total = self.binary("mul", total, e)
            first = (
                block_index(self, 0)
                if args["index"] is None
                else self._bound(args["index"], header.place("index"))
            )
            if args["wave_size"] is None:
                wave: int | Scalar = self.to_index(self.emit_scalar(GridSize, 0))
            else:
                wave = self._bound(args["wave_size"], header.place("wave_size"))
                if isinstance(wave, int) and wave < 1:
                    message = f"wave_size of T.Persistent is {wave}, the least is 1"
                    hint = "write how many blocks T.Kernel launches, or leave it out"
                    raise self.error(message, hint, header.place("wave_size"))
            if total == 0:  # no tile: nothing divides by an extent that is 0
                first, wave = 0, 1
        self._targets(node, "the domain", len(extents))

        def coordinates(tile: Scalar) -> object:
            found = tuple(self._tile_coordinates(tile, extents, group))
            return found if isinstance(node.target, ast.Tuple) else found[0]

        loop = Counted("persistent", "Persistent", first, integer(total), wave, coordinates, {})
        with self.at(node.iter):
            self.counted_loop(loop, node.target, node.body)

    def _tile_coordinates(
        self, tile: Scalar, extents: list[int | Scalar], group: int
    ) -> list[Number]:
        """Coordinates of the tile with number `tile`: `group` rows of the first dimension at a
        time, which varies fastest within its group (the last group may be smaller), then the
        others, the last of them fastest."""
        if len(extents) == 1:
            return [tile]
        rest: Number = 1
        for e in extents[1:]:
            rest = self.binary("mul", rest, e)
        width = self.binary("mul", rest, group)
        start = self.binary("mul", self.binary("floordiv", tile, width), group)
        rows = self.binary("min", self.binary("sub", extents[0], start), group)
        inside = self.binary("mod", tile, width)
        coordinates = [self.binary("add", start, self.binary("mod", inside, rows))]
        other = self.binary("floordiv", inside, rows)
        tail: list[Number] = []
        for e in reversed(extents[2:]):
            tail.append(self.binary("mod", other, e))
            other = self.binary("floordiv", other, e)
        return [*coordinates, other, *reversed(tail)]


def _ints(given: object) -> tuple[int, ...] | None:
    """What a list or tuple holds, if that is nothing but compile-time ints."""
    found = [*map(static_int, given)] if isinstance(given, tuple | list) else [None]
    return None if None in found else tuple(v for v in found if v is not None)


def _breaks_out(statement: ast.stmt) -> bool:
    """Whether a `break` in `statement` ends the loop around it."""
    if isinstance(statement, ast.For | ast.While):
        return False
    inner = [n for n in ast.iter_child_nodes(statement) if isinstance(n, ast.stmt)]
    return isinstance(statement, ast.Break) or any(map(_breaks_out, inner))
