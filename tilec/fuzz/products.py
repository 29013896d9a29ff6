"""T.gemm, with operands of every dtype and order, and T.Pipelined, around products and around
element-wise work."""

from __future__ import annotations

from dataclasses import dataclass

from tilec.fuzz.expressions import converted
from tilec.fuzz.writer import Buffer, Missing, Writer, planes, statement

# Of A, B and C, as `tilec.language.gemm` lists them.
DTYPES: tuple[tuple[str, str, str], ...] = (
    ("float16", "float16", "float32"),
    ("float16", "float16", "float32"),
    ("float16", "float16", "float16"),
    ("bfloat16", "bfloat16", "float32"),
    ("float32", "float32", "float32"),
    ("float32", "float32", "float32"),
    ("tfloat32", "tfloat32", "float32"),
    ("float64", "float64", "float64"),
    ("float8_e4m3", "float8_e4m3", "float32"),
    ("float8_e5m2", "float8_e4m3", "float32"),
    ("float8_e4m3", "float8_e5m2", "float16"),
    ("int8", "int8", "int32"),
    ("uint8", "int8", "int32"),
    ("uint8", "uint8", "int32"),
)
POLICIES = ("Square", "FullRow", "FullCol")
MOST_PRODUCTS = 2  # of a program: they take the simulator's time


@dataclass(frozen=True)
class Shape:
    """A product's extents, dtypes and the order of its operands."""

    m: int
    n: int
    k: int
    dtypes: tuple[str, str, str]
    left: bool
    right: bool

    @property
    def a(self) -> tuple[int, int]:
        return (self.k, self.m) if self.left else (self.m, self.k)

    @property
    def b(self) -> tuple[int, int]:
        return (self.n, self.k) if self.right else (self.k, self.n)


