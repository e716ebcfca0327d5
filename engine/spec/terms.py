"""The terms of the formula of a cache's bytes: products whose sum is the number of bytes.

Every number of bytes is computed from terms, so that the formula that is printed is the one that was computed. No
torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

Named = Literal["", "codes", "scales", "scales and offsets", "exact residual", "indexer's keys", "state"]
TermPart = Literal["", "K", "V", "K and V"]

MOST_TERMS = 6  # beyond that, layers that differ only in how many rows they keep are added up in one term
LEGEND = {
    "L": "layers",
    "H_kv": "kv heads",
    "D": "head_dim",
    "N": "numbers",
    "S": "tokens held",
    "ΣS": "tokens held, summed over the layers",
    "b": "bytes a number",
    "b/8": "bits a number, by 8",
    "g": "numbers that share a scale",
}


class Term(Struct, frozen=True, array_like=True, gc=False):
    """One product: `times · layers · heads · dims · rows · width / per`. A factor of 0 is not in it.

    `name` says what the bytes are of, if they are not simply K and V, `part` which of the two, `kind` the kind of
    layer. `times` counts K and V, and sequences where there is no factor of rows; `rows` are those of all sequences, a
    row that several share counted once. `width` are bytes a number, or bits if `per` is 8; for scales the bytes of a
    scale, and `per` the numbers that share it.
    """

    name: Named
    part: TermPart
    times: int = 1
    layers: int = 1
    heads: int = 0
    dims: int = 0
    rows: int = 0
    width: int = 1
    per: int = 0
    kind: str = ""

    @property
    def num_bytes(self) -> int:
        """The product."""
        product = self.times * (self.layers or 1) * (self.heads or 1) * (self.dims or 1) * (self.rows or 1) * self.width
        return product // (self.per or 1)

    @property
    def label(self) -> str:
        """`codes of K`, `scales`; of both K and V alike the name alone, if there is one."""
        if not self.name or self.name in ("indexer's keys", "state"):
            return self.name or self.part
        return self.name if self.part in ("", "K and V") else f"{self.name} of {self.part}"

    @property
    def words(self) -> str:
        """The label with the kind of layer, where layers differ: `K and V, sliding`."""
        return f"{self.label}, {self.kind}" if self.kind else self.label

    @property
    def symbols(self) -> str:
        """`2·L·H_kv·D·S·b`: the factors by their symbols."""
        return self._written({name: name for name in LEGEND})

    @property
    def values(self) -> str:
        """`2·6·4·32·294·4`: the same factors in numbers."""
        return self._written(
            {
                "L": f"{self.layers:,}",
                "H_kv": f"{self.heads:,}",
                "D": f"{self.dims:,}",
                "N": f"{self.dims:,}",
                "S": f"{self.rows:,}",
                "ΣS": f"{self.rows:,}",
                "b": str(self.width),
                "b/8": f"{self.width}/8",
                "g": f"{self.per:,}",
            }
        )

    @property
    def legend(self) -> str:
        """What each symbol of the term means."""
        found = self.symbols.replace("/g", "·g").split("·")
        return " · ".join(f"{name} {LEGEND[name]}" for name in found if name in LEGEND)

    def _written(self, of: dict[str, str]) -> str:
        factors = [str(self.times)] if self.times != 1 else []
        factors += [of["L"]] if self.layers else []
        factors += [of["H_kv"]] if self.heads else []
        factors += [of["D" if self.heads else "N"]] if self.dims else []
        factors += [of["S" if self.layers else "ΣS"]] if self.rows else []
        if self.name.startswith("scales"):
            return "·".join([*factors, str(self.width)]) + (f"/{of['g']}" if self.per else "")
        return "·".join([*factors, of["b/8" if self.per else "b"]])


def bytes_of(terms: Iterable[Term]) -> int:
    """The sum of the terms."""
    return sum(term.num_bytes for term in terms)


def of_one_layer(terms: Iterable[Term]) -> tuple[Term, ...]:
    """The terms of one layer, in which sequences are added up, and K and V where they are alike."""
    summed: dict[Term, Term] = {}
    for term in terms:
        key = replace(term, rows=bool(term.rows), times=1)
        known = summed.get(key)
        if known is None:
            summed[key] = term
        elif term.rows:
            summed[key] = replace(known, rows=known.rows + term.rows)
        else:
            summed[key] = replace(known, times=known.times + term.times)
    both: dict[Term, Term] = {}
    for had_rows, term in ((key.rows, term) for key, term in summed.items()):
        if had_rows and not term.rows:
            continue
        key = replace(term, part="")
        known = both.get(key)
        both[key] = term if known is None else replace(known, part="K and V", times=2 * known.times)
    return tuple(both.values())


def of_all_layers(layers: Iterable[tuple[Term, ...]]) -> tuple[Term, ...]:
    """The terms of a cache, from those of its layers: layers that are alike are one term with a factor."""
    counts: dict[Term, int] = {}
    for terms in layers:
        for term in terms:
            counts[term] = counts.get(term, 0) + 1
    found = tuple(replace(term, layers=count) for term, count in counts.items())
    return found if len(found) <= MOST_TERMS else _added_up(found)


def _added_up(terms: Sequence[Term]) -> tuple[Term, ...]:
    """The terms, those that differ only in layers and rows as one."""
    alike: dict[Term, list[Term]] = {}
    for term in terms:
        alike.setdefault(replace(term, layers=0, rows=0) if term.rows else term, []).append(term)
    return tuple(
        group[0] if len(group) == 1 else replace(key, rows=sum(one.layers * one.rows for one in group))
        for key, group in alike.items()
    )
