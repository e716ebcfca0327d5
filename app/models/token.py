"""One token of a sequence, as the window shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Token:
    """One token of a sequence whose K and V are in the cache; `step` is the step that put them there.

    `token_id` is -1 where a file does not say it. `surprisal` is in nats, None where it was not computed. `is_served`:
    a prefix hit brought its K and V, they were not computed for this sequence. `num_fed_before`: the tokens that its
    step fed before it. `is_computed_anew`: after an edit, behind another text than its step fed.
    """

    position: int
    token_id: int
    text: str
    surprisal: float | None
    step: int
    forced: bool
    is_prompt: bool
    is_served: bool = False
    num_fed_before: int = 0
    is_computed_anew: bool = False

    @property
    def id_text(self) -> str:
        """Its id, or that a file did not say it."""
        return f"{self.token_id:,}" if self.token_id >= 0 else "not known"

    @property
    def awaits_surprisal(self) -> bool:
        """Whether its prompt is so long that its surprisal is computed later than its K and V."""
        return self.surprisal is None and self.num_fed_before > 0 and not self.is_computed_anew

    @property
    def no_surprisal(self) -> str:
        """Why it has no surprisal, in words; empty where it has one."""
        if self.surprisal is not None:
            return ""
        if self.awaits_surprisal:
            return "not computed yet: comes when the engine rests"
        if self.is_computed_anew:
            return "not computed: other tokens were put in before it"
        if self.is_served:
            return "not computed: its page was found"
        return "nothing predicted it" if self.position == 0 else "not computed: no logits of the token before it"
