"""Pins that servers hold, for `pinfold ls`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pinfold.cli.terminal import span, table

__all__ = ["print_server_pins", "server_pins"]


def server_pins(root: Path | None) -> list[dict[str, Any]]:
    """What this machine's Runtimes pinned on servers and has not ended: Unix seconds, seconds, tokens. No salts."""
    from pinfold.store.remote_pins import RemotePinFiles, remote_pins_folder

    if root is None:
        return []
    facts = [_facts(record) for record in RemotePinFiles(remote_pins_folder(root)).records()]
    return [pin for pin in facts if pin["ttl_left"] is None or pin["ttl_left"] > 0]


def print_server_pins(pins: Sequence[Mapping[str, Any]]) -> None:
    """A table for people."""
    rows = [
        (
            pin["name"],
            pin["server"],
            "unknown" if pin["tokens"] is None else f"{pin['tokens']:,}",
            "no end" if pin["ttl_left"] is None else span(pin["ttl_left"]),
            (pin["key"] or "")[:12],
        )
        for pin in pins
    ]
    table("Pins on servers", ("name", "server", "tokens", "TTL", "key"), rows)


def _facts(record: Mapping[str, Any]) -> dict[str, Any]:
    expires = record.get("expires")
    return {
        "key": record.get("digest"),
        "name": record["name"],
        "kind": "server pin",
        "server": record["server"],
        "tokens": record.get("tokens"),
        "created": record.get("created"),
        "expires": expires,
        "ttl_left": max(expires - time.time(), 0.0) if isinstance(expires, int | float) else None,
        "salted": record.get("salt") is not None,
    }
