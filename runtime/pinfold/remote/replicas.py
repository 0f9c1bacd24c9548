"""The servers of one Runtime, and which of them a request goes to."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

from pinfold.options import RuntimeOptions
from pinfold.remote.address import Address
from pinfold.remote.facts import ServerFacts
from pinfold.remote.own import OwnRendering
from pinfold.remote.tokenizer import ServerTokenizer

__all__ = ["Server", "ranked"]

_REST_S = 5.0  # a server that failed is not asked first for so long


class Server:
    """One server and what is known of it. `facts` and `rendering` are replaced, never changed."""

    def __init__(self, address: Address, facts: ServerFacts, rendering: OwnRendering | None) -> None:
        self.address = address
        self.facts = facts
        self.rendering = rendering
        self.tokenizer: ServerTokenizer | None = None if rendering is None else rendering.tokenizer
        self.probed = True
        self._rests_until = 0.0

    def n_ctx(self, options: RuntimeOptions) -> int:
        """Tokens that one request may use; what the options say where the server does not."""
        if self.facts.n_ctx is not None:
            return self.facts.n_ctx
        return options.n_ctx if isinstance(options.n_ctx, int) else 8192

    def failed(self) -> None:
        """It could not be reached or was too busy: others come first for a while."""
        self._rests_until = time.monotonic() + _REST_S

    @property
    def rests(self) -> bool:
        """Whether it failed a moment ago."""
        return time.monotonic() < self._rests_until


def ranked(servers: Sequence[Server], key: str) -> list[Server]:
    """The servers in the order in which a request with `key` tries them.

    Rendezvous hashing: each key has an order of its own, the same in every process, and a server that is added or
    taken away moves only the keys that were or become its own. Servers that failed a moment ago come last.
    """

    def weight(server: Server) -> bytes:
        return hashlib.sha256(f"{server.address.api}\0{key}".encode()).digest()

    by_key = sorted(servers, key=weight, reverse=True)
    return sorted(by_key, key=lambda server: server.rests)
