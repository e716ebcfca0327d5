"""What a server's stream says in all, as numbers."""

from __future__ import annotations

from typing import Any

from engine.serving.server import Server


def summary(server: Server) -> dict[str, Any]:
    """Counts over all ranks; `hit_ratio_by_blocks` is an estimate (see `pool_size`), rows of `(blocks, ratio)`."""
    trees = list(server.trees.values())
    live = [block for tree in trees for block in tree.blocks.values() if block.copies]
    pool = trees[0].trace.rows(trees[0].most_copies) if len(trees) == 1 else ()
    return {
        "batches": server.num_batches,
        "events": server.num_events,
        "seconds": round(server.last - server.first, 3),
        "encodings": sorted(server.encodings),
        "ranks": sorted({tree.rank for tree in trees}),
        "block_sizes": sorted({size for tree in trees for size, _ in tree.groups.values()}),
        "groups": sorted({group for tree in trees for group in tree.groups}),
        "live_blocks": server.total("copies"),
        "live_hashes": server.total("num_live"),
        "live_tokens": sum(block.size for block in live),
        "most_live_blocks": server.total("most_copies"),
        "stored": server.total("num_stored"),
        "removed": server.total("num_removed"),
        "cleared": server.total("num_cleared"),
        "stored_again": server.total("num_again"),
        "stored_again_tokens": server.total("tokens_again"),
        "media": sorted({medium for block in live for medium in block.media}),
        "salts": len({extra for block in live for extra in block.extra if block.parent is None}),
        "adapters": sorted({block.lora for block in live if block.lora}),
        "missing": server.missing,
        "missing_batches": server.num_missing,
        "repeated": server.num_repeated,
        "restarts": server.num_restarts,
        "unreadable": server.num_unreadable,
        "unknown_events": sum(server.unknown.values()),
        "partial": server.is_partial,
        "lifetimes_s": [list(row) for row in server.seconds("lifetimes")],
        "reuse_gaps_s": [list(row) for row in server.seconds("reuse_gaps")],
        "absences_s": [list(row) for row in server.seconds("absences")],
        "hit_ratio_by_blocks": [list(row) for row in pool],
        "notes": list(server.notes()),
    }
