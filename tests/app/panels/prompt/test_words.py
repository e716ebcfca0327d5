"""What stands around the editor: what is wrong with a text, and that it does not matter while another is read."""

from __future__ import annotations

import pytest

from app.panels.prompt.view import IDS, TEXT, PromptText, prompt_state

FITS = PromptText("abc", (1, 2, 3), "", 8, TEXT)
EXCEEDS = PromptText("abc", tuple(range(9)), "", 8, TEXT)
REFUSED = PromptText("abc", None, "no tokens: 'abc' is no id", 8, IDS)
READING = "reading 5 of 9"


@pytest.mark.parametrize(
    ("text", "now", "detail", "brief", "is_wrong"),
    [
        (FITS, "", "3 of 8 tokens", "3/8", False),
        (EXCEEDS, "", "9 of 8 tokens", "9/8", True),
        (EXCEEDS, READING, READING, "", False),
        (REFUSED, "", "no tokens: 'abc' is no id", "no token ids", True),
        (REFUSED, READING, READING, "", False),
    ],
)
def test_the_title_says_what_is_wrong_unless_a_prompt_is_read(
    text: PromptText, now: str, detail: str, brief: str, is_wrong: bool
) -> None:
    found = prompt_state(text, now, "", is_greedy=True)
    assert (found.detail, found.brief, found.is_wrong) == (detail, brief, is_wrong)
    assert bool(found.problem) == (text is not FITS), "it cannot be sent, whatever is read meanwhile"
    assert (found.has_seed, found.can_send_first, found.can_draw_random) == (False, text is EXCEEDS, text is REFUSED)
