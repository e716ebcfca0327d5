"""A GPU that is not there: tensors that say they lie on one, and count what a real one would make the host wait for.

The numbers are those of a CPU, so that whole sessions run. What a GPU refuses is refused: tensors of the host and of
the card in one operation. What would stop the host until the card has caught up is noted as a wait: a number that is
read, a plain copy in either direction, an index that lies on the host, a mask whose result has as many rows as it has.
What a copy brings into pinned memory is not there before somebody has waited for it.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from engine.model.loader import LoadedModel
from engine.model.runners import launch, runners
from engine.model.runners.decoder import FusedDecoder
from engine.model.runners.runners import Runners
from engine.spec.model import RunnerName
from tests.engine.card_streams import Card, Event, Stream

CARD, HOST = torch.device("cuda", 0), torch.device("cpu")
aten = torch.ops.aten
READS = {aten._local_scalar_dense.default: "a number", aten.nonzero.default: "nonzero"}
UNWRITTEN = 0xA5  # bytes of pinned memory that a copy is on its way to


class OnCard(torch.Tensor):
    """A tensor that says it lies on a card, the first or another one; `numbers` are what it holds."""

    numbers: torch.Tensor

    @staticmethod
    def __new__(cls, real: torch.Tensor, device: torch.device = CARD) -> OnCard:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            real.shape,
            strides=real.stride(),
            storage_offset=real.storage_offset(),
            dtype=real.dtype,
            device=device,
        )
        made.numbers = real
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("a tensor of the card is used when the card is gone")


def real(value: Any) -> Any:
    return value.numbers if isinstance(value, OnCard) else value


def put_on_card(value: Any, device: torch.device = CARD) -> Any:
    return OnCard(value, device) if isinstance(value, torch.Tensor) else value


def card_of(device: str | torch.device) -> torch.device:
    """The card that is meant: the first where none is named."""
    return torch.device("cuda", torch.device(device).index or 0)


@cache
def is_composite(func: Any) -> bool:
    """Whether an operation is made of others, whatever the device."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


@cache
def is_view(func: Any) -> bool:
    """Whether an operation gives the same memory in another shape: nothing is launched for it."""
    return any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns)


