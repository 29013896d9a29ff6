"""More mistakes of new users (see `mistake_programs`): what is written for a value, a name, an
extent or an argument, where the caret has to find the one that is wrong."""

from __future__ import annotations

from mistake_programs import GEMM, INSERT, LOOP, Edit, Mistake, line

from tilec import LayoutError

END = "        T.copy(acc, C[by * BM, bx * BN])\n"
BIAS = "T.copy(bias[bx * BN], row)"
ROW = 'row = T.alloc_shared((BN,), "float32")'
GRID = "T.ceildiv(N, BN), T.ceildiv(M, BM)"


def behind(code: str) -> Edit:
    """An edit that adds to the end of the program."""
    return END, END + code


MORE = (
    # --- words of NumPy and torch ---
    Mistake("inf", line("v = -T.inf"), "T.inf", ("'inf'",), 'write T.infinity("float32")'),
    Mistake("sign", line("v = T.sign(bias[0])"), "T.sign", ("'sign'",), "T.if_then_else(x > 0"),
    Mistake("any", line("v = T.any(A_s)"), "T.any", ("'any'",), "use T.any_of(tile)"),
    Mistake("argmin", line("v = T.argmin(A_s)"), "T.argmin", ("'argmin'",), "T.reduce_min of the"),
    Mistake("trans", line("v = T.trans(A_s)"), "T.trans", ("'trans'",), "transpose_B=True"),
    Mistake("argmax", line("v = T.argmax(A_s)"), "T.argmax", ("'argmax'",), "T.reduce_max"),
    Mistake("gather", line("v = T.gather(A, 0)"), "T.gather", ("'gather'",), "x[index[i]]"),
    # --- names and what they are given ---
    Mistake(
        "name for a product",
        (GEMM, "acc = T.gemm(A_s, B_s, acc)"),
        "T.gemm(A_s, B_s, acc)",
        ("T.gemm gives no value",),
        "in a line of its own",
    ),
    Mistake(
        "tensor as a name",
        (END, "        C = acc\n"),
        "C = acc",
        (
            "does not write to C (global (M, N) float32)",
            "gives its name to acc (fragment (64, 64) float32)",
        ),
        "T.copy(tile, C[i, j])",
    ),
    Mistake(
        "hidden module",
        line("T = 3"),
        "T.clear",
        ("the int 3 has no attribute 'clear'",),
        "T hides the module tilec.language: give it another name",
    ),
    Mistake(
        "tensor in the body",
        line('z = T.Tensor((4,), "float32")'),
        'T.Tensor((4,), "float32")',
        ("it makes no tensor",),
        "z = T.alloc_shared(",
    ),
    Mistake(
        "local name with a shape",
        line("q: T.Tensor((4,)) = 4"),
        "T.Tensor((4,))",
        ("the annotation of q is a Tensor",),
        "annotated with a dtype",
        line("q: T.int32 = 4"),
    ),
    Mistake(
        "loop variable afterwards",
        line("for q in T.serial(4):\n            row[q] = 0.0\n        row[0] = q"),
        "q",
        ("q has no value here: it is the variable of the loop on line",),
        "give the loop's variable another name",
    ),
    Mistake(
        "three names for two",
        ("as (bx, by)", "as (bx, by, bz)"),
        "(bx, by, bz)",
        ("2 values for 3 names",),
        "name each of them: x, y",
    ),
    # --- values ---
    Mistake(
        "literal out of range",
        line("m = T.alloc_shared((4,), 'int8')\n        m[0] = 300"),
        "300",
        ("300 does not fit int8 (-128 to 127)", "m (shared (4,) int8)"),
        "give m another dtype",
        line("m = T.alloc_shared((4,), 'int16')\n        m[0] = 300"),
    ),
    Mistake(
        "copy from a number",
        (BIAS, "T.copy(0.0, row)"),
        "0.0",
        ("the source is the float 0.0, not a buffer",),
        "T.fill(buffer, value)",
        (BIAS, "T.fill(row, 0.0)"),
    ),
    Mistake(
        "largest of a tile",
        line("m = max(row)"),
        "max(row)",
        ("row (shared (64,) float32)",),
        "m = T.max(m, row[i])",
    ),
    Mistake(
        "enumerate a tile",
        line("for q, x in enumerate(row):\n            pass"),
        "enumerate(row)",
        ("row (shared (64,) float32)",),
        "for i in T.Parallel(64): … row[i] …",
    ),
    Mistake(
        "divmod",
        line("q, r = divmod(bx, 2, 2)"),
        "divmod(bx, 2, 2)",
        ("divmod: too many positional arguments",),
        "it is Python's divmod",
        line("q, r = divmod(bx, 2)"),
    ),
    Mistake(
        "tile in a chain of comparisons",
        line("if 0 < bx < row:\n            T.clear(row)"),
        "row",
        ("row (shared (64,) float32), not a number",),
        "row[i]",
    ),
    Mistake(
        "hundreds of signs",
        line("x = " + "-" * 900 + "scale"),
        "x = " + "-" * 900 + "scale",
        ("this nests too deep to be read",),
        "give parts of it names",
    ),
    # --- extents, indices, slices ---
    Mistake(
        "dtype before shape",
        (ROW, 'row = T.alloc_shared("float32", (BN,))'),
        '"float32"',
        ("an extent of T.alloc_shared is the str 'float32'",),
        "the shape stands first",
    ),
    Mistake(
        "extent by /",
        (ROW, 'row = T.alloc_shared((BM, BN / 1), "float32")'),
        "BN / 1",
        ("the float 64.0; tiles have compile-time extents",),
        "write // instead of /",
    ),
    Mistake(
        "run-time parallel loop",
        (LOOP, "        for i, j in T.Parallel(BM, N / 1):\n"),
        "N / 1",
        ("an extent of T.Parallel is a run-time float32",),
        "write // instead of /",
    ),
    Mistake(
        "grid by /",
        (GRID, "N / BN, T.ceildiv(M, BM)"),
        "N / BN",
        ("a grid extent is a run-time float32",),
        "write T.ceildiv(N, BN)",
    ),
    Mistake(
        "index by /",
        ("A[by * BM, k * BK]", "A[by * BM / 1, k * BK]"),
        "by * BM / 1",
        ("an index is a run-time float32",),
        "// instead of /",
        ("A[by * BM, k * BK]", "A[by * BM // 1, k * BK]"),
    ),
    Mistake(
        "slice that ends before it starts",
        (BIAS, "T.copy(bias[0:-257], row)"),
        "bias[0:-257]",
        ("bias (global (256,) float32) has -1 elements",),
        "a stop behind the start",
        (BIAS, "T.copy(bias[0:64], row)"),
    ),
    Mistake(
        "slice with no step",
        (BIAS, "T.copy(bias[0:128:0], row)"),
        "0",
        ("the step of a slice is the int 0",),
        "a positive int",
    ),
    # --- arguments ---
    Mistake(
        "stages of a float",
        ("num_stages=2", "num_stages=2.5"),
        "2.5",
        ("num_stages of T.Pipelined is the float 2.5",),
        "a compile-time int",
    ),
    Mistake(
        "end of a loop",
        line("for q in T.serial(start=0, end=4):\n            row[q] = 0.0"),
        "end=4",
        ("T.serial has no keyword 'end'; did you mean 'stop'?",),
        "start, stop, step",
        line("for q in T.serial(start=0, stop=4):\n            row[q] = 0.0"),
    ),
    Mistake(
        "flag as text",
        (GEMM, 'T.gemm(A_s, B_s, acc, transpose_B="no")'),
        '"no"',
        ("transpose_B of T.gemm must be True or False",),
        "write transpose_B=True",
    ),
    Mistake(
        "eleven arguments",
        (GEMM, "T.gemm(A_s, B_s, acc, 0, 0, T.GemmWarpPolicy.Square, 0, 0, 1, 1, 7)"),
        "7",
        ("T.gemm takes at most 10 arguments (A, B, C, ", "11 were given"),
        "write T.gemm(A, B, C)",
    ),
    Mistake(
        "print of two",
        line("T.print(bx, by)"),
        "by",
        ("msg of T.print is a run-time int32",),
        'T.print(f"{x} {y}")',
        line('T.print(f"{bx} {by}")'),
    ),
    Mistake(
        "word without a call",
        line("T.clear"),
        "T.clear",
        ("T.clear is not called here",),
        "write T.clear(…)",
    ),
    Mistake(
        "barriers by hand",
        line("T.named_barrier_arrive(16, 128)"),
        "16",
        ("barrier_id of T.named_barrier_arrive is 16",),
        "a block has barriers 1 to 15",
    ),
    Mistake(
        "long unrolled loop",
        line("for q in T.unroll(100000):\n            row[q % 64] = scale"),
        "T.unroll(100000)",
        ("T.unroll would write its body out 100000 times", "the most is 8192"),
        "use T.serial",
        line("for q in T.serial(100):\n            row[q % 64] = scale"),
    ),
    # --- statements ---
    Mistake(
        "return in the block",
        behind("        return C\n"),
        "return C",
        ("a kernel returns its tensors in its last statement",),
        "behind the with",
        behind("    return C\n"),
    ),
    # --- layouts ---
    Mistake(
        "two layouts",
        (
            INSERT,
            "        T.annotate_layout({A_s: T.Layout((BM, BK), lambda i, j: i * BK + j)})\n"
            + INSERT,
        ),
        "T.Layout((BM, BK), lambda i, j: i * BK + j)",
        ("A_s (shared (64, 32) float16) has another layout already",),
        "leave one of them out",
        error=LayoutError,
    ),
)
