"""Train TinyLM: write the corpus, build the tokenizer, train, export, measure.

    pip install -r tools/requirements-train.txt
    python tools/train_tinylm.py

About ten minutes on one core of an AMD EPYC with bfloat16 arithmetic, longer without. Interrupted, it goes on where it
was: the checkpoint is .course/tinylm.pt; delete it to begin again. The corpus is tools/stories.py, sampled afresh for
every step; nothing is downloaded. Written: code/kit/weights/tinylm.safetensors (float16, tensor names of Hugging Face's
Llama), tinylm_tokenizer.json, and checks/tinylm_logits.safetensors, logits of the torch model that the NumPy model is held
against.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "code"))

import measure_tinylm  # noqa: E402
import stories  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from kit.tinylm import TOKENIZER, WEIGHTS, Tokenizer  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch import Tensor, nn  # noqa: E402

CHECKPOINT = ROOT / ".course" / "tinylm.pt"
REFERENCE = ROOT / "checks" / "tinylm_logits.safetensors"
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 768,
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 0,
    "bos_token_id": 1,
}
STEPS = 2200
SHORT = (16, 144)  # (rows, tokens of a row) of the first third of the steps: about one story a row, names are soon copied
LONG = (4, 512)  # of the rest: several stories a row, so that long prompts work too
PEAK_LR = 0.02
WARMUP = 50


class Attention(nn.Module):
    def __init__(self, c: dict[str, Any]):
        super().__init__()
        self.heads, self.kv_heads, self.size = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.q_proj = nn.Linear(c["hidden_size"], self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(c["hidden_size"], self.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(c["hidden_size"], self.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, c["hidden_size"], bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rows, n, _ = x.shape

        def heads(y: Tensor) -> Tensor:
            return y.view(rows, n, -1, self.size).transpose(1, 2)

        def rotate(y: Tensor) -> Tensor:
            first, second = y.chunk(2, dim=-1)
            return y * cos[:n] + torch.cat((-second, first), dim=-1) * sin[:n]

        q, k, v = rotate(heads(self.q_proj(x))), rotate(heads(self.k_proj(x))), heads(self.v_proj(x))
        groups = self.heads // self.kv_heads
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(rows, n, -1))


class MLP(nn.Module):
    def __init__(self, c: dict[str, Any]):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c: dict[str, Any]):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        self.self_attn = Attention(c)
        self.post_attention_layernorm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        self.mlp = MLP(c)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """The architecture of Llama, with the names of Hugging Face's checkpoints; the output head is the embedding."""

    def __init__(self, c: dict[str, Any] = CONFIG):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        half = torch.arange(c["head_dim"] // 2, dtype=torch.float64) / (c["head_dim"] // 2)
        angles = torch.outer(torch.arange(c["max_position_embeddings"], dtype=torch.float64), c["rope_theta"] ** -half)
        self.register_buffer("cos", angles.cos().float().repeat(1, 2), persistent=False)
        self.register_buffer("sin", angles.sin().float().repeat(1, 2), persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                deep = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.02 / (math.sqrt(2 * c["num_hidden_layers"]) if deep else 1))

    def forward(self, tokens: Tensor) -> Tensor:
        """[rows, n] token ids to [rows, n, vocab_size] logits."""
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return F.linear(self.norm(x), self.embed_tokens.weight)


# -- corpus ---------------------------------------------------------------------------------------------------------------


def build_tokenizer() -> None:
    """Train the byte-pair encoding on 20,000 stories and write it as plain JSON."""
    from tokenizers import Regex, models, pre_tokenizers, trainers
    from tokenizers import Tokenizer as Library

    rng = random.Random("tokenizer")
    texts = [stories.sample(rng).text for _ in range(20_000)]
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Split(Regex(Tokenizer.WORD.pattern), "isolated")  # type: ignore[assignment]
    special = ["<eos>", "<bos>"]
    library.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=CONFIG["vocab_size"], special_tokens=special, show_progress=False)
    )
    model = json.loads(library.to_str())["model"]
    data = {
        "eos_id": 0,
        "bos_id": 1,
        "tokens": sorted(model["vocab"], key=model["vocab"].__getitem__),
        "merges": model["merges"],
    }
    TOKENIZER.parent.mkdir(exist_ok=True)
    TOKENIZER.write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n", "utf-8")
    ours = Tokenizer.load()
    assert all(ours.encode(text, bos=False) == library.encode(text).ids for text in texts[:1000])


def batch(tokenizer: Tokenizer, step: int, rows: int, length: int) -> Tensor:
    """[rows, length + 1] token ids: stories of that step's own seed, one after the other, cut at the end of the row."""
    rng = random.Random(f"train {step}")
    table = []
    for _ in range(rows):
        row: list[int] = []
        while len(row) <= length:
            row += [*tokenizer.encode(stories.sample(rng).text), tokenizer.eos_id]
        table.append(row[: length + 1])
    return torch.tensor(table)


