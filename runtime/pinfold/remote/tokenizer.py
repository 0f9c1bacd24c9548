"""A server's tokenizer, asked over the network."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, Protocol

from pinfold.errors import ServerError, UnsupportedModeError
from pinfold.remote.address import Address
from pinfold.remote.facts import ServerFacts
from pinfold.remote.transport import Transport

__all__ = ["ServerTokenizer"]

_REMEMBERED = 64


class ServerTokenizer:
    """The server's own tokenizer, an `engines.base.Tokenizer` but for grammars.

    It asks over the network and remembers; not to be used on the transport's loop. Raises ServerError.
    """

    n_vocab = 0
    end_tokens: frozenset[int] = frozenset()

    def __init__(self, transport: Transport, address: Address, facts: ServerFacts) -> None:
        self._transport = transport
        self._facts = facts
        self._style: _Style = _STYLES.get(facts.kind, _Vllm())
        self._root = address.root
        self._lock = Lock()
        self._encoded: OrderedDict[tuple[str, bool, bool], tuple[int, ...]] = OrderedDict()
        self._pieces: dict[int, bytes] = {}
        self._adds_bos: bool | None = None

    def encode(self, text: str, *, special: bool = True, bos: bool = False) -> list[int]:
        """Token ids of `text`."""
        first = bos and not (self._facts.bos_token and text.startswith(self._facts.bos_token))
        key = (text, special, first)
        with self._lock:
            if key in self._encoded:
                self._encoded.move_to_end(key)
                return list(self._encoded[key])
        found = self._ask(*self._style.encode(self._facts, text, special, first))
        tokens, pieces = self._style.tokens(found)
        with self._lock:
            self._pieces |= pieces
            self._encoded[key] = tuple(tokens)
            while len(self._encoded) > _REMEMBERED:
                self._encoded.popitem(last=False)
        return tokens

    def piece(self, token: int) -> bytes:
        """The bytes that `token` stands for."""
        with self._lock:
            known = self._pieces.get(token)
        if known is None:
            known = self.decode([token]).encode()
            with self._lock:
                self._pieces[token] = known
        return known

    def is_control(self, token: int) -> bool:  # noqa: ARG002 - the server leaves such tokens out of its text itself
        """Never: the server keeps its markup to itself."""
        return False

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of `tokens`."""
        with self._lock:
            if all(token in self._pieces for token in tokens):
                return b"".join(self._pieces[token] for token in tokens).decode(errors="replace")
        return self._style.text(self._ask(*self._style.decode(self._facts, list(tokens))))

    def grammar_tokenizer(self) -> Any:
        """Raises UnsupportedModeError: the server holds answers to grammars itself."""
        msg = "A server's tokenizer constrains nothing here; the server is given the schema."
        raise UnsupportedModeError(msg)

    def adds_bos(self) -> bool:
        """Whether the server puts its first token before raw prompts."""
        if self._adds_bos is None:
            self._adds_bos = len(self.encode("a", bos=True)) > len(self.encode("a"))
        return self._adds_bos

    def _ask(self, path: str, body: Mapping[str, Any]) -> Any:
        got = self._transport.run(self._transport.ask("POST", f"{self._root}{path}", body))
        found = got.json()
        if not isinstance(found, Mapping):
            msg = f"{self._root}{path} answered {got.status}: its tokenizer cannot be used. Try rendering='messages'."
            raise ServerError(msg)
        return found


class _Style(Protocol):
    """What one kind of server calls things: (path, body) of a question, and how its answer is read."""

    def encode(self, facts: ServerFacts, text: str, special: bool, first: bool) -> tuple[str, dict[str, Any]]: ...

    def tokens(self, found: Mapping[str, Any]) -> tuple[list[int], dict[int, bytes]]: ...

    def decode(self, facts: ServerFacts, tokens: list[int]) -> tuple[str, dict[str, Any]]: ...

    def text(self, found: Mapping[str, Any]) -> str: ...


class _LlamaServer:
    """POST /tokenize and /detokenize of llama-server."""

    def encode(self, facts: ServerFacts, text: str, special: bool, first: bool) -> tuple[str, dict[str, Any]]:  # noqa: ARG002
        flags = {"parse_special": special, "add_special": first, "with_pieces": True}
        return "/tokenize", {"content": text, **flags}

    def tokens(self, found: Mapping[str, Any]) -> tuple[list[int], dict[int, bytes]]:
        pieces: dict[int, bytes] = {}
        tokens: list[int] = []
        for entry in _list(found, "tokens"):
            token, piece = (entry.get("id"), entry.get("piece")) if isinstance(entry, Mapping) else (entry, None)
            tokens.append(_id(token))
            if isinstance(piece, str):
                pieces[tokens[-1]] = piece.encode()
            elif isinstance(piece, list) and all(isinstance(b, int) and 0 <= b < 256 for b in piece):
                pieces[tokens[-1]] = bytes(piece)
        return tokens, pieces

    def decode(self, facts: ServerFacts, tokens: list[int]) -> tuple[str, dict[str, Any]]:  # noqa: ARG002
        return "/detokenize", {"tokens": tokens}

    def text(self, found: Mapping[str, Any]) -> str:
        return _str(found, "content")


class _Vllm:
    """POST /tokenize and /detokenize of vLLM and SGLang."""

    def encode(self, facts: ServerFacts, text: str, special: bool, first: bool) -> tuple[str, dict[str, Any]]:  # noqa: ARG002
        return "/tokenize", {"model": facts.model, "prompt": text, "add_special_tokens": first}

    def tokens(self, found: Mapping[str, Any]) -> tuple[list[int], dict[int, bytes]]:
        return [_id(token) for token in _list(found, "tokens")], {}

    def decode(self, facts: ServerFacts, tokens: list[int]) -> tuple[str, dict[str, Any]]:
        return "/detokenize", {"model": facts.model, "tokens": tokens}

    def text(self, found: Mapping[str, Any]) -> str:
        return _str(found, "prompt" if "prompt" in found else "text")


class _LlamaCppPython:
    """POST /extras/tokenize and /extras/detokenize of llama-cpp-python's server."""

    def encode(self, facts: ServerFacts, text: str, special: bool, first: bool) -> tuple[str, dict[str, Any]]:  # noqa: ARG002
        return "/extras/tokenize", {"input": text}

    def tokens(self, found: Mapping[str, Any]) -> tuple[list[int], dict[int, bytes]]:
        return [_id(token) for token in _list(found, "tokens")], {}

    def decode(self, facts: ServerFacts, tokens: list[int]) -> tuple[str, dict[str, Any]]:  # noqa: ARG002
        return "/extras/detokenize", {"tokens": tokens}

    def text(self, found: Mapping[str, Any]) -> str:
        return _str(found, "text")


_STYLES: Mapping[str, _Style] = {"llama-server": _LlamaServer(), "llama-cpp-python": _LlamaCppPython()}


def _list(found: Mapping[str, Any], key: str) -> list[Any]:
    value = found.get(key)
    if isinstance(value, list):
        return value
    msg = f"The server's tokenizer sent {key}={str(value)[:80]!r}, which is no list."
    raise ServerError(msg)


def _id(token: Any) -> int:
    if isinstance(token, int) and not isinstance(token, bool) and token >= 0:
        return token
    msg = f"The server's tokenizer sent {str(token)[:80]!r} as a token."
    raise ServerError(msg)


def _str(found: Mapping[str, Any], key: str) -> str:
    value = found.get(key)
    if isinstance(value, str):
        return value
    msg = f"The server's tokenizer sent {key}={str(value)[:80]!r}, which is no text."
    raise ServerError(msg)