class Dispatch(TorchDispatchMode):
    """Computes on the CPU what is asked of the card."""

    def __init__(self, card: Card) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._card = card
        self.stream: Stream | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
        wanted = kwargs.get("device")
        is_card = any(isinstance(each, OnCard) for each in tensors)
        if not is_card and not (wanted is not None and torch.device(wanted).type == "cuda"):
            return func(*args, **kwargs)
        if is_composite(func):  # in inference mode they come here as they are
            with self:
                return func.decompose(*args, **kwargs)
        self._card.asked += 1
        self._card.launches += not is_view(func)
        if func is aten._to_copy.default:
            return self._copied(args[0], kwargs)
        if func is aten.copy_.default:
            return self._copied_into(*args, **kwargs)
        self._check(func, args, tensors)
        if wanted is not None:
            kwargs["device"] = HOST
        given = {id(each.numbers): each for each in tensors if isinstance(each, OnCard)}
        on = next((each.device for each in given.values() if each.dim()), None)
        on = card_of(wanted) if wanted is not None else on or next(each.device for each in given.values())
        found = func(*tree_map(real, args), **tree_map(real, kwargs))
        # in that mode a view of a tensor that was made outside of it is none of it either
        is_inference = torch.is_inference_mode_enabled() and all(each.is_inference() for each in given.values())
        with torch.inference_mode(is_inference):
            return tree_map(lambda each: given.get(id(each)) if id(each) in given else put_on_card(each, on), found)

    def _check(self, func: Any, args: Any, tensors: list[torch.Tensor]) -> None:
        if func in READS:
            self._card.wait(READS[func])
        if func in (aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default):
            indices = [each for each in args[1] if each is not None]
            if any(each.dtype == torch.bool for each in indices):
                self._card.wait("a mask")
            if any(not isinstance(each, OnCard) for each in indices):
                self._card.wait("an index of the host")
            tensors = [each for each in tensors if all(each is not index for index in indices)]
        cards = {str(each.device) for each in tensors if isinstance(each, OnCard) and each.dim()}
        if len(cards) > 1:
            raise RuntimeError(f"{func}: tensors of {' and '.join(sorted(cards))}")
        strangers = [each for each in tensors if not isinstance(each, OnCard) and each.dim()]
        if strangers:
            raise RuntimeError(f"{func}: a tensor {list(strangers[0].shape)} of the host among those of the card")

    def _copied(self, source: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
        device = torch.device(kwargs.pop("device", None) or source.device)
        is_async, was_on_card = kwargs.get("non_blocking", False), isinstance(source, OnCard)
        made: torch.Tensor = aten._to_copy.default(real(source), **kwargs)
        if device.type != "cuda":
            self._card.bytes_to_host += made.nbytes
            self._card.wait("a copy to the host")
            return made
        if not was_on_card and source.numel() and not (is_async and self._is_pinned(source)):
            self._card.wait("a copy to the card")
        self._note_move(source, card_of(device), made.nbytes)
        return OnCard(made, card_of(device))

    def _note_move(self, source: torch.Tensor, device: torch.device, num_bytes: int) -> None:
        if isinstance(source, OnCard) and source.device != device:
            self._card.moved.append((str(source.device), str(device), num_bytes))

    def _copied_into(self, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if isinstance(target, OnCard):
            if not isinstance(source, OnCard) and source.dim() and not (non_blocking and self._is_pinned(source)):
                self._card.wait("a copy to the card")
            self._note_move(source, target.device, target.nbytes)
            target.numbers.copy_(real(source))
            return target
        self._card.bytes_to_host += target.nbytes
        if non_blocking and self._is_pinned(target):
            at = self._card.asked if self.stream is None else self.stream.behind
            self._card.coming.append((at, target, real(source).clone()))
            target.view(torch.uint8).fill_(UNWRITTEN) if target.dim() else target.fill_(-1)
            return target
        self._card.wait("a copy to the host")
        return target.copy_(real(source))

    def _is_pinned(self, tensor: torch.Tensor) -> bool:
        return any(tensor.untyped_storage()._cdata == each._cdata for each in self._card.pinned)


class Functions(TorchFunctionMode):
    """What torch asks of a tensor's memory and not of an operation."""

    def __init__(self, card: Card) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._card = card

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.Tensor.data_ptr, torch.Tensor.untyped_storage):
            return func(real(args[0]))
        if func is torch.Tensor.numpy and isinstance(args[0], OnCard):
            raise TypeError("NumPy cannot read tensors of a card")
        if func is torch.Tensor.tolist and isinstance(args[0], OnCard):
            return args[0].cpu().tolist()
        if func is torch.tensor and torch.device(kwargs.get("device") or HOST).type == "cuda":
            return torch.tensor(*args, **{**kwargs, "device": HOST}).to(card_of(kwargs["device"]))
        if func is torch.Tensor.pin_memory:
            return self._pinned(args[0].clone())
        if kwargs.pop("pin_memory", False):
            return self._pinned(func(*args, **kwargs))
        return func(*args, **kwargs)

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        tensor.keeps_alive = storage  # type: ignore[attr-defined]
        self._card.pinned.add(storage)
        return tensor


GUARDS = "_ZN3c104impl26device_guard_impl_registryE"  # by type of device: 0 is the CPU, 1 is CUDA


def guards() -> Any:
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    return (ctypes.c_void_p * 2).in_dll(library, GUARDS)


def has_card() -> bool:
    """Whether `card` can be had here."""
    try:
        return bool(guards()[0])
    except (OSError, ValueError):
        return False


@contextmanager
def no_guard() -> Iterator[None]:
    """torch makes the device of a tensor the current one before it indexes it; a build for CPUs alone cannot."""
    registry = guards()
    before = registry[1]
    registry[1] = registry[0]
    try:
        yield
    finally:
        registry[1] = before


@contextmanager
def card(patch: pytest.MonkeyPatch, made: Card) -> Iterator[None]:
    """Meanwhile there is a card."""
    dispatch, main = Dispatch(made), Stream(made, is_main=True)

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        before, dispatch.stream = dispatch.stream, stream
        yield
        dispatch.stream = before

    faked: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "Stream": lambda *_: Stream(made, is_main=False),
        "Event": lambda **_: Event(made, main),
        "current_stream": lambda *_: main,
        "stream": on,
        "synchronize": lambda *_: made.wait("everything"),
        "mem_get_info": lambda *_: (8 << 30, 16 << 30),
        **dict.fromkeys(("memory_reserved", "memory_allocated", "max_memory_allocated"), lambda *_: 1 << 30),
        "reset_peak_memory_stats": lambda *_: None,
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": lambda mode: setattr(made, "refuses_waits", mode == "error"),
    }
    for name, value in faked.items():
        patch.setattr(torch.cuda, name, value)
    patch.setattr(runners, "recorder_of", lambda name, device, compiling: launch.RerunRecorder())
    with no_guard(), Functions(made), dispatch:
        yield


def moved(model: LoadedModel, runner: RunnerName) -> LoadedModel:
    """A copy of a model whose weights lie on the card."""
    network = copy.deepcopy(model.model)
    for module in network.modules():
        for own in (module._parameters, module._buffers, vars(module)):
            own.update({name: OnCard(held.detach()) for name, held in own.items() if isinstance(held, torch.Tensor)})
    decoder = None
    if model.runners.decoder is not None:
        decoder = FusedDecoder(network, is_joined=False)
        decoder.takes_chunks = decoder.takes_batches = True
    return replace(model, model=network, device=CARD, runners=Runners(decoder, runner))
