"""Go on from a snapshot of KV Loupe with torch, transformers and safetensors alone.

    python THIS_FILE MODEL_FOLDER [--steps 20] [--snapshot FILE]

It reads the rows (codes are decoded first), puts them into transformers' DynamicCache, and chooses tokens as the
snapshot says. New rows are kept as they are computed: nothing is coded or evicted any more. The format is described in
snapshot-format.md of KV Loupe.
"""

import argparse
import inspect
import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

SNAPSHOT = "cache.safetensors"  # beside this file
STORING_NOTHING = ("linear", "none", "shared")  # kinds of layers without K and V of their own


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--snapshot", type=Path, default=Path(__file__).resolve().with_name(SNAPSHOT))
    arguments = parser.parse_args()
    with safe_open(arguments.snapshot, framework="pt") as file:
        manifest = file.metadata()
        if manifest.get("format") != "kvloupe-snapshot" or manifest["format_version"] not in ("2", "3", "4"):
            raise SystemExit("This is no snapshot of version 2, 3 or 4 of the format.")
        if "linear" in json.loads(manifest["layer_kinds"]) or json.loads(manifest.get("states", "[]")):
            raise SystemExit("A model with recurrent layers is not run here: open its snapshot in KV Loupe.")
        if "cross" in json.loads(manifest["layer_kinds"]):
            raise SystemExit("A model with an encoder is not run here: open its snapshot in KV Loupe.")
        dtype = getattr(torch, manifest["dtype"])
        model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=dtype, local_files_only=True).eval()
        cache = cache_of(file, manifest, model.config)
        place = int(manifest["num_tokens"])
    ids = go_on(model, cache, place, json.loads(manifest["sequence"]), arguments.steps)
    print(json.dumps(ids))
    with suppress(OSError, ValueError):  # a model without a tokenizer
        print(AutoTokenizer.from_pretrained(arguments.model, local_files_only=True).decode(ids))


@torch.inference_mode()
def go_on(model, cache, place, sequence, steps):
    """The tokens that follow: the one chosen already, those forced behind it, and then as the sampling says."""
    waiting = [token for token in (sequence["sampled"], *sequence["forced"]) if token is not None]
    if not waiting:
        raise SystemExit("The snapshot was taken in the middle of a prompt: compute the rest of it first.")
    takes = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    ids = []
    for _ in range(steps):
        ids.append(waiting.pop(0))
        newest = torch.tensor([[ids[-1]]], device=model.device)
        at = torch.tensor([[place]], device=model.device)
        logits = model(newest, **{takes: cache}, position_ids=at).logits[0, -1]
        place += 1
        if not waiting:
            waiting.append(chosen(logits.float().cpu(), place, **sequence["sampling"]))
    return ids


def steered(logits, biases, banned, only):
    """Logits with what a person added to them; minus infinity where a token is banned, or not among the only ones."""
    for token_id, added in biases:
        logits[token_id] += added
    if only:
        logits = torch.full_like(logits, -torch.inf).index_copy(0, torch.tensor(only), logits[only])
    logits[banned] = -torch.inf
    return logits


def chosen(logits, position, temperature, top_k, top_p, min_p, seed, bias=None, draws="torch", **ends):
    """The token at a position, as KV Loupe draws it: the seed and the position alone decide. What `ends` a sequence
    there, the texts `stop` and `max_new_tokens`, is not looked at: as many tokens follow as are asked for."""
    if bias is not None:
        logits = steered(logits, *bias)
    if temperature == 0:
        return int(logits.argmax())
    scaled = logits / max(temperature, 1e-4)
    if top_k is not None and top_k < len(scaled):
        scaled = scaled.masked_fill(scaled < scaled.topk(top_k).values[-1], -torch.inf)
    probs = scaled.softmax(-1)
    if top_p is not None and top_p < 1:
        ordered, order = probs.sort(descending=True)
        probs = probs.index_fill(0, order[ordered.cumsum(-1) - ordered >= top_p], 0.0)
    if min_p:
        probs = probs.masked_fill(probs < min_p * probs.max(), 0.0)
    if draws == "counter":
        return int((probs / probs.sum() / exponentials(seed, position, len(probs))).argmax())
    generator = torch.Generator().manual_seed((seed * 1_000_003 + position) % 2**63)
    return int(torch.multinomial(probs / probs.sum(), 1, generator=generator))


