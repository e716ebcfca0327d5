"""The panels, one row each: what a panel is called, what it shows in a sentence, and other words for it. The palette
and the manual know every panel from here, those that are built late as well."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class PanelRow(Struct, frozen=True):
    """`title`, as on the panel's strip; `says`, what it shows; `also`, other words for it, separated by commas."""

    title: str
    says: str
    also: str = ""


# By the name of the panel's dock, which is also the name of its page in the manual.
PANELS: Mapping[str, PanelRow] = {
    "prompt": PanelRow(
        "Prompt",
        "A text, a conversation or token ids; how many tokens that is, and how the next token is chosen.",
        "chat, conversation, input text, token ids, chat template",
    ),
    "tokens": PanelRow(
        "Tokens",
        "The tokens computed so far, one chip each, coloured by surprisal; the token chosen next is dashed.",
        "surprisal, text, chips, generated text, output",
    ),
    "wall": PanelRow(
        "Cache wall",
        "K or V of every layer and kv head: tokens across, channels down.",
        "kv cache, overview, all heads, keys, values, heat map",
    ),
    "head": PanelRow(
        "Head",
        "K or V of one head, token by token and channel by channel, with the exact value under the cursor.",
        "heat map, heatmap, matrix, one head, exact value, channel",
    ),
    "attention": PanelRow(
        "Attention",
        "Attention of the newest token: one row per query head, grouped by the kv head they share.",
        "attention weights, newest row, attention map, sinks, attention sinks, query",
    ),
    "next_token": PanelRow(
        "Next token",
        "The most probable next tokens, before and after sampling; a click on one takes it.",
        "logits, candidates, probabilities, distribution, entropy, top candidates",
    ),
    "pages": PanelRow(
        "Pages",
        "The page pool of a paged cache: which sequence holds each page, how full it is, and what is shared.",
        "page table, block table, paged attention, pool, fragmentation, free pages",
    ),
    "sequences": PanelRow(
        "Sequences",
        "Every sequence in the cache, its rows and pages, and why a prefix was not reused.",
        "batch, prefix cache, prefix reuse, prefix hit, fork",
    ),
    "timings": PanelRow(
        "Step time",
        "The phases of each step's time, with that of KV Loupe's own measuring.",
        "latency, overhead, profile, timing, milliseconds, tokens per second",
    ),
    "branches": PanelRow(
        "Branches",
        "The history as a tree: where branches part, and what each of them changed.",
        "history, tree, checkpoints, time travel",
    ),
    "bytes": PanelRow(
        "Bytes",
        "Bytes of the cache: predicted by formula, stored in rows, reserved in storage, and every difference named.",
        "memory, memory use, size, kv cache size, MiB, formula",
    ),
    "inspector": PanelRow(
        "Inspector",
        "Everything about the selected token: norms by layer, surprisal, attention received, exact rows.",
        "token details, norms, properties",
    ),
    "edits": PanelRow(
        "Edits",
        "What was changed by hand, and what each edit did to the next token.",
        "undo list, interventions, ablation, activation patching",
    ),
    "breakpoints": PanelRow(
        "Breakpoints",
        "Conditions at which a run halts; the steps where the typed one held are marked on the timeline.",
        "stops, conditions, conditional breakpoints, halt, watch",
    ),
    "notes": PanelRow(
        "Notes",
        "Bookmarks with notes on steps, tokens, pages and heads.",
        "bookmarks, annotations, comments",
    ),
    "what_if": PanelRow(
        "What if",
        "The next token with another budget, window or number of bits beside the present one.",
        "slider, what would happen, try a budget",
    ),
    "evicted": PanelRow(
        "Why evicted",
        "The rule that evicted a row, its score beside those of the kept rows, and what leaving a row out costs.",
        "hatched, hatched columns, evicted, eviction, dropped rows, missing rows, heavy hitters, leave one out, regret",
    ),
    "damage": PanelRow(
        "Codec damage",
        "The error of quantised K and V by layer, head, token and channel, and its effect on the next token.",
        "quantisation error, quantization error, codec, rounding error",
    ),
    "parity": PanelRow(
        "Parity",
        "The logits of every step against no cache, or any other mode, and how much of it rounding explains.",
        "exact, correctness, verify, lossless",
    ),
    "sweep": PanelRow(
        "Sweep",
        "Every cache mode on this prompt: bytes, speed, KL, agreement and perplexity.",
        "compare modes, Pareto, which mode is best",
    ),
    "bench": PanelRow(
        "Bench",
        "Decode speed of cache modes, measured in turns at several contexts and batch sizes.",
        "benchmark, speed, throughput, latency",
    ),
    "prefixes": PanelRow(
        "Prefix tree",
        "What a server, or the page pool of this session, has cached: its prefixes as a tree.",
        "radix tree, prefix cache, vLLM, SGLang, KV events, cached prompts, what is in there",
    ),
    "reuse": PanelRow(
        "Why not reused",
        "How much of a prompt a server's prefix cache has, and why no more.",
        "prefix hit, cache miss, explain, cached tokens, prefix reuse, why recomputed",
    ),
    "server": PanelRow(
        "Server",
        "A server's evictions, lifetimes of blocks, hit ratio by pool size, and its own figures beside them.",
        "vLLM, SGLang, TensorRT-LLM, KV events, metrics, evictions, lifetime, hit ratio, preemptions",
    ),
    "compare": PanelRow(
        "Compare",
        "K and V of two runs and their difference, with one cursor, selection and zoom.",
        "diff, side by side, duel, versus",
    ),
    "compared_steps": PanelRow(
        "Compared steps",
        "How two runs differ at every step: KL, logits, attention and K and V.",
        "divergence, first difference",
    ),
}

# It stands below the panels and is none of them, but has a page as they do.
TIMELINE = PanelRow(
    "Timeline",
    "All steps: drag to see an earlier one. Go on from here makes it the live one; what came after stays a branch.",
    "history, scrub, earlier steps",
)
