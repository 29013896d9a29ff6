"""Layouts that an author gives: fragments by thread and register, loops, shared tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from frontend_help import ops, traced
from simulated import run

import tilec
import tilec.language as T
from tilec.intrinsics import get_swizzle_layout
from tilec.ir import errors
from tilec.ir.errors import CompileWarning, LayoutError
from tilec.ir.layout import MMA_C, Fragment, FragmentMisfitError, Layout, in_warps
from tilec.ir.ops import AnnotateLayout, Copy
from tilec.layout import (
    make_full_bank_swizzled_layout,
    make_fully_replicated_layout_fragment,
    make_gemm_fragment_8x8,
    make_gemm_fragment_8x8_transposed,
    make_half_bank_swizzled_layout,
    make_linear_layout,
    make_quarter_bank_swizzled_layout,
    make_wgmma_swizzled_layout,
)

pytestmark = pytest.mark.turns

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
GPUS = TARGETS[1:]
of = Fragment.from_functions


def laid_out(kernel: Any, target: str, *args: Any, **meta: Any) -> str:
    return kernel.compile(*args, target=target, **meta).stages["infer_layouts"]


# --- the algebra ---


def holds(layout: Layout, wanted: Fragment, warp_size: int) -> bool:
    """Whether every thread that `wanted` names holds what it names."""
    held = layout.table("warp", "lane", "reg")
    for at in np.ndindex(*wanted.shape):
        for copy in range(wanted.replicas):
            thread = int(wanted.threads[(*at, copy)])
            found = held[thread // warp_size, thread % warp_size, wanted.registers[(*at, copy)]]
            if tuple(found) != at:
                return False
    return True


def test_threads_alone_leave_elements_in_their_order() -> None:
    found = of((3, 4), forward_thread_fn=lambda i, j: i)
    assert found == of((3, 4), lambda i, j: (i, j))
    turned = of((4, 6), forward_thread_fn=lambda i, j: j // 2)
    assert turned == of((4, 6), lambda i, j: (j // 2, i * 2 + j % 2))
    twice = of((2, 3), forward_thread_fn=lambda i, j, rep: rep * 2 + i, replicate=2)
    assert twice == of((2, 3), lambda i, j, rep: (rep * 2 + i, j), replicate=2)


FITTING = {
    "rows of a warp": (of((4, 512), lambda i, j: (j // 8, i * 8 + j % 8)), 128),
    "copies": (of((4,), lambda i, rep: (rep, i), replicate=64), 128),
    "threads from 32": (of((2, 512), lambda i, j: (32 + j // 8, i * 8 + j % 8)), 128),
    "copies from 32": (of((2,), lambda i, rep: (32 + rep, i), replicate=64), 128),
    "groups apart": (of((2, 256), lambda i, j: (i * 64 + j // 8, j % 8)), 128),
    "odd warps": (of((96, 4), lambda i, j: (i, j)), 96),
    "three warps, then two": (
        of((3, 128, 2), lambda i, j, k: (j % 64 + 64 * (3 * (j // 64) + i), k)),
        384,
    ),
    "odd registers": (of((32, 7), lambda i, j: (i, (j * 1))), 32),
    "registers as coordinates": (of((64, 4, 3), lambda i, j, k: (i, [k, j])), 64),
    "columns": (of((16, 64), lambda i, j: (j * 2 + i % 2, i // 2)), 128),
    "one element": (of((1,), lambda i, rep: (rep, 0 * i), replicate=128), 128),
    "two functions": (of((64, 2), None, lambda i, j: i, 1, lambda i, j: j), 64),
    "1024 threads": (of((1024, 3), lambda i, j: (i, j)), 1024),
}  # fmt: skip


@pytest.mark.parametrize("case", FITTING)
@pytest.mark.parametrize("warp_size", [32, 64])
def test_named_threads_hold_what_they_name(case: str, warp_size: int) -> None:
    wanted, threads = FITTING[case]
    if threads % warp_size:
        pytest.skip("blocks have whole warps")
    found = in_warps(wanted.layout(threads), warp_size, threads // warp_size)
    assert found.size("lane") == warp_size
    assert found.size("lane") * found.size("warp") == threads
    assert holds(found, wanted, warp_size)


@pytest.mark.parametrize(
    "wanted",
    [
        of((1, 384), lambda i, j: (j // 8, j % 8)),  # 48 threads
        of((1, 512), lambda i, j: (16 + j // 8, j % 8)),  # half a warp apart
        of((33,), lambda i: (i, 0 * i)),
        of((64, 2), lambda i, j: (i, 1 - j)),  # register 0 holds the far element
    ],
)
def test_mappings_that_no_layout_says(wanted: Fragment) -> None:
    with pytest.raises(FragmentMisfitError, match="is not made of digits"):
        wanted.layout(128)


def test_repeating_a_fragment_makes_a_matrix_instruction() -> None:
    eight = make_gemm_fragment_8x8()
    assert in_warps(eight.repeat([2, 1]).layout(32), 32, 1) == MMA_C
    block = eight.repeat([2, 1]).repeat([2, 1], repeat_on_thread=True).replicate(2)
    assert (block.shape, block.replicas, block.get_thread_size()) == ((32, 8), 2, 128)
    assert holds(in_warps(block.layout(128), 32, 4), block, 32)
    assert block.map_forward_thread((17, 3)) == 32 + 4 + 1
    assert block.map_forward_index((8, 3)) == [3]
    assert (block.get_input_shape(), block.get_output_shape()) == ([32, 8], [4])
    columns = eight.repeat([2, 3], lower_dim_first=False)
    assert columns(8, 0) == [2] and columns(0, 8) == [4]
    assert make_gemm_fragment_8x8_transposed()(3, 0) == [1]


def test_fragments_compare_by_what_they_hold() -> None:
    twice = of((4,), lambda i, rep: (i + 0 * rep, 0 * i), replicate=2)
    assert twice.replicas == 2 and twice.condense_rep_var().replicas == 1
    assert twice.condense_rep_var().is_equal(of((4,), lambda i: (i, 0)))
    assert of((4,), lambda i: (3 - i, 0)) != of((4,), lambda i: (i, 0))
    assert of((2, 2), lambda i, j: (i, j)).reshape((4,)) == of((4,), lambda i: (i // 2, i % 2))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: of((4, 4), lambda i, j: (i, 0)), r"\(0, 0\) and \(0, 1\) both in register 0 of"),
        (lambda: of((4,), lambda i: i), "gives a thread and a register, not"),
        (lambda: of((4,), lambda i: (i - 1, 0)), "gives thread -1"),
        (lambda: of((4,), lambda i: (i, 0.5)), "gives an int"),
        (lambda: of((4,)), "needs a function"),
        (lambda: of((4,), lambda i: (i, 0), replicate=0), "replicate of a fragment is 0"),
        (lambda: of((256,), lambda i: (i, 0)).layout(128), "thread 255, and a block has 128"),
        (lambda: of((4,), lambda i: (i, 0)).repeat([0]), "at least 1|repeats of a fragment"),
    ],
)
def test_fragments_that_are_none(make: Any, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        make()


def test_layouts_of_coordinates_are_those_of_offsets() -> None:
    assert T.Layout((8, 4), lambda i, j: (j, i)) == T.Layout((8, 4), lambda i, j: j * 8 + i)
    assert T.Layout((4, 6), lambda *at: at) == T.Layout((4, 6), lambda i, j: i * 6 + j)
    swizzled = T.Layout((8, 64), lambda i, j: [i, (j // 8 ^ i) * 8 + j % 8])
    assert swizzled == T.Layout((8, 64), lambda i, j: i * 64 + (j // 8 ^ i) * 8 + j % 8)


# --- kernels ---


@tilec.kernel
def normalised(x: T.Tensor((4, 512), "float32"), out: T.Tensor((4, 512), "float32")):
    with T.Kernel(1, threads=128):
        held = T.alloc_fragment((4, 512), "float32")
        total = T.alloc_fragment((4,), "float32")
        T.annotate_layout(
            {
                held: T.Fragment(held.shape, forward_fn=lambda i, j: (32 + j // 8, i * 8 + j % 8)),
                total: T.Fragment(
                    total.shape, forward_fn=lambda i, rep: (32 + rep, i), replicate=64
                ),
            }
        )
        for i, j in T.Parallel(4, 512):
            held[i, j] = x[i, j]
        T.reduce_sum(held, total, dim=1)
        for i, j in T.Parallel(4, 512):
            out[i, j] = held[i, j] / total[i]


@pytest.mark.parametrize("target", TARGETS)
def test_threads_from_32_reduce(target: str) -> None:
    x = np.random.default_rng(0).random((4, 512), dtype=np.float32)
    out = np.zeros_like(x)
    run(normalised, target, x, out)
    np.testing.assert_allclose(out, x / x.sum(axis=1, keepdims=True), rtol=1e-5)
    if target != "cpu":
        text = laid_out(normalised, target, x, out)
        steps = "lane 32:(0,8), warp 2:(0,0) 2:(0,256)"
        if target.startswith("hip"):
            steps = "lane 32:(0,8) 2:(0,0), warp 2:(0,256)"
        assert (
            f"%held = alloc fragment<4x512xf32, layout=4x512[reg 8:(0,1) 4:(1,0), {steps}]" in text
        )
        assert "held_converted" not in text


@tilec.kernel
def product(
    A: T.Tensor((64, 64), "float16"),
    B: T.Tensor((64, 64), "float16"),
    C: T.Tensor((64, 64), "float32"),
):
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.annotate_layout(
            {
                a: make_half_bank_swizzled_layout(a),
                b: T.Layout(b.shape, lambda i, j: (j, i)),
                c: T.Fragment(
                    c.shape,
                    forward_thread_fn=lambda i, j: i * 2 + j // 32,
                    forward_index_fn=lambda i, j: j % 32,
                ),
            }
        )
        T.copy(A, a)
        T.copy(B, b, prefer_instruction="sync")
        T.clear(c)
        T.gemm(a, b, c, k_pack=2)
        T.copy(c, C)


@pytest.mark.parametrize("target", TARGETS)
def test_a_product_takes_copies_of_what_was_demanded(target: str) -> None:
    rng = np.random.default_rng(1)
    A, B = (rng.standard_normal((64, 64)).astype(np.float16) for _ in range(2))
    C = np.zeros((64, 64), np.float32)
    run(product, target, A, B, C)
    np.testing.assert_allclose(C, A.astype(np.float64) @ B.astype(np.float64), atol=1e-2)
    if target != "cpu":
        text = laid_out(product, target, A, B, C)
        assert '"a: annotated", "b: annotated", "c: annotated"' in text
        assert "%c_converted = alloc fragment" in text
        assert "%a = alloc shared<64x64xf16, layout=swizzled(64x64, 16, 64)>" in text


@tilec.kernel
def by_loops(A: T.Tensor((100, 64), "float16"), C: T.Tensor((100, 64), "float32"), R: T.constexpr):
    with T.Kernel(T.ceildiv(100, R), threads=64) as bx:
        held = T.alloc_fragment((R, 64), "float32")
        for _ in T.serial(2):
            T.copy(A[bx * R, 0], held, loop_layout=T.Fragment((R, 64), lambda i, j: (j, i)))
            for i, j in T.Parallel(
                R,
                64,
                loop_layout=T.Fragment(
                    (R, 64), lambda i, j: (j // 2 * 2 + i % 2, i // 2 * 2 + j % 2)
                ),
            ):
                if bx * R + i < 100:
                    C[bx * R + i, j] = held[i, j] * 2  # fmt: skip


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [32, 6])
def test_loops_run_by_the_threads_of_the_author(target: str, rows: int) -> None:
    A = np.random.default_rng(2).standard_normal((100, 64)).astype(np.float16)
    C = np.zeros((100, 64), np.float32)
    run(by_loops, target, A, C, R=rows)
    np.testing.assert_array_equal(C, A.astype(np.float32) * 2)
    if target != "cpu":
        text = laid_out(by_loops, target, A, C, R=rows)
        assert '"held: annotated"' in text
        loop = next(line for line in text.splitlines() if "parallel (" in line)
        assert f"layout=layout<{rows}x64[reg 2:(0,1) {rows // 2}:(2,0), lane 2:(1,0)" in loop


@tilec.kernel
def everywhere(index: T.Tensor((5,), "int32"), out: T.Tensor((5, 33), "int32")):
    with T.Kernel(1, threads=96):
        held = T.alloc_fragment((5,), "int32")
        T.annotate_layout({held: make_fully_replicated_layout_fragment(held, 96)})
        T.copy(index, held)
        for i, j in T.Parallel(5, 33):
            out[i, j] = held[i] + j


@pytest.mark.parametrize("target", TARGETS[:3])
def test_a_fragment_that_all_threads_hold(target: str) -> None:
    index, out = np.arange(5, dtype=np.int32) ** 2, np.zeros((5, 33), np.int32)
    run(everywhere, target, index, out)
    np.testing.assert_array_equal(out, index[:, None] + np.arange(33))
    if target != "cpu":
        text = laid_out(everywhere, target, index, out)
        assert "%held = alloc fragment<5xi32, layout=blocked(5, 32, 3, 1)>" in text


@tilec.kernel
def swizzled_copy(
    A: T.Tensor((30, 64), "float16"), B: T.Tensor((30, 64), "float16"), which: T.constexpr
):
    with T.Kernel(2, threads=64) as bx:
        tile = T.alloc_shared((16, 64), "float16")
        if which == 128:
            T.annotate_layout({tile: make_full_bank_swizzled_layout(tile)})
        elif which == 64:
            T.annotate_layout({tile: make_half_bank_swizzled_layout(tile)})
        elif which == 32:
            T.annotate_layout({tile: make_quarter_bank_swizzled_layout(tile)})
        elif which == 1:
            T.annotate_layout({tile: make_wgmma_swizzled_layout(tile, k_major=False)})
        else:
            T.annotate_layout({tile: make_linear_layout(tile)})
        T.copy(A[bx * 16, 0], tile)
        for i, j in T.Parallel(16, 64):
            if bx * 16 + i < 30:
                B[bx * 16 + i, j] = tile[i, 63 - j]


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("which", [0, 1, 32, 64, 128])
def test_shared_tiles_of_named_layouts(target: str, which: int) -> None:
    A = np.random.default_rng(3).standard_normal((30, 64)).astype(np.float16)
    B = np.zeros_like(A)
    run(swizzled_copy, target, A, B, which=which)
    np.testing.assert_array_equal(B, A[:, ::-1])
    if target != "cpu" and which != 1:
        name = f"swizzled(16x64, 16, {which})" if which else "row_major(16x64)"
        assert f"shared<16x64xf16, layout={name}>" in laid_out(
            swizzled_copy, target, A, B, which=which
        )


def misfit(x: T.Tensor((384,), "float32")):
    with T.Kernel(1, threads=128):
        held = T.alloc_fragment((384,), "float32")
        T.annotate_layout({held: T.Fragment((384,), lambda i: (i // 8, i % 8))})
        for i in T.Parallel(384):
            held[i] = x[i] * 2
        T.copy(held, x)


@pytest.mark.parametrize("target", TARGETS)
def test_a_mapping_that_no_layout_says_is_left_out(target: str) -> None:
    x = np.random.default_rng(4).random(384, dtype=np.float32)
    got = x.copy()
    errors._warned.clear()
    with pytest.warns(CompileWarning, match="held: the mapping of .* is not made of digits"):
        func = traced(misfit, {"x": got})
    assert not [o for o in func.body.ops if isinstance(o, AnnotateLayout)]
    run(tilec.kernel(misfit), target, got)  # a line warns once
    np.testing.assert_array_equal(got, x * 2)


MISTAKES = {
    "T.Fragment((64, 4), lambda i, j: (i, 0))  #!": "both in register 0 of thread 0",
    "T.Fragment((64, 4), lambda i: (i, 0))  #!": "this lambda must take 2 coordinates",
    "T.Fragment((64, 8), lambda i, j: (i, j))  #!": r"shape \(64, 8\), f has \(64, 4\)",
    "T.Fragment((64, 4), lambda i, j: (i * 4 + j, 0))  #!": "thread 255, and a block has 128",
    "T.Layout((64, 4), lambda i, j: i * 4 + j)  #!": "offsets in memory for f",
    "64  #!": "the layout of f is the int 64",
}


@pytest.mark.parametrize("written", MISTAKES)
def test_mistakes_name_the_line(written: str, tmp_path: Any) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        "import tilec\nimport tilec.language as T\n\n\n@tilec.kernel\n"
        'def k(x: T.Tensor((64, 4), "float32")):\n'
        "    with T.Kernel(1, threads=128):\n"
        '        f = T.alloc_fragment((64, 4), "float32")\n'
        "        T.annotate_layout(\n            {\n                f: "
        + written.replace("  #!", ",  #!\n            }\n        )\n")
        + "        T.copy(x, f)\n        T.copy(f, x)\n"
    )
    scope: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    with pytest.raises(tilec.CompileError, match=MISTAKES[written]) as error:
        scope["k"].compile(np.zeros((64, 4), np.float32), target="cuda:sm_80")
    assert error.value.loc is not None and error.value.hint
    assert "#!" in error.value.loc.source_line()


def helped(tile):
    shape, dtype = tile.shape, tile.dtype
    if shape[-1] % 32:
        return T.Layout(shape, lambda *at: at)

    def moved(i, j):
        return list(get_swizzle_layout(i, j, shape[-1], dtype))

    return T.Layout(shape, moved)


@tilec.kernel
def by_a_helper(
    A: T.Tensor((16, 64), "float16"), B: T.Tensor((64, 16), "float16"), form: T.constexpr
):
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((16, 64), "float16")
        plain = T.alloc_shared((16, 24), "float16")
        if form == "def":
            T.annotate_layout({tile: helped(tile), plain: helped(plain)})
        else:
            T.annotate_layout(
                {tile: T.Layout(tile.shape, lambda i, j: get_swizzle_layout(i, j, 64, "float16"))}
            )
        T.copy(A, tile)
        T.copy(A[:, 0:24], plain)
        for j, i in T.Parallel(64, 16):
            B[j, i] = tile[i, j] + plain[i, j % 24]


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", ["def", "lambda"])
def test_layouts_by_functions_written_in_python(target: str, form: str) -> None:
    A = np.random.default_rng(6).standard_normal((16, 64)).astype(np.float16)
    B = np.zeros((64, 16), np.float16)
    run(by_a_helper, target, A, B, form=form)
    np.testing.assert_array_equal(B, (A + A[:, np.arange(64) % 24]).T)
    if target != "cpu":
        text = laid_out(by_a_helper, target, A, B, form=form)
        swizzle = T.Layout((16, 64), lambda i, j: i * 64 + ((j // 8) ^ i % 8) * 8 + j % 8)
        assert f"%tile = alloc shared<16x64xf16, layout={swizzle}>" in text


def test_swizzles_of_every_line() -> None:
    for line, elements in ((32, 16), (64, 32), (128, 64)):
        rows = [
            [get_swizzle_layout(i, j, elements, "float16")[1] for j in range(elements)]
            for i in range(8)
        ]
        first = [row.index(0) // 8 for row in rows]
        assert first == [i % (line // 16) for i in range(8)]
        assert all(sorted(row) == [*range(elements)] for row in rows)
    with pytest.raises(LayoutError, match="rows of 48 bytes have no swizzle of 48"):
        get_swizzle_layout(0, 0, 24, "float16")
    with pytest.raises(LayoutError, match="is not a dtype"):
        get_swizzle_layout(0, 0, 24, "flaot16")


@pytest.mark.parametrize(
    "said, tma",
    [
        ({"prefer_instruction": "tma"}, True),
        ({"prefer_instruction": "sync"}, False),
        ({"disable_tma": True, "coalesced_width": 2}, False),
        (None, True),
    ],
)
def test_what_copies_are_asked_to_be_done_by(said: Any, tma: bool) -> None:
    def kernel(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), "float16")
            T.copy(A, tile, disable_tma=False, annotations=said)
            T.copy(tile, B, prefer_instruction="ldst")

    arrays = {name: np.zeros((64, 64), np.float16) for name in "AB"}
    first, second = ops(traced(kernel, arrays), Copy)
    assert first.disable_tma is not tma and not second.disable_tma
    assert first.coalesced_width == (2 if said and "coalesced_width" in said else 0)
    A, B = np.random.default_rng(7).random((64, 64)).astype(np.float16), arrays["B"]
    assert tilec.simulate(tilec.kernel(kernel), A, B, target="cuda:sm_90a").ok
    np.testing.assert_array_equal(A, B)


@pytest.mark.parametrize(
    "said, message",
    [
        ({"prefer_instruction": "tma", "disable_tma": True}, '"tma" beside disable_tma=True'),
        ({"perfer_instruction": "tma"}, "have no 'perfer_instruction'; did you mean"),
        ({"prefer_instruction": "bulk"}, "prefer_instruction of T.copy is"),
        (64, "annotations of T.copy are the int 64, no dict"),
        ({"loop_layout": 3}, "loop_layout of T.copy is the int 3"),
    ],
)
def test_annotations_that_copies_do_not_have(said: Any, message: str) -> None:
    def kernel(A: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), "float16")
            T.copy(A, tile, annotations=said)

    with pytest.raises(tilec.CompileError, match=message):
        traced(kernel, {"A": np.zeros((64, 64), np.float16)})


@pytest.mark.gpu
def test_layouts_of_authors_on_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    x = torch.rand(4, 512, device="cuda")
    out = torch.zeros_like(x)
    normalised(x, out)
    torch.testing.assert_close(out, x / x.sum(dim=1, keepdim=True))
    A, B = (torch.randn(64, 64, device="cuda", dtype=torch.float16) for _ in range(2))
    C = torch.zeros(64, 64, device="cuda")
    product(A, B, C)
    torch.testing.assert_close(C, A.float() @ B.float(), atol=1e-2, rtol=1e-2)
    A = torch.randn(100, 64, device="cuda", dtype=torch.float16)
    C = torch.zeros(100, 64, device="cuda")
    by_loops(A, C, R=32)
    torch.testing.assert_close(C, A.float() * 2)
