"""Small files beside the sessions: what calibration learnt of a model, and digests of model files."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from pinfold.errors import StoreError
from pinfold.store.files import FileSystem, make_folder, open_regular, store_error

__all__ = ["RecipeFiles"]

_log = logging.getLogger("pinfold.store")
_MOST_BYTES = 1 << 30
_DIGEST = re.compile(r"[0-9a-f]{64}")


class RecipeFiles:
    """Bytes by name in one folder; a name never reaches the file system, its digest does.

    What is read is not trusted: the caller checks it against the digest that it expects.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = FileSystem()

    def read(self, name: str) -> bytes | None:
        """What was written under `name`, None if nothing was or it cannot be read."""
        return self._read(self._path(name))

    def _read(self, path: Path) -> bytes | None:
        try:
            file, size = open_regular(path)
            with file:
                return file.read(size) if size <= _MOST_BYTES else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, StoreError) as e:
            _log.warning("%s could not be read: %s", path, e)
            return None

    def each(self) -> Iterator[bytes]:
        """What every name has, in no order."""
        try:
            digests = [path.name for path in self._folder.iterdir() if _DIGEST.fullmatch(path.name)]
        except OSError:
            return
        for digest in digests:
            data = self._read(self._folder / digest)
            if data is not None:
                yield data

    def remove(self, name: str) -> None:
        """Forgets what `name` has; nothing is fine. Raises StoreError."""
        target = self._path(name)
        try:
            target.unlink(missing_ok=True)
        except OSError as e:
            raise store_error(e, target) from e

    def write(self, name: str, data: bytes) -> None:
        """Puts `data` in place of what `name` had, or leaves that. Raises StoreError."""
        target = self._path(name)
        part = target.with_name(f"{secrets.token_hex(32)}.part")
        try:
            make_folder(self._folder)
            handle = self._files.create(part)
            try:
                self._files.write(handle, data)
                self._files.sync(handle)
                self._files.rename(part, target)
            finally:
                os.close(handle)
                self._files.unlink(part)
        except OSError as e:
            raise store_error(e, target) from e

    def _path(self, name: str) -> Path:
        return self._folder / hashlib.sha256(name.encode()).hexdigest()
