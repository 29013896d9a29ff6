"""What to write for the builtins that users bring along from Triton, TileLang, CUDA, torch and
math.

Only names that tilec does not have itself; the advice stands in the hint of the message that says
so. Names are looked up without their module: `tl.load`, `T.load` and a bare `load` are one.
"""

from __future__ import annotations

_LOOP = "write an element-wise loop: for i, j in T.Parallel(m, n): y[i, j] = …"
_INDEX = "index the tensor: x = A[i, j] reads an element, T.copy(A[i, j], tile) a tile"
_REDUCE = "use T.reduce_sum(x, s, dim=1), of a tile"
_ANY = "use T.any_of(tile) or T.all_of(tile), which give a bool"
_PLACE = "take T.reduce_{} of the values, then T.reduce_min of the indices of those that are it"

ADVICE: dict[str, str] = {
    # Triton
    "arange": "loop over the tile instead: for i in T.Parallel(BN): … A[bx * BN + i] …",
    "load": f"{_INDEX}; what is out of bounds reads as 0",
    "store": "assign: A[i, j] = x, or T.copy(tile, A[i, j]); what is out of bounds is not written",
    "dot": "use T.gemm(A, B, C), which adds to C",
    "zeros": 'allocate and clear: acc = T.alloc_fragment((m, n), "float32"), then T.clear(acc)',
    "full": 'allocate and fill: acc = T.alloc_fragment((m, n), "float32"), then T.fill(acc, x)',
    "make_block_ptr": "no pointer is needed: T.copy(A[i, j], tile) takes the tile at A[i, j]",
    "make_tensor_descriptor": "no descriptor is needed: T.copy(A[i, j], tile) takes TMA itself",
    "static_range": "use T.unroll(n), or range(n) with a compile-time n",
    "static_assert": "write assert cond, message",
    **dict.fromkeys(("device_print", "static_print"), "use T.print, or print of what is constant"),
    "debug_barrier": "leave it out (between threads: T.sync_threads())",
    "trans": "write T.transpose(x, y), or T.gemm(…, transpose_B=True)",
    **dict.fromkeys(("expand_dims", "broadcast_to", "ravel"), _LOOP),
    **dict.fromkeys(
        ("multiple_of", "max_contiguous"), "write T.assume(n % 16 == 0), or leave it out"
    ),
    **dict.fromkeys(
        ("rand", "randn", "randint"), "use T.rng_init(seed, seq), then T.rng_rand_float()"
    ),
    "range": "write range(n), or T.serial(n)",
    "inline_asm_elementwise": "use T.asm",
    "constexpr_function": "leave it out: plain functions run at compile time",
    # TileLang
    "prim_func": "use @tilec.kernel",
    "jit": "use @tilec.kernel",
    "autotune": "write BM: T.constexpr = T.auto, and tilec chooses; tilec.autotune measures",
    "make_swizzled_layout": "from tilec.layout import make_swizzled_layout",
    "make_mma_swizzle_layout": "from tilec.intrinsics import make_mma_swizzle_layout",
    # CUDA
    "threadIdx": "tile builtins need no thread index; T.get_thread_binding(0) is it",
    "blockIdx": "name the block: with T.Kernel(gx, gy) as (bx, by), or bx = T.program_id(0)",
    "blockDim": "the number of threads is what T.Kernel(threads=…) says",
    "gridDim": "the grid is what stands in T.Kernel; compute it again",
    "__syncthreads": "leave it out (between threads: T.sync_threads())",
    "syncthreads": "leave it out (between threads: T.sync_threads())",
    "__shared__": 'use T.alloc_shared((m, n), "float16")',
    "expf": "use T.exp",
    "sqrtf": "use T.sqrt",
    "fmaxf": "use T.max",
    "fminf": "use T.min",
    "atomic_sub": "add the negative: T.atomic_add(A[i], -x)",
    "atomicSub": "add the negative: T.atomic_add(A[i], -x)",
    "atomic_inc": "write T.atomic_add(A[i], 1)",
    "atomic_dec": "write T.atomic_add(A[i], -1)",
    "atomicAdd": "use T.atomic_add(A[i], x)",
    "atomicMax": "use T.atomic_max(A[i], x)",
    "atomicMin": "use T.atomic_min(A[i], x)",
    "atomicCAS": "use T.atomic_cas(A[i], compare, x), which gives what was there",
    "atomicExch": "use T.atomic_exchange(A[i], x)",
    "atomic_xchg": "use T.atomic_exchange(A[i], x)",
    "make_float4": "write an element-wise loop; wide accesses are chosen by tilec",
    # torch, NumPy, methods of tensors
    "zeros_like": "allocate and clear: T.alloc_fragment(shape, dtype), then T.clear",
    "empty_like": "use T.alloc_fragment or T.alloc_shared with the shape and dtype",
    "matmul": "use T.gemm(A, B, C), which adds to C",
    "mm": "use T.gemm(A, B, C), which adds to C",
    "relu": "use T.max(x, 0) in an element-wise loop",
    "softmax": "write it with T.reduce_max, T.exp in an element-wise loop, and T.reduce_sum",
    "sum": _REDUCE,
    "mean": _REDUCE,
    "amax": "use T.reduce_max(x, m, dim=1), of a tile",
    "maximum": "use T.max(x, y)",
    "minimum": "use T.min(x, y)",
    "multiply": _LOOP,
    "add": _LOOP,
    "inf": 'write T.infinity("float32")',
    "nan": 'write T.cast(float("nan"), "float32")',
    "pi": "write math.pi, which is a number at compile time",
    "sign": "write T.if_then_else(x > 0, 1.0, T.if_then_else(x < 0, -1.0, 0.0))",
    "clip": "use T.clamp(x, low, high)",
    "fabs": "use T.abs(x)",
    "square": "write x * x",
    "rcp": "write 1.0 / x",
    "silu": "write x * T.sigmoid(x) in an element-wise loop",
    "gelu": "write 0.5 * x * (1.0 + T.erf(x * 0.70710678)) in an element-wise loop",
    "any": _ANY,
    "all": _ANY,
    "reduce_any": _ANY,
    "reduce_all": _ANY,
    "argmax": _PLACE.format("max"),
    "argmin": _PLACE.format("min"),
    "gather": "index with what is read: y[i] = x[index[i]] in T.Parallel",
    "scatter": "index with what is read: T.atomic_add(y[index[i]], x[i]), or y[index[i]] = x[i]",
    "ceil": "use T.ceildiv(a, b) for a quotient of ints, T.ceil(x) for a float",
    # methods and attributes of buffers and numbers
    "astype": 'convert with x.astype("float16") on a number; on tiles T.copy converts',
    "to": 'convert with x.astype("float16") on a number; on tiles T.copy converts',
    "cast": 'convert with x.astype("float16") on a number; on tiles T.copy converts',
    "half": 'convert with x.astype("float16") on a number; on tiles T.copy converts',
    "float": 'convert with x.astype("float32") on a number; on tiles T.copy converts',
    "item": "an element is a number already: A[i]",
    "t": "no transposed view is needed: T.gemm(…, transpose_A=True) or transpose_B=True",
    "T": "no transposed view is needed: T.gemm(…, transpose_A=True) or transpose_B=True",
    "transpose": "no transposed view is needed: T.gemm(…, transpose_A=True) or transpose_B=True",
    "permute": "index in the other order: y[j, i] = x[i, j] in T.Parallel",
    "view": "use T.view(buffer, shape, dtype)",
    "reshape": "use T.reshape(buffer, shape)",
    "size": "use A.shape[0]",
    "dim": "use len(A.shape)",
    "ndim": "use len(A.shape)",
    "numel": "multiply the extents in A.shape",
    "stride": "use A.strides[0]",
    "fill_": "use T.fill(tile, x)",
    "zero_": "use T.clear(tile)",
    "copy_": "use T.copy(src, dst)",
    "max": "use T.reduce_max(x, m, dim=1), of a tile; T.max(x, y) is of two numbers",
    "min": "use T.reduce_min(x, m, dim=1), of a tile; T.min(x, y) is of two numbers",
}