def new_product(w: Writer) -> Shape:
    """Extents that matrix instructions take, mostly."""
    if w.products >= MOST_PRODUCTS:
        raise Missing
    w.products += 1
    odd = w.chance(0.15)
    dtypes = w.one_of(DTYPES)
    wide = 2 if dtypes[0] in ("float32", "tfloat32", "float64") else 1
    m = w.size(40) if odd else w.one_of((16, 32, 64, 64, 64))
    n = w.size(40) if odd else w.one_of((8, 16, 16, 24, 32, 64))
    k = w.size(40) if odd else w.one_of((16, 32, 32)) // wide
    if m * n > 2048:
        n = max(8, 2048 // m)
    return Shape(m, n, k, dtypes, w.chance(0.4), w.chance(0.4))


def in_memory(dtype: str) -> str:
    """The dtype of a tensor whose tiles have this one."""
    return "float32" if dtype == "tfloat32" else dtype


def call(w: Writer, s: Shape, a: str, b: str, c: str, fresh: bool) -> None:
    """A call of T.gemm. `fresh`: C holds nothing yet."""
    options = []
    if s.left:
        options.append("transpose_A=True")
    if s.right:
        options.append("transpose_B=True")
    if w.chance(0.6):
        options.append(f"policy=T.GemmWarpPolicy.{w.one_of(POLICIES)}")
    if fresh:
        options.append("clear_accum=True")
    if s.dtypes[0] == "float32" and w.chance(0.6):
        options.append("allow_tf32=True")
    if "float8" in s.dtypes[0] and s.dtypes[2] == "float32" and w.chance(0.4):
        options += ["fast_accum=False", "k_pack=2"]
    w.emit(f"T.gemm({', '.join((a, b, c, *options))})")


def operand(w: Writer, shape: tuple[int, int], dtype: str) -> Buffer:
    """A tile with small numbers in it."""
    tile = w.tile(shape, dtype, w.one_of(("shared", "shared", "shared", "fragment")))
    if w.chance(0.5) and w.depth == 2:
        source = w.input((w.size(shape[0] + 8), shape[1] + w.below(9)), in_memory(dtype))
        w.emit(f"T.copy({source.name}[{w.one_of(('0', 'by * 8'))}, {w.below(3)}], {tile.name})")
        return tile
    i, j = names = f"p{w.depth}", f"q{w.depth}"
    with w.elements(shape, tile, names=names) as s:
        number = f"({i} * {w.between(1, 5)} + {j} * {w.between(1, 3)} + bx) % {w.between(3, 6)}"
        less = "" if "uint" in dtype else f" - {w.between(0, 2)}"
        w.emit(f'{s.own} = T.cast({number}{less}, "{dtype}")')
    return tile


@statement(deepest=3)
def product(w: Writer) -> None:
    """One product of tiles that are made for it."""
    s = new_product(w)
    a, b = operand(w, s.a, s.dtypes[0]), operand(w, s.b, s.dtypes[1])
    c = w.tile((s.m, s.n), s.dtypes[2], "fragment")
    fresh = w.chance(0.4)
    if not fresh:
        w.emit(f"T.clear({c.name})")
    call(w, s, a.name, b.name, c.name, fresh)
    if w.chance(0.2):
        call(w, s, a.name, b.name, c.name, False)
    w.tiles += [c] if s.dtypes[0] == "tfloat32" else [c, a, b]  # it is for products only
    if (s.m, s.n) != (w.bm, w.bn) and w.depth == 2:
        result(w, s, c)


@statement(weight=0, deepest=3)
def product_of_one(w: Writer) -> None:
    """A tile by itself; maybe what comes of it by itself or another, in its own place."""
    first, side = new_product(w), w.one_of((16, 16, 32, w.size(24)))
    dtypes = first.dtypes[0], first.dtypes[0], first.dtypes[2]
    s = Shape(side, side, w.one_of((side, 16, 32)), dtypes, first.left, not first.left)
    a, c = operand(w, s.a, dtypes[0]), w.tile((side, side), dtypes[2], "fragment")
    call(w, s, a.name, a.name, c.name, True)
    if dtypes[0] == dtypes[2] and w.chance(0.7):
        square = Shape(side, side, side, dtypes, w.chance(0.4), w.chance(0.4))
        b = operand(w, square.b, dtypes[0])
        left, right = w.one_of(((c, b), (b, c), (c, c)))
        call(w, square, left.name, right.name, c.name, w.chance(0.4))
    w.tiles += [c] if dtypes[0] == "tfloat32" else [c, a]
    if w.depth == 2:
        result(w, s, c)


@statement(deepest=3)
def product_of_parts(w: Writer) -> None:
    """One product whose operands are parts of larger tiles: a plane of one, rows of the other."""
    s = new_product(w)
    planes, more = w.between(1, 3), w.one_of((0, 1, 8, 16))
    a = _numbers(w, (planes, *s.a), s.dtypes[0])
    b = _numbers(w, (s.b[0] + more, s.b[1]), s.dtypes[1])
    first = w.one_of((0, more))
    parts = f"{a.name}[{w.below(planes)}, :, :]", f"{b.name}[{first}:{first + s.b[0]}, :]"
    c = w.tile((s.m, s.n), s.dtypes[2], "fragment")
    call(w, s, *parts, c.name, True)
    w.tiles.append(c)
    if w.depth == 2:
        result(w, s, c)


def _numbers(w: Writer, shape: tuple[int, ...], dtype: str) -> Buffer:
    """A shared tile of small whole numbers."""
    tile = w.tile(shape, dtype, "shared")
    with w.elements(shape, tile) as s:
        number = f"({' + '.join(s.names)} * {w.between(1, 5)}) % {w.between(3, 6)}"
        w.emit(f'{s.own} = T.cast({number}, "{dtype}")')
    return tile


def result(w: Writer, s: Shape, c: Buffer) -> None:
    """A product's result, to an output of its own."""
    at = (f"by * {s.m}", f"bx * {s.n}")
    shape = (max(0, s.m * w.rows - w.below(s.m)), max(0, s.n * w.columns - w.below(s.n)))
    kinds = (s.dtypes[2], "float32", "float16") if s.dtypes[2] != "int32" else ("int32",)
    made = w.output(shape, w.one_of(kinds), at, (s.m, s.n))
    w.emit(f"T.copy({c.name}, {made.element(at)})")


@statement(weight=0, outer=3)
def pipelined_product(w: Writer) -> None:
    """A product over a long K, its operands brought by a pipeline of 0 to 5 stages."""
    s = new_product(w)
    m, n = s.m * w.rows, s.n * w.columns
    k = max(0, s.k * w.between(0, 4) - w.one_of((0, 0, 1, 3, 8)))
    a_shape = (k, m - w.below(s.m)) if s.left else (m - w.below(s.m), k)
    b_shape = (n - w.below(s.n), k) if s.right else (k, n - w.below(s.n))
    if w.chance(0.6):  # rows that TMA can bring
        a_shape, b_shape = ((x[0], -(-x[1] // 16) * 16) for x in (a_shape, b_shape))
        k = a_shape[0] if s.left else a_shape[1]
    left, right = (
        w.input(x, in_memory(d)) for x, d in ((a_shape, s.dtypes[0]), (b_shape, s.dtypes[1]))
    )
    a, b = w.tile(s.a, s.dtypes[0], "shared"), w.tile(s.b, s.dtypes[1], "shared")
    c = w.tile((s.m, s.n), s.dtypes[2], "fragment")
    w.emit(f"T.clear({c.name})")
    name = w.name("k")
    stages = f", num_stages={w.between(0, 5)}" if w.chance(0.85) else ""
    with w.block(f"for {name} in T.Pipelined({-(-k // s.k)}{stages}):"):
        row, column, deep = f"by * {s.m}", f"bx * {s.n}", f"{name} * {s.k}"
        ends = (deep, row) if s.left else (row, deep)
        w.emit(f"T.copy({left.element(ends)}, {a.name})")
        ends = (column, deep) if s.right else (deep, column)
        w.emit(f"T.copy({right.element(ends)}, {b.name})")
        if w.chance(0.15) and s.dtypes[0] != "tfloat32" and "float8" not in s.dtypes[0]:
            with w.elements(s.a, a, names=("p", "q")) as e:
                half = "" if s.dtypes[0] in ("int8", "uint8") else ".0"
                w.emit(f"{e.own} = {e.own} * 2{half}")
        call(w, s, a.name, b.name, c.name, False)
    written = any(f"{o.name}[" in line for o in w.outputs for line in w.lines)
    # Several blocks may share the sum.
    if not written and not w.scheduled and w.depth < 3 and w.chance(0.2):
        split = w.one_of(("2", "4", "16", "(2, 1)", "(1, 2)", "(1, 5)", "(2, 2)", "(2, 4)"))
        w.head.append(f"T.annotate_schedule(split={split})")
    w.tiles.append(c)
    result(w, s, c)


# --- pipelines of element-wise work ---------------------------------------------------------------


@statement(outer=1, deepest=3)
def pipelined(w: Writer) -> None:
    """Tiles of an input, one after the other, added up."""
    source, total = w.pair_of(planes(w.inputs), [t for t in planes(w.tiles) if t.counts])
    stage = w.tile(
        total.shape,
        w.one_of((source.dtype, total.dtype)),
        w.one_of(("shared",) * 3 + ("fragment",)),
    )
    name, across = w.name("k"), w.below(2)
    steps = -(-source.shape[across] // stage.shape[across])
    bound = w.one_of((str(min(steps, 5)), str(w.between(0, 4)), "bx + 1", f"1, {w.between(1, 4)}"))
    names = w.indices(2)
    how = arranged(w, 2)
    with w.block(f"for {name} in T.Pipelined({bound}{how}):"):
        w.counters.append(name)
        start = [f"{w.one_of(('bx', 'by'))} * {stage.shape[1 - across]}"] * 2
        start[across] = f"{name} * {stage.shape[across]}"
        w.emit(f"T.copy({source.element(start)}, {stage.name})")
        if w.chance(0.2) and "order" not in how and "stage=" not in how:
            w.inner()
        with w.elements(total.shape, total, names=names) as s:
            i, j = names
            shift = f"({j} + {w.between(0, 2)}) % {total.shape[1]}" if w.chance(0.4) else j
            w.emit(f'{s.own} = {s.own} + T.cast({stage.name}[{i}, {shift}], "{total.dtype}")')


def arranged(w: Writer, statements: int) -> str:
    """Keywords of a T.Pipelined whose body has so many statements that act."""
    kind = w.below(12)
    if kind == 0:
        copies = list(range(statements - 1))  # the last one needs what they bring
        w.rng.shuffle(copies)
        order = [*copies, statements - 1] if w.chance(0.7) else [*copies[1:], -1, -1]
        return f", num_stages={w.between(1, 4)}, order={order}"
    if kind in (1, 2):
        last = w.between(1, 3)
        stage = [w.one_of((0, last)) for _ in range(statements - 1)] + [last]
        return f", stage={stage}"
    if kind == 3:
        return f", num_stages={w.between(1, 4)}, reversible=True"
    if kind == 5:
        group = [list(range(statements - 1)), [statements - 1]]
        return f", num_stages={w.between(1, 4)}, order=[0, 1], group={group}"
    return "" if kind == 4 else f", num_stages={w.between(0, 5)}"


@statement(deepest=3)
def pipelined_pair(w: Writer) -> None:
    """Tiles of two inputs side by side, of rows that TMA can bring or not; maybe left early."""
    tensors = [t for t in planes(w.inputs) if "float8" not in t.dtype]
    first, second = w.pair_of(tensors, tensors)
    shape = (w.one_of((4, 8, 16, 5)), w.one_of((8, 16, 32, 7)))
    one, two = (w.tile(shape, t.dtype, "shared") for t in (first, second))
    total = w.tile(shape, w.one_of(("float32", "int32", "float64")), "fragment")
    w.emit(f"T.clear({total.name})")
    name, names = w.name("k"), w.indices(2)
    early = w.chance(0.2)
    how = f", num_stages={w.between(1, 4)}" if early else arranged(w, 3)
    with w.block(f"for {name} in T.Pipelined({w.between(1, 5)}{how}):"):
        if early:
            with w.block(f"if {name} >= {w.between(1, 3)}:"):
                w.emit("break")
        w.emit(f"T.copy({first.name}[by * {shape[0]}, {name} * {shape[1]}], {one.name})")
        w.emit(f"T.copy({second.name}[{name} * {shape[0]}, bx * {shape[1]}], {two.name})")
        with w.elements(shape, total, names=names) as s:
            parts = (converted(w, t.element(names), total.dtype) for t in (one, two))
            low, high = (f'T.cast({n}, "{total.dtype}")' for n in (-9, 9))
            both = f" {w.one_of('+-*')} ".join(parts)
            w.emit(f"{s.own} += T.max(T.min({both}, {high}), {low})")
    w.tiles.append(total)
