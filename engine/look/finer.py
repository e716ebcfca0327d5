"""Pictures over a slow line: one that would come late is sent in fewer cells, and whole when the line has time."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from threading import Lock

from msgspec.structs import replace

from engine.wire.encoding import encode
from engine.wire.events import Event
from engine.wire.pictures import (
    AttentionPicture,
    AttentionRequest,
    CellUpdate,
    HeadPicture,
    HeadRequest,
    Picture,
    PictureRequest,
    PictureUpdate,
    WallPicture,
    WallRequest,
)

FLOAT = 4  # bytes
# Large pictures that are taken together: both sides of a comparison and their difference, or wall, head and attention.
AT_ONCE = 3
# The kinds that have fewer cells where they are too large, by how large they are: the smaller leave the others more.
_RANKS: dict[type[PictureRequest], int] = {AttentionRequest: 1, HeadRequest: 2, WallRequest: 3}


class Finer:
    """Whole pictures of which a coarser one was sent, by what they are of: each goes when nothing else is to be sent,
    and not at all once it is dropped because another has taken its place. `most_bytes` is what all other pictures may
    take that are shown together, as the line is now. The loop's thread puts them in, and the one that writes takes them
    out; `wake` is called for it."""

    def __init__(self, most_bytes: int = 0) -> None:
        self.most_bytes = most_bytes
        self.wake: Callable[[], None] = lambda: None
        self._lock, self._waiting = Lock(), dict[Hashable, Event]()
        self._owed: dict[Hashable, Callable[[], Event]] = {}

    @property
    def oldest(self) -> Event | None:
        """The one that goes next."""
        with self._lock:
            return next(iter(self._waiting.values()), None)

    def put(self, of: Hashable, picture: Event) -> None:
        """Have a picture sent, in the place of an older one of the same."""
        with self._lock:
            self._waiting.pop(of, None)
            self._waiting[of] = picture
        self.wake()

    def owe(self, of: Hashable, take: Callable[[], Event]) -> None:
        """Have a picture taken, and then sent, when there is time."""
        self._owed.pop(of, None)
        self._owed[of] = take

    @property
    def is_owing(self) -> bool:
        """Whether pictures are still to be taken."""
        return bool(self._owed)

    def pay(self) -> None:
        """Take the picture that has been owed longest."""
        of = next(iter(self._owed))
        self.put(of, self._owed.pop(of)())

    def drop(self, of: Hashable) -> bool:
        """Send no picture of this any more; False where it was sent, or there was none."""
        self._owed.pop(of, None)
        with self._lock:
            return self._waiting.pop(of, None) is not None

    def sent(self, picture: Event) -> None:
        """Note that a picture was sent whole."""
        with self._lock:
            self._waiting = {of: each for of, each in self._waiting.items() if each is not picture}


def coarser(found: Picture | PictureUpdate, request: PictureRequest, most_bytes: int) -> PictureRequest | None:
    """The request that gives a picture of at most `most_bytes`; None where `found` is not larger, or is of a kind that
    has no fewer cells."""
    num_bytes = size_of(found)
    if num_bytes <= most_bytes:
        return None
    picture = found.picture if isinstance(found, CellUpdate) else found
    beside = min(num_bytes - _bytes_of_cells(picture), most_bytes // 2)
    size = _size(picture, most_bytes - beside)
    smaller = {name: min(count, getattr(request, name)) for name, count in size.items()}
    made = replace(request, **smaller)
    return made if made != request else None


def rank_of(request: PictureRequest) -> int:
    """The place of a picture among those that are shown together, from small to large."""
    return _RANKS.get(type(request), 0)


def size_of(picture: Picture | PictureUpdate) -> int:
    """Its bytes on the line."""
    return sum(map(len, encode(picture)))


def _bytes_of_cells(picture: Picture | PictureUpdate) -> int:
    match picture:
        case WallPicture(low=low, high=high) | HeadPicture(low=low, high=high):
            return low.nbytes if high is low else low.nbytes + high.nbytes
        case AttentionPicture(weights=weights):
            return weights.nbytes
    return 0


def _size(picture: Picture | PictureUpdate, most_bytes: int) -> dict[str, int]:
    """How many columns and rows make so many bytes of cells."""
    match picture:
        case WallPicture(request=request):
            cell = FLOAT if request.only_farthest else 2 * FLOAT
            cells = most_bytes / (cell * max(1, len(picture.layers) * max(picture.heads, default=0)))
            share = math.sqrt(cells / (request.max_columns * request.max_rows))
            return {
                "max_columns": max(1, int(request.max_columns * share)),
                "max_rows": max(1, int(request.max_rows * share)),
            }
        case HeadPicture():
            return {"max_columns": max(1, most_bytes // (2 * FLOAT * max(1, picture.low.shape[-1])))}
        case AttentionPicture():
            return {"max_columns": max(1, most_bytes // (FLOAT * max(1, len(picture.weights))))}
    return {}
