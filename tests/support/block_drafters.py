"""Checkpoints of block drafters with random weights, and what they should guess, computed by hand in NumPy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Reference", "config_of", "random_weights", "write_drafter", "write_gguf"]

Array = NDArray[np.float64]
VOCAB, HIDDEN = 300, 64


def config_of(kind: str, **changes: Any) -> dict[str, Any]:
    """A config.json as such checkpoints have it, for a target of 4 layers, 64 channels and 300 tokens."""
    config: dict[str, Any] = {
        "architectures": ["Qwen3DSparkModel" if kind == "dspark" else "DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "max_position_embeddings": 512,
        "num_target_layers": 4,
    }
    own = {"block_size": 6, "mask_token_id": 299, "target_layer_ids": [0, 2, 3]}
    if kind == "dspark":
        heads = {"markov_rank": 8, "markov_head_type": "vanilla", "enable_confidence_head": False}
        return {**config, **own, **heads, **changes}
    if kind == "dflash2":
        own |= {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 8, "selector_top_k": 5}
        config |= {"architectures": ["DFlash2DraftModel"]}
    nested = {key: changes.pop(key) for key in list(changes) if key in own}
    return {**config, **changes, "dflash_config": own | nested}


def random_weights(config: Mapping[str, Any], seed: int = 3) -> dict[str, NDArray[np.float32]]:
    """Weights of the layout that `config` speaks of, under the names that checkpoints are published with."""
    c = {**config, **config.get("dflash_config", {})}
    h, size, inner = c["hidden_size"], c["head_dim"], c["intermediate_size"]
    heads, kv = c["num_attention_heads"] * size, c["num_key_value_heads"] * size
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (h, len(c["target_layer_ids"]) * h),
        "hidden_norm.weight": (h,),
        "norm.weight": (h,),
    }
    for i in range(c["num_hidden_layers"]):
        shapes |= {
            f"layers.{i}.input_layernorm.weight": (h,),
            f"layers.{i}.post_attention_layernorm.weight": (h,),
            f"layers.{i}.self_attn.q_proj.weight": (heads, h),
            f"layers.{i}.self_attn.k_proj.weight": (kv, h),
            f"layers.{i}.self_attn.v_proj.weight": (kv, h),
            f"layers.{i}.self_attn.o_proj.weight": (h, heads),
            f"layers.{i}.self_attn.q_norm.weight": (size,),
            f"layers.{i}.self_attn.k_norm.weight": (size,),
            f"layers.{i}.mlp.gate_proj.weight": (inner, h),
            f"layers.{i}.mlp.up_proj.weight": (inner, h),
            f"layers.{i}.mlp.down_proj.weight": (h, inner),
        }
        for conv in ("attention_conv", "mlp_conv") if "conv_kernel_size" in c else ():
            taps, groups = c["conv_kernel_size"], h // c["conv_group_size"]
            shapes[f"layers.{i}.{conv}.base_kernel"] = (2, taps, h)
            shapes[f"layers.{i}.{conv}.kernel_projection.weight"] = (2 * taps * groups, h)
    shapes |= _head_shapes(c)
    rng = np.random.default_rng(seed)
    return {
        name: (1 + 0.1 * rng.standard_normal(shape) if "norm" in name else rng.standard_normal(shape) / 6).astype("f4")
        for name, shape in shapes.items()
    }


def _head_shapes(c: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    h, shapes = c["hidden_size"], dict[str, tuple[int, ...]]()
    if "selector_rank" in c:
        rank = c["selector_rank"]
        shapes["candidate_selector.hidden_projection.weight"] = (rank, h)
        shapes["candidate_selector.predecessor_codebook"] = (VOCAB, rank)
        shapes["candidate_selector.successor_codebook"] = (VOCAB, rank)
    rank = c.get("markov_rank", 0)
    if rank:
        shapes["markov_head.markov_w1.weight"] = shapes["markov_head.markov_w2.weight"] = (VOCAB, rank)
        if c["markov_head_type"] == "gated":
            shapes["markov_head.gate_proj.weight"] = (rank, h + rank)
            shapes["markov_head.gate_proj.bias"] = (rank,)
    if c.get("enable_confidence_head"):
        shapes["confidence_head.proj.weight"] = (1, h + (rank if c.get("confidence_head_with_markov") else 0))
        shapes["confidence_head.proj.bias"] = (1,)
    return shapes


def write_drafter(folder: Path, config: Mapping[str, Any], weights: Mapping[str, NDArray[np.float32]]) -> Path:
    """The checkpoint as a folder."""
    import mlx.core as mx

    folder.mkdir()
    mx.save_safetensors(str(folder / "model.safetensors"), {name: mx.array(array) for name, array in weights.items()})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@dataclass
class Reference:
    """The same drafter, one slot and one head at a time. `embedding` is the target's, tied to its last step."""

    config: Mapping[str, Any]
    weights: Mapping[str, NDArray[np.float32]]
    embedding: Array

    def __post_init__(self) -> None:
        self.config = {**self.config, **self.config.get("dflash_config", {})}

    def guess(self, taps: Sequence[Array], anchor: int) -> list[int]:
        """What it guesses after `anchor`, with what each tapped layer gave, [tokens, hidden], for all tokens before."""
        hidden = self._slots(taps, anchor)
        return self._pick(hidden if "markov_rank" in self.config else hidden[1:], anchor)

    def logits(self, taps: Sequence[Array], anchor: int) -> Array:
        """Logits [block, n_vocab] of all slots, before any head."""
        return self._slots(taps, anchor) @ self.embedding.T

    def _slots(self, taps: Sequence[Array], anchor: int) -> Array:
        c = self.config
        context = self._norm(np.concatenate(taps, axis=1) @ self._w("fc").T, "hidden_norm")
        hidden = self.embedding[[anchor] + [c["mask_token_id"]] * (c["block_size"] - 1)]
        for layer in range(c["num_hidden_layers"]):
            for part, norm, conv in (
                (lambda x, i=layer: self._attend(i, x, context), "input_layernorm", "attention_conv"),
                (lambda x, i=layer: self._mlp(i, x), "post_attention_layernorm", "mlp_conv"),
            ):
                inner = self._norm(hidden, f"layers.{layer}.{norm}")
                if "conv_kernel_size" in c:
                    name = f"layers.{layer}.{conv}"
                    after = part(self._convolve(name, 0, inner, inner))
                    hidden = hidden + self._convolve(name, 1, after, inner)
                else:
                    hidden = hidden + part(inner)
        return self._norm(hidden, "norm")

    def _pick(self, slots: Array, anchor: int) -> list[int]:
        picked, previous = [], anchor
        for slot in slots:
            logits = self.embedding @ slot
            if "selector_rank" in self.config:
                best = np.argsort(logits)[-self.config["selector_top_k"] :]
                wanted = self._w("candidate_selector.hidden_projection") @ slot
                before = self.weights["candidate_selector.predecessor_codebook"][previous]
                link = self.weights["candidate_selector.successor_codebook"] @ (before * wanted)
                previous = int(best[np.argmax((logits + link)[best])])
            elif self.config.get("markov_rank"):
                known = self._w("markov_head.markov_w1")[previous].astype(np.float64)
                if self.config["markov_head_type"] == "gated":
                    gate = self._w("markov_head.gate_proj") @ np.concatenate([slot, known])
                    known = known / (1 + np.exp(-gate - self.weights["markov_head.gate_proj.bias"]))
                previous = int(np.argmax(logits + self._w("markov_head.markov_w2") @ known))
            else:
                previous = int(np.argmax(logits))
            picked.append(previous)
        return picked

    def _attend(self, layer: int, slots: Array, context: Array) -> Array:
        c, start = self.config, len(context)
        size, heads, kv = c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
        name = f"layers.{layer}.self_attn"
        states = np.concatenate([context, slots])
        keys = self._turned(layer, "k", states, kv, 0)
        values = (states @ self._w(f"{name}.v_proj").T).reshape(-1, kv, size)
        queries = self._turned(layer, "q", slots, heads, start)
        seen = np.zeros((len(slots), heads, size))
        for slot in range(len(slots)):
            visible = [k for k in range(len(states)) if self._sees(layer, start + slot, k, start)]
            for head in range(heads):
                of = head // (heads // kv)
                scores = keys[visible, of] @ queries[slot, head] / np.sqrt(size)
                chances = np.exp(scores - scores.max())
                seen[slot, head] = chances / chances.sum() @ values[visible, of]
        return seen.reshape(len(slots), -1) @ self._w(f"{name}.o_proj").T

    def _sees(self, layer: int, at: int, of: int, start: int) -> bool:
        kinds = self.config.get("layer_types")
        sliding = kinds is not None and kinds[layer] == "sliding_attention"
        if of < start:
            return not sliding or at - of < self.config["sliding_window"]
        causal = self.config.get("is_causal")
        return of <= at if (sliding if causal is None else causal) else True

    def _turned(self, layer: int, which: str, states: Array, heads: int, start: int) -> Array:
        size = self.config["head_dim"]
        flat = states @ self._w(f"layers.{layer}.self_attn.{which}_proj").T
        split = self._norm(flat.reshape(-1, heads, size), f"layers.{layer}.self_attn.{which}_norm")
        angles = (start + np.arange(len(split)))[:, None] * self.config["rope_theta"] ** (-np.arange(0, size, 2) / size)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        left, right = split[..., : size // 2], split[..., size // 2 :]
        return np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)

    def _mlp(self, layer: int, states: Array) -> Array:
        gate, up = (states @ self._w(f"layers.{layer}.mlp.{name}_proj").T for name in ("gate", "up"))
        return (gate / (1 + np.exp(-gate)) * up) @ self._w(f"layers.{layer}.mlp.down_proj").T

    def _convolve(self, name: str, which: int, states: Array, asked: Array) -> Array:
        taps, group = self.config["conv_kernel_size"], self.config["conv_group_size"]
        moving = (asked @ self._w(f"{name}.kernel_projection").T).reshape(len(states), 2, taps, -1)
        mixed = np.zeros_like(states)
        for slot in range(len(states)):
            for back in range(min(taps, slot + 1)):
                kernel = self.weights[f"{name}.base_kernel"][which, back] + np.repeat(moving[slot, which, back], group)
                mixed[slot] += kernel * states[slot - back]
        return mixed

    def _w(self, name: str) -> NDArray[np.float32]:
        return self.weights[f"{name}.weight"]

    def _norm(self, states: Array, name: str) -> Array:
        scale = np.sqrt((states**2).mean(axis=-1, keepdims=True) + self.config["rms_norm_eps"])
        return states / scale * self._w(name)


