"""Matrix instructions by hand."""

from typing import Any

__all__ = ["ldmatrix", "ptx_mma", "tvm_mfma"]


def ptx_mma(
    accum_dtype: object,
    shape: str,
    A_layout: str,  # noqa: N803 (TVM's names)
    B_layout: str,  # noqa: N803
    A_dtype: object,  # noqa: N803
    B_dtype: object,  # noqa: N803
    C_dtype: object,  # noqa: N803
    multiplicand_a: Any,
    a_index: Any,
    multiplicand_b: Any,
    b_index: Any,
    accumulator: Any,
    c_index: Any,
    saturate: bool = False,
) -> None:
    """`mma.sync` of one warp: C += A B, each thread with its own elements in local buffers, from
    the given indices on. PTX ISA, "Warp-level matrix instructions".

    `shape`: "m16n8k16" of float16 and bfloat16, "m16n8k8" of float32 (rounded to TF32), "m16n8k32"
    of float8 and int8, "m8n8k4" of float64; half of k, too, but of float8 and float64; "row" and
    "col" layouts. The dtypes are those of the buffers, C is float32 (of float16 also float16),
    int32 or float64. All lanes of the warp come here. Targets without the instruction exchange the
    elements by shuffles. Raises CompileError for buffers that are not local, and for dtypes that
    there is no instruction for.
    """


def tvm_mfma(
    dtype_prefix: str,
    A_layout: str,  # noqa: N803 (TVM's names)
    B_layout: str,  # noqa: N803
    A_dtype: object,  # noqa: N803
    B_dtype: object,  # noqa: N803
    C_dtype: object,  # noqa: N803
    multiplicand_a: Any,
    a_index: Any,
    multiplicand_b: Any,
    b_index: Any,
    accumulator: Any,
    c_index: Any,
    dtype: object = None,
) -> None:
    """An `mfma` of one wave of 64 lanes: C += A B, each lane with its own elements in local
    buffers. AMD Instinct MI300 ISA, "Matrix Arithmetic Instructions".

    `dtype_prefix` is the instruction's name without `v_mfma_`: "f32_16x16x16f16",
    "f32_16x16x16bf16_1k", "i32_16x16x32_i8", "f32_16x16x32_fp8_fp8", "f32_16x16x4f32",
    "f64_16x16x4f64", of 32x32 elements half as deep; the dtypes are those of the buffers. An index
    counts in vectors of what a lane has of one operand: rows * k / 64 elements. Lane l of 16x16
    (32x32) elements has of A the row l % 16 (32), neighbours along k from l // 16 (32) times their
    number on, of B such a column, and of C the column l % 16 (32), in four neighbouring rows each
    time (of float64 in every fourth one). All lanes of the wave come here. Raises CompileError for
    buffers that are not local, for dtypes that there is no instruction for, and for targets
    without it: no exchange among warps of 32 lanes stands for it.
    """


def ldmatrix(
    src: Any,
    dst: Any,
    dst_index: Any = 0,
    rows: Any = (0,),
    columns: Any = (0,),
    transposed: bool = False,
) -> None:
    """Matrices of 8 rows of 16 bytes from a shared buffer of two dimensions or more to the local
    buffer `dst`, from `dst_index` on, as the 32 lanes of a warp take them: PTX ISA, `ldmatrix`.

    `src` is an element, the same one for the whole warp; matrix i (of 1, 2 or 4) begins `rows[i]`
    rows and `columns[i]` elements behind it, of four the last as far from the second as the third
    from the first. Of each lane l gets the elements from number 4 (l % 4) / bytes of row l / 4 on,
    as many as have 32 bits; if `transposed`, of 16 bits only, those of rows 2 (l % 4) and the next
    in column l / 4. It is one instruction where each row lies in one piece and the target has it,
    else a load of each element. Raises CompileError for elements of other than 8, 16 or 32 bits,
    for buffers elsewhere, and in T.Parallel.
    """
