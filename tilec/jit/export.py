"""A compiled kernel for a C program: the binary, and a header with all that a launch needs to know.

The header has the kernel's symbol, threads and shared memory as constants, one line on each
parameter in the order of `void *params[]` (CUDA's `kernelParams`, HIP's, and `args` of the CPU
entry), and a function that computes the grid from the sizes.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tilec.ir.errors import TilecError
from tilec.runtime.image import AbiParam, Image
from tilec.support.syntax import names_in

_SUFFIXES = {"cubin": ".cubin", "ptx": ".ptx", "hsaco": ".hsaco", "object": ".o"}
_C_TYPES = {
    "bool": "bool", "int8": "int8_t", "uint8": "uint8_t", "int16": "int16_t", "uint16": "uint16_t",
    "int32": "int32_t", "uint32": "uint32_t", "int64": "int64_t", "uint64": "uint64_t",
    "float32": "float", "tfloat32": "float", "float64": "double", "pointer": "void *",
    "float16": "uint16_t", "bfloat16": "uint16_t", "float8_e4m3": "uint8_t",
    "float8_e5m2": "uint8_t", "tensor_map": "CUtensorMap",
}  # fmt: skip
_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^",
    ast.LShift: "<<", ast.RShift: ">>", ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=",
    ast.Gt: ">", ast.GtE: ">=", ast.USub: "-", ast.Not: "!",
}  # fmt: skip
# Python's arithmetic on whole numbers: division rounds to minus infinity.
_HELPERS = (
    "static inline int64_t tilec_floordiv(int64_t a, int64_t b) {",
    "    return a / b - (a % b != 0 && (a < 0) != (b < 0));",
    "}",
    "static inline int64_t tilec_mod(int64_t a, int64_t b) {",
    "    return a - tilec_floordiv(a, b) * b;",
    "}",
    "static inline int64_t tilec_min(int64_t a, int64_t b) { return a < b ? a : b; }",
    "static inline int64_t tilec_max(int64_t a, int64_t b) { return a < b ? b : a; }",
    "static inline int64_t tilec_abs(int64_t a) { return a < 0 ? -a : a; }",
)


def export_c(image: Image, path: str | Path) -> tuple[Path, Path]:
    """Write the binary and the header beside one another, named after `path` (its suffix is
    replaced).

    Returns their paths. Raises TilecError if the kernel's name cannot be one in C.
    """
    prefix = re.sub(r"\W", "_", image.name)
    if not prefix.isidentifier():
        raise TilecError(f"{image.name!r} cannot be a name in C")
    binary, header = Path(path).with_suffix(_SUFFIXES[image.format]), Path(path).with_suffix(".h")
    binary.write_bytes(image.binary)
    header.write_text(c_header(image, prefix, binary.name))
    return binary, header


def c_header(image: Image, prefix: str, binary: str) -> str:
    """The header's text; `prefix` begins its names, `binary` is the name of the other file."""
    guard = f"TILEC_{prefix.upper()}_H"
    r = image.resources
    lines = [
        f"// {image.name} for {image.target}; its code is in {binary}",
        f"#ifndef {guard}",
        f"#define {guard}",
        "#include <stdbool.h>",
        "#include <stdint.h>",
        "",
        f'#define {prefix}_SYMBOL "{image.symbol}"',
        f"#define {prefix}_THREADS {r.threads}",
        f"#define {prefix}_SHARED_BYTES {r.shared_bytes}",
        f"#define {prefix}_PARAMS {len(image.params)}",
        "",
        "// params[i] points to:",
        *(f"//   {i}: {_describe(image, p)}" for i, p in enumerate(image.params)),
    ]
    if image.packed:
        of = " and ".join(image.packed)
        lines += ["", f"// {of}: a copy whose rows begin at multiples of 16 bytes."]
    if image.persistent:
        lines += ["", "// Launch min(blocks of the grid, blocks that run at once) blocks in x."]
    if image.cluster != (1, 1, 1):
        shown = " x ".join(map(str, image.cluster))
        launch = (
            "// Launch one cluster behind the other in x, as many as there are and run at once."
            if image.persistent
            else "// Round the grid up to whole clusters."
        )
        lines += ["", f"// Blocks form clusters of {shown}.", launch]
    if image.split > 1:
        lines += ["", f"// Launch {image.split} times the grid's blocks in x."]
    if image.parts > 1:
        lines += ["", f"// Launch {image.parts} times the grid's blocks in z."]
        lines += ["// Launches that may run at once need a workspace and counters each."]
    if image.cooperative:
        lines += [
            "",
            "// Its blocks wait for one another: launch it cooperatively, with no more of them",
            "// than run at once (on the CPU: each in a thread of its own).",
        ]
    if image.pdl:
        lines += [
            "",
            "// It waits for the launches before it, so that it may be launched beside them: with",
            "// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 1, or without.",
        ]
    if image.target == "cpu":
        lines += [
            "",
            "// Runs blocks [begin, end) of the grid, counted with x fastest.",
            f"void {image.symbol}(void **params, int32_t begin, int32_t end,",
            "    int32_t gx, int32_t gy, int32_t gz);",
        ]
    lines += ["", *_grid_function(image, prefix), "#endif", ""]
    return "\n".join(lines)


