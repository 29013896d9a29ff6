"""Writes docs/errors.md: what tilec says of common mistakes, beside what TileLang and Triton say.

    python docs/make_errors.py

A test runs this and compares, so that tilec's texts stay true. Those of the others were recorded
once, with the versions the page names.
"""

from __future__ import annotations

import itertools
import linecache
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tilec

PAGE = Path(__file__).with_name("errors.md")

INTRODUCTION = """# Messages

Written by `docs/make_errors.py` from what the compiler says; a test keeps tilec's part true. The
texts of the others were recorded with TileLang 0.1.15 and Triton 3.9, on a machine without a GPU;
"…" stands for what is left out.

A message of tilec is an exception of its own class: `CompileError` for the source, `LayoutError`
and `ResourceError` (both are CompileErrors) for layouts and what a target has, `LaunchError` for
the arguments of a call. It names the file, the line and the column, underlines the place, names
both operands with their scope, shape and dtype, gives one fix, and has at most 12 lines. It comes
before any machine code is made, and the user's line ends the traceback. Several mistakes of one
kernel are told at once: the first is the exception, `others` of it are the rest, and its text has
all of them, each in this form. What follows from a mistake is not told. An access
of a tensor that is always out of bounds is legal and gives a `BoundsWarning` in the same form, as
does one that is out of bounds in some iteration although a condition on its index stands around it
(`if i < N:` around `A[i + 1]`). What is legal and slow gives a `PerformanceWarning`.

An environment variable that says what tilec does not know is an error with what it takes:
`TILEC_DUMP names 'nonsense', which is no stage`, `TILEC_DEBUG is 'maybe'; it takes 1 or 0`.
"""

PROGRAM = """\
import tilec
import tilec.language as T

@tilec.kernel
def matmul(
    A: T.Tensor((512, 512), "float16"),
    B: T.Tensor((512, 512), "float16"),
    C: T.Tensor((512, 512), "float32"),
    x: T.Tensor((64,), "float32"),
):
    with T.Kernel(4, 4, threads=128) as (bx, by):
        A_s = T.alloc_shared((128, 64), "float16")
        B_s = T.alloc_shared((64, 128), "float16")
        acc = T.alloc_fragment((128, 128), "float32")
        S = T.alloc_shared((64,), "float32")
        T.clear(acc)
        for k in T.Pipelined(8, num_stages=3):
            T.copy(A[by * 128, k * 64], A_s)
            T.copy(B[k * 64, bx * 128], B_s)
            T.gemm(A_s, B_s, acc)
        T.copy(acc, C[by * 128, bx * 128])
"""
GEMM = "            T.gemm(A_s, B_s, acc)\n"
END = "        T.copy(acc, C[by * 128, bx * 128])\n"
A_S, B_S = (
    f'{n}_s = T.alloc_shared(({s}), "float16")' for n, s in (("A", "128, 64"), ("B", "64, 128"))
)
COMPILE = (
    'matmul.compile(*[tilec.spec((512, 512), d) for d in ("float16", "float16", "float32")], '
    'tilec.spec((64,), "float32"), target="cuda:sm_90a")'
)


@dataclass(frozen=True)
class Case:
    """`edits` make the mistake in PROGRAM; `call` meets it. `tilelang` and `triton` are what those
    print for the same mistake ("" where it was not recorded)."""

    title: str
    edits: tuple[tuple[str, str], ...]
    tilelang: str
    triton: str
    call: str = COMPILE


