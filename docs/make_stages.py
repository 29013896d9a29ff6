"""Writes docs/stages.md: one matrix product through every stage of the compiler.

    python docs/make_stages.py

A test runs this and compares, so the page cannot go stale.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import tilec
import tilec.language as T

TARGET = "cuda:sm_90a"
PAGE = Path(__file__).with_name("stages.md")

M, N, K = T.dynamic("M, N, K")


@tilec.kernel
def matmul(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float16"),
):
    with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 128), threads=256) as (bx, by):
        T.annotate_schedule(stages=4, cluster=(1, 1))
        A_s = T.alloc_shared((128, 64), "float16")
        B_s = T.alloc_shared((64, 128), "float16")
        acc = T.alloc_fragment((128, 128), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 64)):
            T.copy(A[by * 128, k * 64], A_s)
            T.copy(B[k * 64, bx * 128], B_s)
            T.gemm(A_s, B_s, acc)
        T.copy(acc, C[by * 128, bx * 128])


INTRODUCTION = f"""# One matrix product through every stage

Written by `docs/make_stages.py` from what the compiler says of itself; a test keeps it true.
The target is `{TARGET}`. The same text comes from `kernel.compile(...).stages`, or from
`TILEC_DUMP=all`. Stages that change nothing are left out; the last ones are cut.
"""

WORDS = {
    "tile": "What the user wrote: values with types, ops with places, no layouts.",
    "simplify": "Constants folded, common values shared, dead ones gone.",
    "recognise_idioms": "Parallel loops that are copies or fills become those ops.",
    "mem2reg": "One-element buffers become values.",
    "block_order": "A launched block walks over several blocks of the user's grid, in "
    "rasterisation groups.",
    "select_gemm": "Each product gets its instruction and its split over warps.",
    "plan_pipeline": "Copies that may run ahead, and how many stages their buffers get.",
    "infer_layouts": "Where every element lives; `layout_reasons` says why.",
    "select_copies": "Who moves the data of each copy.",
    "stage_stores": "Shared memory that stores go through.",
    "expand_scopes": "Producer warps and consumers, with a ring of barriers between them.",
    "plan_shared": "Byte offsets in shared memory.",
    "insert_sync": "Barriers where threads exchange data.",
    "lower_stores": "Fragments leave through `stmatrix` and TMA.",
    "lower_copies": "Copies and fills that threads make become parallel loops.",
    "lower_gemm": "Products become instructions.",
    "lower_parallel": "Parallel loops become loops over one thread's registers.",
    "llvm": "What LLVM is given.",
    "ptx": "What ptxas is given.",
}
CUT = {"llvm": 60, "ptx": 60}


def body(text: str) -> str:
    return text.split("\nbody {", 1)[-1]


def page() -> str:
    spec = [tilec.spec((4096, 4096), "float16")] * 3
    compiled = matmul.compile(*spec, target=TARGET)
    parts = [INTRODUCTION]
    last = ""
    for name, text in compiled.stages.items():
        if name not in WORDS or text == last:
            continue
        last = text
        lines = text.rstrip("\n").split("\n")
        if name in CUT:
            lines = [line for line in lines if not re.match(r"^(//|;|!|\.file|\.loc)", line)]
            lines = [*lines[: CUT[name]], "…"]
        kind = {"llvm": "llvm", "ptx": "asm"}.get(name, "text")
        parts.append(
            f"\n## `{name}`\n\n{WORDS[name]}\n\n```{kind}\n" + "\n".join(lines) + "\n```\n"
        )
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.stdout.write(f"wrote {PAGE.name}\n")
