"""plain_products: products of pipelined loops are waited for where it is best, whatever their
author has asked for, where that is all that he orders by hand.

Before and after: TILE, as traced, so that plans are chosen for what it is made of. An author who
writes

    for k in T.Pipelined(n, num_stages=2):
        T.copy(Q[k * 64, 0], q)
        T.wgmma_gemm(K_s, q, s, transpose_B=True)
        T.wgmma_gemm(V_s, d, p, transpose_B=True)
        T.wait_wgmma(1)
        …

says when a product has ended, not that it goes on until then: with `T.gemm` in place of both, and
without waits, the results are the same. Then producers bring the tiles, and `arrange` has the
products beside what threads compute. Who moves tiles, meets or groups threads by himself, or counts
the statements of a loop, has his own order, and so has a loop without stages."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir import ops
from tilec.ir.core import Func, Op, within
from tilec.passes.plan_pipeline import has_stages


def plain_products(func: Func) -> Func:
    if not func.body.has(ops.WgmmaWait):
        return func

    def visit(o: Op) -> None | Op | list[Op]:
        if isinstance(o, ops.WgmmaWait):
            return []
        if isinstance(o, ops.Gemm) and o.asynchronous:
            return replace(o, asynchronous=False)
        return None

    body = func.body.rewrite(Op, visit)
    ordered = any(o.order or o.stage for o in func.body.every(ops.For))
    products = (x for x in within(func.body) if isinstance(x[0], ops.Gemm) and x[0].asynchronous)
    loops = [[x for x in around if isinstance(x, ops.For)][-1:] for _, around in products]
    staged = all(loop and has_stages(*loop) for loop in loops)
    return func.with_body(body) if staged and not ordered and not ops.is_by_hand(body) else func
