"""PTX that ptxas compiles right, in the place of such that it does not.

Four faults of ptxas 13.0 and 13.5, for sm_80 and sm_90a, that random programs found on an H200:

- Of `y = x + c; z = x or a, by a predicate; w = z + c` in 16-bit floats (sums, products, minima and
  maxima alike) the two sums become one of pairs, behind the predicated move of `a` to the register
  of `x`: `y` is `w`. Where such values are selected by a mask, no register is shared.
- A pair of float8 that is the upper half of a register which ptxas finds to be 0, and LLVM did not
  (a shuffled 0), is converted from a number of no meaning. From a register of its own it is not.
- So are the operands of a float8 mma, which sm_90a does by such conversions and two mma of float16.
  Where an operand is shuffled these stand in the PTX, and the conversions are the ones of before.
- The upper half of a product of a loop's index (`x * i >> 32`: an index divided by a number that is
  known at run time) is multiplied by another number that the loop does not change, and the upper
  half of `x * number`, times i, is taken for it. Of the upper half alone (mul.hi) it is not, nor of
  one that a shift has made, which sums have here, as which LLVM may write such products.

And one by which code is slow: of a loop whose products (wgmma) are in flight at an iteration's end
it may wait for each instruction, if sums are converted to 16 bits one by one behind it (C7514). Two
by two it does not.
"""

from __future__ import annotations

import re

_PAIRED = re.compile(r"^\t(?:add|sub|mul|fma|min|max)\.(?:[\w.]+\.)?b?f16(?:x2)? \t(.*);$", re.M)
_REGISTER = re.compile(r"%\w+")
# Registers that are taken for two halves, or made of two.
_HALVES = re.compile(r"^\tmov\.b32 \t(?:\{[^}]*\}, (%\w+)|(%\w+), \{[^}]*\});$", re.M)
_CUT = re.compile(r"^\tcvt\.u(?:16\.u32 \t%\w+, (%\w+)|32\.u16 \t(%\w+), %\w+);$", re.M)
_SELECT = re.compile(r"^\tselp\.b(16|32) \t(%\w+), (\S+), (\S+), (%\w+);$", re.M)
_FLOAT8 = re.compile(r"^\tcvt\.rn\.f16x2\.(e4m3x2|e5m2x2) \t(%\w+), (%\w+);$", re.M)
_PRODUCT = re.compile(r"^\tmul\.(?:lo\.s|wide\.[us])(?:64|32) \t(%rd\d+), (\S+), (\S+);$", re.M)
_SUM = re.compile(
    r"^\t(?:add|sub|mad\.\w+)\.[\w.]*64 \t(%rd\d+), |^\tmov\.b64 \t(%rd\d+), %rd", re.M
)
_LABEL = re.compile(r"^(\$\w+):", re.M)
_JUMP = re.compile(r"\bbra(?:\.uni)? \t?(\$\w+);")
_WIDENED = re.compile(r"^\tcvt\.u64\.u32 \t(%rd\d+), ", re.M)
_UPPER = re.compile(r"^\tmov\.b64 \t\{(_|%r\d+), (%r\d+)\}, (%rd\d+);$", re.M)
_SINGLE = re.compile(r"\tcvt\.rn\.(b?f16)\.f32 \t(%\w+), (%\w+);")
_OTHER = re.compile(r"\$L|.*\bbra\b|\t// begin inline asm")  # where sums may be other ones
_FLYING = re.compile(r"\bwgmma\.wait_group\.sync\.aligned [1-9]")
_SUMS = re.compile(r"\bwgmma\.mma_async[\w.]* \{([^}]*)\}")
_LINE = re.compile(r"^\t(?:@!?%\w+ )?([\w.]+) +\t?(\{.*?\}|[^,;]*), (.*);$", re.M)
_MMA = re.compile(
    r"^\tmma\.sync\.aligned\.m16n8k32\.row\.col\.f32\.(e4m3|e5m2)\.(e4m3|e5m2)\.f32 "
    r"\{(.*?)\}, \{(.*?)\}, \{(.*?)\}, \{(.*?)\};$",
    re.M,
)


def without_faults(ptx: str) -> str:
    """`ptx`, rewritten where ptxas would make something else of it than it says."""
    if "\n.target sm_90" in ptx and _MMA.search(ptx):
        shuffled = _behind_shuffles(ptx)
        ptx = _MMA.sub(
            lambda m: (
                m[0] if shuffled.isdisjoint(_REGISTER.findall(m[4] + m[5])) else _by_float16(m)
            ),
            ptx,
        )
    ptx = _FLOAT8.sub(_from_own_register, ptx)
    ptx = _upper_products(ptx)
    paired = {r for line in _PAIRED.findall(ptx) for r in _REGISTER.findall(line)}
    if not paired:
        return ptx
    found = (*_HALVES.findall(ptx), *_CUT.findall(ptx))
    halved = paired.union(*found)

    def masked(m: re.Match[str]) -> str:
        bits, to, yes, no, predicate = m.groups()
        if bits == "32" and halved.isdisjoint((to, yes, no)):
            return m[0]
        into, out = ("cvt.u32.u16", "cvt.u16.u32") if bits == "16" else ("mov.b32", "mov.b32")
        lines = [
            "{",
            ".reg .b32 mask, yes, no;",
            f"selp.b32 mask, -1, 0, {predicate};",
            *(
                f"{into if x.startswith('%') else 'mov.b32'} {name}, {x};"
                for name, x in (("yes", yes), ("no", no))
            ),
            "lop3.b32 mask, mask, yes, no, 0xCA;",
            f"{out} {to}, mask;",
            "}",
        ]
        return "\n".join("\t" + line for line in lines)

    return _SELECT.sub(masked, ptx)


