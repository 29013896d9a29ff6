"""Builtins about tiles: placement, movement, products, annotations."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

from tilec import language as T
from tilec.builtins.lanes import find_vector
from tilec.frontend import narrow
from tilec.frontend.arithmetic import static_int
from tilec.frontend.builtins.table import Call, builtin
from tilec.frontend.expressions import Expressions
from tilec.frontend.layouts import copy_layout
from tilec.frontend.open_slices import closed, copy_open, fill_open, is_open
from tilec.frontend.placements import copy_elements, fill_elements, is_placed
from tilec.frontend.values import Buffer, Lanes, Number, Region, Scalar, Tile, describe
from tilec.ir.errors import did_you_mean
from tilec.ir.ops import AnnotateSafeValue, Copy, Fill, Gemm, UseSwizzle
from tilec.ir.types import FLOAT32, DType

# What a copy may be asked to be done by.
_BY = ("tma", "cp_async", "sync", "ldmatrix", "stmatrix", "ldst")

# Accumulators that a product of each input dtype may have.
_ACCUMULATORS: dict[str, tuple[str, ...]] = {
    "float16": ("float16", "float32"), "bfloat16": ("float32",), "float32": ("float32",),
    "tfloat32": ("float32",), "float64": ("float64",), "float8_e4m3": ("float16", "float32"),
    "float8_e5m2": ("float16", "float32"),
    **dict.fromkeys(
        ("int8", "uint8", "int16", "uint16", "int32", "uint32"),
        ("int32", "uint32", "int64", "uint64"),
    ),
    "int64": ("int64", "uint64"), "uint64": ("int64", "uint64"),
}  # fmt: skip
_MIXABLE = ({"float8_e4m3", "float8_e5m2"}, {"int8", "uint8"})


# --- placement ------------------------------------------------------------------------------------

_SCOPES = {
    "alloc_shared": ("shared", ("shared.dyn", "shared")),
    "alloc_fragment": ("fragment", ("local.fragment", "fragment", "local")),
    "alloc_local": ("local", ("local",)),
}


@builtin(T.alloc_shared, T.alloc_fragment, T.alloc_local)
def alloc(t: Expressions, c: Call) -> Buffer:
    space, scopes = _SCOPES[c.builtin]
    if space != "local":
        c.of("tiles")
    if static_int(c["dtype"]) is not None:
        texts = [a for a in c.node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        extents = ", ".join(ast.unparse(a) for a in c.node.args if a not in texts)
        named = str(texts[0].value) if texts else ""
        hint = f'write T.{c.builtin}(({extents}), "{named or "float16"}")'
        raise c.wrong("dtype", f"is {describe(c['dtype'])}: the shape is one tuple", hint)
    c.choice("scope", scopes)
    one = space == "local" and static_int(c["shape"]) == 0  # TVM's place for a single result
    shape, dtype = (1,) if one else c.shape("shape"), c.dtype("dtype")
    return t.allocated(shape, dtype, space, node=c.node if space == "shared" else None)


@builtin(T.alloc_var)
def alloc_var(t: Expressions, c: Call) -> Buffer | Lanes:
    init = None if c["init"] is None else c.number("init")
    vector = find_vector(c["dtype"])
    if vector is not None:
        made = (new_variable(t, vector.dtype, init) for _ in range(vector.lanes))
        return Lanes(tuple(made), variable=True)
    return new_variable(t, c.dtype("dtype"), init)


def new_variable(t: Expressions, dtype: DType, init: Number | None) -> Buffer:
    """A variable of each thread, or of each iteration of a T.Parallel."""
    variable = t.allocated((1,), dtype, "local", variable=True)
    if init is not None:
        t.store(t.first_element(variable), init)
    if t.parallel is not None:
        t.parallel.variables.append(variable)
    return variable


# --- movement -------------------------------------------------------------------------------------


def eviction_policy(t: Expressions, c: Call) -> str:
    """What the call says to L2; "" where nothing, or what is usual."""
    if c["eviction_policy"] is None:
        return ""
    known = ("evict_first", "evict_last", "evict_normal")
    policy = c.choice("eviction_policy", known)
    return "" if policy == "evict_normal" else policy


def _annotated(t: Expressions, c: Call) -> Call:
    """The call with what its `annotations` say in the place of its other keywords."""
    given = c["annotations"]
    if given is None:
        return c
    place = c.place("annotations")
    names = [*c.values][2:-1]
    known = {**{n: n for n in names}, "parallel_loop_layout": "loop_layout"}
    if not isinstance(given, dict):
        message = f"annotations of T.copy are {describe(given)}, no dict"
        raise t.error(message, f"it has: {', '.join(names)}", place)
    given = {n: v for n, v in given.items() if "." not in str(n)}  # of other tools: test.copy
    for name in given:
        if name not in known:
            near = did_you_mean(str(name), names)
            message = f"annotations of T.copy have no {name!r}{near}"
            raise t.error(message, f"it has: {', '.join(names)}", place)
    said = {known[name]: value for name, value in given.items()}
    nodes = {**c.nodes, **dict.fromkeys(said, place)}
    return replace(c.but(**said), nodes=nodes)  # type: ignore[arg-type]


@builtin(T.copy)
def copy(t: Expressions, c: Call) -> None:
    src, dst = c["src"], c["dst"]
    if t.parallel is not None and isinstance(src, Region) and isinstance(dst, Region):
        if src.is_element and dst.is_element:
            t.store(dst, t.load(src))
            return
    c.of("tiles")
    c = _annotated(t, c)
    width = 0 if c["coalesced_width"] is None else c.integer("coalesced_width", 1)
    policy = eviction_policy(t, c)
    by = "" if c["prefer_instruction"] is None else c.choice("prefer_instruction", _BY)
    plain = c.flag("disable_tma")
    if plain and by == "tma":
        message = 'prefer_instruction of T.copy is "tma" beside disable_tma=True'
        raise t.error(message, "leave one of them out", c.place("prefer_instruction"))
    if is_open(c["src"]) or is_open(c["dst"]):
        copy_open(t, c, *closed(t, c))
        return
    source, dest = c.tiles()
    t.check_overlap(f"T.copy of {t.tile_text(source)}", source, dest)
    if is_placed(t, source, dest):
        copy_elements(t, source, dest)
        return
    if c["loop_layout"] is None and narrow.are_bytes(source, dest):
        width = -(-width * dest.buffer.dtype.bits // 8)
        source, dest = narrow.bytes_of(t, source), narrow.bytes_of(t, dest)
    elif narrow.is_packed(source, dest) or narrow.rounds(source, dest):
        narrow.move(t, source, dest)
        return
    if c["loop_layout"] is not None:
        place = t.frame.loc(c.place("loop_layout"))
        copy_layout(t, (source.buffer, dest.buffer), c["loop_layout"], place)
    t.emit(
        Copy,
        t.box(source),
        t.box(dest),
        coalesced_width=width,
        disable_tma=plain or by in ("cp_async", "sync"),
        eviction_policy=policy,
    )


@builtin(T.fill)
def fill(t: Expressions, c: Call) -> None:
    _fill_destination(t, c, c.number("value"))


@builtin(T.clear)
def clear(t: Expressions, c: Call) -> None:
    _fill_destination(t, c, 0)


def _fill_destination(t: Expressions, c: Call, value: object) -> None:
    c.of("tiles")
    with t.at(c.place("buffer")):
        region = t.region(c["buffer"], "the destination")
        if is_open(region):
            fill_open(t, region, value, c.node)
            return
        tile = t.element_tile(region, "the destination")
    _fill(t, tile, value)


def _fill(t: Expressions, tile: Tile, value: object) -> None:
    number = t.convert(t.number(value, "the value"), tile.buffer.dtype)
    if narrow.is_packed(tile):
        narrow.fill(t, tile, number)
    elif is_placed(t, tile):
        fill_elements(t, tile, number)
    else:
        t.emit(Fill, t.box(tile), number.value)
        narrow.note_whole(t, tile)
    if tile.buffer.value in t.reducers:
        t.reducers[tile.buffer.value].open = True


# --- products -------------------------------------------------------------------------------------


@builtin(T.gemm, T.wgmma_gemm, of="tiles")
def gemm(t: Expressions, c: Call) -> None:
    a, b = factor(t, c, "A"), factor(t, c, "B")
    acc, place = accumulator(t, c)
    transpose_a, transpose_b = (c.flag("transpose_A"), c.flag("transpose_B"))
    check_dtypes(t, a.buffer.type.dtype, b.buffer.type.dtype, acc, (a, b))
    (m, k), (kb, n) = a.extents[-2:], b.extents[-2:]
    m, k = (k, m) if transpose_a else (m, k)
    kb, n = (n, kb) if transpose_b else (kb, n)
    flags = f"transpose_A={transpose_a}, transpose_B={transpose_b}"
    both = f"A is {t.tile_text(a)}, B is {t.tile_text(b)} ({flags})"
    if k != kb:
        form, extents = ("(N, K)", (n, k)) if transpose_b else ("(K, N)", (k, n))
        t_b = b.buffer.type
        hint = (
            f"B is {form} here: allocate {b.buffer.name} as T.alloc_{t_b.space}({extents}, "
            f'"{t_b.dtype.name}")'
        )
        if n == k:
            hint = f"transpose_B={not transpose_b} would make them agree"
        raise t.error(f"gemm sums over K, but A has K = {k} and B has K = {kb}: {both}", hint)
    if acc.type.static_shape != (m, n):
        hint = f'allocate C with T.alloc_fragment(({m}, {n}), "{acc.type.dtype.name}")'
        raise t.error(f"gemm gives a ({m}, {n}) tile, but C is {describe(acc)}: {both}", hint)
    fast = "fast_accum" not in c.values or c.flag("fast_accum")
    if not fast and acc.type.dtype.name == "float16":
        message = f"fast_accum=False adds partial sums in float32, but C is {describe(acc)}"
        hint = "allocate C as float32; T.copy converts it on the way out"
        raise t.error(message, hint, c.place("fast_accum"))
    how: dict[str, Any] = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    how |= {"fast_accum": fast, "asynchronous": c.builtin == "wgmma_gemm"}
    multiply(t, c, a, b, acc, **how)
    put_back(t, acc, place)


def multiply(
    t: Expressions, c: Call, a: Tile, b: Tile, acc: Buffer, e: Tile | None = None, **how: Any
) -> None:
    """The product of two tiles, `e` the metadata of a compressed A, as the call's other arguments
    say."""
    if "k_pack" in c.values:
        c.integer("k_pack", 1)
    policy = c["policy"]
    if not isinstance(policy, T.GemmWarpPolicy):
        hint = "write T.GemmWarpPolicy.Square, .FullRow or .FullCol"
        raise c.wrong("policy", f"is {describe(policy)}", hint)
    a, b = (_beside(t, x, t.tile(acc, "C")) for x in (a, b))
    how["clear"] = _clears_first(t, c, acc)
    # As TileLang multiplies float32 numbers.
    tf32 = c.flag("allow_tf32") or (t.options.tilelang and a.buffer.type.dtype == FLOAT32)
    boxes, metadata = (t.box(a), t.box(b)), None if e is None else t.box(e)
    t.emit(Gemm, *boxes, acc.value, metadata=metadata, policy=policy.value, allow_tf32=tf32, **how)


def _beside(t: Expressions, operand: Tile, acc: Tile) -> Tile:
    """An operand of a product, as it is before the product changes it: a copy, where it is C."""
    if not t.same_memory(operand, acc):
        return operand
    copy = t.allocated(operand.extents[-2:], operand.buffer.dtype, "fragment")
    copy.value.name = operand.buffer.name
    tile = t.tile(copy, "the copy")
    t.emit(Copy, t.box(operand), t.box(tile))
    return tile


def _clears_first(t: Expressions, c: Call, acc: Buffer) -> bool:
    """Whether a product sets C; where that is known at run time alone, C is cleared here."""
    if not isinstance(c["clear_accum"], Scalar):
        return c.flag("clear_accum")
    with t.at(c.place("clear_accum")):
        whole, holds = t.tile(acc, f"C of T.{c.builtin}"), t.truth(c["clear_accum"])
        assert isinstance(holds, Scalar)
        t.branch(holds, lambda: _fill(t, whole, 0))
    return False


def factor(t: Expressions, c: Call, name: str) -> Tile:
    """An operand of a product: a shared tile or a fragment of two dimensions."""
    with t.at(c.place(name)):
        tile = t.tile(c[name], f"{name} of T.{c.builtin}")
        if tile.buffer.type.space not in ("shared", "fragment"):
            hint = "copy it into a shared tile first: T.copy(…, A_shared)"
            raise c.wrong(
                name, f"is {describe(tile.buffer)}; it must be shared or a fragment", hint
            )
        if len(tile.extents) < 2 or any(e != 1 for e in tile.extents[:-2]):
            said = f"is {t.tile_text(tile)}; it must have two dimensions"
            raise c.wrong(name, said, "name a two-dimensional part: A_s[0, :, :]")
        return tile


def accumulator(t: Expressions, c: Call) -> tuple[Buffer, Tile | None]:
    """C of a product, a whole fragment of two dimensions; where a part of one is named, a fragment
    of what that has, and the part."""
    value = c["C"]
    with t.at(c.place("C")):
        part = isinstance(value, Region) and not value.is_element and c.builtin != "wgmma_gemm"
        if part and value.buffer.type.space == "fragment":
            tile = t.tile(value, f"C of T.{c.builtin}")
            if len(tile.extents) >= 2 and all(e == 1 for e in tile.extents[:-2]):
                made = t.allocated(tile.extents[-2:], tile.buffer.dtype, "fragment")
                made.value.name = f"{tile.buffer.name}_part"
                if c["clear_accum"] is not True:
                    t.emit(Copy, t.box(tile), t.box(t.tile(made, "C")))
                return made, tile
        if not isinstance(value, Buffer):
            message = f"C of T.{c.builtin} is {describe(value)}; it must be a whole fragment"
            raise t.error(message, 'allocate one: C = T.alloc_fragment((m, n), "float32")')
        if value.type.space != "fragment":
            extents = ", ".join(map(str, value.type.shape))
            message = f"C of T.{c.builtin} is {describe(value)}; the result must be a fragment"
            hint = f'allocate T.alloc_fragment(({extents}), "float32") and copy it to {value.name}'
            raise t.error(message, hint)
        if value.type.rank != 2:
            message = f"C of T.{c.builtin} is {describe(value)}; it must have two dimensions"
            raise t.error(message, 'allocate one: C = T.alloc_fragment((m, n), "float32")')
        return value, None


def put_back(t: Expressions, acc: Buffer, place: Tile | None) -> None:
    """Give the part of a fragment that is C of a product its result."""
    if place is not None:
        t.emit(Copy, t.box(t.tile(acc, "C")), t.box(place))


def check_dtypes(t: Expressions, a: DType, b: DType, acc: Buffer, tiles: tuple[Tile, Tile]) -> None:
    both = f"A is {t.tile_text(tiles[0])}, B is {t.tile_text(tiles[1])}"
    if a is not b and {a.name, b.name} not in _MIXABLE:
        message = f"gemm of {a.name} by {b.name}: both inputs must have one dtype: {both}"
        hint = f"copy {tiles[1].buffer.name} into a {a.name} tile first; T.copy converts"
        raise t.error(message, hint)
    allowed = _ACCUMULATORS.get(a.name)
    if allowed is None:
        hint = f"inputs can be {', '.join(_ACCUMULATORS)}"
        raise t.error(f"gemm of {a.name} is not supported: {both}", hint)
    if acc.type.dtype.name not in allowed:
        raise t.error(
            f"gemm of {a.name} cannot accumulate in {acc.type.dtype.name}: C is {describe(acc)}, "
            f"{both}",
            f"allocate C as {' or '.join(allowed)}",
        )


# --- annotations ----------------------------------------------------------------------------------


def buffer_dict(
    t: Expressions, c: Call, name: str
) -> list[tuple[Buffer, object, ast.AST, ast.AST]]:
    """The keys and values of a dict of buffers, and where each of them stands (the dict, where it
    is not written out)."""
    got, place = c[name], c.place(name)
    if not isinstance(got, dict):
        message = f"T.{c.builtin} takes a dict of buffers, not {describe(got)}"
        raise t.error(message, "write {buffer: …}", place)
    written = [*zip(place.keys, place.values)] if isinstance(place, ast.Dict) else []
    found = []
    for key, value in got.items():
        if not isinstance(key, Buffer):
            message = f"a key of T.{c.builtin} is {describe(key)}, not a buffer"
            raise t.error(message, "write the buffer itself, without quotes or index", place)
        own = ((k, v) for k, v in written if isinstance(k, ast.Name) and t.names.get(k.id) is key)
        found.append((key, value, *next(own, (place, place))))
    return found


@builtin(T.annotate_safe_value)
def annotate_safe_value(t: Expressions, c: Call) -> None:
    for buffer, value, key, place in buffer_dict(t, c, "values"):
        if not buffer.is_global:
            message = f"{describe(buffer)} has no safe value; only tensor arguments have one"
            raise t.error(message, "annotate the tensor it is copied from", key)
        if buffer.packed is not None:
            raise t.error(
                f"{describe(buffer)} has no safe value but 0: its elements are narrower in memory",
                "leave it out, and choose by T.if_then_else where elements are read",
                key,
            )
        number = t.number(value, "a safe value")
        if not isinstance(number, bool | int | float):
            message = f"the safe value of {buffer.name} is {describe(value)}; it must be a literal"
            raise t.error(message, "write a number that is known at compile time", place)
        t.padded.add(buffer.value)
        t.emit(AnnotateSafeValue, buffer.value, t.constant(number, buffer.type.dtype).value)


@builtin(T.use_swizzle, of="tiles")
def use_swizzle(t: Expressions, c: Call) -> None:
    panel = c.integer("panel_size", 1)
    order = c.choice("order", ("row", "column"))
    if c.flag("enable"):
        t.emit(UseSwizzle, panel, order)
