"""Train the bundled model on any folder of plain text.

    python resources/demo_model/train.py --text FOLDER --minutes 60

Writes tokenizer, weights (safetensors, half precision) and the model card beside this script, and again every few
minutes while it trains, so that an interrupted run leaves the newest good model behind. The schedule follows the
clock, not a step count: the same command gives a sensible model on a laptop and a better one on a faster machine.

Matrices are trained with Muon (Jordan et al., 2024: momentum orthogonalised by a Newton-Schulz iteration), everything
else with AdamW. One row in four is a random token sequence over and over, with the loss on the copies only: the
shortest way to teach a model this small to look back and copy (induction; Olsson et al., 2022). `--resume` goes on from
the weights that lie there, with a schedule of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCAB_SIZE = 4096
CONTEXT = 1024
BEGIN = "<|begin|>"
HELD_OUT = 0.04
MATRIX_LR, OTHER_LR = 0.01, 0.003
REPEATED_SHARE = 0.25
IGNORED = -100


def read_text(path: Path) -> str:
    """One file as paragraphs: hard-wrapped prose is unwrapped, verse and dialogue lines are kept."""
    text = path.read_text("utf-8", errors="replace").replace("\r\n", "\n")
    lines = [line for line in text.split("\n") if line.strip()]
    wrapped = sum(len(line) > 55 for line in lines) > 0.5 * len(lines)
    text = re.sub(r"[ \t]+", " ", text)
    if wrapped:
        text = re.sub(r" *\n(?! *\n) *(?=\S)", " ", re.sub(r"\n *(?:\n *)+", "\n\n", text))
        text = re.sub(r"\n+ ?", "\n\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE with one special token, put before every text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[BEGIN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=BEGIN, model_max_length=CONTEXT
    )


@dataclass(frozen=True)
class Corpus:
    train: list[torch.Tensor]
    held_out: torch.Tensor
    weights: list[float]

    @classmethod
    def encode(cls, texts: list[str], tokenizer: PreTrainedTokenizerFast) -> Corpus:
        """Hold out the middle of every text; weigh small texts up (size^0.7), or the longest book speaks alone."""
        train, held_out = [], []
        for text in texts:
            ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
            cut = len(ids) // 2
            keep = int(len(ids) * HELD_OUT)
            train += [ids[:cut], ids[cut + keep :]]
            held_out.append(ids[cut : cut + keep])
        return cls(train, torch.cat(held_out), [float(len(part)) ** 0.7 for part in train])

    def batch(self, rows: int, length: int, rng: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets `[rows, length]`, each row beginning with the special token."""
        inputs, targets = [], []
        for part in rng.choices(self.train, self.weights, k=rows):
            start = rng.randrange(max(1, len(part) - length))
            ids = torch.cat([torch.zeros(1, dtype=torch.long), part[start : start + length]])
            ids = F.pad(ids, (0, length + 1 - len(ids)), value=0)
            inputs.append(ids[:-1])
            targets.append(ids[1:].masked_fill(ids[1:] == 0, IGNORED))
        for row in range(rows):
            if rng.random() < REPEATED_SHARE:
                period = round(math.exp(rng.uniform(math.log(6), math.log(length / 2))))
                ids = self.repeated(period, length, rng)
                inputs[row], targets[row] = ids[:-1], ids[1:].clone()
                targets[row][:period] = IGNORED
        return torch.stack(inputs), torch.stack(targets)

    def repeated(self, period: int, length: int, rng: random.Random) -> torch.Tensor:
        """`[length + 1]` ids: the special token, then one random sequence over and over.

        Its tokens are drawn as often as the text has them: the embedding of a token hardly ever met can be matched by
        nobody.
        """
        part = rng.choice(self.train)
        once = part[torch.tensor([rng.randrange(len(part)) for _ in range(period)])]
        copies = once.repeat(math.ceil(length / period))[:length]
        return torch.cat([torch.zeros(1, dtype=torch.long), copies])


class Muon:
    """Momentum, orthogonalised: every update has singular values near one, whatever the gradient's scale."""

    def __init__(self, matrices: list[torch.nn.Parameter], momentum: float = 0.95) -> None:
        self.matrices = matrices
        self.momentum = momentum
        self.buffers = [torch.zeros_like(p) for p in matrices]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        by_shape: dict[torch.Size, list[int]] = {}
        for i, p in enumerate(self.matrices):
            assert p.grad is not None
            self.buffers[i].lerp_(p.grad, 1 - self.momentum)
            by_shape.setdefault(p.shape, []).append(i)
        for shape, members in by_shape.items():
            nesterov = [self.matrices[i].grad.lerp(self.buffers[i], self.momentum) for i in members]  # type: ignore[union-attr]
            updates = orthogonalise(torch.stack(nesterov)) * max(1.0, shape[0] / shape[1]) ** 0.5
            for i, update in zip(members, updates, strict=True):
                self.matrices[i].mul_(1 - 0.01 * lr).add_(update, alpha=-lr)


