"""The table of the functions that write programs, one for each word of the language.

A new word of the language gets such a function in the file of its subject (`copies`, `elements`,
`maths` by way of `expressions`, `reductions`, `control`, `pipelines`, `products`, `threads`,
`annotations`, `launches`), is added here to `STATEMENTS` (it may stand anywhere) or to `OUTER` (at
the top level of a block only), and gets a method in `meaning.Words` or `maths.Maths`.
`WITHOUT_GENERATOR` names the words that need none, and says why.
"""

from __future__ import annotations

from tilec.fuzz.annotations import (
    annotate_layout,
    annotate_safe_value,
    annotate_schedule,
    chosen_tile,
    use_swizzle,
)
from tilec.fuzz.control import (
    block_scalar,
    conditional,
    printed,
    serial,
    stepping,
    unrolled_by_python,
    while_loop,
)
from tilec.fuzz.copies import (
    clear,
    copy_between_tensors,
    copy_in,
    copy_out,
    copy_out_part,
    copy_part,
    copy_row,
    copy_slices,
    copy_tiles,
    copy_whole,
    fill,
)
from tilec.fuzz.elements import (
    broadcast,
    element_stores,
    gather,
    parallel,
    parallel_guarded,
    parallel_moved,
    parallel_out,
    parallel_part,
    parallel_while,
    tile_macro,
    variable,
    vectorized,
)
from tilec.fuzz.pipelines import pipelined, pipelined_pair
from tilec.fuzz.products import pipelined_product, product, product_of_parts
from tilec.fuzz.reductions import prefix, reduced, softmax, sums
from tilec.fuzz.threads import thread_code, thread_exchange, thread_tile
from tilec.fuzz.writer import Word

STATEMENTS: tuple[Word, ...] = (
    copy_in, copy_in, copy_slices, copy_row, copy_whole, copy_tiles, copy_part, copy_out,
    copy_out_part, copy_between_tensors, fill, clear, parallel, parallel, parallel_part,
    parallel_moved, parallel_guarded, parallel_out, parallel_while, gather, broadcast,
    element_stores, variable, vectorized, tile_macro, sums, reduced, softmax, prefix, conditional,
    serial, stepping, unrolled_by_python, while_loop, pipelined, pipelined_pair, product,
    product_of_parts, block_scalar, printed, thread_code, thread_tile, thread_exchange,
    thread_exchange,
)  # fmt: skip
OUTER: tuple[Word, ...] = (
    annotate_layout, annotate_safe_value, use_swizzle, annotate_schedule, pipelined_product,
    pipelined_product, pipelined_product, pipelined, chosen_tile,
)  # fmt: skip

WITHOUT_GENERATOR: dict[str, str] = {
    "Size": "what T.dynamic and T.const make; nobody writes its name",
    "Macro": "what T.macro makes; nobody writes its name",
    "Auto": "the class of T.auto; nobody writes its name",
    "Elementwise": "the class of the words that are functions of numbers",
    "NotYet": "stands for words that are planned and refused",
    "int4": "nothing can be computed with it yet: every target refuses it",
    "uint4": "nothing can be computed with it yet: every target refuses it",
    "float4_e2m1": "nothing can be computed with it yet: every target refuses it",
}