def _describe(image: Image, p: AbiParam) -> str:
    kind = _C_TYPES[p.type]
    match p.role:
        case "tensor":
            return f"{kind} to the first element of {p.arg}"
        case "size":
            return f"{kind}, extent {p.dim} of {p.arg}"
        case "stride":
            return f"{kind}, stride {p.dim} of {p.arg} in elements"
        case "elements":
            return f"{kind}, elements of {p.arg}"
        case "grid":
            return f"{kind}, blocks of the grid in dimension {p.dim}"
        case "workspace" | "counters":
            whole = "" if image.cluster == (1, 1, 1) else ", rounded up to whole clusters"
            content = "any content" if p.role == "workspace" else "zeros, and zeros again after it"
            return f"{kind} to {p.dim} bytes for each block of the grid{whole}: {content}"
        case "memory":
            return f"{kind}: null"
        case "tensor_map":
            return f"{kind} (128 bytes, 64-byte aligned) of {p.tensor_map}"
    return f"{kind} {p.arg}"


def _grid_function(image: Image, prefix: str) -> list[str]:
    if not image.grid:
        return ["// The caller chooses the grid."]
    tree = ast.parse(image.grid, mode="eval").body
    assert isinstance(tree, ast.Tuple)
    used = names_in(tree)
    sizes = [p.name for p in image.params if p.name in used]
    arguments = "".join(f"int64_t {name}, " for name in sizes)
    return [
        "#ifndef TILEC_ARITHMETIC",
        "#define TILEC_ARITHMETIC",
        *_HELPERS,
        "#endif",
        f"static inline void {prefix}_grid({arguments}int64_t grid[3]) {{",
        *(f"    grid[{i}] = {_c(e)};" for i, e in enumerate(tree.elts)),
        "}",
        "",
    ]


def _c(node: ast.expr) -> str:
    """A size expression (see `tilec.runtime.expressions`) in C."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Constant(value=int(value)):
            return str(int(value))
        case ast.BinOp(left=a, op=ast.FloorDiv(), right=b):
            return f"tilec_floordiv({_c(a)}, {_c(b)})"
        case ast.BinOp(left=a, op=ast.Mod(), right=b):
            return f"tilec_mod({_c(a)}, {_c(b)})"
        case ast.BinOp(left=a, op=op, right=b):
            return f"({_c(a)} {_OPERATORS[type(op)]} {_c(b)})"
        case ast.UnaryOp(op=op, operand=a):
            return f"({_OPERATORS[type(op)]}{_c(a)})"
        case ast.Compare(left=a, ops=[op], comparators=[b]):
            return f"({_c(a)} {_OPERATORS[type(op)]} {_c(b)})"
        case ast.IfExp(test=test, body=a, orelse=b):
            return f"({_c(test)} ? {_c(a)} : {_c(b)})"
        case ast.Call(func=ast.Name(id=name), args=args):
            return f"tilec_{name}({', '.join(map(_c, args))})"
    raise TilecError(f"the size expression {ast.unparse(node)!r} has no form in C")
