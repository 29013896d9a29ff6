"""Which of tilec's words a function of CUDA's, libdevice's, OCML's, TVM's or LLVM's is, by its
name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from tilec.ir.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT32, INT64, UINT32, UINT64, DType


@dataclass(frozen=True)
class Known:
    """`word`: a kind of Unary, Binary or Compare, or a word of its own; of `count` numbers of
    `dtype` (None: of any). `result`: where it is another; `void`: there is none. `mode`: how a
    cast rounds, where it does not as tilec's casts do."""

    word: str
    count: int
    dtype: DType | None
    result: DType | None = None
    void: bool = False
    mode: str = ""


# C's names of functions of floats: tilec's kind, and how many arguments.
_OF_FLOATS = {
    "exp": "exp", "exp2": "exp2", "exp10": "exp10", "log": "log", "log2": "log2",
    "log10": "log10", "log1p": "log1p", "sqrt": "sqrt", "rsqrt": "rsqrt", "sin": "sin",
    "cos": "cos", "tan": "tan", "tanh": "tanh", "erf": "erf", "floor": "floor", "ceil": "ceil",
    "trunc": "trunc", "rint": "round", "nearbyint": "round", "roundeven": "round", "fabs": "abs",
    "sigmoid": "sigmoid", "rcp": "rcp",
}  # fmt: skip
_OF_TWO_FLOATS = {
    "fmin": "min", "fmax": "max", "pow": "pow", "atan2": "atan2", "fdivide": "div",
    "minnum": "min", "maxnum": "max",
}  # fmt: skip
_FAST = ("exp", "exp10", "log", "log2", "log10", "sin", "cos", "tan", "tanh", "pow", "fdivide")
_ROUNDED = {"add": "add", "sub": "sub", "mul": "mul", "div": "div", "sqrt": "sqrt", "rcp": "rcp"}
_HALVES = ("exp", "exp2", "exp10", "log", "log2", "log10", "sqrt", "rsqrt", "sin", "cos", "floor",
           "ceil", "trunc", "rint", "tanh", "rcp")  # fmt: skip

_LLVM_TYPES = {"f16": FLOAT16, "bf16": BFLOAT16, "f32": FLOAT32, "f64": FLOAT64}
_LLVM_INTS = {"i32": (INT32, UINT32), "i64": (INT64, UINT64)}
_LLVM_BITS = {"ctpop": "popcount", "ctlz": "clz", "cttz": "ctz", "bitreverse": "brev"}
_UPPER_PRODUCTS = {"mulhi": INT32, "umulhi": UINT32, "mul64hi": INT64, "umul64hi": UINT64}
_C_TYPES = {
    "half": FLOAT16, "bfloat16": BFLOAT16, "float": FLOAT32, "double": FLOAT64, "int": INT32,
    "uint": UINT32, "ll": INT64, "ull": UINT64, "longlong": INT64,
}  # fmt: skip
_CONVERTING = re.compile(rf"__({'|'.join(_C_TYPES)})2({'|'.join(_C_TYPES)})(?:_r([nzdu]))?")
_MODES = {"n": "rn", "z": "rz", "d": "rm", "u": "rp"}
_BITS = re.compile(r"__(float|double|int|uint|longlong)_as_(float|double|int|uint|longlong)")


def _of_floats() -> dict[str, Known]:
    found: dict[str, Known] = {}

    def add(name: str, word: str, count: int, dtype: DType | None) -> None:
        found[name] = Known(word, count, dtype)

    for table, count in ((_OF_FLOATS, 1), (_OF_TWO_FLOATS, 2), ({"fma": "fma"}, 3)):
        for name, word in table.items():
            for prefix in ("", "__nv_"):
                add(f"{prefix}{name}", word, count, FLOAT64)
                add(f"{prefix}{name}f", word, count, FLOAT32)
            for kind, dtype in _LLVM_TYPES.items():
                add(f"llvm.{name}.{kind}", word, count, dtype)
                add(f"__ocml_{name}_{kind}", word, count, dtype)
                add(f"__ocml_native_{name}_{kind}", word, count, dtype)
            if name in _FAST:
                add(f"__{name}f", word, count, FLOAT32)
                add(f"__nv_fast_{name}f", word, count, FLOAT32)
            if name in _HALVES:
                add(f"h{name}", word, count, FLOAT16)
    for name, word in _ROUNDED.items():
        count = 1 if name in ("sqrt", "rcp") else 2
        for letter, dtype in (("f", FLOAT32), ("d", FLOAT64)):
            alone = f"{word}_rn" if word in ("add", "sub", "mul") else word
            add(f"__{letter}{name}_rn", alone, count, dtype)
        if count == 2:
            for prefix in ("__h", "h"):
                add(f"{prefix}{name}", word, count, FLOAT16)
    for letter, dtype in (("f", FLOAT32), ("d", FLOAT64), ("h", FLOAT16)):
        fused = {"f": "__fmaf_rn", "d": "__fma_rn", "h": "__hfma"}[letter]
        add(fused, "fma", 3, dtype)
    add("__frsqrt_rn", "rsqrt", 1, FLOAT32)
    add("__saturatef", "saturate", 1, FLOAT32)
    add("__hmin", "min", 2, FLOAT16)
    add("__hmax", "max", 2, FLOAT16)
    add("__hneg", "neg", 1, FLOAT16)
    add("__habs", "abs", 1, FLOAT16)
    return found