def exponentials(seed, position, count):
    """Exponentially distributed numbers, of 31 bits each, of the generator that a position has of its own."""
    own = splitmix(int(splitmix(seed, 1)[0]), position + 1)[position]
    bits = splitmix(int(own), (count + 1) // 2).view(np.uint32)[:count] & np.uint32(2**31 - 1)
    return -torch.log1p((torch.from_numpy(bits.astype(np.float32)) + 0.5) * -(2.0**-31))


def splitmix(seed, count):
    """The first numbers of SplitMix64."""
    mixed = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return mixed ^ mixed >> np.uint64(31)


# ---- rows --------------------------------------------------------------------------------------------------------


def cache_of(file, manifest, config):
    """The rows of every layer in transformers' own cache."""
    cache, num_tokens = DynamicCache(config=config), int(manifest["num_tokens"])
    written = {entry["index"] for entry in json.loads(manifest["layers"])}
    storing = (i for i, kind in enumerate(json.loads(manifest["layer_kinds"])) if kind not in STORING_NOTHING)
    if missing := [i for i in storing if i not in written]:
        raise SystemExit(f"Layers {', '.join(map(str, missing))} were not written: decoding cannot go on from it.")
    for entry in json.loads(manifest["layers"]):
        if len(entry["heads"]) < entry["num_kv_heads"]:
            raise SystemExit("Not all heads were written: decoding cannot go on from it.")
        keys, values = (rows_of(file, entry, part) for part in ("keys", "values"))
        cache.update(keys, values, entry["index"])
        layer = cache.layers[entry["index"]]
        if hasattr(layer, "cumulative_length"):
            layer.cumulative_length = num_tokens  # a window counts the rows that have left it as well
    return cache


def rows_of(file, entry, part):
    """K or V of a layer `[1, H, S, D]` as attention reads them."""
    how, name, dtype = entry[part], f"layers.{entry['index']}.{part}", getattr(torch, entry["dtype"])
    if not how["num_coded"]:
        return file.get_tensor(name)

    def tensor(what):
        return file.get_tensor(f"{name}.{what}")

    codec, group = how["codec"], how["group"] or 32
    if codec.startswith("kivi-"):
        decode = kivi_keys if part == "keys" else kivi_values
        coded = decode(tensor("words"), tensor("scales").float(), tensor("offsets").float(), int(codec[5:]), group)
        return torch.cat([coded.to(dtype), tensor("exact")], 2)
    if codec == "int8":
        return (tensor("codes").float() * tensor("scales").float()).to(dtype)
    numbers = tensor("codes").view(torch.float8_e4m3fn).float()
    if codec in ("fp8", "fp8-head", "transformers-fp8"):
        return (numbers * tensor("scale")).to(dtype)
    scales = tensor("scales")
    if codec == "fp8-max-e8m0":
        scales = torch.exp2(scales.float() - 127).masked_fill(scales == 255, torch.nan)
    groups = numbers.unflatten(3, (scales.shape[3], -1))
    return (groups * scales[..., None]).flatten(3).to(dtype)


def kivi_keys(words, scales, offsets, bits, group):
    """Words run along the tokens; a group of tokens shares a scale and an offset for each channel."""
    codes = unpacked(words.mT, bits).mT.unflatten(2, (-1, group))
    return (codes * scales.unsqueeze(3) + offsets.unsqueeze(3)).flatten(2, 3)


def kivi_values(words, scales, offsets, bits, group):
    """Words run along the channels; a group of channels of one token shares a scale and an offset."""
    codes = unpacked(words, bits).unflatten(3, (-1, group))
    return (codes * scales.unsqueeze(4) + offsets.unsqueeze(4)).flatten(3)


def unpacked(words, bits):
    """Codes as float32 from words of 32 bits, the first code in the lowest bits."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return ((words.unsqueeze(-1) >> shifts) & (2**bits - 1)).flatten(-2).float()


if __name__ == "__main__":
    main()