# From the names of published checkpoints to those in GGUF files; those of layers without their prefix.
_GGUF = {"fc": "fc", "hidden_norm": "enc.output_norm", "norm": "output_norm"}
_GGUF_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(path: Path, config: Mapping[str, Any], weights: Mapping[str, NDArray[np.float32]], **extra: Any) -> Path:
    """The same DFlash checkpoint as a GGUF file, where a tap is the layer behind. `extra` are further tensors."""
    from gguf import GGUFWriter

    c = {**config, **config["dflash_config"]}
    writer = GGUFWriter(path, c.get("gguf_architecture", "dflash"))
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_key_length(c["head_dim"])
    writer.add_value_length(c["head_dim"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_rope_freq_base(c["rope_theta"])
    writer.add_vocab_size(c["vocab_size"])
    writer.add_uint32("dflash.block_size", c["block_size"])
    writer.add_array("dflash.target_layers", [tap + 1 for tap in c["target_layer_ids"]])
    writer.add_string("tokenizer.ggml.model", "none")
    writer.add_uint32("tokenizer.ggml.mask_token_id", c["mask_token_id"])
    for name, array in weights.items():
        prefix, _, rest = name.removesuffix(".weight").partition("layers.")
        number, _, part = rest.partition(".")
        writer.add_tensor(f"blk.{number}.{_GGUF_LAYER[part]}.weight" if rest else f"{_GGUF[prefix]}.weight", array)
    for name, array in extra.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
