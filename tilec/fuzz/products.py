"""The words around T.gemm: operands of every dtype and order, policies, pipelines."""

from __future__ import annotations

from dataclasses import dataclass

from tilec.fuzz.writer import Output, Tile, Writer, head, indices

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


def shape_of(w: Writer, m: int = 0, n: int = 0) -> Shape:
    """Extents that matrix instructions take, mostly."""
    odd = w.chance(0.15)
    dtypes = w.one_of(DTYPES)
    wide = 2 if dtypes[0] in ("float32", "tfloat32", "float64") else 1
    m = m or (w.size(40) if odd else w.one_of((16, 32, 64, 64, 64)))
    n = n or (w.size(40) if odd else w.one_of((8, 16, 16, 24, 32, 64)))
    k = w.size(40) if odd else w.one_of((16, 32, 32)) // wide
    if m * n > 2048:
        n = max(8, 2048 // m)
    return Shape(m, n, k, dtypes, w.chance(0.4), w.chance(0.4))


def in_memory(dtype: str) -> str:
    """The dtype of a tensor whose tiles have this one."""
    return "float32" if dtype == "tfloat32" else dtype


def call(w: Writer, s: Shape, a: str, b: str, c: str, fresh: bool) -> str:
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
        options.append("fast_accum=False")
    return f"T.gemm({', '.join((a, b, c, *options))})"


def operand(w: Writer, shape: tuple[int, int], dtype: str, space: str = "") -> Tile:
    """A tile with small numbers in it."""
    tile = w.tile(shape, dtype, space or w.one_of(("shared", "shared", "shared", "fragment")))
    if w.chance(0.5) and w.depth == 2:
        source = w.input((w.size(shape[0] + 8), shape[1] + w.below(9)), in_memory(dtype))
        w.emit(f"T.copy({source.name}[{w.one_of(('0', 'by * 8'))}, {w.below(3)}], {tile.name})")
        return tile
    i, j = f"p{w.depth}", f"q{w.depth}"
    with w.block(f"for {i}, {j} in T.Parallel({shape[0]}, {shape[1]}):"):
        number = f"({i} * {w.between(1, 5)} + {j} * {w.between(1, 3)} + bx) % {w.between(3, 6)}"
        less = "" if "uint" in dtype else f" - {w.between(0, 2)}"
        w.emit(f'{tile.name}[{i}, {j}] = T.cast({number}{less}, "{dtype}")')
    return tile


def product(w: Writer) -> None:
    """One product of tiles that are made for it."""
    if w.products >= MOST_PRODUCTS or w.depth > 3:
        return
    w.products += 1
    s = shape_of(w)
    a, b = operand(w, s.a, s.dtypes[0]), operand(w, s.b, s.dtypes[1])
    c = w.tile((s.m, s.n), s.dtypes[2], "fragment")
    fresh = w.chance(0.4)
    if not fresh:
        w.emit(f"T.clear({c.name})")
    w.emit(call(w, s, a.name, b.name, c.name, fresh))
    if w.chance(0.2):
        w.emit(call(w, s, a.name, b.name, c.name, False))
    w.tiles += [c] if s.dtypes[0] == "tfloat32" else [c, a, b]  # it is for products only
    if (s.m, s.n) != (w.bm, w.bn) and w.depth == 2:
        result(w, s, c)


def product_of_parts(w: Writer) -> None:
    """One product whose operands are parts of larger tiles: a plane of one, rows of the other."""
    if w.products >= MOST_PRODUCTS or w.depth > 3:
        return
    w.products += 1
    s = shape_of(w)
    planes, more = w.between(1, 3), w.one_of((0, 1, 8, 16))
    a = _numbers(w, (planes, *s.a), s.dtypes[0])
    b = _numbers(w, (s.b[0] + more, s.b[1]), s.dtypes[1])
    first = w.one_of((0, more))
    parts = f"{a.name}[{w.below(planes)}, :, :]", f"{b.name}[{first}:{first + s.b[0]}, :]"
    c = w.tile((s.m, s.n), s.dtypes[2], "fragment")
    w.emit(call(w, s, *parts, c.name, True))
    w.tiles.append(c)
    if w.depth == 2:
        result(w, s, c)


def _numbers(w: Writer, shape: tuple[int, ...], dtype: str) -> Tile:
    """A shared tile of small whole numbers."""
    tile = w.tile(shape, dtype, "shared")
    names = indices(w, len(shape))
    with w.block(head(names, shape)):
        number = f"({' + '.join(names)} * {w.between(1, 5)}) % {w.between(3, 6)}"
        w.emit(f'{tile.name}[{", ".join(names)}] = T.cast({number}, "{dtype}")')
    return tile


def result(w: Writer, s: Shape, c: Tile) -> None:
    """A product's result, to an output of its own."""
    at = (f"by * {s.m}", f"bx * {s.n}")
    shape = (max(0, s.m * w.rows - w.below(s.m)), max(0, s.n * w.columns - w.below(s.n)))
    kinds = (s.dtypes[2], "float32", "float16") if s.dtypes[2] != "int32" else ("int32",)
    made: Output = w.output(shape, w.one_of(kinds), at, (s.m, s.n))
    w.emit(f"T.copy({c.name}, {made.name}[{', '.join(at)}])")


def pipelined_product(w: Writer) -> None:
    """A product over a long K, its operands brought by a pipeline of 0 to 5 stages."""
    if w.products >= MOST_PRODUCTS:
        return
    w.products += 1
    s = shape_of(w)
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
        w.emit(f"T.copy({left.name}[{', '.join(ends)}], {a.name})")
        ends = (column, deep) if s.right else (deep, column)
        w.emit(f"T.copy({right.name}[{', '.join(ends)}], {b.name})")
        if w.chance(0.15) and s.dtypes[0] != "tfloat32" and "float8" not in s.dtypes[0]:
            i, j = "p", "q"
            with w.block(f"for {i}, {j} in T.Parallel({s.a[0]}, {s.a[1]}):"):
                half = "" if s.dtypes[0] in ("int8", "uint8") else ".0"
                w.emit(f"{a.name}[{i}, {j}] = {a.name}[{i}, {j}] * 2{half}")
        w.emit(call(w, s, a.name, b.name, c.name, False))
    written = any(f"{o.name}[" in line for o in w.outputs for line in w.lines)
    chosen = any("use_swizzle" in line or "annotate_schedule" in line for line in w.head)
    # Several blocks may share the sum.
    if not written and not chosen and w.depth < 3 and w.chance(0.2):
        split = w.one_of(("2", "4", "16", "(2, 1)", "(1, 2)", "(1, 5)", "(2, 2)", "(2, 4)"))
        w.head.append(f"T.annotate_schedule(split={split})")
    w.tiles.append(c)
    result(w, s, c)
