"""All that came from one server: a tree for each of its ranks, kept in step with the sequence numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import islice
from typing import Any

from msgspec import structs

from engine.counted import counted
from engine.errors import InputError
from engine.serving.events import END_MARK, Message, decode
from engine.serving.tree import Tree
from engine.wire.serving import Counts

# Of how many latest batches the times are kept, to tell one that came twice from a restart; and how many gaps.
MAX_TIMES, MAX_MISSING, MAX_RANKS = 20_000, 1000, 1024
MOST_PERIODS = 120  # of the chart over time
RESTARTED = "lost when the server restarted"
Name = tuple[bytes, int]  # topic and rank


class Lane:
    """The sequence numbers of one publisher: the next one, those missing as `[first, last]`, and latest times."""

    def __init__(self) -> None:
        self.next = 0
        self.missing: list[list[int]] = []
        self.times: dict[int, float] = {}
        self.newest = float("-inf")


class Server:
    """The fold of everything that a server published. `name` is what people call it: an address, or a file."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.counts = Counts()
        self.trees: dict[Name, Tree] = {}
        self._lanes = defaultdict[Name, Lane](Lane)
        self.unknown = Counter[str]()
        self.encodings: set[str] = set()
        self.waited = 0.0  # seconds since its last batch came, of one that serves now
        self.why_unreadable = ""
        self.cut_after: int | None = None  # of a file that ends within the batch after so many

    @property
    def now(self) -> float:
        """The time, by the server's clock."""
        return self.counts.last_s + self.waited

    @property
    def missing(self) -> list[list[int]]:
        """Batches that were lost and have not come yet, `[first, last]`."""
        return [gap for lane in self._lanes.values() for gap in lane.missing]

    @property
    def is_partial(self) -> bool:
        return any(not tree.is_known for tree in self.trees.values()) or (self.counts.unreadable > 0 and not self.trees)

    def fold(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.take(message)

    def take(self, message: Message) -> None:
        """Fold one batch; one that cannot be read is counted, and leaves a gap."""
        counts = self.counts
        if message.seq == END_MARK:
            counts.restarts += 1
            for name, tree in self.trees.items():
                if name[0].startswith(message.topic):
                    tree.clear(counts.last_s, RESTARTED)
                    self._lanes.pop(name, None)
            return
        try:
            batch = decode(message.payload)
            name = self._name_of(message.topic, batch.rank)
            tree = self.trees.get(name) or self._new_tree(name)
        except InputError as error:
            counts.unreadable += 1
            self.why_unreadable = str(error)
            for (topic, _), tree in self.trees.items():
                if topic == message.topic:  # of which rank it was is not known
                    tree.lost()
            return
        if not self._comes_next(self._lanes[name], tree, message.seq, batch.time):
            counts.repeated += 1
            return
        self._see(batch.time)
        counts.batches += 1
        counts.events += len(batch.events)
        if batch.encoding:
            self.encodings.add(batch.encoding)
        for kind in batch.unknown:
            if kind in self.unknown or len(self.unknown) < 64:
                self.unknown[kind] += 1
        for event in batch.events:
            tree.fold(event, batch.time)

    def _new_tree(self, name: Name) -> Tree:
        if len(self.trees) >= MAX_RANKS:
            raise InputError(f"more than {MAX_RANKS} ranks")
        tree = self.trees[name] = Tree(name[1], self.counts)
        return tree

    def _see(self, now: float) -> None:
        """The stream reaches to this time: where its periods get too many, they get longer."""
        counts = self.counts
        counts.first_s = min(counts.first_s, now) if counts.batches else now
        counts.last_s = max(counts.last_s, now) if counts.batches else now
        while counts.last_s - counts.first_s >= MOST_PERIODS * counts.period_s:
            counts.period_s *= 2
            halved = tuple[Counter[int], ...](Counter() for _ in counts.rates)
            for old, new in zip(counts.rates, halved, strict=True):
                for at, number in old.items():
                    new[at // 2] += number
            counts.rates = halved

    def _name_of(self, topic: bytes, rank: int) -> Name:
        """The tree that a batch belongs to. Replayed batches have no topic (but for the address, of several publishers)
        where a server leaves it out (older vLLM, SGLang): these are of the only publisher of that rank, whether its
        topic is known before or afterwards."""
        name, address = (topic, rank), topic[: topic.rfind(b" ") + 1]
        unnamed = address, rank
        if name in self.trees:
            return name
        if topic == address:
            same = [each for each in self.trees if each[1] == rank and each[0].startswith(address)]
            return same[0] if len(same) == 1 else unnamed
        if unnamed in self.trees:
            self.trees[name], self._lanes[name] = self.trees.pop(unnamed), self._lanes.pop(unnamed)
        return name

    def _comes_next(self, lane: Lane, tree: Tree, seq: int, time: float) -> bool:
        """Whether a batch is to be folded: it is the next one, one behind a gap or late out of one, or the first of a
        server that restarted; not one that came already."""
        if seq < lane.next:
            gap = next((gap for gap in lane.missing if gap[0] <= seq <= gap[1]), None)
            if gap is not None and time <= lane.newest:
                lane.missing.remove(gap)
                lane.missing += [part for part in ([gap[0], seq - 1], [seq + 1, gap[1]]) if part[0] <= part[1]]
                self.counts.missing_batches -= 1
                lane.times[seq] = time
                return True
            known = lane.times.get(seq)
            if known == time or (known is None and time <= lane.newest):
                return False
            self.counts.restarts += 1
            tree.clear(time, RESTARTED)
            lane.next, lane.missing, lane.times = 0, [], {}
        if seq > lane.next:
            tree.lost()
            self.counts.missing_batches += seq - lane.next
            lane.missing = [*lane.missing, [lane.next, seq - 1]][-MAX_MISSING:]
        lane.next = seq + 1
        lane.newest = time
        lane.times[seq] = time
        if len(lane.times) > 2 * MAX_TIMES:
            lane.times = dict(islice(lane.times.items(), MAX_TIMES, None))
        return True

    # ---- reading -------------------------------------------------------------------------------------------------

    def hit_ratios(self, num_blocks: int = 0, latest: float = float("inf")) -> tuple[tuple[int, float], ...]:
        """`(blocks, estimated hit ratio)` for pools from a quarter of `num_blocks` for each rank (0: of the most that
        lived) to eight times as many; from the `latest` blocks that were asked for, from all unless given."""
        traces = [trace for tree in list(self.trees.values()) if (trace := tree.trace).num_blocks]
        rows: list[tuple[int, float]] = []
        if not traces:
            return ()
        num_blocks = num_blocks or -(-self.counts.most_live_blocks // len(traces))
        for size in sorted({max(1, round(num_blocks * 2.0**step)) for step in range(-2, 4)}):
            if rows and rows[-1][0] >= max(trace.num_blocks for trace in traces):
                break  # everything fits already
            hits, asked = map(sum, zip(*(trace.hits(size, latest / len(traces)) for trace in traces), strict=True))
            rows.append((size, round(hits / asked, 4) if asked else 0.0))
        return tuple(rows)

    def notes(self) -> tuple[str, ...]:
        """What has to be known before its numbers are believed, a sentence each."""
        found, counts = [], self.counts
        if self.cut_after is not None:
            found.append(f"The file ends within a batch, after {self.cut_after:,} whole ones: it was cut short.")
        for first, last in self.missing[:3]:
            what = f"Batches {first:,} to {last:,} are" if last > first else f"Batch {first:,} is"
            when = "from before the beginning" if not first else "lost"
            found.append(f"{what} missing ({when}): the tree is partial.")
        if len(self.missing) > 3:
            found.append(
                f"And {counted(len(self.missing) - 3, 'gap')}: {counts.missing_batches:,} batches are missing in all."
            )
        if counts.restarts:
            found.append(f"The server restarted {counted(counts.restarts, 'time')}, with an empty cache.")
        if counts.unreadable:
            found.append(f"{counted(counts.unreadable, 'batch', 'batches')} could not be read: {self.why_unreadable}.")
        if self.unknown:
            kinds = ", ".join(sorted(self.unknown)[:5])
            found.append(f"Passed over: {counted(sum(self.unknown.values()), 'event')} of unknown types, {kinds}.")
        odd = sorted(counts.contradictions.items())
        found += [f"The stream contradicts itself: {what} ({count:,})." for what, count in odd]
        if waiting := sum(1 for tree in self.trees.values() for _ in tree.late()):
            found.append(f"What precedes {counted(waiting, 'block')} is not known.")
        return tuple(found)


def summary(server: Server) -> dict[str, Any]:
    """Counts over all ranks; `hit_ratio_by_blocks` is an estimate, of pools of so many blocks for each rank."""
    trees = list(server.trees.values())
    live = [block for tree in trees for block in tree.blocks.values() if block.copies]
    counts = {
        name: sorted(map(list, count.items())) if isinstance(count, dict) else count
        for name, count in structs.asdict(server.counts).items()
        if name not in ("first_s", "last_s", "period_s", "rates")
    }
    return {
        **counts,
        "seconds": round(server.counts.last_s - server.counts.first_s, 3),
        "encodings": sorted(server.encodings),
        "ranks": sorted({tree.rank for tree in trees}),
        "block_sizes": sorted({group.size for tree in trees for group in tree.groups.values()}),
        "groups": sorted({group for tree in trees for group in tree.groups}),
        "live_hashes": len(live),
        "live_tokens": sum(block.size for block in live),
        "media": sorted({medium for block in live for medium in block.copies}),
        "salts": len({extra for block in live for extra in block.extra if block.parent is None}),
        "adapters": sorted({block.lora for block in live if block.lora}),
        "missing": server.missing,
        "unknown_events": sum(server.unknown.values()),
        "partial": server.is_partial,
        "hit_ratio_by_blocks": list(map(list, server.hit_ratios())),
        "notes": list(server.notes()),
    }
