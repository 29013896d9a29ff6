"""T.ldmatrix: matrices of shared memory for the lanes of a warp, by the instruction or not."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.intrinsics import get_swizzle_layout, make_mma_swizzle_layout

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
ROWS, COLUMNS = (0, 8, 0, 8), {8: (0, 0, 16, 16), 16: (0, 0, 8, 8), 32: (0, 0, 4, 4)}

LAYOUTS = {
    "none": None,
    "swizzled": make_mma_swizzle_layout,
    "padded": lambda s: T.Layout(s.shape, lambda i, j: i * (s.shape[1] + 8) + j),
    "user's": lambda s: T.Layout(
        s.shape, lambda i, j: get_swizzle_layout(i, j, s.shape[1], s.dtype)
    ),
    "columns first": lambda s: T.Layout(s.shape, lambda i, j: j * s.shape[0] + i),
}


def held(a: np.ndarray, r: int, c: int, down: Any, right: Any, transposed: bool) -> np.ndarray:
    """(lane, element): what the warp has of the matrices from (r, c) on."""
    per = 4 // a.itemsize
    found = []
    for lane in range(32):
        mine = []
        for m, n in zip(down, right):
            for e in range(per):
                along, across = lane % 4 * per + e, lane // 4
                i, j = (along, across) if transposed else (across, along)
                mine.append(a[r + m + i, c + n + j])
        found.append(mine)
    return np.array(found)


def loads(
    dtype: str, shape: tuple[int, int], r: int, c: int, down: Any, right: Any, transposed: bool,
    layout: Any = None, to: str = "", stages: int = 1,
) -> Any:  # fmt: skip
    count = len(down) * 32 // np.dtype(getattr(ml_dtypes, to or dtype, to or dtype)).itemsize // 8

    @tilec.kernel
    def load(A: T.Tensor((2 * stages, *shape), dtype), B: T.Tensor((stages, 64, count), dtype)):
        with T.Kernel(1, threads=64):
            S = T.alloc_shared(shape, dtype)
            L = T.alloc_local((count,), to or dtype)
            if layout is not None:
                T.annotate_layout({S: layout(S)})
            for k in T.Pipelined(stages, num_stages=2):
                T.copy(A[2 * k, :, :], S)
                T.ldmatrix(S[r + 8 * T.get_warp_idx(32), c], L, 0, down, right, transposed)
                for e in T.unroll(count):
                    B[k, T.get_thread_binding(), e] = L[e]

    return load


CASES = {
    "four": ("float16", (32, 32), 0, 16, ROWS, COLUMNS[16], False, True),
    "transposed": ("bfloat16", (32, 64), 8, 24, (0, 0, 8, 8), (0, 8, 0, 8), True, True),
    "two": ("float16", (64, 40), 0, 0, (0, 8), (0, 0), False, True),
    "one": ("int16", (24, 8), 8, 0, 0, 0, True, True),
    "bytes": ("int8", (32, 64), 8, 32, ROWS, COLUMNS[8], False, True),
    "floats": ("float32", (32, 32), 0, 8, ROWS, COLUMNS[32], False, True),
    "past a chunk": ("float16", (32, 32), 0, 4, ROWS, COLUMNS[16], False, False),
    "odd rows": ("float16", (32, 17), 0, 0, (0,), (0,), False, False),
}


def on_a_gpu(kernel: Any, a: np.ndarray, b: np.ndarray, dtype: str) -> np.ndarray:
    torch = pytest.importorskip("torch")
    there = [
        torch.from_numpy(x.view(np.uint8)).cuda().view(getattr(torch, dtype)).reshape(x.shape)
        for x in (a, b)
    ]
    kernel(*there)
    return there[1].view(torch.uint8).cpu().numpy().view(b.dtype).reshape(b.shape)


def check(case: str, target: str, layout: str, **more: Any) -> str:
    dtype, shape, r, c, down, right, transposed, _ = CASES[case]
    kernel = loads(dtype, shape, r, c, np.atleast_1d(down).tolist(), np.atleast_1d(right).tolist(),
                   transposed, LAYOUTS[layout], **more)  # fmt: skip
    numpy = np.dtype(getattr(ml_dtypes, dtype, dtype))
    stages = more.get("stages", 1)
    a = np.random.default_rng(7).integers(-99, 99, (2 * stages, *shape)).astype(numpy)
    count = np.atleast_1d(down).size * 4 // np.dtype(more.get("to", numpy)).itemsize
    b = np.zeros((stages, 64, count), numpy)
    if target == "cpu":
        kernel(a, b)
    elif target == "gpu":
        b = on_a_gpu(kernel, a, b, dtype)
    else:
        report = tilec.simulate(kernel, a, b, target=target)
        assert report.ok, report
    as_held = a.astype(more.get("to", numpy))
    for k in range(stages):
        for warp in range(2):
            wanted = held(as_held[2 * k], r + 8 * warp, c, np.atleast_1d(down),
                          np.atleast_1d(right), transposed)  # fmt: skip
            np.testing.assert_array_equal(b[k, 32 * warp :][:32], wanted.astype(numpy))
    return "" if target in ("cpu", "gpu") else str(kernel.compile(a, b, target=target).asm)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_matrices(case: str, target: str) -> None:
    asm = check(case, target, "none")
    if target.startswith("cuda"):
        count = np.atleast_1d(CASES[case][4]).size
        trans = ".trans" if CASES[case][6] else ""
        name = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
        assert (name in asm) == CASES[case][7]
        assert ("ldmatrix.sync" in asm) == CASES[case][7]


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cuda:sm_90a", "hip:gfx942", "cpu"])
@pytest.mark.parametrize("case, layout, by_one", [
    ("four", "swizzled", True), ("four", "padded", True), ("transposed", "swizzled", True),
    ("bytes", "swizzled", True), ("floats", "swizzled", True), ("four", "user's", True),
    ("four", "columns first", False),
])  # fmt: skip
def test_layouts(case: str, layout: str, by_one: bool, target: str) -> None:
    asm = check(case, target, layout)
    if target == "cuda:sm_90a":
        assert ("ldmatrix.sync" in asm) == by_one


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a"])
def test_in_a_pipeline(target: str) -> None:
    assert "ldmatrix.sync" in check("four", target, "swizzled", stages=3)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES)
def test_matrices_on_a_gpu(case: str, layout: str) -> None:
    if layout == "none" or CASES[case][1][1] % 32 == 0:  # swizzles are of whole rows of 64 bytes
        check(case, "gpu", layout, stages=3)


def test_another_dtype() -> None:
    assert "ldmatrix.sync" not in check("floats", "cuda:sm_90a", "none", to="float16")


MISTAKES = {
    "T.ldmatrix(A[0, 0], L)": "src of T.ldmatrix is in A",
    "T.ldmatrix(S[0, 0], S)": "dst of T.ldmatrix is S",
    "T.ldmatrix(S[0, 0], L, 0, (0, 8, 16), (0, 0, 0))": r"rows of T.ldmatrix is",
    "T.ldmatrix(S[0, 0], L, 0, (0, 8), (0,))": "and columns",
    "T.ldmatrix(S[0, 0], L, 0, (0, 8, 0, 0), (0, 0, 0, 0))": "and columns",
    "T.ldmatrix(S[0, 0], L, transposed=True)": "T.ldmatrix transposed into L",
    "T.ldmatrix(S[12, 0], L)": "out of bounds|index",
}


@pytest.mark.parametrize("written", MISTAKES)
def test_mistakes(written: str, tmp_path: Any) -> None:
    text = f"""
import tilec, tilec.language as T
@tilec.kernel
def wrong(A: T.Tensor((8, 8), "float32")):
    with T.Kernel(1, threads=64):
        S = T.alloc_shared((16, 16), "float32")
        L = T.alloc_local((8,), "float32")
        {written}
"""
    file = tmp_path / "wrong.py"
    file.write_text(text)
    names: dict[str, Any] = {}
    exec(compile(text, str(file), "exec"), names)
    with pytest.raises(tilec.CompileError, match=MISTAKES[written]) as caught:
        names["wrong"].compile(np.zeros((8, 8), "float32"), target="cuda:sm_80")
    assert caught.value.loc is not None and caught.value.loc.line == 8
