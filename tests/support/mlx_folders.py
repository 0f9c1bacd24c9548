"""Model folders for the MLX engine: the embedded model converted, and small ones with random weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["RANDOM", "convert_gguf", "random_folder"]

_COMMON = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 300,
    "max_position_embeddings": 512,
    "eos_token_id": 256,
    "tie_word_embeddings": True,
}

RANDOM: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "rope_theta": 10_000.0},
    "qwen2": {"model_type": "qwen2", "rope_theta": 10_000.0},
    "gemma3": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "head_dim": 16,
        "sliding_window": 16,
        "sliding_window_pattern": 3,
        "query_pre_attn_scalar": 16,
        "rope_theta": 1e6,
        "rope_local_base_freq": 10_000.0,
    },
    "llama_64": {"model_type": "llama", "rope_theta": 10_000.0, "head_dim": 64},
    "gemma3_64": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "head_dim": 64,
        "sliding_window": 16,
        "sliding_window_pattern": 3,
        "query_pre_attn_scalar": 64,
        "rope_theta": 1e6,
        "rope_local_base_freq": 10_000.0,
    },
    "minicpm3": {
        "model_type": "minicpm3",
        "q_lora_rank": 32,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "scale_depth": 1.4,
        "scale_emb": 1,
        "dim_model_base": 64,
        "num_key_value_heads": 4,
        "rope_scaling": {
            "type": "su",
            "original_max_position_embeddings": 512,
            "short_factor": [1.0] * 4,
            "long_factor": [1.0] * 4,
        },
    },
    "deepseek_v2": {
        "model_type": "deepseek_v2",
        "tie_word_embeddings": False,
        "moe_intermediate_size": 32,
        "n_shared_experts": 1,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "routed_scaling_factor": 1.0,
        "kv_lora_rank": 16,
        "q_lora_rank": 32,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "qk_nope_head_dim": 16,
        "topk_method": "greedy",
        "n_group": 1,
        "topk_group": 1,
        "moe_layer_freq": 1,
        "first_k_dense_replace": 1,
        "num_key_value_heads": 4,
        "rope_scaling": {"type": "yarn", "factor": 1.0, "original_max_position_embeddings": 512, "mscale_all_dim": 1.0},
    },
    "llama4": {
        "model_type": "llama4",
        "text_config": {
            **_COMMON,
            "model_type": "llama4_text",
            "num_hidden_layers": 4,
            "attention_bias": False,
            "attention_chunk_size": 16,
            "head_dim": 16,
            "interleave_moe_layer_step": 1,
            "intermediate_size_mlp": 96,
            "num_experts_per_tok": 1,
            "num_local_experts": 2,
            "rope_scaling": None,
            "rope_theta": 10_000.0,
            "use_qk_norm": True,
        },
        "tie_word_embeddings": False,
    },
    "falcon_h1": {
        "model_type": "falcon_h1",
        "head_dim": 16,
        "mamba_d_ssm": 64,
        "mamba_d_head": 16,
        "mamba_n_heads": 4,
        "mamba_d_state": 16,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
    },
    "falcon_h1_64": {
        "model_type": "falcon_h1",
        "head_dim": 64,
        "mamba_d_ssm": 64,
        "mamba_d_head": 16,
        "mamba_n_heads": 4,
        "mamba_d_state": 16,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
    },
    "mamba2": {
        "model_type": "mamba2",
        "num_heads": 4,
        "head_dim": 32,
        "state_size": 16,
        "conv_kernel": 4,
        "n_groups": 1,
        "expand": 2,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_limit": [0.0, 1e9],
        "time_step_rank": "auto",
        "layer_norm_epsilon": 1e-5,
    },
    "qwen3_next": {
        "model_type": "qwen3_next",
        "num_hidden_layers": 4,
        "full_attention_interval": 4,
        "head_dim": 16,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 32,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.5,
    },
}


def random_folder(
    kind: str, root: Path, edit: Callable[[dict[str, Any]], None] = lambda _: None, **changes: Any
) -> Path:
    """A folder of the architecture `kind` whose weights are random, the same at each call.

    `edit` may change the weights, `changes` go into the configuration.
    """
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.utils import _get_classes

    folder = root / kind
    folder.mkdir()
    config = {**_COMMON, **RANDOM[kind], **changes}
    make, arguments = _get_classes(config)
    mx.random.seed(7)
    weights = dict(tree_flatten(make(arguments.from_dict(config)).parameters()))
    for name, array in weights.items():  # larger than what training starts from, so that answers differ clearly
        if array.ndim > 1:
            weights[name] = array * 3
    if config["tie_word_embeddings"]:
        weights.pop("lm_head.weight", None)
    edit(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    _write(folder / "config.json", config)
    _bytes_tokenizer().save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", {"eos_token": "<|im_end|>", "chat_template": _CHAT})
    return folder


def convert_gguf(source: Path, folder: Path) -> Path:
    """The llama model in the GGUF file `source` as a folder of half-precision safetensors."""
    import mlx.core as mx
    from gguf import GGUFReader, dequantize

    reader = GGUFReader(source)
    meta = {name: field for name, field in reader.fields.items() if name.startswith(("llama.", "tokenizer."))}

    def value(key: str) -> Any:
        return meta[key].contents()

    heads = {"attn_q": int(value("llama.attention.head_count")), "attn_k": int(value("llama.attention.head_count_kv"))}
    weights = {}
    for tensor in reader.tensors:
        array = dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.split(".")[-2]
        if part in heads:
            array = _unpermuted(array, heads[part])
        weights[_hf_name(tensor.name)] = mx.array(array.astype(np.float16))
    folder.mkdir()
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    _write(
        folder / "config.json",
        {
            "model_type": "llama",
            "hidden_size": value("llama.embedding_length"),
            "num_hidden_layers": value("llama.block_count"),
            "intermediate_size": value("llama.feed_forward_length"),
            "num_attention_heads": heads["attn_q"],
            "num_key_value_heads": heads["attn_k"],
            "rms_norm_eps": value("llama.attention.layer_norm_rms_epsilon"),
            "vocab_size": value("llama.vocab_size"),
            "max_position_embeddings": value("llama.context_length"),
            "rope_theta": value("llama.rope.freq_base"),
            "tie_word_embeddings": "lm_head.weight" not in weights,
            "eos_token_id": value("tokenizer.ggml.eos_token_id"),
        },
    )
    tokens, kinds = value("tokenizer.ggml.tokens"), value("tokenizer.ggml.token_type")
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind != 1]
    merges = [tuple(merge.split(" ")) for merge in value("tokenizer.ggml.merges")]
    _tokenizer({t: i for i, t in enumerate(tokens)}, merges, special).save(str(folder / "tokenizer.json"))
    _write(
        folder / "tokenizer_config.json",
        {
            "bos_token": tokens[value("tokenizer.ggml.bos_token_id")],
            "eos_token": {"content": tokens[value("tokenizer.ggml.eos_token_id")]},
            "add_bos_token": False,
            "chat_template": value("tokenizer.chat_template"),
        },
    )
    return folder


_CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _unpermuted(array: np.ndarray, heads: int) -> np.ndarray:
    """Rows in the order in which halves of a head are turned together; GGUF has pairs side by side."""
    rows, columns = array.shape
    return array.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _hf_name(name: str) -> str:
    if not name.startswith("blk."):
        return {
            "token_embd.weight": "model.embed_tokens.weight",
            "output_norm.weight": "model.norm.weight",
            "output.weight": "lm_head.weight",
        }[name]
    _, layer, part, kind = name.split(".")
    parts = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_down": "mlp.down_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
    }
    return f"model.layers.{layer}.{parts[part]}.{kind}"


def _bytes_tokenizer() -> Any:
    from tokenizers.pre_tokenizers import ByteLevel

    vocabulary = {token: number for number, token in enumerate(sorted(ByteLevel.alphabet()))}
    special = ["<|im_end|>", "<|im_start|>"]
    return _tokenizer(vocabulary | {token: 256 + i for i, token in enumerate(special)}, [], special)


def _tokenizer(vocabulary: dict[str, int], merges: list[Any], special: list[str]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def _write(path: Path, value: dict[str, Any]) -> None:
    plain = json.dumps(value, default=lambda number: number.item())
    path.write_text(plain, encoding="utf-8")
