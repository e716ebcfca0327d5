"""What a server's stream says in all, as numbers."""

from __future__ import annotations

from typing import Any

from engine.serving.server import Server


def summary(server: Server) -> dict[str, Any]:
    """Counts over all ranks; `hit_ratio_by_blocks` is an estimate (see `pool_size`), rows of `(blocks, ratio)`."""
    trees, counts = list(server.trees.values()), server.counts
    live = [block for tree in trees for block in tree.blocks.values() if block.copies]
    pool = trees[0].trace.rows(counts.most_live) if len(trees) == 1 else ()
    return {
        "batches": server.num_batches,
        "events": server.num_events,
        "seconds": round(server.last - server.first, 3),
        "encodings": sorted(server.encodings),
        "ranks": sorted({tree.rank for tree in trees}),
        "block_sizes": sorted({group.size for tree in trees for group in tree.groups.values()}),
        "groups": sorted({group for tree in trees for group in tree.groups}),
        "live_blocks": counts.live,
        "live_hashes": len(live),
        "live_tokens": sum(block.size for block in live),
        "most_live_blocks": counts.most_live,
        "stored": counts.stored,
        "removed": counts.removed,
        "cleared": counts.cleared,
        "stored_again": counts.again,
        "stored_again_tokens": counts.again_tokens,
        "media": sorted({medium for block in live for medium in block.copies}),
        "salts": len({extra for block in live for extra in block.extra if block.parent is None}),
        "adapters": sorted({block.lora for block in live if block.lora}),
        "missing": server.missing,
        "missing_batches": server.num_missing,
        "repeated": server.num_repeated,
        "restarts": server.num_restarts,
        "unreadable": server.num_unreadable,
        "unknown_events": sum(server.unknown.values()),
        "partial": server.is_partial,
        "lifetimes_s": [list(row) for row in sorted(counts.lifetimes.items())],
        "reuse_gaps_s": [list(row) for row in sorted(counts.reuse_gaps.items())],
        "absences_s": [list(row) for row in sorted(counts.absences.items())],
        "hit_ratio_by_blocks": [list(row) for row in pool],
        "notes": list(server.notes()),
    }
