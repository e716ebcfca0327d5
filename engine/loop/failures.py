"""Words for unexpected errors."""

from __future__ import annotations

from engine.errors import is_out_of_memory, not_imported
from engine.shortage import Memory, out_of_memory


def plain(error: BaseException, what: str = "", memory: Memory | None = None) -> str:
    """An unexpected error in one sentence for the user; `what` was being done, `memory` is what is free now."""
    lines = str(error).strip().splitlines()
    first = lines[0][:200] if lines else "no details"
    if isinstance(error, ImportError) and (why := not_imported(error)):
        return why
    if is_out_of_memory(error):
        return out_of_memory(error, first, what, memory)
    return f"Something unexpected went wrong ({type(error).__name__}: {first}); the session is as it was."
