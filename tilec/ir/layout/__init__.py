"""Layouts: where the elements of a tile live, in registers and in shared memory.

The idea. A place is a mixed-radix number. A register fragment's elements are found by three of
them, the indices *reg* (of one thread), *lane* (of one warp) and *warp* (of one scope); a memory
tile's by one, the *offset*. A layout says what each digit of these numbers does to the coordinate.
So one type serves both worlds, and questions that involve two layouts (can this be a 16-byte load?
does it conflict? must values change lanes?) are arithmetic on digits.

An example: the result of mma.m16n8k16, 16 by 8, as PTX draws it (T: lane, braces: registers):

              columns 0 1    2 3    4 5    6 7
       row 0    T0:{0,1}  T1:{0,1}  T2:{0,1}  T3:{0,1}     reg  bit 0 -> 1 column right
       row 1    T4:{0,1}  T5:{0,1}  T6:{0,1}  T7:{0,1}     reg  bit 1 -> 8 rows down
        ...                                                lane bits 0, 1 -> 2, 4 columns right
       row 7   T28:{0,1} T29:{0,1} T30:{0,1} T31:{0,1}     lane bits 2, 3, 4 -> 1, 2, 4 rows down
       row 8    T0:{2,3}  T1:{2,3}  ...

    Layout((16, 8), (Digit("reg", 2, (0, 1)), Digit("reg", 2, (8, 0)),
                     Digit("lane", 4, (0, 2)), Digit("lane", 8, (1, 0))))

prints as `MMA_C`, and in full as `16x8[reg 2:(0,1) 2:(8,0), lane 4:(0,2) 8:(1,0)]`. A digit has any
whole radix, so 96 rows, a tile of 176 columns or three warpgroups need nothing special. A digit
whose step is zero is a *replica*: dropping the column dimension (what a row sum leaves behind)
gives `16[reg 2:(0) 2:(8), lane 4:(0) 8:(1)]`: four lanes, and two registers in each of them, hold
every row's sum.

Sums of digits cannot say a swizzle, which sends the 16-byte chunk c of line r to chunk c ^ r:

       line 0   0 1 2 3 4 5 6 7      offset bits within a chunk -> columns 1, 2, 4
       line 1   1 0 3 2 5 4 7 6      offset bits of a chunk -> columns 8, 16, 32
       line 2   2 3 0 1 6 7 4 5      offset bits of a line -> row 1 *and* column 8,
        ...                            row 2 *and* column 16, row 4 *and* column 32

But a swizzle is linear over GF(2), bits with XOR for addition. So innermost there may be an *atom*,
a box whose extents are powers of two: digits of radix 2 whose step lies inside the atom combine by
XOR. All digits above it add, and their steps are multiples of the atom, so the two kinds never
disturb one another:

    coordinate = XOR of the atom's bits + sum of the other digits

Memory layouts may also be *padded* (after every p elements q are skipped), and carry the alignment
of their base that makes the XOR of addresses true (1024 bytes for a 128-byte swizzle).

Why this way round (index -> coordinate, not coordinate -> index)? Because replicas are then
ordinary (two indices, one element), concatenation of digits is repetition of tiles, and reductions
are projections. The other direction, which addresses need, is `inverse_terms`: a handful of
`((coordinate // div) % mod) * mul`, XORed last.

Checked: the constructor refuses digits that do not reach every element once per replica. Equal:
layouts are kept in a normal form, so two that place elements alike are equal, hash alike and print
alike.

    core         the type: evaluation, derived layouts, text
    normal       the normal form and the check
    named        row_major, swizzled, blocked, fragments of matrix instructions
    terms        layouts as address arithmetic
    queries      vector width, bank conflicts, conversion, 8x8 matrices
    chunks       what a warp stages in shared memory for a TMA box
    exchange     conversions inside a warp: swaps of register and lane bits
    descriptors  TMA boxes, wgmma descriptors
    reshaping    sub-tiles and other shapes
    fit          from a Python function to digits
    fragment     threads and registers as an author counts them

Linear layouts over GF(2) for GPU tiles are Triton's (LinearLayout.h); mixed radix above a
power-of-two atom is what tiles of 96 or 176 ask for.
"""

# ruff: noqa: F403 (a module says by `__all__` what it has for others)
from tilec.ir.layout.chunks import *
from tilec.ir.layout.core import *
from tilec.ir.layout.descriptors import *
from tilec.ir.layout.exchange import *
from tilec.ir.layout.fragment import *
from tilec.ir.layout.named import *
from tilec.ir.layout.normal import *
from tilec.ir.layout.queries import *
from tilec.ir.layout.terms import *