def orthogonalise(matrices: torch.Tensor) -> torch.Tensor:
    """Quintic Newton-Schulz iteration towards U V^T of each matrix `[N, rows, columns]` (Jordan et al., 2024)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.mT if matrices.shape[1] > matrices.shape[2] else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if matrices.shape[1] > matrices.shape[2] else x


def schedule(progress: float) -> float:
    """Short warm-up, plateau, linear decay over the last 60 %."""
    return min(1.0, progress / 0.02, max(0.03, (1 - progress) / 0.6))


@torch.no_grad()
def evaluate(model: LlamaForCausalLM, corpus: Corpus, length: int = 512) -> dict[str, object]:
    """Held-out loss, attention mass on the first token per layer, and induction."""
    model.eval()
    rows = [corpus.held_out[i : i + length - 1] for i in range(0, len(corpus.held_out) - length, length)][:48]
    ids = F.pad(torch.stack(rows), (1, 0), value=0)
    losses = [model(part, labels=part).loss.item() for part in ids.split(8)]
    model.set_attn_implementation("eager")
    attention = model(ids[:4], output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    sink = [a[:, :, 8:, 0].mean().item() for a in attention]
    strongest = [a[:, :, 8:, 0].mean(dim=(0, 2)).max().item() for a in attention]
    rng = random.Random(1)
    repeats = torch.stack([corpus.repeated(128, 256, rng) for _ in range(16)])
    logits = model(repeats[:, :-1]).logits
    token_loss = F.cross_entropy(logits.flatten(0, 1), repeats[:, 1:].flatten(), reduction="none").view(16, 256)
    model.train()
    return {
        "held_out_loss": round(sum(losses) / len(losses), 4),
        "first_token_mass_per_layer": [round(s, 3) for s in sink],
        "first_token_mass_strongest_head": [round(s, 3) for s in strongest],
        "repeat_loss_first_copy": round(token_loss[:, :128].mean().item(), 3),
        "repeat_loss_second_copy": round(token_loss[:, 129:].mean().item(), 3),
    }


@torch.no_grad()
def sample(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: str = "Once upon a time") -> str:
    model.eval()
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    out = model.generate(ids, max_new_tokens=80, do_sample=False, pad_token_id=0)
    model.train()
    return str(tokenizer.decode(out[0], skip_special_tokens=True))


def save(model: LlamaForCausalLM, out: Path, facts: dict[str, object]) -> None:
    """Weights in half precision and the card; the tokenizer was written when training began."""
    half = LlamaForCausalLM(model.config).half()
    half.load_state_dict({name: t.half() for name, t in model.state_dict().items()})
    half.tie_weights()
    half.save_pretrained(out)
    (out / "training.json").write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", type=Path, required=True, help="folder with .txt files")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="go on from the weights and tokenizer in --out")
    parser.add_argument("--compile", action="store_true", help="a third faster on a CPU with a C++ compiler")
    args = parser.parse_args()
    files = sorted(f for f in args.text.glob("*.txt"))
    if not files:
        parser.error(f"{args.text} holds no .txt file")

    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    texts = [read_text(f) for f in files]
    if args.resume:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(args.out)
    else:
        tokenizer = train_tokenizer(texts)
        tokenizer.save_pretrained(args.out)
    corpus = Corpus.encode(texts, tokenizer)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = LlamaForCausalLM(config)
    if args.resume:
        model = LlamaForCausalLM.from_pretrained(args.out, dtype=torch.float32)
    num_parameters = sum(p.numel() for p in model.parameters())
    num_tokens = sum(map(len, corpus.train))
    print(
        f"{num_parameters:,} parameters, {num_tokens:,} training tokens, {len(corpus.held_out):,} held out", flush=True
    )

    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    muon = Muon(matrices)
    adam = torch.optim.AdamW(others, lr=OTHER_LR, betas=(0.9, 0.95), weight_decay=0.0)

    def loss_of(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = model.model(inputs, use_cache=False).last_hidden_state
        return F.cross_entropy(model.lm_head(hidden).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)

    compiled = torch.compile(loss_of, dynamic=False) if args.compile else loss_of
    start = saved = time.monotonic()
    seen = step = 0
    while (progress := (time.monotonic() - start) / (60 * args.minutes)) < 1:
        # short rows first, for their diversity; then full length, so that every position is one the model has met
        length = CONTEXT if progress > 0.6 else CONTEXT // 4
        batch = corpus.batch(args.batch_tokens // length, length, rng)
        loss = compiled(*batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        lr = schedule(progress)
        adam.param_groups[0]["lr"] = OTHER_LR * lr
        muon.step(MATRIX_LR * lr)
        adam.step()
        model.zero_grad(set_to_none=True)
        step += 1
        seen += batch[0].numel()
        if step % 20 == 0:
            elapsed = time.monotonic() - start
            print(f"step {step} loss {loss.item():.3f} {seen / elapsed:.0f} tok/s {progress:.1%}", flush=True)
        if time.monotonic() - saved > 300:
            save(model, args.out, {"unfinished": True, "steps": step} | evaluate(model, corpus))
            print(sample(model, tokenizer), flush=True)
            saved = time.monotonic()

    facts: dict[str, object] = {
        "parameters": num_parameters,
        "texts": [f.name for f in files],
        "training_tokens": num_tokens,
        "held_out_tokens": len(corpus.held_out),
        "steps": step,
        "tokens_seen": seen,
        "minutes": args.minutes,
        "seed": args.seed,
    }
    facts |= evaluate(model, corpus) | {"greedy_sample": sample(model, tokenizer)}
    save(model, args.out, facts)
    print(json.dumps(facts, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
