"""TinyLM: a real language model of a million parameters, in NumPy, that tells short stories.

The architecture is Llama's (RMSNorm, rotary positions, grouped-query attention, SwiGLU, tied embeddings), small enough to read.
Tokenizer; ModelConfig; KVCache and `attend`, the attention of one request; TinyLM, whose `forward` takes one flat list of
tokens, whoever's they are. Where keys and values are stored is the caller's: `forward` asks for attention through a function.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from kit.errors import CourseError

# Threads cost more than they give on products this small, ten times as much on busy cores. Has an effect if NumPy comes after.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
try:
    import numpy as np
except ImportError:  # importing this costs nothing to a lesson that runs without a model; `TinyLM` says what to install
    np = None  # type: ignore[assignment]

WEIGHTS = Path(__file__).parent / "weights" / "tinylm.safetensors"
TOKENIZER = WEIGHTS.with_name("tinylm_tokenizer.json")

Array: TypeAlias = "np.ndarray"
# (layer, q [T, heads, head_dim], k [T, kv_heads, head_dim], v likewise) -> [T, heads, head_dim]: stores k and v, then attends.
Attention = Callable[[int, Array, Array, Array], Array]


class NoNumPy(CourseError):
    """The model is asked for where NumPy is not installed."""


class BadWeights(CourseError):
    """A weights or tokenizer file that is missing, cut short, or not of this model's shape."""


class BadText(CourseError):
    """A character that the tokenizer has never seen."""


class BadTokens(CourseError):
    """Token ids or positions that the model does not have."""


class CacheOverrun(CourseError):
    """More tokens than a KV cache has room for."""


