"""Are llama.cpp's state files read as transformers computes them? Tried with llama-cpp-python 0.3.36.

Writes models as GGUF (the bundled one; random ones whose rows llama.cpp rotates, and whose keys stand in halves), has a
real llama.cpp run the same tokens in every cache type and write its state files, of a sequence and of the whole
context, reads them with `snapshot import`, and compares each row with transformers' in float32. Rows of the first layer
follow from the tokens alone: they differ by what the cache type loses. Those behind it were computed from a coded cache
(and flash attention rounds to float16): they are near, which rows in a wrong order are not.

    python tests/benchmarks/real_llama.py --python LLAMA_ENVIRONMENT/bin/python [--tokens 32]

llama.cpp has an environment of its own: `pip install llama-cpp-python gguf numpy` (it is compiled, some minutes).
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

# Of each cache type the number that llama.cpp knows it by, and the largest error in the first layer as a share of its
# largest number; and what the error of any layer stays below.
TYPES = {
    "f32": (0, 1e-5), "f16": (1, 1e-3), "bf16": (30, 8e-3), "q8_0": (8, 1.5e-2), "q5_1": (7, 0.1), "q5_0": (6, 0.1),
    "q4_1": (3, 0.2), "q4_0": (2, 0.2), "iq4_nl": (20, 0.2),
}  # fmt: skip
NEAR = 0.8
MODELS = {
    "bundled": {},
    "llama": {"model_type": "llama"},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3"},
}  # the last three random, of a head dimension of 64
SIZES = {
    "hidden_size": 256, "intermediate_size": 320, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512, "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}  # fmt: skip
NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default=sys.executable, metavar="PYTHON", help="the interpreter with llama_cpp")
    parser.add_argument("--tokens", type=int, default=32, metavar="N")
    parser.add_argument("--seed", type=int, default=30)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)  # in that interpreter
    args = parser.parse_args()
    if args.write is not None:
        write(args.write)
        return
    from tests.benchmarks.real_programs import version_of

    version = version_of(args.python, ("llama-cpp-python", "llama_cpp_python"), "pip install llama-cpp-python gguf")
    print(f"{version}, {args.tokens} tokens; the largest error as a share of the largest number of a layer")
    print(f"{'model':<8} {'cache type':<16} {'K, first':>9} {'V, first':>9} {'K, any':>9} {'V, any':>9}")
    wrong = 0
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            reference = prepare(name, Path(folder), args.tokens, args.seed)
            command = [args.python, str(Path(__file__)), "--write", folder]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit("\n".join(("llama.cpp failed; its last words:", *done.stderr.splitlines()[-12:])))
            for kind, refused in json.loads(done.stdout.splitlines()[-1]).items():
                if refused:
                    print(f"{name:<8} {kind:<16} not written: {refused}")
                    continue
                words, is_good = compared(Path(folder), kind, reference)
                wrong += not is_good
                print(f"{name:<8} {kind:<16} {words}{'' if is_good else '   TOO FAR'}", flush=True)
    raise SystemExit(1 if wrong else 0)


def prepare(name: str, folder: Path, count: int, seed: int) -> list[Any]:
    """Write the tokens, the weights as numpy arrays and what a GGUF says of them; K and V `[L][2][H_kv, S, D]` that
    transformers computes."""
    import numpy as np
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    if MODELS[name]:
        config = AutoConfig.for_model(**MODELS[name], **SIZES)
        model = AutoModelForCausalLM.from_config(config).float().eval()
        for parameter in model.parameters():  # random ones are so small that every key is nearly zero
            torch.nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.1)
    else:
        model = AutoModelForCausalLM.from_pretrained(ROOT / "resources" / "demo_model").float().eval()
    ids = torch.randint(4, model.config.vocab_size, (1, count))
    with torch.inference_mode():
        cache = model(ids, use_cache=True).past_key_values
    np.savez(folder / "weights.npz", **{key: value.numpy() for key, value in model.state_dict().items()})
    np.save(folder / "ids.npy", ids[0].numpy().astype(np.int32))
    config = model.config
    config.save_pretrained(folder)
    facts = {
        "family": config.model_type, "context": config.max_position_embeddings, "hidden": config.hidden_size,
        "layers": config.num_hidden_layers, "inner": config.intermediate_size, "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads, "eps": config.rms_norm_eps, "vocabulary": config.vocab_size,
        "dim": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        "base": config.rope_parameters["rope_theta"],
    }  # fmt: skip
    (folder / "facts.json").write_text(json.dumps(facts))
    return [(layer.keys[0].numpy(), layer.values[0].numpy()) for layer in cache.layers]


def compared(folder: Path, kind: str, reference: list[Any]) -> tuple[str, bool]:
    """The largest errors of a state file that was imported, and whether they are within what its type may lose."""
    import numpy as np
    from safetensors.numpy import load_file

    from engine.cli.command_line import run_command_line

    out, said = folder / f"{kind}.safetensors", io.StringIO()
    words = ["snapshot", "import", str(folder / f"{kind}.bin"), "--gguf", str(folder / "model.gguf"), "-o", str(out)]
    with redirect_stdout(said), redirect_stderr(said):
        code = run_command_line(words)
    if code:
        return said.getvalue().strip(), False
    found = load_file(out)
    errors = [
        [float(np.abs(found[f"layers.{layer}.{part}"][0] - rows).max() / np.abs(rows).max())
         for part, rows in zip(("keys", "values"), parts, strict=True)]
        for layer, parts in enumerate(reference)
    ]  # fmt: skip
    any_layer = [max(of_layer) for of_layer in zip(*errors, strict=True)]
    is_good = max(errors[0]) <= TYPES[kind.split("-")[0]][1] and max(any_layer) <= NEAR
    return " ".join(f"{number:9.2g}" for number in (*errors[0], *any_layer)), is_good


# ---- in the interpreter that has llama.cpp, with numpy and gguf alone ----------------------------------------------


def write(folder: Path) -> None:
    """Write the GGUF, and a state file of each type; prints why not, by its name."""
    import ctypes

    import llama_cpp
    import numpy as np

    write_gguf(folder)
    ids, told = np.load(folder / "ids.npy"), {}
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        str(folder / "model.gguf").encode(), llama_cpp.llama_model_default_params()
    )
    tokens = (ctypes.c_int32 * len(ids))(*ids.tolist())
    for name, is_flash in [*((name, True) for name in TYPES), ("f32", False), ("f16", False)]:
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_threads, options.n_threads_batch = 512, 512, 1, 1
        options.type_k = options.type_v = TYPES[name][0]
        options.flash_attn_type = int(is_flash)
        kind = name if is_flash else f"{name}-transposed"
        context = llama_cpp.llama_init_from_model(model, options)
        if not context:
            told[kind] = "llama.cpp makes no such cache"
            continue
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, len(ids))):
            told[kind] = "llama.cpp does not decode with it"
        else:
            path = str(folder / kind)
            llama_cpp.llama_state_seq_save_file(context, f"{path}.bin".encode(), 0, tokens, len(ids))
            told[kind] = ""
            if is_flash and name in ("f32", "q8_0"):
                llama_cpp.llama_state_save_file(context, f"{path}-context.bin".encode(), tokens, len(ids))
                told[f"{kind}-context"] = ""
        llama_cpp.llama_free(context)
    print(json.dumps(told))


def write_gguf(folder: Path) -> None:
    """As llama.cpp's converter does, without a vocabulary: ids are computed, never text."""
    import numpy as np
    from gguf import GGUFWriter

    of, weights = json.loads((folder / "facts.json").read_text()), np.load(folder / "weights.npz")
    writer = GGUFWriter(str(folder / "model.gguf"), of["family"])
    writer.add_name("tried")
    writer.add_context_length(of["context"])
    writer.add_embedding_length(of["hidden"])
    writer.add_block_count(of["layers"])
    writer.add_feed_forward_length(of["inner"])
    writer.add_head_count(of["heads"])
    writer.add_head_count_kv(of["kv_heads"])
    writer.add_key_length(of["dim"])
    writer.add_value_length(of["dim"])
    writer.add_layer_norm_rms_eps(of["eps"])
    writer.add_rope_freq_base(of["base"])
    writer.add_rope_dimension_count(of["dim"])
    writer.add_vocab_size(of["vocabulary"])
    writer.add_file_type(0)
    writer.add_tokenizer_model("no_vocab")
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
    for name in weights.files:
        weight, (stem, ending) = weights[name], name.rsplit(".", 1)
        if stem == "lm_head":
            continue  # tied
        if stem not in whole:
            layer, part = stem.removeprefix("model.layers.").split(".", 1)
            whole[stem] = f"blk.{layer}.{NAMES[part]}"
            if of["family"] == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
                heads = of["heads" if "q_proj" in part else "kv_heads"]  # NORM rope wants pairs for halves
                half = weight.reshape(heads, 2, -1, *weight.shape[1:])
                weight = half.swapaxes(1, 2).reshape(weight.shape)
        writer.add_tensor(f"{whole[stem]}.{ending}", np.ascontiguousarray(weight.astype(np.float32)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