def _upper_products(ptx: str) -> str:
    """`ptx` with the upper halves of products and sums in loops as such, which registers had."""
    if not _UPPER.search(ptx):
        return ptx
    products = {to: (a, b) for to, a, b in _PRODUCT.findall(ptx)}
    widened = {*_WIDENED.findall(ptx)}
    computed = {*products, *(to for found in _SUM.findall(ptx) for to in found)}
    labels = {m[1]: m.start() for m in _LABEL.finditer(ptx)}
    jumps = ((labels.get(m[1], len(ptx)), m.start()) for m in _JUMP.finditer(ptx))
    loops = [(begin, end) for begin, end in jumps if begin < end]

    def upper(m: re.Match[str]) -> str:
        low, high, whole = m.groups()
        if whole not in computed or not any(a < m.start() < b for a, b in loops):
            return m[0]
        a, b = products.get(whole, ("", ""))
        if {a, b} <= widened:
            words = f".reg .b32 a, b; cvt.u32.u64 a, {a}; cvt.u32.u64 b, {b};"
            line = f"\t{{ {words} mul.hi.u32 {high}, a, b; }}"
        else:
            line = f"\t{{ .reg .b64 up; shr.u64 up, {whole}, 32; cvt.u32.u64 {high}, up; }}"
        return line if low == "_" else f"{line}\n\tcvt.u32.u64 \t{low}, {whole};"

    return _UPPER.sub(upper, ptx)


def with_pairs_of_sums(ptx: str) -> str:
    """`ptx` with products' sums converted to 16 bits two by two, where some are in flight."""
    if not _FLYING.search(ptx):
        return ptx
    sums = {r for given in {*_SUMS.findall(ptx)} for r in _REGISTER.findall(given)}
    lines: list[str] = []
    first: tuple[int, re.Match[str]] | None = None
    for line in ptx.split("\n"):
        single = _SINGLE.fullmatch(line)
        if single and single[3] in sums:
            if first and first[1][1] == single[1]:
                lines[first[0]] = _by_two(first[1], single)
                first = None
                continue
            first = len(lines), single
        elif _OTHER.match(line):
            first = None
        lines.append(line)
    return "\n".join(lines)


def _by_two(one: re.Match[str], other: re.Match[str]) -> str:
    convert = f"cvt.rn.{one[1]}x2.f32 both, {other[3]}, {one[3]};"
    return f"\t{{ .reg .b32 both; {convert} mov.b32 {{{one[2]}, {other[2]}}}, both; }}"


def _from_own_register(m: re.Match[str]) -> str:
    kind, to, pair = m.groups()
    lines = [
        "{",
        ".reg .b32 own;",
        ".reg .b16 low;",
        f"cvt.u32.u16 own, {pair};",
        "mov.b32 {low, _}, own;",
        f"cvt.rn.f16x2.{kind} {to}, low;",
        "}",
    ]
    return "\n".join("\t" + line for line in lines)


def _behind_shuffles(ptx: str) -> set[str]:
    """The registers that are computed from what lanes exchange, without a way through memory."""
    users: dict[str, list[str]] = {}
    left: list[str] = []
    for op, to, sources in _LINE.findall(ptx):
        made = _REGISTER.findall(to)
        left += made if op.startswith("shfl") else ()
        for r in _REGISTER.findall(sources) if not op.startswith("ld") else ():
            users.setdefault(r, []).extend(made)
    found: set[str] = set()
    while left:
        if (r := left.pop()) not in found:
            found.add(r)
            left += users.get(r, ())
    return found


def _by_float16(m: re.Match[str]) -> str:
    """Two products: of the lower halves of all operands' registers, and of the upper ones."""
    *kinds, to, a, b, c = m.groups()
    registers = [(x, kind) for kind, given in zip(kinds, (a, b)) for x in given.split(", ")]
    names = [f"%operand{i}" for i in range(len(registers))]
    sums = [f"%sum{i}" for i in range(4)]
    lines = [f".reg .b32 {', '.join(names + sums)};", ".reg .b16 %lower, %upper;"]
    for half, into, start in (("%lower", ", ".join(sums), c), ("%upper", to, ", ".join(sums))):
        for name, (register, kind) in zip(names, registers):
            lines.append(f"mov.b32 {{%lower, %upper}}, {register};")
            lines.append(f"cvt.rn.f16x2.{kind}x2 \t{name}, {half};")
        lines.append(
            f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{{into}}}, "
            f"{{{', '.join(names[:4])}}}, {{{', '.join(names[4:])}}}, {{{start}}};"
        )
    return "\n".join("\t" + line for line in ("{", *lines, "}"))
