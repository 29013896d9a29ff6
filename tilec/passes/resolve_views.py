"""resolve_views: what goes through a view goes to the buffer that it shows.

Before: `view` ops, as T.reshape and T.view make them. After: none. An element's place in the view
is one in the buffer; wider elements are put together from several, narrower ones cut out. A box
of a view that is a box of the buffer stays with the tile op that it belongs to. Other copies become
loops over elements, and what else works on tiles (products, reductions) gets a copy of the view.

A tensor without gaps that is only used through views of one shape has that shape: what it means for
alignment, boxes and descriptors, the view means.

    v = view A, (8, 4)             copy of A (32) of elements:
    copy v[0, 0] (8, 4), S    ->   parallel (8, 4) body(i, j) { S[i, j] = A[4 * i + j] }

An on-chip buffer of which a view has narrower elements is kept as that view, so that stores of
neighbours touch nothing but their own; a fragment that loops alone index, over all of it, as that
view of it which has fewest dimensions: an index may number several of a loop's, but not the other
way round. It runs before anything else asks who reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.ir import ops
from tilec.ir.analysis import facts_of
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Param, Region, Substitution, Value, rewritten, with_boxes
from tilec.ir.element_loops import ELEMENTWISE, in_turn, is_private, loop_of
from tilec.ir.errors import CompileError
from tilec.ir.types import DTYPES, BufferType, DType, Extent, contiguous_strides
from tilec.ir.uniformity import Level, Uniformity, uniformity_of
from tilec.passes.utils.addressing import Tensors
from tilec.passes.utils.building import or_zero
from tilec.passes.utils.reductions import in_steps
from tilec.passes.utils.warp_matrices import by_elements


def resolve_views(func: Func) -> Func:
    """Raises CompileError for atomics, and for stores of a part of an element of a tensor, through
    a view of another dtype."""
    if not func.body.has(ops.View):
        return func
    func = _reshaped(func.with_body(_as_their_views(_parts(func.body), uniformity_of(func))))
    return func.with_body(_Views(func).block(func.body))


def _reshaped(func: Func) -> Func:
    """`func` where tensors without gaps have the shape of all their views; `viewed` says which."""
    users = func.body.users
    subst: Substitution = {}
    params: list[Param] = []
    for p in func.params:
        views = users.get(p.value, ())
        types = {o.type for o in views if isinstance(o, ops.View)}
        t = types.pop() if len(types) == 1 else None
        if t is None or not _keeps_elements(p.value, t, views):
            params.append(p)
            continue
        shape = t.static_shape
        own = replace(p.value.buffer, shape=shape, strides=contiguous_strides(shape))
        made = Value(own, p.value.name)
        subst |= dict.fromkeys((p.value, *(o.results[0] for o in views)), made)
        params.append(replace(p, value=made))
    if not subst:
        return func

    body = func.body.rewrite(ops.View, lambda o: [] if o.result in subst else None, subst)
    func = replace(func, params=tuple(params), body=body)
    return func.with_attrs(viewed=tuple(p.arg for p in params if p.value in subst.values()))


def _keeps_elements(v: Value, view: BufferType, users: Sequence[Op]) -> bool:
    """Whether a tensor has no gaps, and is only used through views of its own elements."""
    t = v.type
    return (
        isinstance(t, BufferType)
        and t.space == "global"
        and t.dtype is view.dtype
        and all(isinstance(e, int) for e in (*t.shape, *view.shape))
        and t.strides == contiguous_strides(t.static_shape)
        and all(isinstance(o, ops.View) for o in users)
    )


def _parts(body: Block) -> Block:
    """`body` where what goes to the part of a buffer that a view with `at` is goes to the buffer,
    with one index more."""
    part = {o.result: o for o in body.every(ops.View) if o.at is not None}
    if not part:
        return body

    def visit(o: Op) -> Sequence[Op] | Op | None:
        if isinstance(o, ops.View) and o.result in part:
            return []
        done = with_boxes(o, of_source)
        changed: dict[str, object] = {}
        if isinstance(o, ops.Reduce | ops.Scan) and o.source.buffer in part:
            changed["dim"] = o.dim + 1
        for name in done.operand_fields:
            view = part.get(got) if isinstance(got := getattr(done, name), Value) else None
            if view is not None:
                changed[name] = view.source
                if hasattr(done, "indices"):
                    changed["indices"] = (view.at, *done.indices)
        return replace(done, **changed) if changed else done  # type: ignore[arg-type]

    def of_source(r: Region) -> Region:
        view = part.get(r.buffer)
        return r if view is None or view.at is None else r.within(view.source, view.at)

    return body.rewrite(Op, visit)


def _as_their_views(body: Block, uniformity: Uniformity) -> Block:
    """`body` where a buffer is allocated as the narrowest view of it, and a fragment as the one of
    fewest dimensions that anything uses."""
    source = {o.result: o.source for o in body.every(ops.View)}
    allocs = {o.result for o in body.every(ops.Alloc)}
    users = body.users
    kept: dict[Value, BufferType] = {}
    for v in source:
        root = v
        while root in source:
            root = source[root]
        known = kept.get(root, root.buffer)
        if root in allocs and (
            v.dtype.bits < known.dtype.bits
            or (
                _numbers_dimensions(v.buffer, known)
                and any(not isinstance(o, ops.View) for o in users.get(v, ()))
                and _loops_use_all(root, v.buffer, users.get(root, ()), uniformity)
            )
        ):
            kept[root] = v.buffer

    def visit(o: ops.Alloc) -> Sequence[Op] | None:
        if o.result not in kept:
            return None
        made = Value(kept[o.result], o.result.name)
        alloc = replace(o, type=made.buffer, results=(made,))
        return [alloc, ops.View(made, o.type, results=o.results, loc=o.loc)]

    return body.rewrite(ops.Alloc, visit)


def _numbers_dimensions(view: BufferType, t: BufferType) -> bool:
    """Whether each dimension of a fragment's view is one of the fragment's or numbers several."""
    return (
        t.space == "fragment"
        and view.dtype is t.dtype
        and len(view.shape) < len(t.shape)
        and all(len(of_view) == 1 for of_view, _ in _groups(view.shape, t.shape))
    )


def _loops_use_all(v: Value, view: BufferType, users: Sequence[Op], uniformity: Uniformity) -> bool:
    """Whether only loops over elements use a fragment, all of each dimension that the view numbers
    with others: one index of it (`f[2, i, j]`) is a fragment of its own."""
    shape, several = v.buffer.static_shape, set[int]()
    if v.dtype is view.dtype:
        for _, dims in _groups(view.shape, shape):
            large = [d for d in dims if shape[d] != 1]
            several.update(large if len(large) > 1 else ())

    def alone(o: Op) -> bool:
        if isinstance(o, ops.Load | ops.Store):
            return all(uniformity.level(o.indices[d]) > Level.BLOCK for d in several)
        own = [r for r in _regions(o) if r.buffer is v]
        whole = all(r.extents[d] == shape[d] for r in own for d in several)
        return isinstance(o, ops.View) or (type(o) in ELEMENTWISE and whole)

    return all(map(alone, users))


class _Views:
    def __init__(self, func: Func) -> None:
        self.tensors, self.uniformity = Tensors(func), uniformity_of(func)
        self.facts = facts_of(func)
        self.source: dict[Value, Value] = {}

    def block(self, block: Block) -> Block:
        subst: Substitution = {}
        return block.rewrite(Op, lambda o: self.visit(o, subst), subst)

    def visit(self, o: Op, subst: Substitution) -> Sequence[Op] | Op | None:
        b = Builder(o.loc)
        match o:
            case ops.View():
                self.source[o.result] = self.source.get(o.source, o.source)
                return []
            case ops.Load() if o.source in self.source:
                subst[o.result] = self.load(b, o.source, o.indices)
                return b.ops
            case ops.LoadMatrices() if o.source in self.source:
                return self.visited(by_elements(o), subst)
            case ops.Store() if o.dest in self.source:
                self.store(b, o.dest, o.indices, o.value)
                return b.ops
            case ops.Atomic() if o.dest in self.source:
                return self.atomic(o)
            case ops.Reduce() if (root := self.source.get(o.source.buffer)) is not None:
                if (steps := in_steps(o, root)) is not None:
                    return self.visited(steps, subst)
        through = [r for r in _regions(o) if r.buffer in self.source]
        if not through and not any(v in self.source for v in o.operands):
            return None
        found = {r: self.box(b, r) for r in through}
        boxes = {r: box for r, box in found.items() if box is not None and _fits(o, r, box)}
        if through and len(boxes) == len(through):
            done = _in_boxes(o, boxes)
            if done is not None and not any(v in self.source for v in done.operands):
                return [*b.ops, done]
        if type(o) in ELEMENTWISE:
            loop = loop_of(o)
            loops = in_turn(loop) if is_private(o, self.uniformity) else [loop]
            return self.visited(loops, subst)
        alone = isinstance(o, ops.Gemm)  # an operand's box is nothing to the others
        kept = {r: box for r, box in boxes.items() if alone and _in_boxes(o, {r: box})}
        return [*b.ops, *self.copied(with_boxes(o, lambda r: kept.get(r, r)), subst)]

    def visited(self, statements: Sequence[Op], subst: Substitution) -> Sequence[Op]:
        return rewritten(statements, lambda x: self.visit(x, subst), subst)

    # --- elements ---

    def place(self, b: Builder, v: Value, indices: Sequence[Value]) -> tuple[Value, Value | None]:
        """The row-major number of a view's element; whether the indices lie inside, where that is
        not known: a view of a tensor ends within a row where its last index does."""
        shape = v.buffer.shape
        total: Value | None = None
        inside: Value | None = None
        for index, extent in zip(indices, shape):
            if total is not None:
                number = self.tensors.number(b, extent, index.dtype)
                total = b.binary("mul", total, number)
                if v.space == "global":
                    below = b.compare("lt", index, number)
                    inside = below if inside is None else b.binary("and", inside, below)
            total = index if total is None else b.binary("add", total, index)
        return (total or b.const(0)), inside

    def element(
        self, b: Builder, v: Value, indices: Sequence[Value]
    ) -> tuple[tuple[Value, ...], Value | None]:
        """The buffer's indices for those of a view of the same dtype; whether they lie inside,
        where that is not known. On chip, dimensions that number the same elements are by
        themselves."""
        root = self.source[v]
        if root.space == "global":
            place, inside = self.place(b, v, indices)
            return self.indices(b, root.buffer.shape, place), inside
        found: list[Value] = []
        for of_view, of_root in _groups(v.buffer.shape, root.buffer.shape):
            place = self.number(b, v, [(d, indices[d]) for d in of_view])
            found += self.indices(b, [root.buffer.shape[d] for d in of_root], place)
        return tuple(found), None

    def indices(self, b: Builder, shape: Sequence[Extent], place: Value) -> tuple[Value, ...]:
        """The indices in a buffer of this shape for a row-major number."""
        found: list[Value] = []
        first, *behind = _wide(shape)
        for d, extent in reversed(list(enumerate(shape))):
            if d in behind:
                number = self.tensors.number(b, extent, place.dtype)
                found.insert(0, b.binary("mod", place, number))
                place = b.binary("floordiv", place, number)
            else:
                found.insert(0, place if d == first else b.const(0))
        return tuple(found)

    def load(self, b: Builder, v: Value, indices: Sequence[Value]) -> Value:
        root, dtype = self.source[v], v.dtype
        own, times = _bits(root.dtype), dtype.bits // root.dtype.bits
        if dtype.bits == root.dtype.bits:
            where, inside = self.element(b, v, indices)
            return self._inside(b, inside, _as(b, b.value(ops.Load, root, where), dtype))
        place, inside = self.place(b, v, indices)
        if times > 1:
            word, value = _bits(dtype), b.const(0, _bits(dtype))
            first = b.binary("mul", place, times)
            for k in range(times):
                at = b.binary("add", first, k)
                part = b.value(ops.Load, root, self.indices(b, root.buffer.shape, at))
                part = b.cast(_as(b, part, own), word)
                shift = b.const(k * own.bits, word)
                value = b.binary("or", value, b.binary("shl", part, shift))
        else:
            count = b.const(root.dtype.bits // dtype.bits, place.dtype)
            at = b.binary("floordiv", place, count)
            wide = _as(b, b.value(ops.Load, root, self.indices(b, root.buffer.shape, at)), own)
            part = b.cast(b.binary("mod", place, count), own)
            shift = b.binary("mul", part, dtype.bits)
            value = b.cast(b.binary("shr", wide, shift), _bits(dtype))
        return self._inside(b, inside, _as(b, value, dtype))

    def _inside(self, b: Builder, inside: Value | None, value: Value) -> Value:
        """`value`, or zero where it does not lie inside."""
        return value if inside is None else b.select(inside, value, b.zero(value.dtype))

    def store(self, b: Builder, v: Value, indices: Sequence[Value], value: Value) -> None:
        root = self.source[v]
        inner = Builder(b.loc)
        times = v.dtype.bits // root.dtype.bits
        if times == 0:
            raise CompileError(
                f"a store of {v.dtype.name} through a view of {root.name}, whose elements of "
                f"{root.dtype.name} are wider",
                b.loc,
                f"store whole elements of {root.name}, or view it where it is allocated",
            )
        if times == 1:
            at, inside = self.element(b, v, indices)
            inner.emit(ops.Store, root, at, _as(inner, value, root.dtype))
        else:
            place, inside = self.place(b, v, indices)
            own, word = _bits(root.dtype), _as(inner, value, _bits(v.dtype))
            first = inner.binary("mul", place, times)
            for k in range(times):
                at_k = inner.binary("add", first, k)
                shift = inner.const(k * own.bits, word.dtype)
                part = inner.cast(inner.binary("shr", word, shift), own)
                at = self.indices(inner, root.buffer.shape, at_k)
                inner.emit(ops.Store, root, at, _as(inner, part, root.dtype))
        b.branch(inside, inner.ops)

    def atomic(self, o: ops.Atomic) -> Sequence[Op]:
        root = self.source[o.dest]
        if root.dtype is not o.dest.dtype:
            raise CompileError(
                f"an atomic on a view of {root.name} as {o.dest.dtype.name}",
                o.loc,
                f"use the dtype of {root.name}, {root.dtype.name}",
            )
        b = Builder(o.loc)
        at, inside = self.element(b, o.dest, o.indices)
        done = o.at(root, at)
        return [*b.ops, done if inside is None else or_zero(inside, done)]

    # --- tiles ---

    def box(self, b: Builder, r: Region) -> Region | None:
        """The box of the buffer that a box of its view is, with the same extents but for ones."""
        root = self.source[r.buffer]
        if root.dtype is not r.dtype:
            return None
        offsets: list[Value] = []
        extents: list[int] = []
        for of_view, of_root in _groups(r.type.shape, root.buffer.shape):
            shape = [root.buffer.shape[d] for d in of_root]
            inner = [e for e in shape if e != 1]
            wide = [d for d in of_view if r.type.shape[d] != 1]
            if len(wide) > len(inner) and root.space == "global":
                return None  # a box may end behind a row of the view, and then is none
            if len(inner) > 1 and [r.type.shape[d] for d in of_view] == inner:
                places = iter(of_view)  # dimension for dimension
                own = [None if e == 1 else next(places) for e in shape]
                offsets += [b.const(0) if d is None else r.offsets[d] for d in own]
                extents += [1 if d is None else r.extents[d] for d in own]
                continue
            large = [d for d in wide if r.extents[d] != 1]
            if large not in ([], wide[-1:]):
                return None
            if len(inner) > 1 and not self.within_a_row(r, of_view, shape[-1]):
                return None
            place = self.number(b, r.buffer, [(d, r.offsets[d]) for d in of_view])
            offsets += self.indices(b, shape, place)
            here = r.extents[large[0]] if large else 1
            extents += [here if n == _wide(shape)[-1] else 1 for n in range(len(shape))]
        return Region(root, tuple(offsets), tuple(extents))

    def number(self, b: Builder, v: Value, indices: Sequence[tuple[int, Value]]) -> Value:
        """The row-major number, among some dimensions of a view, of what has these indices."""
        place: Value | None = None
        for d, index in indices:
            if place is not None:
                wide = b.cast(place, index.dtype)
                extent = self.tensors.number(b, v.buffer.shape[d], index.dtype)
                index = b.binary("add", b.binary("mul", wide, extent), index)
            place = index
        return b.const(0) if place is None else place

    def within_a_row(self, r: Region, of_view: Sequence[int], row: Extent) -> bool:
        """Whether of one dimension of a view, which counts through several of its buffer's, a box
        takes a part of one row: rows are so many such parts."""
        own = [d for d in of_view if r.type.shape[d] != 1]
        if own != [of_view[-1]] or not isinstance(row, int) or row % r.extents[own[0]]:
            return False
        form, part = self.facts.form(r.offsets[own[0]]), r.extents[own[0]]
        return not any(n % part for n in (form.const, *form.terms.values()))

    def copied(self, o: Op, subst: Substitution) -> Sequence[Op]:
        """`o` with copies of the boxes of views that it works on; what it writes goes back behind
        it."""
        before, behind = Builder(o.loc), Builder(o.loc)
        effects = [e for e in o.effects() if e.region]

        def copy(theirs: Region) -> Region:
            """A buffer in the place of a box, and its use in `o`."""
            v = theirs.buffer
            own = [e for e in effects if e.region == theirs]
            own = own or [e for e in effects if e.region and e.region.buffer is v]
            space = "shared" if v.space == "global" else v.space
            made = before.value(ops.Alloc, BufferType(theirs.extents, v.dtype, space), name=v.name)
            mine = before.whole(made)
            if any(e.reads for e in own):
                before.emit(ops.Copy, theirs, mine)
            if any(e.writes for e in own):
                behind.emit(ops.Copy, mine, theirs)
            return mine

        boxes = {r: copy(r) for r in dict.fromkeys(_regions(o)) if r.buffer in self.source}
        done = with_boxes(o, lambda r: boxes.get(r, r))
        copies: Substitution = {}
        for v in dict.fromkeys(x for x in done.operands if x in self.source):
            copies[v] = copy(before.whole(v)).buffer
        return self.visited([*before.ops, done.with_operands(copies), *behind.ops], subst)


def _fits(o: Op, r: Region, box: Region) -> bool:
    """Whether an op may work on `box` for `r`: one that names dimensions needs all of them, a
    product the trailing two; of which other than 1 a reduction's is, `_in_boxes` counts."""
    if isinstance(o, ops.Gemm):
        return box.extents[-2:] == r.extents[-2:]
    return type(o) in ELEMENTWISE or isinstance(o, ops.Reduce) or box.extents == r.extents


