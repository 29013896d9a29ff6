"""Who asks for the class of a tile op: what an op does is asked of its effects."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "tilec"
MOVES = {"Copy", "Fill", "Store"}


def named(node: ast.AST) -> set[str]:
    of_ast = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)
              and isinstance(n.value, ast.Name) and n.value.id == "ast"}  # fmt: skip
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    names |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)} - of_ast
    return names & MOVES


def asked(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, class) of each test for one of these classes."""
    for node in ast.walk(tree):
        found: set[str] = set()
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, classes]):
                found = named(classes)
            case ast.Call(func=ast.Attribute(attr="every" | "rewrite"), args=[cls, *_]):
                found = named(cls)
            case ast.MatchClass(cls=cls):
                found = named(cls)
            case ast.Compare(left=ast.Call(func=ast.Name(id="type"))):
                found = set().union(*map(named, node.comparators))
        yield from ((node.lineno, name) for name in found)


LOWERING = "makes loops, boxes or registers of these very ops"
SELECTION = "chooses by whom a copy is made, when, or with which layout and dtype"
VALUES = "follows what is stored, not that it is"
TELLS = "says of copies in a kernel who makes them"
REASONS = {
    "codegen/cpu_loops.py": VALUES,
    "explain/schedule.py": TELLS,
    "jit/repeated.py": VALUES,
    "frontend/narrow.py": SELECTION,
    "frontend/prefetches.py": SELECTION,
    "frontend/updates.py": VALUES,
    "ir/element_loops.py": LOWERING,
    "jit/performance.py": TELLS,
    "passes/arrange.py": SELECTION,
    "passes/check_schedule.py": VALUES,
    "passes/cluster_split_k.py": SELECTION,
    "passes/convert_fragments.py": LOWERING,
    "passes/demote_fragments.py": LOWERING,
    "passes/expand_pipeline.py": LOWERING,
    "passes/flatten_rows.py": LOWERING,
    "passes/fold_clears.py": LOWERING,
    "passes/forward_copies.py": VALUES,
    "passes/group_threads.py": LOWERING,
    "passes/hoist_accesses.py": LOWERING,
    "passes/infer_layouts.py": SELECTION,
    "passes/insert_sync.py": VALUES,
    "passes/hold_operands.py": SELECTION,
    "passes/join_blocks.py": LOWERING,
    "passes/join_branches.py": LOWERING,
    "passes/join_iterations.py": SELECTION,
    "passes/lower_barriers.py": LOWERING,
    "passes/lower_copies.py": LOWERING,
    "passes/lower_parallel.py": LOWERING,
    "passes/lower_stores.py": LOWERING,
    "passes/utils/copies_past_registers.py": LOWERING,
    "passes/mem2reg.py": VALUES,
    "passes/narrow_operands.py": VALUES,
    "passes/pad_tiles.py": LOWERING,
    "passes/split_operands.py": VALUES,
    "passes/utils/loop_body.py": VALUES,
    "passes/pair_halves.py": VALUES,
    "passes/plan_pipeline.py": SELECTION,
    "passes/plan_shared.py": LOWERING,
    "passes/round_operands.py": SELECTION,
    "passes/select_copies.py": SELECTION,
    "passes/turn_tensors.py": LOWERING,
    "passes/sink_reductions.py": VALUES,
    "passes/split_fragments.py": VALUES,
    "passes/split_tiles.py": LOWERING,
    "passes/split_roles.py": SELECTION,
    "passes/spread_loops.py": VALUES,
    "passes/stage_stores.py": LOWERING,
    "passes/utils/accesses.py": LOWERING,
    "passes/rename_changed.py": SELECTION,
    "passes/resolve_views.py": LOWERING,
    "passes/utils/coalescing.py": SELECTION,
    "passes/utils/column_parts.py": LOWERING,
    "passes/utils/conversions.py": LOWERING,
    "passes/utils/multicast.py": SELECTION,
    "passes/utils/own_elements.py": VALUES,
    "passes/utils/rings.py": LOWERING,
    "passes/utils/role_cut.py": SELECTION,
    "passes/utils/schedule_program.py": VALUES,
    "passes/utils/several_stores.py": VALUES,
    "passes/utils/operand_factors.py": VALUES,
    "passes/utils/tile_ends.py": VALUES,
    "passes/utils/consumer_groups.py": SELECTION,
    "passes/widen_copies.py": SELECTION,
    "passes/sink_scales.py": VALUES,
    "passes/unroll_loads.py": LOWERING,
    "passes/utils/rough.py": VALUES,
    "passes/version_loops.py": VALUES,
    "tune/footprint.py": SELECTION,
    "tune/packing.py": SELECTION,
    "tune/work.py": SELECTION,
}
"""The files that name a copy, a fill or a store, and why no effect would tell them."""


def test_who_moves_data_is_asked_of_effects() -> None:
    found = {
        str(p.relative_to(ROOT)): sorted(set(asked(ast.parse(p.read_text()))))
        for p in ROOT.rglob("*.py")
    }
    new = {name: lines for name, lines in found.items() if lines and name not in REASONS}
    assert new == {}, "ask Op.effects, or say why it cannot tell"
    assert all(found.get(name) for name in REASONS), "the file asks for no class any more"


def test_the_scan_sees_all_forms() -> None:
    text = "isinstance(o, (Load, Copy))\nmatch o:\n  case tile.Fill(): pass\ntype(o) is Store\n"
    text += "b.every(Copy)\n"
    found = [name for _, name in sorted(asked(ast.parse(text)))]
    assert found == ["Copy", "Fill", "Store", "Copy"]
