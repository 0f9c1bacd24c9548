"""A block drafter's layers, over the target's features.

What the target's layers gave for a token becomes that token's key and value in each of the drafter's layers, kept in a
cache beside the target's. The slots of a block attend to those and to one another, and leave nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pinfold.engines.mlx.blocks.config import BlockConfig

__all__ = ["Network", "expected_shapes"]

Array = Any
Shapes = dict[str, tuple[int, ...]]


def expected_shapes(config: BlockConfig) -> Shapes:
    """Each weight that the layers read, with its shape."""
    h, size = config.hidden, config.head_dim
    shapes: Shapes = {"fc.weight": (h, len(config.taps) * h), "hidden_norm.weight": (h,), "norm.weight": (h,)}
    for layer in range(config.n_layers):
        own: Shapes = {
            "input_layernorm.weight": (h,),
            "post_attention_layernorm.weight": (h,),
            "self_attn.q_proj.weight": (config.n_heads * size, h),
            "self_attn.k_proj.weight": (config.n_kv_heads * size, h),
            "self_attn.v_proj.weight": (config.n_kv_heads * size, h),
            "self_attn.o_proj.weight": (h, config.n_heads * size),
            "self_attn.q_norm.weight": (size,),
            "self_attn.k_norm.weight": (size,),
            "mlp.gate_proj.weight": (config.inner, h),
            "mlp.up_proj.weight": (config.inner, h),
            "mlp.down_proj.weight": (h, config.inner),
        }
        if config.conv_kernel:
            rows = 2 * config.conv_kernel * (h // config.conv_group)
            for conv in ("attention_conv", "mlp_conv"):
                own[f"{conv}.base_kernel"] = (2, config.conv_kernel, h)
                own[f"{conv}.kernel_projection.weight"] = (rows, h)
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in own.items()}
    return shapes


@dataclass(frozen=True, slots=True)
class Network:
    """The layers. `rope` turns [1, heads, tokens, size] from a position on."""

    mx: Any
    config: BlockConfig
    weights: Mapping[str, Array]
    rope: Any

    def remember(self, taps: Sequence[Array], caches: Sequence[Any]) -> None:
        """Appends to each layer's cache what the target gave for the next tokens, [1, tokens, hidden] for each tap."""
        kind = self.weights["fc.weight"].dtype
        features = self._linear(self.mx.concatenate([tap.astype(kind) for tap in taps], axis=-1), "fc")
        context = self._norm(features, "hidden_norm")
        for layer, cache in enumerate(caches):
            cache.update_and_fetch(*self._keys_values(layer, context, cache.offset))

    def fill(self, slots: Array, caches: Sequence[Any]) -> Array:
        """The embeddings of a block, [1, block, hidden], seen through all layers; the caches stay as they are."""
        hidden = slots.astype(self.weights["fc.weight"].dtype)
        for layer, cache in enumerate(caches):
            hidden = hidden + self._attention_part(layer, hidden, cache)
            hidden = hidden + self._mlp_part(layer, hidden)
        return self._norm(hidden, "norm")

    def _attention_part(self, layer: int, hidden: Array, cache: Any) -> Array:
        inner = self._norm(hidden, f"layers.{layer}.input_layernorm")
        if not self.config.conv_kernel:
            return self._attend(layer, inner, cache)
        name = f"layers.{layer}.attention_conv"
        kernels = self._kernels(name, inner)
        return self._convolve(name, 1, self._attend(layer, self._convolve(name, 0, inner, kernels), cache), kernels)

    def _mlp_part(self, layer: int, hidden: Array) -> Array:
        inner = self._norm(hidden, f"layers.{layer}.post_attention_layernorm")
        if not self.config.conv_kernel:
            return self._mlp(layer, inner)
        name = f"layers.{layer}.mlp_conv"
        kernels = self._kernels(name, inner)
        return self._convolve(name, 1, self._mlp(layer, self._convolve(name, 0, inner, kernels)), kernels)

    def _attend(self, layer: int, hidden: Array, cache: Any) -> Array:
        config, start = self.config, cache.offset
        queries = self._heads(self._linear(hidden, f"layers.{layer}.self_attn.q_proj"), config.n_heads)
        queries = self.rope(self._norm(queries, f"layers.{layer}.self_attn.q_norm"), offset=start)
        keys, values = self._keys_values(layer, hidden, start)
        first = max(start - (config.windows[layer] or start), 0)
        if start:
            keys = self.mx.concatenate([cache.keys[..., first:start, :].astype(keys.dtype), keys], axis=2)
            values = self.mx.concatenate([cache.values[..., first:start, :].astype(values.dtype), values], axis=2)
        seen = self.mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=config.head_dim**-0.5, mask=self._mask(layer, first, start)
        )
        return self._linear(seen.swapaxes(1, 2).reshape((*hidden.shape[:-1], -1)), f"layers.{layer}.self_attn.o_proj")

    def _mask(self, layer: int, first: int, start: int) -> Array:
        """Which of the context's tokens, from `first` on, and of the block's slots each slot sees; None for all."""
        window = self.config.windows[layer]
        causal = window is not None if self.config.causal is None else self.config.causal
        if window is None and not causal:
            return None
        at = self.mx.arange(start, start + self.config.block)[:, None]
        of = self.mx.arange(first, start + self.config.block)[None]
        in_block = of >= start
        context = ~in_block if window is None else ~in_block & (at - of < window)
        return context | (in_block & (of <= at) if causal else in_block)

    def _keys_values(self, layer: int, states: Array, start: int) -> tuple[Array, Array]:
        keys, values = (
            self._heads(self._linear(states, f"layers.{layer}.self_attn.{name}"), self.config.n_kv_heads)
            for name in ("k_proj", "v_proj")
        )
        return self.rope(self._norm(keys, f"layers.{layer}.self_attn.k_norm"), offset=start), values

    def _heads(self, flat: Array, count: int) -> Array:
        """[1, tokens, count * size] -> [1, count, tokens, size]."""
        return flat.reshape(*flat.shape[:-1], count, self.config.head_dim).swapaxes(1, 2)

    def _mlp(self, layer: int, hidden: Array) -> Array:
        gate = self._linear(hidden, f"layers.{layer}.mlp.gate_proj")
        up = self._linear(hidden, f"layers.{layer}.mlp.up_proj")
        return self._linear(gate * self.mx.sigmoid(gate) * up, f"layers.{layer}.mlp.down_proj")

    def _kernels(self, name: str, hidden: Array) -> Array:
        """What this block adds to a convolution's fixed kernels: [1, slots, 2, places, groups, 1]."""
        groups = self.config.hidden // self.config.conv_group
        flat = self._linear(hidden, f"{name}.kernel_projection")
        return flat.reshape(*hidden.shape[:-1], 2, self.config.conv_kernel, groups, 1)

    def _convolve(self, name: str, which: int, hidden: Array, kernels: Array) -> Array:
        """Mixes each slot with those before it: `which` is 0 in front of the layer's part and 1 behind it."""
        groups = hidden.reshape(*hidden.shape[:-1], -1, self.config.conv_group)
        base = self.weights[f"{name}.base_kernel"][which].astype(hidden.dtype)
        mixed = self.mx.zeros_like(groups)
        for back in range(self.config.conv_kernel):
            earlier = self.mx.pad(groups, ((0, 0), (back, 0), (0, 0), (0, 0)))[:, : groups.shape[1]]
            fixed = base[back].reshape(groups.shape[-2:])
            mixed = mixed + (fixed + kernels[:, :, which, back]) * earlier
        return mixed.reshape(hidden.shape)

    def _linear(self, states: Array, name: str) -> Array:
        return states @ self.weights[f"{name}.weight"].T

    def _norm(self, states: Array, name: str) -> Array:
        return self.mx.fast.rms_norm(states, self.weights[f"{name}.weight"], self.config.norm_eps)