def _regions(o: Op) -> list[Region]:
    found = (getattr(o, n) for n in o.operand_fields)
    return [r for r in found if isinstance(r, Region)]


def _in_boxes(o: Op, boxes: dict[Region, Region]) -> Op | None:
    """`o` with these regions, which may have other extents of 1; None where it minds."""
    made = with_boxes(o, lambda r: boxes.get(r, r))
    match o, made:
        case ops.Gemm(), ops.Gemm():
            sides = [(o.a, made.a), (o.b, made.b)]
            if o.metadata is not None and made.metadata is not None:
                sides.append((o.metadata, made.metadata))
            same = [x.extents[-2:] == y.extents[-2:] for x, y in sides]
            return made if all(same) else None
        case ops.Reduce() | ops.Scan(), ops.Reduce() | ops.Scan():
            if made.source.extents != o.source.extents:
                if o.source.extents[o.dim] == 1:
                    return None
                before = sum(e != 1 for e in o.source.extents[: o.dim])
                large = [d for d, e in enumerate(made.source.extents) if e != 1]
                made = replace(made, dim=large[before])
            if isinstance(made, ops.Scan) and made.source.extents != made.dest.extents:
                return None
    return made


def _wide(shape: Sequence[Extent]) -> list[int]:
    """The dimensions that are not 1; the last one where all are."""
    return [d for d, e in enumerate(shape) if e != 1] or [len(shape) - 1]