# Builtins of the language that are not built yet.
PLANNED = frozenset(
    """
    alloc_tmem gemm_blockscaled
    tcgen05_gemm
    """.split()
)

LATER = "help(tilec.language) lists the builtins that work today"

# Keywords of other systems, by builtin: the keyword to use, or what to write instead.
_KEYWORDS: dict[tuple[str, str], str] = {
    ("Pipelined", "stages"): "num_stages",
    ("Pipelined", "n_stages"): "num_stages",
    ("serial", "end"): "stop",
    ("Pipelined", "end"): "stop",
    ("unroll", "end"): "stop",
    ("vectorized", "end"): "stop",
    ("Kernel", "num_threads"): "threads",
    ("Kernel", "block"): "threads",
    ("Kernel", "block_dim"): "threads",
    ("gemm", "trans_A"): "transpose_A",
    ("gemm", "trans_B"): "transpose_B",
    ("gemm", "trans_a"): "transpose_A",
    ("gemm", "trans_b"): "transpose_B",
    ("gemm", "b_transpose"): "transpose_B",
    ("gemm", "acc"): "C",
    ("gemm", "out"): "C",
    ("cumsum", "axis"): "dim",
    ("cummax", "axis"): "dim",
    **{
        (f"reduce_{kind}", theirs): ours
        for kind in ("sum", "prod", "max", "min", "abssum", "absmax", "bitand", "bitor", "bitxor")
        for theirs, ours in (("axis", "dim"), ("dst", "out"), ("src", "buffer"))
    },
}
_KEYWORD_ADVICE: dict[tuple[str, str], str] = {
    ("Kernel", "num_warps"): "write threads=32 * num_warps",
    ("copy", "mask"): "leave it out: what is out of bounds is guarded",
    **{
        (f"reduce_{kind}", "keepdims"): "leave it out: out may have an extent of 1 there"
        for kind in ("sum", "max", "min")
    },
    **{
        (f"atomic_{kind}", name): "leave it out: atomics are of the whole device"
        for kind in ("add", "max", "min", "and", "or", "xor", "cas", "exchange")
        for name in ("scope", "sem")
    },
    ("gemm", "input_precision"): "write allow_tf32=True for float32 by TF32",
}

# What other systems call our dtypes.
_DTYPES = {
    "fp16": "float16", "f16": "float16", "bf16": "bfloat16", "fp32": "float32", "f32": "float32",
    "fp64": "float64", "f64": "float64", "i8": "int8", "i32": "int32", "i64": "int64",
    "long": "int64", "int": "int32", "u8": "uint8", "tf32": "tfloat32", "fp8": "float8_e4m3",
    "e4m3": "float8_e4m3", "e5m2": "float8_e5m2", "float8": "float8_e4m3", "i4": "int4",
}  # fmt: skip


def advice(name: str) -> str:
    """What to write instead of a foreign builtin; "" where nothing is known."""
    return ADVICE.get(name, "")


def meant_keyword(builtin: str, name: str) -> tuple[str, str]:
    """(our keyword for a foreign one, advice where there is none): "" where nothing is known."""
    return _KEYWORDS.get((builtin, name), ""), _KEYWORD_ADVICE.get((builtin, name), "")


def meant_dtype(name: object) -> str:
    """The dtype that another system calls `name`; "" where nothing is known."""
    return _DTYPES.get(name.lower(), "") if isinstance(name, str) else ""
