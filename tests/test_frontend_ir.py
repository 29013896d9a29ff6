"""The shape of the IR that tracing makes: parameters, dtypes, carried values, what is folded."""

import linecache
from typing import Any

import numpy as np
import pytest
from frontend_help import ops, run, traced

import tilec.language as T
from tilec.frontend import Specialisation, TensorFact, bind_constants, read_signature, trace
from tilec.ir.core import Func
from tilec.ir.errors import CompileError
from tilec.ir.layout import Layout
from tilec.ir.ops import (
    Alloc,
    AnnotateLayout,
    Binary,
    BlockIndex,
    Cast,
    Const,
    Copy,
    Fill,
    Fma,
    For,
    GridSize,
    If,
    Load,
    Parallel,
    Print,
    Select,
    Store,
    ThreadIndex,
    Unary,
    UseSwizzle,
    While,
    Yield,
    yielded,
)
from tilec.ir.types import FLOAT16, FLOAT32, INT32, INT64

M, N, K, LD = T.dynamic("M, N, K, LD")


def single(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def of(function: Any, **arrays: Any) -> Func:
    """Traced for arrays of ones of the given shapes."""
    return traced(function, {n: single(*s) for n, s in arrays.items()})


# --- parameters -----------------------------------------------------------------------------------


def many_parameters(
    A: T.Tensor((M, 7, K), "float16"),
    n: T.int64,
    B: T.StridedTensor((K, M), (LD, 1), "float32"),
    mode: T.constexpr,
    x: float = 0.5,
):
    with T.Kernel(T.ceildiv(K, 4) * n, M) as (bx, by):
        B[bx, by] = A[by, 0, bx] * x + LD


def test_parameters_in_abi_order() -> None:
    signature = read_signature(many_parameters)
    assert [(p.name, p.kind) for p in signature.parameters] == [
        ("A", "tensor"),
        ("n", "scalar"),
        ("B", "tensor"),
        ("mode", "constexpr"),
        ("x", "scalar"),
    ]
    assert signature.parameter("A").shape == ("M", 7, "K")
    assert signature.parameter("B").strides == ("LD", 1)
    assert signature.parameter("x").dtype is FLOAT32 and signature.parameter("x").default == 0.5
    facts = {
        "A": TensorFact(("M", 7, "K"), FLOAT16, ("A_stride0", "A_stride1", 1), 8),
        "B": TensorFact(("K", "M"), FLOAT32, ("B_stride0", 1), 4),
    }
    func = trace(signature, Specialisation(facts, {"n": INT64}, {"mode": "fast"}))
    assert [(p.value.name, p.role, p.arg, p.dim, str(p.value.type)) for p in func.params[2:]] == [
        ("n", "scalar", "n", -1, "i64"),
        ("x", "scalar", "x", -1, "f32"),
        ("M", "size", "A", 0, "i32"),
        ("K", "size", "A", 2, "i32"),
        ("A_stride0", "stride", "A", 0, "i64"),
        ("A_stride1", "stride", "A", 1, "i64"),
        ("B_stride0", "stride", "B", 0, "i64"),
    ]
    a, b = (p.value.buffer for p in func.params[:2])
    assert (a.shape, a.strides, a.align) == (("M", 7, "K"), ("A_stride0", "A_stride1", 1), 8)
    assert (b.space, b.strides, b.align) == ("global", ("B_stride0", 1), 4)
    assert len(yielded(func.grid)) == 2 and isinstance(func.body.ops[-1], Yield)
    assert dict(func.attrs) == {"threads": None, "outputs": (), "grid_from_launch": False}
    assert func.loc.source_line().startswith("def many_parameters(")


def test_sizes_that_the_variant_knows_are_ints() -> None:
    facts = {
        "A": TensorFact((6, 7, "K"), FLOAT16, ("A_stride0", "A_stride1", 1), 8),
        "B": TensorFact(("K", 6), FLOAT32, (6, 1), 4),
    }
    func = trace(read_signature(many_parameters), Specialisation(facts, {}, {"mode": 1}))
    assert [p.value.name for p in func.params if p.role == "size"] == ["K"]
    consts = [o.value for o in func.grid.ops if isinstance(o, Const)]
    assert 6 in consts  # the grid's second extent


def test_wide_kernels_index_in_64_bits() -> None:
    facts = {
        "A": TensorFact(("M", 7, "K"), FLOAT16, ("A_stride0", "A_stride1", 1)),
        "B": TensorFact(("K", "M"), FLOAT32, ("B_stride0", 1)),
    }
    known = Specialisation(facts, {}, {"mode": 1}, wide=True)
    func = trace(read_signature(many_parameters), known)
    (load,) = ops(func, Load)
    (store,) = ops(func, Store)
    assert {i.dtype for i in (*load.indices, *store.indices)} == {INT64}
    assert {p.value.dtype for p in func.params if p.role == "size"} == {INT64}
    assert {o.result.dtype for o in ops(func, BlockIndex)} == {INT32}  # cast where used


def nameless_shapes(X: T.Tensor, Y: T.Tensor):
    with T.Kernel(X.shape[0]) as m:
        Y[m] = X[m] + X.shape[0] * X.strides[0]


def test_tensors_without_a_shape() -> None:
    signature = read_signature(nameless_shapes)
    assert [(p.shape, p.dtype) for p in signature.parameters] == [(None, None)] * 2
    facts = {
        "X": TensorFact(("X_size0",), FLOAT32, (1,)),
        "Y": TensorFact((40,), FLOAT16, ("Y_stride0",)),
    }
    func = trace(signature, Specialisation(facts))
    assert [p.value.name for p in func.params] == ["X", "Y", "X_size0", "Y_stride0"]


def deferred(X, Y, BM: T.constexpr, dtype: T.constexpr = "float32"):
    half = BM // 2
    X: T.Tensor((M, half), dtype)
    Y: T.Tensor[(M, BM), dtype]
    with T.Kernel(M) as m:
        for i in T.Parallel(half):
            Y[m, i] = X[m, i]


def test_annotations_that_need_constants() -> None:
    signature = read_signature(deferred)
    assert signature.pending and [p.kind for p in signature.parameters] == [
        "tensor",
        "tensor",
        "constexpr",
        "constexpr",
    ]
    bound = bind_constants(signature, {"BM": 16})
    assert not bound.pending
    assert [(p.shape, p.dtype) for p in bound.parameters[:2]] == [
        (("M", 8), FLOAT32),
        (("M", 16), FLOAT32),
    ]
    assert bind_constants(signature, {"BM": 2, "dtype": "float16"}).parameters[0].dtype is FLOAT16


TEXT_ANNOTATIONS = """
from __future__ import annotations
import tilec.language as T
M = T.dynamic("M")
def kernel(X: T.Tensor((M, M // 2), 'float32'), n: int, k: "T.constexpr" = 3):
    with T.Kernel(k) as m:
        X[m, 0] = n
def factory(width):
    def kernel(X: T.Tensor((M, width), 'float32')):
        with T.Kernel(1) as m:
            X[m, 0] = 1
    return kernel
"""


def from_text(text: str, name: str) -> dict[str, Any]:
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"T": T}
    exec(compile(text, name, "exec"), scope)
    return scope