def _groups(
    view: Sequence[int | str], root: Sequence[int | str]
) -> list[tuple[list[int], list[int]]]:
    """The dimensions of both, cut wherever as many elements lie behind: those of each group number
    the same elements. Extents that are not known cut nothing."""
    groups: list[tuple[list[int], list[int]]] = []
    i, j = len(view) - 1, len(root) - 1
    of_view: list[int] = []
    of_root: list[int] = []
    m = n = 1
    while i >= 0 or j >= 0:
        take_view = j < 0 or (i >= 0 and m <= n)
        extent = view[i] if take_view else root[j]
        if not isinstance(extent, int):
            break
        if take_view:
            of_view.insert(0, i)
            m, i = m * extent, i - 1
        else:
            of_root.insert(0, j)
            n, j = n * extent, j - 1
        if m == n and of_view and of_root:
            groups.insert(0, (of_view, of_root))
            of_view, of_root, m, n = [], [], 1, 1
    left = (list(range(i + 1)) + of_view, list(range(j + 1)) + of_root)
    if not any(left):
        return groups
    if all(left) or not groups:
        return [left, *groups]
    first = groups[0]
    return [(left[0] + first[0], left[1] + first[1]), *groups[1:]]


def _bits(dtype: DType) -> DType:
    return DTYPES[f"uint{dtype.bits}"]


def _as(b: Builder, value: Value, dtype: DType) -> Value:
    return value if value.dtype is dtype else b.value(ops.Bitcast, value, dtype)