class Tokenizer:
    """Byte-pair encoding over characters (Sennrich et al., 2016): a text is cut into words with their leading space, a word
    into characters, and the pairs that were merged first in training are merged first again.

    tokens: the text of each id. merges: pairs of texts, the most frequent first. bos_id, eos_id: begin and end of a story.
    """

    WORD = re.compile(r" ?[A-Za-z]+| ?[^A-Za-z ]+| ")

    def __init__(self, tokens: Sequence[str], merges: Iterable[Sequence[str]], bos_id: int, eos_id: int):
        self.tokens, self.bos_id, self.eos_id = list(tokens), bos_id, eos_id
        self._ids = {token: i for i, token in enumerate(tokens)}
        self._ranks = {(left, right): rank for rank, (left, right) in enumerate(merges)}
        self._word_ids = lru_cache(maxsize=4096)(self._merge)

    @classmethod
    def load(cls, path: str | Path = TOKENIZER) -> Tokenizer:
        """Read the JSON that tools/train_tinylm.py writes. Raises BadWeights."""
        try:
            data = json.loads(_read(Path(path)))
            return cls(data["tokens"], data["merges"], data["bos_id"], data["eos_id"])
        except (UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, CourseError):
                raise
            raise BadWeights(f"{path} is not a tokenizer of this course: fetch it again with git checkout") from error

    def encode(self, text: str, bos: bool = True) -> list[int]:
        """The ids of `text`, after the id that begins every story unless `bos` is false. Raises BadText."""
        for place, letter in enumerate(text):
            if letter not in self._ids:
                where = f"character {place + 1} of the text"
                raise BadText(f"TinyLM has no token for {letter!r}, {where}: use plain English letters")
        ids = [self.bos_id] if bos else []
        for word in self.WORD.findall(text):
            ids += self._word_ids(word)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`; the ids that begin and end a story have none. Raises BadTokens."""
        return "".join(map(self.text_of, ids))

    def text_of(self, token: int) -> str:
        """The text of one id. Tokens are whole characters, so a stream can be printed token by token."""
        if not 0 <= token < len(self.tokens):
            raise BadTokens(f"token id {token} is unknown: the tokenizer has ids 0 to {len(self.tokens) - 1}")
        return "" if token in (self.bos_id, self.eos_id) else self.tokens[token]

    def _merge(self, word: str) -> tuple[int, ...]:
        pieces = list(word)
        while True:
            known = [(self._ranks[pair], i) for i, pair in enumerate(zip(pieces, pieces[1:])) if pair in self._ranks]
            if not known:
                return tuple(self._ids[piece] for piece in pieces)
            _, i = min(known)
            pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The numbers of a Llama-style model. `num_heads` query heads share `num_kv_heads` key/value heads, so many to one."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int  # positions 0 to max_model_len - 1
    rms_norm_eps: float
    rope_theta: float
    bos_id: int
    eos_id: int

    @classmethod
    def from_llama(cls, data: dict[str, Any]) -> ModelConfig:
        """From the names that Hugging Face's config.json uses."""
        return cls(
            vocab_size=data["vocab_size"],
            hidden_size=data["hidden_size"],
            intermediate_size=data["intermediate_size"],
            num_layers=data["num_hidden_layers"],
            num_heads=data["num_attention_heads"],
            num_kv_heads=data["num_key_value_heads"],
            head_dim=data["head_dim"],
            max_model_len=data["max_position_embeddings"],
            rms_norm_eps=data["rms_norm_eps"],
            rope_theta=data["rope_theta"],
            bos_id=data["bos_token_id"],
            eos_id=data["eos_token_id"],
        )


class KVCache:
    """Keys and values of one request, contiguous: room for `capacity` tokens, of which `length` are stored.

    k, v: [num_layers, capacity, num_kv_heads, head_dim].
    """

    __slots__ = ("capacity", "k", "length", "v")

    def __init__(self, config: ModelConfig, capacity: int | None = None, dtype: Any = "float32"):
        self.capacity = config.max_model_len if capacity is None else capacity
        if self.capacity < 1:
            raise CacheOverrun(f"a KV cache of {self.capacity} tokens holds nothing: give it room for at least 1")
        shape = (config.num_layers, self.capacity, config.num_kv_heads, config.head_dim)
        self.k, self.v = np.empty(shape, dtype), np.empty(shape, dtype)
        self.length = 0

    def rewind(self, length: int) -> None:
        """Forget all tokens but the first `length`."""
        if not 0 <= length <= self.length:
            raise CacheOverrun(f"can't rewind to {length} tokens: the cache holds {self.length}")
        self.length = length


def attend(q: Array, k: Array, v: Array, start: int) -> Array:
    """Causal attention of one request: its queries at positions start, start + 1, … over its keys from position 0.

    q: [n, num_heads, head_dim]. k, v: [start + n, num_kv_heads, head_dim]. Returns [n, num_heads, head_dim].
    Query head h reads key/value head h // (num_heads / num_kv_heads): the group is folded into the rows of one product.
    """
    n, heads, size = q.shape
    kv_heads = k.shape[1]
    rows = q.reshape(n, kv_heads, -1, size).transpose(1, 0, 2, 3).reshape(kv_heads, -1, size)  # [kv_heads, n * group, size]
    scores = rows @ k.transpose(1, 2, 0)  # [kv_heads, n * group, start + n]
    scores *= 1 / math.sqrt(size)
    if n > 1:
        future = np.arange(start + n) > np.arange(start, start + n)[:, None]  # [n, start + n]
        scores[:, np.repeat(future, heads // kv_heads, axis=0)] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    out = scores @ v.transpose(1, 0, 2)
    return out.reshape(kv_heads, n, -1, size).transpose(1, 0, 2, 3).reshape(n, heads, size)


@dataclass(slots=True)
class _Layer:
    attn_norm: Array  # [hidden]
    qkv: Array  # [(num_heads + 2 * num_kv_heads) * head_dim, hidden]: three projections read as one
    o: Array  # [hidden, num_heads * head_dim]
    mlp_norm: Array  # [hidden]
    gate_up: Array  # [2 * intermediate, hidden]
    down: Array  # [hidden, intermediate]


class TinyLM:
    """The model: weights, tokenizer, and `forward`. `TinyLM.load()` is the way in.

    A token's logits do not depend on whom it shares a step with, up to float rounding (about 1e-5 in float32, 1e-13 in
    float64): a product of another shape may add in another order.
    """

    def __init__(self, config: ModelConfig, tensors: dict[str, Array], tokenizer: Tokenizer, dtype: Any = "float32"):
        """tensors: the names and shapes of `shapes(config)`. Raises BadWeights before anything is kept."""
        wanted = shapes(config)
        for name, shape in wanted.items():
            if name not in tensors:
                raise BadWeights(f"the weights lack {name}")
            if tensors[name].shape != shape:
                raise BadWeights(f"{name} has shape {list(tensors[name].shape)}, the model needs {list(shape)}")
        if len(tokenizer.tokens) != config.vocab_size:
            raise BadWeights(f"the tokenizer has {len(tokenizer.tokens)} tokens, the weights {config.vocab_size}")
        self.config, self.tokenizer, self.dtype = config, tokenizer, np.dtype(dtype)
        self.eos_id, self.bos_id = config.eos_id, config.bos_id
        self.encode, self.decode = tokenizer.encode, tokenizer.decode
        w = {name: tensors[name].astype(dtype) for name in wanted}
        self.embedding = w["model.embed_tokens.weight"]  # [vocab, hidden]: the way in and, transposed, the way out
        self.norm = w["model.norm.weight"]
        self.layers = []
        for i in range(config.num_layers):
            at = f"model.layers.{i}."
            self.layers.append(
                _Layer(
                    attn_norm=w[at + "input_layernorm.weight"],
                    qkv=np.concatenate([w[f"{at}self_attn.{x}_proj.weight"] for x in "qkv"]),
                    o=w[at + "self_attn.o_proj.weight"],
                    mlp_norm=w[at + "post_attention_layernorm.weight"],
                    gate_up=np.concatenate([w[f"{at}mlp.{x}_proj.weight"] for x in ("gate", "up")]),
                    down=w[at + "mlp.down_proj.weight"],
                )
            )
        half = np.arange(config.head_dim // 2) / (config.head_dim // 2)
        angles = np.outer(np.arange(config.max_model_len), config.rope_theta**-half)  # [max_model_len, head_dim / 2]
        self.cos, self.sin = np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)

    @classmethod
    def load(cls, weights: str | Path = WEIGHTS, tokenizer: str | Path = TOKENIZER, dtype: Any = "float32") -> TinyLM:
        """Read the model from its two files. dtype: what it computes in. Raises BadWeights; nothing is half-loaded."""
        if np is None:
            raise NoNumPy("TinyLM needs NumPy: pip install numpy")
        tensors, metadata = read_safetensors(weights)
        try:
            config = ModelConfig.from_llama(json.loads(metadata["config"]))
        except (KeyError, TypeError, ValueError) as error:
            raise BadWeights(f"{weights} carries no model configuration that TinyLM can read") from error
        return cls(config, tensors, Tokenizer.load(tokenizer), dtype)

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(shape) for shape in shapes(self.config).values())

    def new_cache(self, capacity: int | None = None) -> KVCache:
        """An empty cache for one request of at most `capacity` tokens, max_model_len if None."""
        return KVCache(self.config, capacity, self.dtype)

    def forward(
        self, tokens: Sequence[int], positions: Sequence[int], attention: Attention, rows: Sequence[int] | None = None
    ) -> Array:
        """One pass over T tokens, whoever's they are: only `attention` knows which belong together.

        tokens: T ids. positions: each token's place in its own request, from 0.
        attention: called once a layer with rotated queries and keys; see `Attention`.
        rows: the tokens whose logits are wanted, all if None. A prefill chunk needs its last at most.
        Returns [len(rows), vocab_size] logits. Raises BadTokens.
        """
        c = self.config
        ids, places = self._checked(tokens, positions)
        x = self.embedding[ids]  # [T, hidden]
        cos, sin = self.cos[places][:, None], self.sin[places][:, None]  # [T, 1, head_dim / 2]
        q_size, kv_size = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        last = c.num_layers - 1
        for i, layer in enumerate(self.layers):
            qkv = self._rms_norm(x, layer.attn_norm) @ layer.qkv.T
            qk = rotate(qkv[:, : q_size + kv_size].reshape(len(ids), -1, c.head_dim), cos, sin)
            v = qkv[:, q_size + kv_size :].reshape(len(ids), -1, c.head_dim)
            out = attention(i, qk[:, : c.num_heads], qk[:, c.num_heads :], v).reshape(len(ids), q_size)
            if i == last and rows is not None:  # nobody reads the other rows any more
                x, out = x[rows], out[rows]
            x = x + out @ layer.o.T
            gate, up = np.split(self._rms_norm(x, layer.mlp_norm) @ layer.gate_up.T, 2, axis=1)
            x = x + (gate / (1 + np.exp(-gate)) * up) @ layer.down.T
        return self._rms_norm(x, self.norm) @ self.embedding.T

    def step(self, batch: Sequence[tuple[KVCache, Sequence[int]]], every: bool = False) -> Array:
        """Compute the next tokens of several requests in one pass: prefill chunks and decodes alike.

        batch: for each request its cache and the tokens that follow what is stored there; the caches grow by them.
        Returns [len(batch), vocab_size], the logits after each request's last token; with `every` those after every token,
        [T, vocab_size]. Raises BadTokens and CacheOverrun before anything is stored.
        """
        tokens = [token for _, new in batch for token in new]
        positions = [cache.length + i for cache, new in batch for i in range(len(new))]
        spans: list[tuple[KVCache, int, int]] = []  # of each request: its cache, its first token, one behind its last
        first = 0
        for cache, new in batch:
            if not len(new):
                raise BadTokens(f"request {len(spans)} of the batch has no token to compute: leave it out")
            if cache.length + len(new) > cache.capacity:
                raise CacheOverrun(
                    f"{len(new)} more tokens do not fit: the KV cache holds {cache.length} of at most {cache.capacity}"
                )
            spans.append((cache, first, first + len(new)))
            first += len(new)
        if len({id(cache) for cache, _, _ in spans}) < len(spans):
            raise BadTokens("two requests of a batch share a KV cache: join their tokens")

        def attention(layer: int, q: Array, k: Array, v: Array) -> Array:
            out = np.empty_like(q)
            for cache, first, end in spans:
                start, stop = cache.length, cache.length + end - first
                cache.k[layer, start:stop], cache.v[layer, start:stop] = k[first:end], v[first:end]
                out[first:end] = attend(q[first:end], cache.k[layer, :stop], cache.v[layer, :stop], start)
            return out

        logits = self.forward(tokens, positions, attention, None if every else [end - 1 for _, _, end in spans])
        for cache, first, end in spans:
            cache.length += end - first
        return logits

    def logits(self, tokens: Sequence[int]) -> Array:
        """One text without a cache: [n] ids to [n, vocab_size] logits, computed anew at every call."""
        return self.forward(tokens, range(len(tokens)), lambda layer, q, k, v: attend(q, k, v, 0))

    def _rms_norm(self, x: Array, weight: Array) -> Array:
        square = np.einsum("ij,ij->i", x, x)[:, None] / x.shape[1]
        return x / np.sqrt(square + self.config.rms_norm_eps) * weight

    def _checked(self, tokens: Sequence[int], positions: Sequence[int]) -> tuple[Array, Array]:
        ids, places = np.asarray(tokens), np.asarray(positions)
        if not len(ids):
            raise BadTokens("there is no token to compute: a prompt needs at least one")
        c = self.config
        for what, values, limit in (("token id", ids, c.vocab_size), ("position", places, c.max_model_len)):
            if values.dtype.kind not in "iu" or values.shape != ids.shape:
                raise BadTokens(f"{what}s must be whole numbers, one for each of the {len(ids)} tokens")
            if values.min() < 0 or values.max() >= limit:
                wrong = values[(values < 0) | (values >= limit)][0]
                raise BadTokens(f"{what} {wrong} is unknown: the model has 0 to {limit - 1}")
        return ids, places


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotary positions (Su et al., 2021), halves paired as in Llama's checkpoints.

    x: [T, heads, head_dim]. cos, sin: [T, 1, head_dim / 2].
    """
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)


def shapes(c: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor, as in Hugging Face's Llama checkpoints with tied embeddings."""
    found = {"model.embed_tokens.weight": (c.vocab_size, c.hidden_size), "model.norm.weight": (c.hidden_size,)}
    q_size, kv_size = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    for i in range(c.num_layers):
        of_layer = {
            "input_layernorm": (c.hidden_size,),
            "self_attn.q_proj": (q_size, c.hidden_size),
            "self_attn.k_proj": (kv_size, c.hidden_size),
            "self_attn.v_proj": (kv_size, c.hidden_size),
            "self_attn.o_proj": (c.hidden_size, q_size),
            "post_attention_layernorm": (c.hidden_size,),
            "mlp.gate_proj": (c.intermediate_size, c.hidden_size),
            "mlp.up_proj": (c.intermediate_size, c.hidden_size),
            "mlp.down_proj": (c.hidden_size, c.intermediate_size),
        }
        found |= {f"model.layers.{i}.{name}.weight": shape for name, shape in of_layer.items()}
    return found


def read_safetensors(path: str | Path) -> tuple[dict[str, Array], dict[str, str]]:
    """The tensors and the metadata of a safetensors file: 8 bytes of length, a JSON header, then the raw numbers.

    Float16 and float32 only. Raises BadWeights.
    """
    data = _read(Path(path))
    dtypes = {"F16": "<f2", "F32": "<f4"}
    try:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        metadata = header.pop("__metadata__", {})
        tensors = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            raw = data[8 + size + begin : 8 + size + end]
            if len(raw) != end - begin:
                raise BadWeights(f"{path} is cut short at {len(data)} bytes, inside {name}: fetch it again")
            tensors[name] = np.frombuffer(raw, dtypes[entry["dtype"]]).reshape(entry["shape"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, CourseError):
            raise
        raise BadWeights(f"{path} is not a safetensors file of float16 or float32 numbers: fetch it again") from error
    return tensors, metadata


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadWeights(f"{path} can't be read ({error.strerror}): it comes with the course") from error
