"""The histogram beside a colour bar."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.wire.slices import HeadSlice


def histogram(piece: HeadSlice, shown: float, num_pixels: int) -> npt.NDArray[np.float32]:
    """Bar lengths 0 … 1 for pixels from `+shown` at the top to `-shown` at the bottom.

    The root of the counts, so that the few that matter are seen beside the many that do not.
    """
    lengths = np.zeros(num_pixels, dtype=np.float32)
    if num_pixels < 1 or not piece.counts.size or not piece.counts.any():
        return lengths
    edges = np.linspace(shown, -shown, num_pixels + 1)
    # counts are spread evenly within a bin: the running count is then straight between the edges
    running = np.concatenate([[0], np.cumsum(piece.counts)])
    # a bin without width (all values equal) would leave its count at no pixel
    bin_edges = np.maximum.accumulate(piece.edges.astype(np.float64) + np.arange(piece.edges.size) * 1e-12)
    share = np.abs(np.diff(np.interp(edges, bin_edges, running)))
    most = share.max()
    return np.sqrt(share / most).astype(np.float32) if most > 0 else lengths