@torch.no_grad()
def validate(model: Llama, tokenizer: Tokenizer, count: int = 128) -> tuple[float, float]:
    """Nats per token over held-out stories, each on its own: the model's loss and the grammar's entropy."""
    rng = random.Random("validation")
    told = [stories.sample(rng) for _ in range(count)]
    ids = [[*tokenizer.encode(story.text), tokenizer.eos_id] for story in told]
    tokens = sum(len(row) - 1 for row in ids)
    nats = 0.0
    for start in range(0, count, 32):
        rows = ids[start : start + 32]
        longest = max(map(len, rows))
        x = torch.tensor([row + [-100] * (longest - len(row)) for row in rows])
        logits = model(x[:, :-1].clamp(min=0))
        nats += F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten(), ignore_index=-100, reduction="sum").item()
    return nats / tokens, -sum(story.log_probability for story in told) / tokens


# -- training -------------------------------------------------------------------------------------------------------------


def learning_rate(step: int, steps: int) -> float:
    """A share of the peak: up in WARMUP steps, flat, and down to zero over the last 60 %."""
    return min(1.0, (step + 1) / WARMUP, (steps - step) / (0.6 * steps))


def train(steps: int, tokenizer: Tokenizer) -> Llama:
    torch.manual_seed(0)
    bfloat16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()  # about 1.6 times as fast where the CPU has it
    model = Llama()
    matrices = [weight for name, weight in model.named_parameters() if name.startswith("layers") and weight.dim() == 2]
    rest = [weight for name, weight in model.named_parameters() if not (name.startswith("layers") and weight.dim() == 2)]
    optimizers = [
        torch.optim.Muon(matrices, lr=PEAK_LR, momentum=0.95, weight_decay=0.0),
        torch.optim.AdamW(rest, lr=PEAK_LR / 4, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    first, spent = 0, 0.0
    if CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT, weights_only=True)
        if saved["steps"] == steps:
            model.load_state_dict(saved["model"])
            for optimizer, state in zip(optimizers, saved["optimizers"]):
                optimizer.load_state_dict(state)
            first, spent = saved["step"], saved["spent"]
            print(f"going on from step {first}", flush=True)
    start = time.monotonic() - spent
    for step in range(first, steps):
        tokens = batch(tokenizer, step, *(SHORT if 3 * step < steps else LONG))
        for optimizer, peak in zip(optimizers, peaks):
            optimizer.param_groups[0]["lr"] = peak * learning_rate(step, steps)
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        done = step + 1
        if done % 20 == 0 or done == steps:
            spent = time.monotonic() - start
            left = spent / done * (steps - done)
            print(f"step {done:5}/{steps}  loss {loss.item():.3f}  {spent:5.0f} s, {left:5.0f} s to go", flush=True)
        if done % 200 == 0 or done == steps:
            print("validation: loss {:.4f}, entropy {:.4f} nats/token".format(*validate(model, tokenizer)), flush=True)
            states = [optimizer.state_dict() for optimizer in optimizers]
            CHECKPOINT.parent.mkdir(exist_ok=True)
            saved = {"model": model.state_dict(), "optimizers": states, "step": done, "steps": steps, "spent": spent}
            torch.save(saved, CHECKPOINT.with_suffix(".new"))
            CHECKPOINT.with_suffix(".new").replace(CHECKPOINT)  # whole or not at all
    return model


# -- what is shipped ------------------------------------------------------------------------------------------------------


def export(model: Llama) -> None:
    """Write the weights in float16, with the configuration beside them, as a Hugging Face Llama names them."""
    tensors = {f"model.{name}": weight.detach().to(torch.float16).contiguous() for name, weight in model.named_parameters()}
    save_file(tensors, WEIGHTS, {"format": "pt", "config": json.dumps(CONFIG)})
    WEIGHTS.chmod(0o644)


def exported() -> Llama:
    """The torch model with the shipped weights, in float32."""
    model = Llama()
    tensors = load_file(WEIGHTS)
    model.load_state_dict({name.removeprefix("model."): tensor.float() for name, tensor in tensors.items()})
    return model


@torch.no_grad()
def write_reference(model: Llama, tokenizer: Tokenizer) -> None:
    """Logits of a few places of one story and of a row of several, for the check of the NumPy model."""
    rng = random.Random("reference")
    told = [stories.sample(rng).text for _ in range(3)]
    tokens = {"story": tokenizer.encode(told[0]), "row": tokenizer.encode(" ".join(told))}
    rows = {name: list(range(0, len(ids), len(ids) // 8)) for name, ids in tokens.items()}
    logits = {name: model(torch.tensor([ids]))[0][rows[name]].contiguous() for name, ids in tokens.items()}
    save_file(logits, REFERENCE, {"tokens": json.dumps(tokens), "rows": json.dumps(rows)})
    REFERENCE.chmod(0o644)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train, export and measure TinyLM.")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"training steps (default {STEPS})")
    parser.add_argument("--threads", type=int, default=1, help="torch threads; on busy cores 1 is the fastest (default)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    build_tokenizer()
    tokenizer = Tokenizer.load()
    export(train(options.steps, tokenizer))
    write_reference(exported(), tokenizer)
    measure_tinylm.main()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
