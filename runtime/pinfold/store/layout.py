"""The folder of a store: what lies where in it, and how things enter and leave.

::

    lock         held while a process opens the store; says with which key, if any, it is written
    index/       the database
    payload/ab/  the sessions' files, named by 64 hexadecimal digits that begin with these two
    incoming/    files that are being written
    quarantine/  what was found damaged, each beside a .reason
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pinfold.errors import StoreBusyError, StoreError
from pinfold.store.envelope import DamagedError, Seal
from pinfold.store.files import FILE_MODE, FOLDER_MODE, FileSystem, make_folder, refuse_links, store_error

__all__ = ["Layout"]

MARKER_VERSION = 1
QUARANTINED_FILES = 32
LOCK_SECONDS = 5.0

_PAYLOAD_NAME = re.compile(r"[0-9a-f]{64}")
_POLL_SECONDS = 0.01


class Layout:
    """Paths of a store, and the moves between them."""

    def __init__(self, root: Path, files: FileSystem) -> None:
        self.root = root
        self.files = files
        self.index = root / "index"
        self.incoming = root / "incoming"
        self._payload = root / "payload"
        self._quarantine = root / "quarantine"
        self._lock = root / "lock"

    def prepare(self) -> bool:
        """Makes the folders, or takes those that are there; returns whether they can be written.

        Raises:
            StoreError: the folder cannot be made, is not ours, open to other writers, or holds something else.
        """
        try:
            self.root.parent.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise store_error(e, self.root.parent) from e
        make_folder(self.root)
        names = {path.name for path in self.root.iterdir()}
        if names and self._lock.name not in names:  # whoever makes a store makes that file first
            msg = f"{self.root} holds files that are no session store. Give a new or an empty folder."
            raise StoreError(msg)
        if not os.access(self.root, os.W_OK):
            return False
        self._make_lock()
        for path in (self._payload, self.incoming, self._quarantine, self.index):
            make_folder(path)
        return all(os.access(path, os.W_OK) for path in (self._payload, self.incoming, self.index))

    @contextmanager
    def opening(self, seal: Seal) -> Iterator[None]:
        """Held by one process at a time while it opens the store.

        Raises:
            StoreBusyError: another process took more than five seconds.
            StoreError: the store is written with another key.
        """
        handle = self._open_lock(os.O_RDWR)
        try:
            self._wait_for(handle)
            marker = _marker(seal)
            if self._check_key(handle, seal) != marker:
                os.ftruncate(handle, 0)
                os.pwrite(handle, marker, 0)
            yield
        finally:
            os.close(handle)

    def check_key(self, seal: Seal) -> None:
        """Checks that the store is written with this key.

        Raises:
            StoreError: it is not.
        """
        handle = self._open_lock(os.O_RDONLY)
        try:
            self._check_key(handle, seal)
        finally:
            os.close(handle)

    def _open_lock(self, flags: int) -> int:
        try:
            refuse_links(self._lock)
            return os.open(self._lock, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except DamagedError as e:
            msg = f"{self._lock} is a link or no file. If you trust the folder, remove it and make an empty file."
            raise StoreError(msg) from e
        except OSError as e:
            raise store_error(e, self._lock) from e

    def _make_lock(self) -> None:
        with suppress(FileExistsError):
            handle = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
            try:
                os.fchmod(handle, FILE_MODE)
            finally:
                os.close(handle)

    def _wait_for(self, handle: int) -> None:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as e:
                if time.monotonic() > deadline:
                    msg = f"Another process has been opening {self.root} for {LOCK_SECONDS:.0f} s. Try again."
                    raise StoreBusyError(msg) from e
                time.sleep(_POLL_SECONDS)
            else:
                return

    def _check_key(self, handle: int, seal: Seal) -> bytes:
        """The marker that was found; one that cannot be read says nothing, as each file has its own digest."""
        found = os.pread(handle, 1024, 0)
        with suppress(ValueError, AttributeError):
            known = json.loads(found)
            if known.get("key", seal.key_id) != seal.key_id:
                msg = f"{self.root} was written with another key, or without one. Give that key, or another folder."
                raise StoreError(msg)
            if known.get("version", MARKER_VERSION) != MARKER_VERSION:
                msg = f"{self.root} was written by another version of Pinfold. Give another folder."
                raise StoreError(msg)
        return found

    def new_name(self, key: str) -> str:
        """A payload file's name that nobody can guess and no user chose."""
        return hashlib.sha256(key.encode() + os.urandom(32)).hexdigest()

    def payload(self, name: str) -> Path:
        """Where the payload file of that name lies."""
        return self._payload / name[:2] / name

    def bring_in(self, arrived: Path, name: str) -> None:
        """Moves a written file to its place, and returns when the move is on the disk."""
        target = self.payload(name)
        if not target.parent.is_dir() or target.parent.is_symlink():
            make_folder(target.parent)
            self.files.sync_folder(self._payload)
        self.files.rename(arrived, target)
        self.files.sync_folder(target.parent)

    def remove(self, name: str, *, wipe: bool = False) -> None:
        """Removes a payload file if it is there, its bytes overwritten first if `wipe`; never through a link."""
        path = self.payload(name)
        if path.parent.is_symlink():
            return
        with suppress(FileNotFoundError):
            if wipe and not path.is_symlink():
                self.files.wipe(path)
            self.files.unlink(path)

    def quarantine(self, path: Path, reason: str) -> None:
        """Sets a damaged file aside, with the reason; only so many are kept."""
        if path.parent.is_symlink():
            path = path.parent  # the link is what does not belong here; where it leads is not ours
        target = self._quarantine / path.name
        while target.is_symlink() or target.exists():
            target = self._quarantine / f"{self.new_name(path.name)[:8]}-{path.name}"[:128]
        with suppress(FileNotFoundError):
            path.rename(target)
            if not target.is_symlink():
                target.chmod(target.lstat().st_mode & FOLDER_MODE)
            note = target.with_name(f"{target.name}.reason")
            handle = self.files.create(note)
            try:
                self.files.write(handle, reason.encode("utf-8", "replace"))
            finally:
                os.close(handle)
        for name, _ in self.quarantined()[QUARANTINED_FILES:]:
            _remove(self._quarantine / name)
            _remove(self._quarantine / f"{name}.reason")

    def quarantined(self) -> list[tuple[str, str]]:
        """Names and reasons of what was set aside, newest first."""
        with suppress(FileNotFoundError):
            found = [path for path in self._quarantine.iterdir() if path.suffix != ".reason"]
            found.sort(key=lambda path: path.lstat().st_ctime_ns, reverse=True)
            return [(path.name, _reason(path)) for path in found]
        return []

    def payload_files(self) -> Iterator[Path]:
        """Everything below payload/ that is no folder made by the store; links are not followed."""
        with suppress(FileNotFoundError):
            for folder in sorted(self._payload.iterdir()):
                if folder.is_symlink() or not folder.is_dir():
                    yield folder
                else:
                    yield from sorted(folder.iterdir())

    def incoming_files(self) -> list[Path]:
        """Files that are being written, or were when their writer died."""
        try:
            return sorted(self.incoming.iterdir())
        except FileNotFoundError:
            return []

    def is_payload(self, path: Path) -> bool:
        """Whether a path is where the payload file of its name belongs."""
        return bool(_PAYLOAD_NAME.fullmatch(path.name)) and path == self.payload(path.name)


def _marker(seal: Seal) -> bytes:
    return json.dumps({"version": MARKER_VERSION, "key": seal.key_id}).encode()


def _reason(path: Path) -> str:
    note = path.with_name(f"{path.name}.reason")
    try:
        refuse_links(note)
        return note.read_text(encoding="utf-8", errors="replace")[:1024]
    except (OSError, DamagedError):
        return "unknown"


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as e:
        if e.errno not in {errno.EISDIR, errno.EPERM}:
            raise
