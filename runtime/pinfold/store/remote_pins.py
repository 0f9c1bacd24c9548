"""Pins that servers hold, as their clients remember them: one small file each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pinfold.store.recipes import RecipeFiles

__all__ = ["RemotePinFiles", "remote_pins_folder"]


def remote_pins_folder(root: Path) -> Path:
    """Where they lie under the root of a store."""
    return root / "servers"


class RemotePinFiles:
    """Records by server and name. A record is JSON with `server`, `name` and whatever else its writer needs.

    What is read is not trusted: a file that is no such record is passed over.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = RecipeFiles(folder)

    def put(self, record: Mapping[str, Any]) -> None:
        """Writes `record` in place of the one of its server and name. Raises StoreError."""
        self._files.write(_key(record["server"], record["name"]), json.dumps(record).encode())

    def remove(self, server: str, name: str) -> None:
        """Forgets a record; one that is not there is fine. Raises StoreError."""
        self._files.remove(_key(server, name))

    def records(self) -> list[dict[str, Any]]:
        """All records, by name."""
        found = [record for data in self._files.each() if (record := _record(data)) is not None]
        return sorted(found, key=lambda record: (record["name"], record["server"]))


def _key(server: str, name: str) -> str:
    return f"{server}\0{name}"


def _record(data: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        return None
    named = isinstance(record, dict) and all(isinstance(record.get(key), str) for key in ("server", "name"))
    return record if named else None
