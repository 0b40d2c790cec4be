"""TinyLM in torch: the weights and the `forward` of kit.tinylm on tensors, for runners whose attention is a kernel.

`TorchTinyLM.load()` is the way in. What it computes is what `TinyLM.forward` computes, line by line; only attention is asked for
elsewhere, as there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kit.gpu import DEVICE, need, torch
from kit.tinylm import TOKENIZER, WEIGHTS, TinyLM

Tensor = Any  # torch.Tensor, where there is torch
Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class TorchTinyLM:
    """The model's weights on DEVICE, its tokenizer, and `forward`.

    model: a TinyLM, whose weights it copies. dtype: what it computes in; float32 unless told otherwise.
    """

    def __init__(self, model: TinyLM, dtype: Any = None):
        need("TinyLM in torch", kernels=False)
        self.dtype = dtype or torch.float32
        self.config, self.tokenizer = model.config, model.tokenizer
        self.eos_id, self.bos_id = model.eos_id, model.bos_id
        self.encode, self.decode = model.encode, model.decode
        self.embedding, self.norm, self.cos, self.sin = map(
            self._tensor, (model.embedding, model.norm, model.cos, model.sin)
        )
        names = ("attn_norm", "qkv", "o", "mlp_norm", "gate_up", "down")
        self.layers = [{name: self._tensor(getattr(layer, name)) for name in names} for layer in model.layers]

    @classmethod
    def load(cls, weights: str | Path = WEIGHTS, tokenizer: str | Path = TOKENIZER, dtype: Any = None) -> TorchTinyLM:
        """Read the model from its two files. Raises BadWeights."""
        return cls(TinyLM.load(weights, tokenizer), dtype)

    def _tensor(self, array: Any) -> Tensor:
        return torch.tensor(array).to(DEVICE, self.dtype)

    def forward(self, tokens: Tensor, positions: Tensor, attention: Attention, rows: Sequence[int] | None = None) -> Tensor:
        """One pass over T tokens, whoever's they are. tokens, positions: [T] int64 on DEVICE.

        attention: called once a layer with (layer, q [T, heads, head_dim], k, v [T, kv_heads, head_dim]), all contiguous.
        rows: the tokens whose logits are wanted, all if None. Returns [len(rows), vocab_size] on DEVICE.
        """
        c = self.config
        x = self.embedding[tokens]
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        sizes = [c.num_heads, c.num_kv_heads, c.num_kv_heads]
        for i, layer in enumerate(self.layers):
            qkv = (self._rms_norm(x, layer["attn_norm"]) @ layer["qkv"].T).view(len(tokens), -1, c.head_dim)
            q, k, v = qkv.split(sizes, dim=1)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            out = attention(i, q, k, v.contiguous()).reshape(len(tokens), -1)
            if i == c.num_layers - 1 and rows is not None:  # nobody reads the other rows any more
                x, out = x[list(rows)], out[list(rows)]
            x = x + out @ layer["o"].T
            gate, up = (self._rms_norm(x, layer["mlp_norm"]) @ layer["gate_up"].T).chunk(2, dim=1)
            x = x + (torch.nn.functional.silu(gate) * up) @ layer["down"].T
        return self._rms_norm(x, self.norm) @ self.embedding.T

    def _rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(dim=1, keepdim=True) + self.config.rms_norm_eps) * weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, halves paired as in Llama's checkpoints. x: [T, heads, head_dim]; cos, sin: [T, 1, head_dim / 2]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
