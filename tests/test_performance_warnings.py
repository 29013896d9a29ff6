"""What is slow and legal is warned of, with the line; what is as it should be is not.

That no example and no listing of the seeds gets such a warning is held by the tests that compile
them, for whom it is an error (`pytestmark` of `test_examples_compile`, `test_attention_examples`,
`test_pair_halves`, `test_emitters`).
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import tilec

pytestmark = pytest.mark.usefixtures("unassembled")

Warned = Callable[..., list[tuple[int, str]]]
GPUS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")

BEGIN = """\
import tilec
import tilec.language as T

@tilec.kernel
def kernel(A: T.Tensor((4096,), "float32"), B: T.Tensor((4096,), "float32"), n: T.int32):
    with T.Kernel(4, threads=128) as block:
"""
PRODUCT = """\
import tilec
import tilec.language as T

@tilec.kernel
def kernel(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float16")):
    C = T.empty((64, 64), "float32")
    with T.Kernel(1, threads={threads}) as block:
        a = T.alloc_shared(({m}, 64), "float16")
        b = T.alloc_shared((64, {n}), "float16")
        acc = T.alloc_fragment(({m}, {n}), "float32")
        T.copy(A[0, 0], a)
        T.copy(B[0, 0], b)
        T.clear(acc)
        T.gemm(a, b, acc)
        T.copy(acc, C[0, 0])
    return C
"""
_names = itertools.count()


@pytest.fixture
def warned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Warned:
    """(line of the body, message) of each PerformanceWarning of a kernel with this body."""
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")

    def compiled(text: str, specs: tuple[object, ...], target: str) -> list[tuple[int, str]]:
        path = tmp_path / f"slow{next(_names)}.py"  # each line is warned of once
        path.write_text(text)
        space: dict[str, object] = {"__name__": path.stem}
        exec(compile(text, str(path), "exec"), space)
        kernel = space["kernel"]
        assert isinstance(kernel, tilec.Kernel)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            kernel.compile(*specs, target=target)
        slow = [w for w in seen if issubclass(w.category, tilec.PerformanceWarning)]
        assert all(w.filename == str(path) for w in slow)
        return [(w.lineno, str(w.message)) for w in slow]

    def run(body: str, target: str = "cuda:sm_90a") -> list[tuple[int, str]]:
        text = BEGIN + "".join(f"        {line}\n" for line in body.strip("\n").split("\n"))
        spec = tilec.spec((4096,), "float32")
        first = BEGIN.count("\n")
        return [(n - first, said) for n, said in compiled(text, (spec, spec), target)]

    run.compiled = compiled  # type: ignore[attr-defined]
    return run


# --- fragments ------------------------------------------------------------------------------------

FILLED = 'f = T.alloc_fragment((128,), "float32")\nT.copy(A[block * 128], f)\n'


@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize(
    ("body", "line"),
    [
        (f"{FILLED}for i in T.serial(127):\n    f[i + 1] = f[i] + 1\nT.copy(f, B[block * 128])", 4),
        (f"{FILLED}for i in T.Parallel(128):\n    B[i] = f[127 - i]", 4),
        (f"{FILLED}for i in T.Parallel(64):\n    B[block * 64 + i] = f[2 * i]", 4),
        (f"{FILLED}B[block] = f[n]", 3),
        (f"{FILLED}T.copy(f[0:64], B[block * 64])", 3),
    ],
)
def test_fragments_that_registers_cannot_hold(
    warned: Warned, body: str, line: int, target: str
) -> None:
    ((found, said),) = warned(body, target)
    assert found == line
    assert "f (fragment (128,) float32) is kept in shared memory" in said
    assert 'f = T.alloc_shared((128,), "float32")' in said


@pytest.mark.parametrize(
    "body",
    [
        f"{FILLED}for i in T.Parallel(128):\n    f[i] = f[i] * 2\nT.copy(f, B[block * 128])",
        f'{FILLED}s = T.alloc_fragment((1,), "float32")\nT.reduce_sum(f, s)\nB[block] = s[0]',
        FILLED.replace("fragment", "shared") + "B[block] = f[n]",
        FILLED.replace("(128,)", "(16,)") + "B[block] = f[n]",
    ],
)
def test_fragments_that_are_as_they_should_be(warned: Warned, body: str) -> None:
    assert warned(body) == []


# --- loops ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize(
    ("body", "line", "trips"),
    [
        ("for i in T.serial(1024):\n    B[i] = A[i] * 2", 1, "all 1024"),
        ("for i in range(n):\n    B[i] = A[i] * 2", 1, "all"),
        ("for i in T.serial(8):\n    for j in T.serial(8):\n        B[i * 8 + j] = 0", 1, "all 64"),
        ('S = T.alloc_shared((64,), "float32")\nfor i in T.unroll(64):\n    S[i] = 1', 2, "all 64"),
        ("if n > 3:\n    for i in T.serial(64):\n        B[block * 64 + i] = n", 2, "all 64"),
        ("for i in T.serial(64):\n    if A[i] > 0:\n        B[i] = A[i]", 1, "all 64"),
    ],
)
def test_loops_that_every_thread_does(
    warned: Warned, body: str, line: int, trips: str, target: str
) -> None:
    ((found, said),) = warned(body, target)
    assert found == line and f"each thread of the block does {trips} iterations" in said
    assert "T.Parallel" in said


def test_a_loop_of_the_only_thread(warned: Warned) -> None:
    body = "for i in T.serial(1024):\n    B[i] = A[i] * 2"
    text = BEGIN.replace("threads=128", "threads=1") + "        " + body.replace("\n", "\n        ")
    ((_, said),) = warned.compiled(text, (tilec.spec((4096,), "float32"),) * 2, GPUS[0])  # type: ignore[attr-defined]
    assert "the block's one thread does all 1024 iterations of this loop" in said
    assert "help: ask for more, and loop with T.Parallel" in said


@pytest.mark.parametrize(
    "body",
    [
        "for i in T.Parallel(1024):\n    B[i] = A[i] * 2",
        "for i in T.serial(16):\n    B[i] = A[i]",
        "for i in T.serial(64):\n    B[n] = A[i]",  # one element
        "t = T.get_thread_binding(0)\nfor i in T.serial(64):\n    B[t * 32 + i % 32] = A[i]",
        "if T.get_thread_binding(0) == 0:\n    for i in T.serial(64):\n        B[i] = A[i]",
        'x = T.alloc_local((64,), "float32")\nfor i in T.serial(64):\n    x[i] = A[i]\nB[0] = x[n]',
        "for i in T.serial(64):\n    for j in T.Parallel(64):\n        B[i * 64 + j] = A[j]",
        "for i in T.serial(64):\n    T.atomic_add(B[i], A[i])",
        "x = T.alloc_var('float32', 0)\nfor i in T.serial(64):\n    x = x + A[i]\nB[block] = x",
    ],
)
def test_loops_that_are_as_they_should_be(warned: Warned, body: str) -> None:
    assert warned(body) == []


def test_the_cpu_has_no_threads_that_repeat(warned: Warned) -> None:
    assert warned("for i in T.serial(1024):\n    B[i] = A[i] * 2", "cpu") == []
    assert warned(f"{FILLED}B[block] = f[n]", "cpu") == []


# --- products -------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a"])
@pytest.mark.parametrize(
    ("m", "n", "threads", "says"),
    [
        (16, 16, 128, "work for 2 of 4 warps"),
        (16, 8, 128, "work for 1 of 4 warps"),
        (16, 32, 128, ""),
        (64, 64, 128, ""),
        (16, 16, 64, ""),
    ],
)
def test_products(warned: Warned, m: int, n: int, threads: int, says: str, target: str) -> None:
    text = PRODUCT.format(m=m, n=n, threads=threads)
    spec = tilec.spec((64, 64), "float16")
    seen = warned.compiled(text, (spec, spec), target)  # type: ignore[attr-defined]
    if not says:
        assert seen == []
        return
    ((line, said),) = seen
    assert line == 1 + text[: text.index("T.gemm")].count("\n")
    assert f"the {m} x {n} tile of this product has {says}" in said
    assert f"write threads={int(says.split()[2]) * 32}, or a larger tile" in said


@pytest.mark.parametrize(
    ("m", "n", "k", "says"),
    [
        (64, 32, 20, "this product of 64 x 32 x 20 elements .* use tiles for 64 x 32 x 24"),
        (48, 80, 64, ""),
        (48, 72, 64, ""),  # made wider
        (16, 16, 4, ""),  # four times as large
        (1, 64, 64, ""),
    ],
)
def test_products_without_a_matrix_instruction(
    warned: Warned, m: int, n: int, k: int, says: str
) -> None:
    text = PRODUCT.format(m=m, n=n, threads=64)
    text = text.replace(f"shared(({m}, 64)", f"shared(({m}, {k})")
    text = text.replace(f"shared((64, {n})", f"shared(({k}, {n})")
    spec = tilec.spec((64, 64), "float16")
    seen = warned.compiled(text, (spec, spec), "hip:gfx942")  # type: ignore[attr-defined]
    found = [" ".join(said.split()) for _, said in seen if "is done by threads" in said]
    assert len(found) == bool(says)
    assert all(re.search(says, said) for said in found)


def test_a_copy_that_cannot_run_ahead_is_such_a_warning(warned: Warned) -> None:
    found = warned(
        'S = T.alloc_shared((64,), "float32")\n'
        "for k in T.Pipelined(8, num_stages=3):\n"
        "    T.copy(A[k * 64], S[0:32])\n"
        "    for i in T.Parallel(32):\n"
        "        B[k * 64 + i] = S[i]"
    )
    assert [line for line, said in found if "cannot run ahead" in said] == [3]


def test_they_can_be_silenced_and_be_errors(tmp_path: Path) -> None:
    assert issubclass(tilec.PerformanceWarning, tilec.CompileWarning)
    assert tilec.PerformanceWarning.__module__ == "tilec"


ROWS = """\
import tilec
import tilec.language as T

M, N = T.dynamic("M, N")

@tilec.kernel
def kernel(X: T.Tensor((M, N), "float32"), S: T.Tensor((M,), "float32")):
    with T.Kernel(T.ceildiv(M, {rows}), threads={threads}) as block:
        x = T.alloc_fragment(({rows}, {columns}), "float32")
        s = T.alloc_fragment(({rows},), "float32")
        T.copy(X[block * {rows}, 0], x)
        T.reduce_sum(x, s, dim=1)
        T.copy(s, S[block * {rows}])
"""


@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize(
    ("rows", "columns", "threads", "warns"),
    [(1, 32, 256, True), (2, 16, 256, True), (8, 32, 256, False), (1, 256, 128, False),
     (1, 32, 64, False)],
)  # fmt: skip
def test_tiles_of_fewer_elements_than_threads(
    warned: Warned, rows: int, columns: int, threads: int, warns: bool, target: str
) -> None:
    text = ROWS.format(rows=rows, columns=columns, threads=threads)
    specs = tilec.spec((1000, 17), "float32"), tilec.spec((1000,), "float32")
    seen = warned.compiled(text, specs, target)  # type: ignore[attr-defined]
    if not warns:
        assert seen == []
        return
    ((line, said),) = seen
    assert line == 1 + text[: text.index("T.reduce_sum")].count("\n")
    assert f"no tile of this kernel has more than 32 elements, and a block has {threads}" in said
    assert f"in place of ({rows}, {columns})" in said
