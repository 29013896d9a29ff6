"""Kernels for C programs: the header compiles, and the CPU target's object runs in one."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tilec
import tilec.language as T

M, N = T.dynamic("M, N")


@tilec.kernel
def blend(
    A: T.Tensor((M, N), "float32"),
    B: T.Tensor((M, N), "float32"),
    weight: T.float32,
    BN: T.constexpr = 8,
):
    with T.Kernel(T.ceildiv(N, BN), T.max(M, 1), threads=64) as (bx, by):
        for j in T.Parallel(BN):
            B[by, bx * BN + j] = A[by, bx * BN + j] * weight + B[by, bx * BN + j]


MAIN = """
#include <stdio.h>
#include "blend.h"
int main(void) {
    enum { rows = %d, columns = %d };
    static float a[rows * columns], b[rows * columns];
    for (int i = 0; i < rows * columns; i++) { a[i] = (float)(i * 7 %% 13); b[i] = (float)i; }
    float *pa = a, *pb = b, weight = 0.5f;
    int32_t m = rows, n = columns;
    int64_t stride = columns, grid[3];
    blend_grid(%s, grid);
    void *params[] = { %s };
    int32_t x = (int32_t)grid[0], y = (int32_t)grid[1], z = (int32_t)grid[2];
    blend(params, 0, x * y * z, x, y, z);
    for (int i = 0; i < rows * columns; i++) printf("%%.9g\\n", b[i]);
    return stride == columns && m + n && weight > 0 ? 0 : 1;
}
"""
ADDRESSES = {
    ("tensor", "A"): "&pa", ("tensor", "B"): "&pb", ("scalar", "weight"): "&weight",
    ("size", "A", 0): "&m", ("size", "A", 1): "&n", ("stride", "A", 0): "&stride",
    ("stride", "B", 0): "&stride",
}  # fmt: skip


def grid_arguments(header: str) -> list[str]:
    """Names of the sizes that the header's grid function takes."""
    (line,) = [x for x in header.split("\n") if "void blend_grid(" in x]
    return re.findall(r"int64_t (\w+),", line)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, 19), (3, 32)])
def test_a_c_program_runs_the_kernel(tmp_path: Path, rows: int, columns: int) -> None:
    specs = [tilec.spec((rows, columns), "float32", (columns, 1)) for _ in range(2)]
    compiled = blend.compile(*specs, target="cpu")
    binary, header = compiled.export_c(tmp_path / "blend.bin")
    assert (binary.name, header.name) == ("blend.o", "blend.h")
    names = [
        ADDRESSES.get((p.role, p.arg)) or ADDRESSES[p.role, p.arg, p.dim]
        for p in compiled.image.params
    ]
    sizes = ", ".join({"M": "m", "N": "n"}[n] for n in grid_arguments(header.read_text()))
    (tmp_path / "main.c").write_text(MAIN % (rows, columns, sizes, ", ".join(names)))
    options = ["-std=c11", "-Wall", "-Werror", "-no-pie", "-o", "main", "main.c", "blend.o", "-lm"]
    subprocess.run(["gcc", *options], check=True, cwd=tmp_path)
    shown = subprocess.run([tmp_path / "main"], check=True, capture_output=True, text=True).stdout
    a = (np.arange(rows * columns) * 7 % 13).astype(np.float32)
    want = a * np.float32(0.5) + np.arange(rows * columns, dtype=np.float32)
    np.testing.assert_array_equal(np.array(shown.split(), np.float32), want)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")
@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
def test_header_of_a_gpu_kernel(tmp_path: Path, target: str) -> None:
    specs = [tilec.spec((48, 64), "float32") for _ in range(2)]
    compiled = blend.compile(*specs, target=target)
    binary, header = compiled.export_c(tmp_path / "blend")
    text = header.read_text()
    assert binary.read_bytes() == compiled.binary and binary.name in text
    assert f"#define blend_THREADS {compiled.resources.threads}" in text
    assert f"#define blend_PARAMS {len(compiled.image.params)}" in text
    (tmp_path / "main.c").write_text(
        '#include "blend.h"\nint main(void) { int64_t g[3], M = 5, N = 19; '
        f"blend_grid({', '.join(grid_arguments(text))}, g); "
        "return !(g[0] == 3 && g[1] == 5 && g[2] == 1); }\n"
    )
    subprocess.run(
        ["gcc", "-std=c11", "-Wall", "-Werror", "-o", "main", "main.c"], check=True, cwd=tmp_path
    )
    subprocess.run([tmp_path / "main"], check=True)