def _of_ints() -> dict[str, Known]:
    found = {"abs": Known("abs", 1, INT32), "__nv_abs": Known("abs", 1, INT32)}
    for prefix in ("", "__nv_"):
        for name in ("min", "max"):
            found[prefix + name] = Known(name, 2, INT32)
            found[f"{prefix}u{name}"] = Known(name, 2, UINT32)
            found[f"{prefix}ll{name}"] = Known(name, 2, INT64)
            found[f"{prefix}ull{name}"] = Known(name, 2, UINT64)
    for prefix in ("__", "__nv_"):
        for name, word in (("popc", "popcount"), ("clz", "clz"), ("ffs", "ffs")):
            found[prefix + name] = Known(word, 1, UINT32, INT32)
            found[f"{prefix}{name}ll"] = Known(word, 1, UINT64, INT32)
        found[f"{prefix}brev"] = Known("brev", 1, UINT32)
        found[f"{prefix}brevll"] = Known("brev", 1, UINT64)
        for name, dtype in _UPPER_PRODUCTS.items():
            found[prefix + name] = Known("mulhi", 2, dtype)
        found[f"{prefix}byte_perm"] = Known("byte_perm", 3, UINT32)
    for kind, (signed, unsigned) in _LLVM_INTS.items():
        for name in ("min", "max"):
            found[f"llvm.s{name}.{kind}"] = Known(name, 2, signed)
            found[f"llvm.u{name}.{kind}"] = Known(name, 2, unsigned)
        found[f"llvm.abs.{kind}"] = Known("abs", 1, signed)
        for name, word in _LLVM_BITS.items():
            found[f"llvm.{name}.{kind}"] = Known(word, 1, unsigned)
    return found


_OTHERS = {
    "__ldg": Known("load", 1, None),
    "__ldca": Known("load", 1, None),
    "__ldcg": Known("load", 1, None),
    "__ldcs": Known("load", 1, None),
    "__nanosleep": Known("pause", 1, None, void=True),
    "__syncthreads": Known("sync_threads", 0, None, void=True),
    "__syncwarp": Known("sync_warp", 0, None, void=True),
    "__dp4a": Known("dp4a", 3, INT32),
    "__activemask": Known("activemask", 0, None),
    **{
        f"__{word}": Known(word, 2, None)
        for word in ("match_any_sync", "match_all_sync", "ballot_sync", "any_sync", "all_sync")
    },
    "__shfl_sync": Known("shfl_sync", 3, None),
    **{f"__shfl_{way}_sync": Known(f"shfl_{way}", 3, None) for way in ("xor", "up", "down")},
}
_OF_ANY = {
    **{name: (word, 1) for name, word in _OF_FLOATS.items()},
    **{name: (word, 2) for name, word in _OF_TWO_FLOATS.items()},
    "fma": ("fma", 3), "max": ("max", 2), "min": ("min", 2), "abs": ("abs", 1),
    "round": ("round", 1), "popcount": ("popcount", 1), "clz": ("clz", 1), "ffs": ("ffs", 1),
    "bitwise_and": ("and", 2), "bitwise_or": ("or", 2), "bitwise_xor": ("xor", 2),
    "shift_left": ("shl", 2), "shift_right": ("shr", 2), "isnan": ("isnan", 1),
}  # fmt: skip


@cache
def names() -> dict[str, Known]:
    """All of them but those of TVM and of conversions."""
    return {**_of_floats(), **_of_ints(), **_OTHERS}


@cache
def known(name: str) -> Known | None:
    """What a function is; None for one that is not known."""
    found = names().get(name)
    if found is not None:
        return found
    package, _, rest = name.rpartition(".")
    if package in ("tir", "tirx", "tl"):
        rest = rest.removeprefix("__")
        if rest in _OF_ANY:
            word, count = _OF_ANY[rest]
            return Known(word, count, None)
    match = _CONVERTING.fullmatch(name)
    if match:
        own, to = _C_TYPES[match[1]], _C_TYPES[match[2]]
        usual = (None, "n") if to.is_float else ("z",)
        mode = "" if match[3] in usual else _MODES.get(match[3], "")
        floats = own.is_float or (to.is_float and not mode)
        if own is not to and floats and (mode or match[3] in usual):
            return Known("cast", 1, own, to, mode=mode)
    match = _BITS.fullmatch(name)
    if match and _C_TYPES[match[1]].bits == _C_TYPES[match[2]].bits and match[1] != match[2]:
        return Known("bits", 1, _C_TYPES[match[1]], _C_TYPES[match[2]])
    return None
