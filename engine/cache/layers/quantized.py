"""The handle of transformers' quantised layers, which keep their latest rows exact."""

from __future__ import annotations

import torch

from engine.cache.by_hand import write_slots
from engine.cache.contract import HeldRows
from engine.cache.layers.of_transformers import LayerOfTransformers
from engine.cache.row_delta import RowDelta
from engine.cache.stored import StoredLayer, StoredPart, stored_rows
from engine.spec.codec import Part


class QuantizedRows(LayerOfTransformers):
    """The handle of a layer of transformers' QuantizedCache; its latest rows (the residual) are exact."""

    takes_rows = True

    def rows(self) -> HeldRows | None:
        """The rows as attention would read them: dequantised, and then the residual."""
        layer = self.layer
        if getattr(layer, "_quantized_keys", None) is None:  # some releases create the attribute with the first rows
            return None
        made = []
        for coded, residual in ((layer._quantized_keys, layer.keys), (layer._quantized_values, layer.values)):
            rows = layer._dequantize(coded)
            made.append(torch.cat([rows, residual], 2) if residual is not None and residual.dim() == 4 else rows)
        return HeldRows(made[0], made[1], 0)

    def commit(self, written: RowDelta) -> RowDelta:
        """Count all older rows as rewritten: the quantiser may have quantised them again."""
        before = range(written.written.start)
        return RowDelta(written.written, before, before)

    def num_final(self, part: Part, num_tokens: int) -> int:
        return 0

    def exact_from(self, num_tokens: int, part: Part) -> int:
        residual = self.layer.keys if part == "keys" else self.layer.values
        num_exact = int(residual.shape[2]) if residual is not None and residual.dim() == 4 else 0
        return max(0, num_tokens - num_exact)

    def knows(self, num_tokens: int) -> bool:
        return bool(num_tokens >= self.layer.get_seq_length())

    def can_crop(self, num_tokens: int) -> bool:
        return self.layer.keys is None

    def stored(self, num_tokens: int) -> StoredLayer | None:
        """The codes of the fp8 backend; for the other backends, whose codes are objects of their packages, the
        dequantised rows."""
        coded = self.layer._quantized_keys, self.layer._quantized_values
        if not all(isinstance(part, tuple) for part in coded):
            return stored_rows(self.rows(), num_tokens, "its quantiser keeps its codes to itself")
        count = int(coded[0][0].shape[2])
        tensors = [{"codes": codes.view(torch.uint8), "scale": scale.view(1)} for codes, scale in coded]
        keys, values = (StoredPart(each, "transformers-fp8", count) for each in tensors)
        return StoredLayer(keys, values, num_tokens, count, self.layer.keys.dtype)

    def first_position(self) -> int:
        return 0

    def write_rows(self, part: Part, heads: torch.Tensor, slots: torch.Tensor, numbers: torch.Tensor) -> None:
        """Overwrite rows. With the fp8 backend, whose scale is fixed, only these rows are quantised again; the other
        backends quantise all quantised rows again, as they do when their residual is full."""
        name, residual = (f"_quantized_{part}", getattr(self.layer, part))
        coded = getattr(self.layer, name)
        rows = self.layer._dequantize(coded)
        num_coded = rows.shape[2]
        if isinstance(coded, tuple):
            made = numbers.new_zeros(1, rows.shape[1], *numbers.shape[1:])
            made[0, heads] = numbers
            codes, scale = coded
            new, _ = self.layer._quantize(made, scale=scale)
            codes = codes.clone()
            write_slots(codes.view(torch.uint8)[0], heads, slots, new.view(torch.uint8)[0, heads])
            setattr(self.layer, name, (codes, scale))
            return
        if residual is not None and residual.dim() == 4:
            rows = torch.cat([rows, residual], 2)
        write_slots(rows[0], heads, slots, numbers)
        axis = self.layer.axis_key if part == "keys" else self.layer.axis_value
        setattr(self.layer, name, self.layer._quantize(rows[:, :, :num_coded].contiguous(), axis=axis))
        if num_coded < rows.shape[2]:
            setattr(self.layer, part, rows[:, :, num_coded:].contiguous())

    def restore(self, stored: StoredLayer) -> None:
        layer, parts = self.layer, [part.tensors for part in (stored.keys, stored.values)]
        layer.lazy_initialization(*(part["codes"][:, :, :1].to(stored.dtype) for part in parts))
        layer._quantized_keys, layer._quantized_values = (
            (part["codes"].view(layer.fp8_dtype), part["scale"].view(())) for part in parts
        )
        layer.cumulative_length = stored.num_tokens