CASES = (
    Case(
        "Shapes that differ in a copy",
        ((END, f"        T.copy(acc, A_s)\n{END}"),),
        "`ValueError: StructuralEqual check failed, caused by lhs at <root>[0].value:(128, 64) and "
        "rhs at …:(64, 128)`, after a log of about 30 lines of the rewritten source; neither "
        "buffer is named",
        "`CompilationError: at 3:4:`, the source, `^` and `Cannot make_shape_compatible: "
        "incompatible dimensions at index 0: 128 and 256`",
    ),
    Case(
        "A product over unlike K",
        (("(64, 128)", "(32, 128)"),),
        "`AssertionError: T.gemm K shape check failed: K_A = 64, K_B = 32`, after the same log",
        "`input and other must have equal reduction dimensions`, with a caret",
    ),
    Case(
        "A product of unlike dtypes",
        ((B_S, B_S.replace("float16", "bfloat16")),),
        "`ValueError: Mixed-dtype GEMM only supports f8f6f4 family operands currently, got "
        "A=float16, B=bfloat16`, from the layout stage, without a line",
        "`Both operands must be same dtype. Got fp16 and bf16`, with a caret",
    ),
    Case(
        "Too much shared memory",
        (("num_stages=3", "num_stages=12"),),
        "compiles; at the launch `Failed to set the allowed dynamic shared memory size to %d with "
        "error: …`",
        "compiles; at the launch `out of resource: shared memory, Required: X, Hardware limit: Y. "
        "Reducing block sizes or num_stages may help.`",
    ),
    Case(
        "A misspelt name",
        ((GEMM, GEMM.replace("acc", "acc * scale_typo")),),
        "`NameError: name 'scale_typo' is not defined`, with the user's line in the traceback, "
        "and the log",
        "`NameError('scale_typo is not defined')`, with a caret",
    ),
    Case(
        "Several mistakes",
        (
            (A_S, A_S.replace("alloc_shared", "alloc_share")),
            ("bx * 128], B_s)", "bx * scale_typo], B_s)"),
            ("T.copy(acc, C[by", "T.copy(accu, C[by"),
        ),
        "",
        "",
    ),
    Case(
        "A misspelt word",
        (("S = T.alloc_shared", "S = T.alloc_sharde"),),
        "`module 'tilelang.language' has no attribute 'alloc_sharde'`",
        "`module 'triton.language' has no attribute 'arnage'` (of `tl.arnage`)",
    ),
    Case(
        "Python that kernels do not have",
        (
            (
                END,
                f"        try:\n            T.clear(S)\n        finally:\n            pass\n{END}",
            ),
        ),
        "accepted: `try`, lambdas, dict comprehensions and loops over lists run when the kernel "
        "is traced",
        "`unsupported AST node type: Try`, with a caret",
    ),
    Case(
        "An accumulator that no instruction has",
        (
            (
                'acc = T.alloc_fragment((128, 128), "float32")',
                'acc = T.alloc_fragment((128, 128), "int32")',
            ),
        ),
        "a `static_assert` of the C++ that nvcc compiles",
        "",
    ),
    Case(
        "A race in a parallel loop",
        ((END, f"        for i in T.Parallel(64):\n            S[i // 2] = x[i]\n{END}"),),
        "nothing by default; with a check switched on, a warning with the example "
        "`i=1, i_OTHER_=0, tx=0` and the line",
        "",
    ),
    Case(
        "Shared memory out of bounds",
        ((END, f"        for i in T.Parallel(128):\n            S[i] = x[0]\n{END}"),),
        "nothing: the access is left out",
        "",
    ),
    Case(
        "Too many indices",
        ((END, f"        S[0] = x[0, 0]\n{END}"),),
        "`InternalError: Check failed: buffer->shape.size() == indices.size() (1 vs. 2) : Buffer A "
        "is 1-dimensional, cannot be indexed with the 2-dimensional indices provided.`",
        "",
    ),
    Case(
        "An argument missing",
        (),
        "`Expected 3 inputs, got 2 with 2 inputs and 0 outputs`",
        "`TypeError: add() missing 1 required positional argument: 'n'`",
        "matmul(half, half, single)",
    ),
    Case(
        "An argument of another dtype",
        (),
        "`Buffer dtype mismatch for parameter A: expected torch.float32, got torch.float16`",
        "not checked",
        "matmul(half, single, single, row)",
    ),
    Case(
        "An argument of another shape",
        (),
        "`Static shape mismatch for parameter A: expected 256 at index 0, got 128`",
        "not checked",
        "matmul(half, half[:128], single, row)",
    ),
    Case(
        "An argument without memory",
        (),
        "(a `meta` tensor) `Buffer device mismatch for parameter A: expected cpu, got meta`",
        "",
        'matmul(half, half, single, tilec.spec((64,), "float32"))',
    ),
    Case(
        "CPU arrays for a GPU",
        (),
        "",
        "`ValueError: Pointer argument cannot be accessed from Triton …`",
        'matmul.compile(half, half, single, row, target="cuda:sm_90a")(half, half, single, row)',
    ),
    Case(
        "None for a tensor",
        (),
        "a segmentation fault",
        "",
        "matmul(half, None, single, row)",
    ),
    Case(
        "A list for a tensor",
        (),
        "`Unsupported tensor type`",
        "",
        "matmul(half, half, single, [0.0] * 64)",
    ),
    Case(
        "An unknown keyword",
        (),
        "`lambda_forward() got an unexpected keyword argument 'A'`: keywords are not accepted",
        "`KeyError: Keyword argument %s was specified but unrecognised`",
        "matmul(half, half, single, row, steam=None)",
    ),
)

_files = itertools.count()


def message(case: Case) -> str:
    """What tilec says, with the name of its class."""
    text = PROGRAM
    for old, new in case.edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    file = f"matmul{next(_files)}.py"
    text += f"\n{case.call}\n"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    half = np.ones((512, 512), np.float16)
    scope: dict[str, Any] = {
        "__name__": "example", "half": half, "single": half.astype(np.float32),
        "row": np.ones(64, np.float32),
    }  # fmt: skip
    try:
        exec(compile(text, file, "exec"), scope)
    except tilec.TilecError as e:
        return f"tilec.{type(e).__name__}: {str(e).replace(file, 'matmul.py')}"
    raise AssertionError(f"no message: {case.title}")


def quoted(who: str, text: str) -> str:
    return f"- **{who}:** {text or 'not recorded'}\n"


def page() -> str:
    """The page as it should be."""
    kept = os.environ.get("TILEC_DISABLE_CACHE")
    os.environ["TILEC_DISABLE_CACHE"] = "1"
    try:
        parts = [
            INTRODUCTION,
            f"\n## The program\n\nEach mistake is an edit of it.\n\n```python\n{PROGRAM}```\n",
        ]
        for case in CASES:
            parts.append(f"\n## {case.title}\n\n```text\n{message(case)}\n```\n\n")
            parts.append(quoted("TileLang", case.tilelang) + quoted("Triton", case.triton))
    finally:
        if kept is None:
            del os.environ["TILEC_DISABLE_CACHE"]
        else:
            os.environ["TILEC_DISABLE_CACHE"] = kept
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.stdout.write(f"wrote {PAGE.name}\n")
