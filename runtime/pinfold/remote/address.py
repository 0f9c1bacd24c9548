"""The address of a server, checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pinfold.errors import InvalidRequestError

__all__ = ["Address", "parse_address"]

_VERSION = re.compile(r"v\d+")


@dataclass(frozen=True, slots=True)
class Address:
    """`api` is where the OpenAI-style paths are, such as ``http://host:8000/v1``; `root` is what the server's own paths
    begin with, such as ``http://host:8000``. Neither ends in a slash."""

    root: str
    api: str

    def __str__(self) -> str:
        return self.api


def parse_address(url: Any) -> Address:
    """The address that `url` means; without a version at its end it is taken as the root.

    Raises:
        InvalidRequestError: it is none, or carries a password, a query or a fragment.
    """
    if not isinstance(url, str):
        msg = f"base_url={url!r} is no address. Give text such as 'http://127.0.0.1:8000/v1'."
        raise InvalidRequestError(msg)
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as e:
        msg = f"{_shown(url)} is no address: {e}. Give one such as 'http://127.0.0.1:8000/v1'."
        raise InvalidRequestError(msg) from None
    if parts.scheme not in ("http", "https") or not host:
        msg = f"{_shown(url)} is no address of a server. Give one such as 'http://127.0.0.1:8000/v1'."
        raise InvalidRequestError(msg)
    if "@" in parts.netloc:
        msg = f"The address of {host} carries a user or password. Take it out, and pass the key as api_key=."
        raise InvalidRequestError(msg)
    if parts.query or parts.fragment:
        msg = f"The address of {host} has a query or fragment. Give the address of the API alone."
        raise InvalidRequestError(msg)
    path = parts.path.rstrip("/")
    head, _, last = path.rpartition("/")
    versioned = _VERSION.fullmatch(last) is not None
    base = f"{parts.scheme}://{parts.netloc}"
    return Address(base + (head if versioned else path), base + (path if versioned else f"{path}/v1"))


def _shown(url: str) -> str:
    """The URL for an error's message, without what may be a password."""
    return repr(re.sub(r"//[^/@]*@", "//***@", url))
