"""What a block drafter's config.json says, and whether that fits a target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from pinfold.errors import ModelFormatError, UnsupportedModeError

__all__ = ["BlockConfig", "Facts", "Target", "check_fit", "read_config"]

Kind = Literal["dflash", "dspark"]
_LARGEST_BLOCK = 64
_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Target:
    """The facts of a target that a drafter must agree with."""

    name: str
    hidden: int
    n_layers: int
    n_vocab: int


@dataclass(frozen=True, slots=True)
class BlockConfig:
    """A drafter of `n_layers` layers that reads the target's layers `taps` and fills `block` slots.

    Slot 0 holds the last token. DFlash guesses from the slots behind it, DSpark from that slot too. `window` is set for
    each layer that looks back over so many tokens; such layers are causal within the block unless `causal` says how
    all layers are. `conv_kernel` and `selector_rank` are 0 unless the drafter is a DFlash 2.
    """

    kind: Kind
    hidden: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    inner: int
    n_vocab: int
    n_target_layers: int
    taps: tuple[int, ...]
    mask_token: int
    block: int
    norm_eps: float
    rope_base: float
    rope_scaling: Mapping[str, Any] | None
    max_position: int
    windows: tuple[int | None, ...]
    causal: bool | None
    softcap: float
    embedding_scale: float
    output_scale: float
    conv_kernel: int
    conv_group: int
    selector_rank: int
    selector_top_k: int
    markov: Literal["", "vanilla", "gated"]
    markov_rank: int
    confidence: Literal["", "hidden", "markov"]

    @property
    def guesses(self) -> int:
        """Tokens of one guess."""
        return self.block if self.kind == "dspark" else self.block - 1


class Facts:
    """The settings of a config.json, of which some stand in a part of their own."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        part = config.get("dflash_config") or config.get("dspark_config")
        self._all = {**config, **part} if isinstance(part, dict) else dict(config)
        self.name = name

    def get(self, key: str) -> Any:
        """What is said under `key`; None if nothing."""
        return self._all.get(key)

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number, 0 or more.

        Raises:
            ModelFormatError: there is none, and no default.
        """
        value = self._all.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            self.fail(f"{key} is {value!r} and should be a whole number")
        return value

    def number(self, key: str, default: float) -> float:
        """A number."""
        value = self._all.get(key)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.fail(f"{key} is {value!r} and should be a number")
        return float(value)

    def part(self, key: str) -> Mapping[str, Any]:
        """Settings of their own under `key`; empty if there are none.

        Raises:
            ModelFormatError: something else stands there.
        """
        value = self._all.get(key) or {}
        if not isinstance(value, dict):
            self.fail(f"{key} is {value!r} and should be an object")
        return value

    def fail(self, what: str) -> NoReturn:
        """Raises ModelFormatError, which names the file and what is wrong with it."""
        msg = f"The config.json of drafter {self.name}: {what}. Download the checkpoint again."
        raise ModelFormatError(msg)


def read_config(config: Mapping[str, Any], name: str, kind: Kind) -> BlockConfig:
    """The settings of the drafter `name`, which was asked for as `kind`.

    Raises:
        ModelFormatError: a setting is missing or can be no such setting.
        UnsupportedModeError: it is a drafter of the other kind, or of a build that Pinfold does not run.
    """
    facts = Facts(config, name)
    _check_kind(facts, kind)
    sizes = ("num_hidden_layers", "hidden_size", "num_attention_heads")
    n_layers, hidden, n_heads = map(facts.count, sizes)
    if not n_layers or not hidden or not n_heads:
        facts.fail("a drafter has layers, heads and a hidden size")
    rope = facts.part("rope_parameters")
    scaling = facts.part("rope_scaling") or (rope if rope.get("rope_type", "default") != "default" else None)
    markov_rank = facts.count("markov_rank", 0) if kind == "dspark" else 0
    found = BlockConfig(
        kind=kind,
        hidden=hidden,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=facts.count("num_key_value_heads", n_heads),
        head_dim=facts.count("head_dim", hidden // n_heads),
        inner=facts.count("intermediate_size"),
        n_vocab=facts.count("vocab_size"),
        n_target_layers=facts.count("num_target_layers"),
        taps=_taps(facts),
        mask_token=facts.count("mask_token_id"),
        block=facts.count("block_size"),
        norm_eps=facts.number("rms_norm_eps", 1e-6),
        rope_base=float(rope.get("rope_theta") or facts.number("rope_theta", 10_000.0)),
        rope_scaling=scaling,
        max_position=facts.count("max_position_embeddings", 1 << 20),
        windows=_windows(facts, n_layers),
        causal=facts.get("is_causal"),
        softcap=facts.number("final_logit_softcapping", 0.0),
        embedding_scale=facts.number("input_embedding_scale", 1.0),
        output_scale=facts.number("output_multiplier", 1.0),
        conv_kernel=facts.count("conv_kernel_size", 0),
        conv_group=facts.count("conv_group_size", 0),
        selector_rank=facts.count("selector_rank", 0),
        selector_top_k=facts.count("selector_top_k", 0),
        markov=_markov(facts) if markov_rank else "",
        markov_rank=markov_rank,
        confidence=_confidence(facts, markov_rank) if kind == "dspark" else "",
    )
    _check_sound(facts, found)
    return found


def check_fit(config: BlockConfig, name: str, target: Target) -> None:
    """Raises UnsupportedModeError, which names each difference, unless the drafter was made for such a target."""
    wrong = list(_differences(config, target))
    if wrong:
        msg = (
            f"{name} cannot draft for {target.name}: {'; '.join(wrong)}. Use the {config.kind} checkpoint made "
            f"for this model, or draft='auto'."
        )
        raise UnsupportedModeError(msg)


def _differences(config: BlockConfig, target: Target) -> Iterator[str]:
    if config.hidden != target.hidden:
        yield f"its hidden size is {config.hidden}, the model's {target.hidden}"
    if config.n_target_layers != target.n_layers:
        yield f"it was made for {config.n_target_layers} layers, the model has {target.n_layers}"
    beyond = [tap for tap in config.taps if tap >= target.n_layers]
    if beyond:
        yield f"it reads layers {beyond}, the last one is {target.n_layers - 1}"
    if config.n_vocab != target.n_vocab:
        yield f"its vocabulary has {config.n_vocab} tokens, the model's {target.n_vocab}"
    if config.mask_token >= target.n_vocab:
        yield f"its mask is token {config.mask_token}, the model has {target.n_vocab} tokens"


def _check_kind(facts: Facts, kind: Kind) -> None:
    model_type = facts.get("model_type")
    if model_type not in ("qwen3", "llama", None):
        msg = f"{facts.name} is a drafter of the type {model_type!r}; Pinfold runs those of the type 'qwen3'."
        raise UnsupportedModeError(msg)
    architectures = " ".join(map(str, facts.get("architectures") or ()))
    markov = bool(facts.count("markov_rank", 0))
    dspark = "dspark" in architectures.lower() or facts.get("projector_type") == "dspark"
    if kind == "dflash" and (dspark or markov):
        msg = f"{facts.name} has the heads of DSpark ({architectures or 'markov_rank'}). Use draft='dspark:PATH'."
        raise UnsupportedModeError(msg)
    if kind == "dspark" and not dspark:
        msg = f"{facts.name} is no DSpark checkpoint ({architectures or 'no architecture'}). Use draft='dflash:PATH'."
        raise UnsupportedModeError(msg)
    if facts.get("quantization") or facts.get("quantization_config"):
        msg = f"{facts.name} is quantized. Use the drafter in its published precision; it is small."
        raise UnsupportedModeError(msg)
    if facts.get("attention_bias"):
        msg = f"{facts.name} has biases in its attention, which no published drafter has. Use another."
        raise UnsupportedModeError(msg)


def _taps(facts: Facts) -> tuple[int, ...]:
    taps = facts.get("target_layer_ids")
    sound = isinstance(taps, list) and taps and all(type(tap) is int and tap >= 0 for tap in taps)
    if not sound or len(set(taps)) != len(taps):
        facts.fail(f"target_layer_ids is {taps!r} and should be a list of layers")
    return tuple(taps)


def _windows(facts: Facts, n_layers: int) -> tuple[int | None, ...]:
    kinds = facts.get("layer_types") or [_FULL] * n_layers
    if not isinstance(kinds, list) or len(kinds) != n_layers or not set(kinds) <= {_FULL, _SLIDING}:
        facts.fail(f"layer_types is {kinds!r} and should say {_FULL} or {_SLIDING} for {n_layers} layers")
    return tuple(facts.count("sliding_window") if kind == _SLIDING else None for kind in kinds)


def _markov(facts: Facts) -> Literal["vanilla", "gated"]:
    found = facts.get("markov_head_type") or "vanilla"
    if found == "vanilla":
        return "vanilla"
    if found == "gated":
        return "gated"
    msg = f"{facts.name} has a Markov head of the type {found!r}; Pinfold runs 'vanilla' and 'gated'."
    raise UnsupportedModeError(msg)


def _confidence(facts: Facts, markov_rank: int) -> Literal["", "hidden", "markov"]:
    if not facts.get("enable_confidence_head"):
        return ""
    return "markov" if facts.get("confidence_head_with_markov") and markov_rank else "hidden"


def _check_sound(facts: Facts, config: BlockConfig) -> None:
    least = 1 if config.kind == "dspark" else 2
    if not least <= config.block <= _LARGEST_BLOCK:
        facts.fail(f"block_size is {config.block} and should be {least} to {_LARGEST_BLOCK}")
    if not config.n_kv_heads or config.n_heads % config.n_kv_heads or not config.head_dim or config.head_dim % 2:
        facts.fail(f"{config.n_heads} heads over {config.n_kv_heads} of size {config.head_dim} are no attention")
    if any(window == 0 for window in config.windows):
        facts.fail("sliding_window is 0")
    if config.conv_kernel and (not config.conv_group or config.hidden % config.conv_group):
        facts.fail(f"conv_group_size is {config.conv_group} and should divide {config.hidden}")
    if bool(config.selector_rank) != bool(config.selector_top_k) or config.selector_top_k > config.n_vocab:
        facts.fail(f"a selector of rank {config.selector_rank} over {config.selector_top_k} candidates")
    if config.causal not in (None, True, False):
        facts.fail(f"is_causal is {config.causal!r}")