def test_annotations_kept_as_text() -> None:
    scope = from_text(TEXT_ANNOTATIONS, "<text annotations>")
    signature = read_signature(scope["kernel"])
    assert [(p.kind, p.dtype, p.shape) for p in signature.parameters] == [
        ("tensor", FLOAT32, ("M", "(M // 2)")),
        ("scalar", INT32, None),
        ("constexpr", None, None),
    ]
    with pytest.raises(CompileError, match="'width' is not defined") as caught:
        read_signature(scope["factory"](3))
    assert "leave that import out" in caught.value.hint


def arithmetic_shapes(X: T.Tensor((M, (K + 1) // 2 - 1), "float32")):
    with T.Kernel(M) as m:
        X[m, 0] = X.shape[1]


def test_arithmetic_on_sizes() -> None:
    shape = read_signature(arithmetic_shapes).parameters[0].shape
    assert shape == ("M", "(((K + 1) // 2) - 1)")
    assert eval(str(shape and shape[1]), {"K": 9}) == 4


def test_sizes_by_name_and_by_tuple() -> None:
    assert isinstance(T.dynamic("M"), T.Size)
    assert [s.text for s in T.const("M, N")] == ["M", "N"]
    with pytest.raises(CompileError, match="has no value before the kernel is called"):
        bool(T.dynamic("M"))


# --- where kernels come from ----------------------------------------------------------------------


def test_kernel_typed_into_a_shell() -> None:
    text = (
        "def typed(X: T.Tensor((4,), 'float32')):\n    with T.Kernel(1) as _:\n        X[1] = 2\n"
    )
    name = "<ipython-input-3>"
    (store,) = ops(of(from_text(text, name)["typed"], X=(4,)), Store)
    assert (store.loc.file, store.loc.line, store.loc.col) == (name, 3, 8)


def make(block: int, scale: float, names: tuple[str, ...], dtype: Any):
    table = {"first": [1, 2], "second": (3, dtype)}

    def outer():
        def inner(X: T.Tensor((8,), dtype)):
            with T.Kernel(T.ceildiv(8, block)) as b:
                for i in T.Parallel(block):
                    if "gain" in names and names[-1] == "last" and table["second"][1] == "float32":
                        X[b * block + i] *= scale * table["first"][1]

        return inner

    return outer()


@pytest.mark.parametrize("dtype", ["float32", np.float32, T.float32, np.dtype("float32"), "float"])
def test_factory_in_a_factory(dtype: Any) -> None:
    if dtype == "float":
        dtype = T.float
    kernel = make(4, 0.5, ("gain", "last"), dtype)
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(run(kernel, {"X": x})["X"], x)
    (parallel,) = ops(of(kernel, X=(8,)), Parallel)
    assert parallel.extents == (4,) and not ops(of(kernel, X=(8,)), If)


def test_words_under_other_names() -> None:
    from tilec.language import Kernel as Grid
    from tilec.language import exp2 as power_of_two

    def kernel(X: T.Tensor((4,), "float32")):
        with Grid(1) as _:
            X[0] = power_of_two(X[1])

    (unary,) = ops(of(kernel, X=(4,)), Unary)
    assert unary.kind == "exp2"


def test_torch_dtypes(torch: Any) -> None:

    def kernel(X: T.Tensor((4,), "float32")):
        with T.Kernel(1) as _:
            S = T.alloc_shared((4,), torch.float16)
            T.clear(S)
            X[0] = T.cast(X[1], torch.bfloat16)

    func = of(kernel, X=(4,))
    assert [str(a.type) for a in ops(func, Alloc)] == ["shared<4xf16>"]
    assert [c.dtype.short for c in ops(func, Cast)] == ["bf16", "f32"]


# --- dtypes of arithmetic -------------------------------------------------------------------------

MIXES = [
    ("h + 1", "f16"),
    ("h * 0.5", "f16"),
    ("1 - h", "f16"),
    ("h + f", "f32"),
    ("f * d", "f64"),
    ("i + h", "f16"),
    ("l * f", "f32"),
    ("i + l", "i64"),
    ("i + s", "i32"),
    ("i + u", "u32"),
    ("b + 1", "u8"),
    ("i + 1.5", "f32"),
    ("i / 2", "f32"),
    ("i // 2", "i32"),
    ("l / i", "f32"),
    ("h // 2", "f16"),
    ("-i % 7", "i32"),
    ("h ** 2", "f16"),
    ("f ** 0.5", "f32"),
    ("i ** 3", "i32"),
    ("i << 2", "i32"),
    ("u >> i", "u32"),
    ("i & 3", "i32"),
    ("~u", "u32"),
    ("(i < 3) + 1", "i32"),
    ("i < 3", "i1"),
    ("(i < 3) & (f > 0)", "i1"),
    ("not i", "i1"),
    ("0 < i <= 4", "i1"),
    ("i and f > 1", "i1"),
    ("i and f", "f32"),
    ("l or f > 1", "i64"),
    ("T.max(h, 0)", "f16"),
    ("max(i, l, 3)", "i64"),
    ("min(f, 1)", "f32"),
    ("abs(h)", "f16"),
    ("T.exp(h)", "f16"),
    ("T.isnan(h)", "i1"),
    ("T.floor(f)", "f32"),
    ("T.floor(i)", "i32"),
    ("T.pow(f, 2.5)", "f32"),
    ("T.fma(h, f, 1)", "f32"),
    ("T.float16(i)", "f16"),
    ("f.astype('bfloat16')", "bf16"),
    ("T.cast(i, 'float8_e4m3')", "e4m3"),
    ("T.Cast('uint8', f)", "u8"),
    ("T.int8(3)", "i8"),
    ("T.if_then_else(i > 2, h, 1)", "f16"),
    ("h if i > 2 else f", "f32"),
    ("T.truncmod(i, 7)", "i32"),
    ("T.shift_left(i, 2)", "i32"),
    ("T.ceildiv(i, 4)", "i32"),
    ("T.bool(i)", "i1"),
    ("T.program_id(0) + l", "i64"),
    ("T.infinity('float16') + h", "f16"),
]


@pytest.mark.parametrize(("expression", "dtype"), MIXES)
def test_dtype_of(expression: str, dtype: str) -> None:
    text = (
        "def kernel(h: T.float16, f: T.float32, d: T.float64, i: T.int32, l: T.int64, s: T.int16,\n"
        "           u: T.uint32, b: T.uint8):\n"
        f"    with T.Kernel(1) as _:\n        T.print({expression})\n"
    )
    scope = from_text(text, f"<mix {expression}>")
    func = trace(read_signature(scope["kernel"]), Specialisation({}))
    (printed,) = ops(func, Print)
    assert printed.values[0].dtype.short == dtype


# --- folding --------------------------------------------------------------------------------------


def folded(X: T.Tensor((16, 64), "float32"), Y: T.Tensor((16, 64), "float32")):
    block = 4 * 4
    half = block // 2 if block > 8 else undefined  # noqa: F821 (never chosen)
    dtype = "float32"
    with T.Kernel(64 // block, threads=32 * 2) as b:
        if dtype == "float32" and half in (8, 16) and None is None:
            S = T.alloc_shared((block, half), dtype)
        else:
            S = T.no_such_word()
        start = b * block
        T.copy(X[0:block, start : start + half], S)
        T.copy(S, Y[0, b * block + (half - 8)])
        for i in range(half, half):
            X[i, 0] = unknown  # noqa: F821 (no iteration)
        while block < 8:
            X[0, 0] = 1


def test_what_is_known_is_decided() -> None:
    func = of(folded, X=(16, 64), Y=(16, 64))
    assert not ops(func, If) and not ops(func, For) and not ops(func, While)
    assert {o.source.extents for o in ops(func, Copy)} == {(16, 8)}
    assert func.attrs["threads"] == 64
    assert len(ops(func, Const)) == len({(o.value, o.dtype.name) for o in ops(func, Const)})


def chosen_grid(X, rows: T.constexpr = None, kind: T.constexpr = ""):
    MN = T.const("M, N")
    X: T.Tensor(MN, "float32")
    rows = rows or 4
    kind = kind and "flat"
    if kind == "flat":
        with T.Kernel(T.ceildiv(MN[0] * MN[1], rows)) as b:
            X[0, b] = MN[1]
    else:
        with T.Kernel(T.ceildiv(MN[0], rows)) as b:
            X[b, 0] = GAIN if not kind else 0


GAIN = np.float32(1.5)


def test_choices_at_compile_time() -> None:
    x = np.zeros((9, 3), np.float32)
    got = run(chosen_grid, {"X": x})["X"]
    np.testing.assert_array_equal(got[:, 0], [1.5] * 3 + [0] * 6)
    got = run(chosen_grid, {"X": x}, kind="any", rows=9)["X"]
    np.testing.assert_array_equal(got[0], [3] * 3)


def regions(Q: T.Tensor((M, N, 8, 16), "float16"), O: T.Tensor((M, N, 8, 16), "float16")):
    with T.Kernel(T.ceildiv(N, 4), 8, M) as (bx, by, bz):
        tile = T.alloc_shared((4, 16), "float16")
        ring = T.alloc_shared((3, 4, 16), "float16")
        T.copy(Q[bz, bx * 4 : (bx + 1) * 4, by, :], tile)
        T.copy(tile, ring[1, :, :], coalesced_width=8, disable_tma=True)
        T.copy(
            ring[1, :, :],
            O[bz, bx * 4, by, 0:16][0] if False else O[bz, bx * 4 : bx * 4 + 4, by, :],
        )
        T.clear(ring)
        T.fill(tile[1:3, 2:], 1)


def test_regions() -> None:
    array = np.ones((2, 9, 8, 16), np.float16)
    func = traced(regions, {"Q": array, "O": array})
    first, second, third = ops(func, Copy)
    assert (first.source.extents, first.dest.extents) == ((1, 4, 1, 16), (4, 16))
    assert (second.dest.extents, second.coalesced_width) == ((1, 4, 16), 8) and second.disable_tma
    assert third.dest.extents == (1, 4, 1, 16)
    assert [f.dest.extents for f in ops(func, Fill)] == [(3, 4, 16), (2, 14)]


# --- loops ----------------------------------------------------------------------------------------


def loops(X: T.Tensor((64,), "float32"), H: T.Tensor((64,), "float16"), n: T.int32):
    with T.Kernel(1) as _:
        count = 0
        total = 0
        half = H[0]
        same = 5
        for i in T.Pipelined(2, n, num_stages=3, order=[1, 0], stage=(0, 1), reversible=True):
            total = total + H[i]
            half = half * 2
            same = 5
            X[i] = half
            X[i + 1] = total
            for _j in T.unroll(1, 9, 2):
                count = count + 1
        for i in T.vectorized(4):
            X[i] = total + half + count + same


def test_loops_and_what_they_carry() -> None:
    func = traced(loops, {"X": single(64), "H": np.ones(64, np.float16)})
    outer, inner, vector = ops(func, For)
    assert (outer.kind, inner.kind, vector.kind) == ("pipelined", "unroll", "vectorized")
    assert (outer.num_stages, outer.order, outer.stage, outer.reversible) == (
        3,
        (1, 0),
        (0, 1),
        True,
    )
    # `total` starts as a Python int and takes the dtype of what is added to it
    assert {r.name: r.dtype.short for r in outer.results} == {
        "count": "i32",
        "total": "f16",
        "half": "f16",
        "same": "i32",
    }
    assert [r.name for r in inner.results] == ["count"]


def chosen(X: T.Tensor((64,), "float32"), n: T.int32):
    with T.Kernel(1) as _:
        low = 0
        if n > 3:
            scale = 2
            low = n
        elif n > 2:
            scale = X[0]
        else:
            scale = 0.5
        X[1] = scale
        X[2] = low


def test_if_results() -> None:
    func = of(chosen, X=(64,))
    outer, inner = ops(func, If)
    assert {r.name: r.dtype.short for r in outer.results} == {"low": "i32", "scale": "f32"}
    assert [r.name for r in inner.results] == ["scale"]


def choices(S: T.Tensor((8,), "float32"), n: T.int32, m: T.int32):
    with T.Kernel(1) as _:
        s = T.alloc_shared((8,), "float32")
        T.copy(S[0], s)
        safe = n if n > 2 else 0
        shared = s[3] if n > 2 else 0.0
        guarded = s[n] if n < 8 else 0.0
        divided = T.if_then_else(m != 0, n // m, 0)
        inside = n < 8 and s[n] > 0
        outside = n < 8 or S[n] > 0
        S[0] = safe + shared + guarded + divided + inside + outside


def test_only_what_may_harm_is_branched_over() -> None:
    func = of(choices, S=(8,))
    assert len(ops(func, If)) == 4 and len(ops(func, Select)) == 1
    assert [o.kind for o in ops(func, Binary) if o.result.dtype.short == "i1"] == ["or"]


def threads(X: T.Tensor((64,), "float32")):
    with T.Kernel(4, threads=64) as _:
        t = T.get_thread_binding(0)
        u = T.thread_binding(0, 64, "threadIdx.x")
        X[t] = u + T.get_thread_binding(1) + T.num_programs(0)


def test_thread_indices() -> None:
    func = of(threads, X=(64,))
    assert len(ops(func, ThreadIndex)) == 2 and len(ops(func, GridSize)) == 1


def annotated(X: T.Tensor((4, 8), "float32"), stride: T.constexpr = 16):
    with T.Kernel(1) as _:
        s = T.alloc_shared((4, 8), "float32")
        T.annotate_layout({s: T.Layout(s.shape, lambda i, j: i * stride + (j ^ T.min(i, 3)))})
        T.use_swizzle(4, order="column")
        T.use_swizzle(8, enable=False)
        T.copy(X, s)
        x = T.fma(X[0, 0], 2, 1)
        X[0, 0] = x


def test_layouts_and_annotations() -> None:
    func = of(annotated, X=(4, 8))
    (layout,) = ops(func, AnnotateLayout)
    assert isinstance(layout.layout, Layout)
    assert layout.layout == Layout.from_function((4, 8), lambda i, j: i * 16 + (j ^ min(i, 3)))
    assert [(u.panel_size, u.order) for u in ops(func, UseSwizzle)] == [(4, "column")]
    assert len(ops(func, Fma)) == 1


def test_a_layout_that_fits_none_is_an_error_at_its_line() -> None:
    def kernel(X: T.Tensor((4, 8), "float32")):
        with T.Kernel(1) as _:
            s = T.alloc_shared((4, 8), "float32")
            T.annotate_layout({s: T.Layout(s.shape, lambda i, j: i)})

    with pytest.raises(CompileError) as caught:
        of(kernel, X=(4, 8))
    assert caught.value.loc is not None and "lambda i, j: i" in caught.value.loc.source_line()


# --- places ---------------------------------------------------------------------------------------


@T.macro
def double(buffer, at):
    buffer[at] = buffer[at] * 2


def calls_a_macro(X: T.Tensor((4,), "float32")):
    with T.Kernel(1) as _:
        double(X, 1)
        double(X, at=2)


def test_every_op_has_a_place() -> None:
    func = of(calls_a_macro, X=(4,))
    first, second = ops(func, Store)
    assert first.loc.source_line().strip() == "buffer[at] = buffer[at] * 2"
    lines = [s.loc.caller.source_line().strip() for s in (first, second)]
    assert lines == ["double(X, 1)", "double(X, at=2)"]
    assert all(o.loc.line for o in func.body.ops)


def test_words_compute_on_plain_numbers() -> None:
    assert (T.ceildiv(7, 2), T.cdiv(8, 2), T.floordiv(-7, 2), T.truncdiv(-7, 2)) == (4, 4, -4, -3)
    assert T.max(1, 2.5) == 2.5 and T.exp2(3) == 8 and T.rsqrt(4) == 0.5
    assert T.infinity("float16") == float("inf") and T.max_value("int8") == 127
    assert T.min_value("uint8") == 0 and T.min_value("float16") == -65504
    assert str(T.ceildiv(T.dynamic("M"), 64)) == "((M + 63) // 64)"
