"""Every call that changes a file of the store, and the rules for opening one: no links, ours, private."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from io import FileIO
from pathlib import Path

from pinfold.errors import StoreError, StoreFullError, StoreReadOnlyError
from pinfold.store.envelope import DamagedError

__all__ = ["FileSystem", "make_folder", "open_regular", "refuse_links", "store_error", "try_lock"]

FOLDER_MODE = 0o700
FILE_MODE = 0o600

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}
_ZEROS = bytes(1 << 20)


class FileSystem:
    """The writes, one method each and in the order in which a session is stored. They raise OSError."""

    def create(self, path: Path) -> int:
        """A new private file, open, and locked until it is closed: nobody reclaims what its writer holds."""
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            handle = os.open(path, flags, FILE_MODE)
            try:
                os.fchmod(handle, FILE_MODE)  # whatever the umask
                fcntl.flock(handle, fcntl.LOCK_EX)
                if os.fstat(handle).st_nlink:
                    return handle
            except OSError:
                os.close(handle)
                raise
            os.close(handle)  # somebody took it for a dead writer's before it was locked

    def write(self, handle: int, data: bytes | memoryview) -> None:
        """Writes all of `data`."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(handle, rest) :]

    def sync(self, handle: int) -> None:
        """Returns when the file is on the disk."""
        if hasattr(fcntl, "F_FULLFSYNC"):  # on macOS fsync stops at the drive's cache
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
        else:
            os.fsync(handle)

    def rename(self, source: Path, target: Path) -> None:
        """Moves a file within the store in one step."""
        source.rename(target)

    def sync_folder(self, path: Path) -> None:
        """Returns when the names in a folder are on the disk."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def unlink(self, path: Path) -> None:
        """Removes a file if it is there."""
        path.unlink(missing_ok=True)

    def wipe(self, path: Path) -> None:
        """Overwrites a file with zeros, unless another name shares its bytes."""
        handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
                return
            rest = about.st_size
            while rest > 0:
                rest -= os.write(handle, _ZEROS[:rest])
            self.sync(handle)
        finally:
            os.close(handle)


def make_folder(path: Path) -> None:
    """Makes a private folder, or takes group's and others' rights from the one that is there.

    Raises:
        StoreError: it is a link, no folder, another user's, or others may write in it.
    """
    try:
        path.mkdir(mode=FOLDER_MODE)
        path.chmod(FOLDER_MODE)
    except FileExistsError:
        _take_over(path)
    except OSError as e:
        raise store_error(e, path) from e


def _take_over(path: Path) -> None:
    about = path.lstat()
    if not stat.S_ISDIR(about.st_mode):
        msg = f"{path} is a link or no folder, and a store is never followed through one. Give the folder itself."
        raise StoreError(msg)
    if about.st_uid != os.geteuid():
        msg = f"{path} belongs to another user. Give a folder of your own, or run: chown -R {os.geteuid()} {path}"
        raise StoreError(msg)
    if about.st_mode & 0o022:
        msg = f"Other users may write in {path}. If you trust what is in it, run: chmod 700 {path}"
        raise StoreError(msg)
    if about.st_mode & 0o077:
        try:
            path.chmod(stat.S_IMODE(about.st_mode) & FOLDER_MODE)
        except OSError as e:
            if e.errno not in _READ_ONLY:
                raise store_error(e, path) from e


def refuse_links(path: Path) -> None:
    """Checks that `path`, if it is there, is a plain file with one name.

    Raises:
        DamagedError: it is not.
    """
    try:
        about = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
        msg = f"{path.name} is a link or no file"
        raise DamagedError(msg)


def open_regular(path: Path) -> tuple[FileIO, int]:
    """Opens a file of the store for reading; returns it with its size in bytes.

    Raises:
        DamagedError: it, or the folder that it is in, is a link or no plain file.
        FileNotFoundError: there is none.
    """
    if path.parent.is_symlink():
        msg = "its folder is a link"
        raise DamagedError(msg)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as e:
        if e.errno in {errno.ELOOP, errno.EMLINK, errno.ENXIO}:
            msg = "it is a link or no file"
            raise DamagedError(msg) from e
        raise
    about = os.fstat(handle)
    if stat.S_ISREG(about.st_mode) and about.st_nlink == 1:
        return FileIO(handle), about.st_size
    os.close(handle)
    if about.st_nlink == 0:  # removed since it was opened
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    msg = "it is a link or no file"
    raise DamagedError(msg)


def try_lock(handle: int) -> bool:
    """Takes the file's lock if nobody holds it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def store_error(error: OSError, path: Path) -> StoreError:
    """The typed error for a failed call on `path`."""
    if error.errno in _FULL:
        return StoreFullError(f"No room is left on the disk of {path}. Free some, or give the store another folder.")
    if error.errno in _READ_ONLY:
        return StoreReadOnlyError(
            f"{path} cannot be written ({error.strerror}). Stored sessions are restored all the same; to store new "
            f"ones, make it writable (chmod u+w) or give the store another folder."
        )
    return StoreError(f"{path} cannot be used: {error.strerror or error}. Check the disk, or give another folder.")
