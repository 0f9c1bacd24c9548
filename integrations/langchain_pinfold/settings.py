"""The settings that `ChatPinfold` and `PinfoldLLM` share, and the Runtime that they open from them."""

from __future__ import annotations

import difflib
import logging
from typing import Annotated, Any, Self

from langchain_core.load.serializable import Serializable
from pydantic import AliasChoices, ConfigDict, Field, SecretStr, SkipValidation, model_validator

from langchain_pinfold.errors import as_langchain_errors
from pinfold import Runtime, shared_runtime
from pinfold.errors import UnsupportedModeError
from pinfold.options import GenerationOptions, RuntimeOptions, is_address

__all__ = ["PinfoldSettings"]

logger = logging.getLogger(__name__)

_RUNTIME_FIELDS = (
    *("base_url", "api_key", "engine", "n_ctx", "kv_cells", "kv_resident", "n_threads", "draft", "chat_template"),
)
_GENERATION_FIELDS = (
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "timeout",
)


class PinfoldSettings(Serializable):
    """Settings of a model, of its Runtime and of each answer. None leaves the runtime's own default in place.

    The model loads at first use. Instances with equal runtime settings share one Runtime, and with it the pins and
    everything that was computed before. Pickles and serialised forms carry the settings only.
    """

    model: str = Field(default="smollm2", validation_alias=AliasChoices("model", "model_name"))
    """An alias, a path, or a Hugging Face id; the address of a server, or with `base_url` the id of a model there."""
    base_url: str | list[str] | None = None
    """The address of an OpenAI-compatible server, or several that serve the same model."""
    api_key: SecretStr | None = None
    """The server's key; None is the environment's PINFOLD_API_KEY. Pickles and serialised forms leave it out."""
    engine: str | None = None
    n_ctx: int | None = None
    """Tokens that one request may use, prompt and answer together."""
    kv_cells: int | None = None
    kv_resident: str | None = None
    n_threads: int | None = None
    draft: str | None = None
    chat_template: str | None = None
    runtime_options: dict[str, Any] = Field(default_factory=dict)
    """The Runtime's further options by name, such as ``n_gpu_layers``."""

    max_tokens: int | None = None
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: list[str] | None = Field(default=None, validation_alias=AliasChoices("stop", "stop_sequences"))
    """Strings that end an answer, in addition to the model's own. A call's own `stop` takes their place."""
    timeout: float | None = None
    """Seconds until a request is stopped."""
    max_retries: int = Field(default=2, ge=0)
    """How often a request is tried again after the engine itself failed, each time with a warning in the log."""
    salt: str | None = None
    """Keeps what is computed apart from requests with another salt, for tenants that must not share."""

    runtime: Annotated[Runtime | None, SkipValidation] = Field(default=None, exclude=True, repr=False)
    """An open Runtime to use instead of the shared one; `model` and the runtime settings are then the Runtime's."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        values = dict(values)
        named = values.get("model", values.get("model_name"))
        urls = values.get("base_url")
        if urls and named is None:  # whatever the server has
            values["model"] = urls if isinstance(urls, str) else urls[0]
        if not urls and not is_address(named) and values.pop("api_key", None) is not None:
            logger.warning("api_key is not used: Pinfold's model runs in this process and asks for no key.")
        known = {*cls.model_fields, "model_name", "stop_sequences"}
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else " Put options of the Runtime into runtime_options."
                msg = f"Unknown option {name!r}.{hint}"
                raise ValueError(msg)
        return values

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        options = self._runtime_options()
        RuntimeOptions.parse(options)
        GenerationOptions.parse(self._generation())
        if self.runtime is not None:
            self._adopt(self.runtime, options)
        return self

    def _adopt(self, runtime: Runtime, options: dict[str, Any]) -> None:
        refused = sorted(options)
        if "model" in self.model_fields_set and self.model != runtime.model:
            refused.insert(0, "model")
        if refused:
            msg = (
                f"runtime= is open already and has its settings: leave out {', '.join(refused)}, or leave out runtime="
            )
            raise ValueError(msg)
        self.model = runtime.model

    def get_runtime(self) -> Runtime:
        """The Runtime behind this model, loaded now if it is not yet.

        Raises:
            ModelError: the model cannot be found or loaded.
            EngineUnavailableError: its engine is not installed.
        """
        if self.runtime is not None:
            return self.runtime
        with as_langchain_errors():
            return shared_runtime(self.model, **self._runtime_options())

    def _runtime_for(self, model: str | None) -> Runtime:
        if model is None or model == self.model:
            return self.get_runtime()
        if self.runtime is not None:
            msg = f"model={model!r} cannot be opened by a model that was given runtime=. Create another one for it."
            raise UnsupportedModeError(msg)
        return self.model_copy(update={"model": model}).get_runtime()

    def _runtime_options(self) -> dict[str, Any]:
        named = {name: getattr(self, name) for name in _RUNTIME_FIELDS if getattr(self, name) is not None}
        twice = sorted(named.keys() & self.runtime_options.keys())
        if twice:
            msg = f"given twice, directly and in runtime_options: {', '.join(twice)}"
            raise ValueError(msg)
        return named | self.runtime_options

    def _generation(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _GENERATION_FIELDS if getattr(self, name) is not None}

    @property
    def _identifying_params(self) -> dict[str, Any]:
        """Everything that an answer depends on: the key of LangChain's answer cache."""
        options = {name: value for name, value in self._runtime_options().items() if name != "api_key"}
        params = {"model": self.model, **options, **self._generation(), "salt": self.salt}
        if self.runtime is not None:
            capabilities = self.runtime.capabilities
            params |= {"engine": capabilities.engine, "fingerprint": capabilities.fingerprint}
        return params

    def __getstate__(self) -> dict[Any, Any]:
        state = dict(super().__getstate__())
        state["__dict__"] = {**state["__dict__"], "runtime": None, "api_key": None}
        return state

    @property
    def lc_secrets(self) -> dict[str, str]:
        """What is left out of serialised forms, and where `load` finds it."""
        return {"api_key": "PINFOLD_API_KEY"}

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """Settings can be written with `dumpd` and read back with `load`."""
        return True
