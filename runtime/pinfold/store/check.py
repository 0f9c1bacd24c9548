"""Examines a whole store, for `pinfold doctor`."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

from pinfold.store.envelope import DamagedError
from pinfold.store.files import FOLDER_MODE
from pinfold.store.index import Index
from pinfold.store.layout import Layout
from pinfold.store.reader import Reader
from pinfold.store.records import Row
from pinfold.store.upkeep import orphans

__all__ = ["StoreReport", "correct_modes", "damaged_rows", "survey", "wrong_modes"]


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What a check found. Paths are relative to the store's folder.

    Attributes:
        entries: sessions in the index.
        bytes: what their files take.
        orphans: files that belong to no session and to no writer.
        corrupt: names and reasons of sessions whose file is damaged or gone.
        quarantined: files set aside, with the reason, newest first; those of this check included.
        modes: files and folders that others may read.
        fixed: whether orphans were removed, corrupt sessions set aside and modes corrected.
    """

    entries: int
    bytes: int
    orphans: tuple[str, ...]
    corrupt: tuple[tuple[str, str], ...]
    quarantined: tuple[tuple[str, str], ...]
    modes: tuple[str, ...]
    fixed: bool

    @property
    def ok(self) -> bool:
        """Whether nothing was found that needs, or needed, to be put right."""
        return not (self.orphans or self.corrupt or self.modes)


def survey(
    layout: Layout, index: Index, corrupt: list[tuple[Row, str]], modes: list[Path], *, fixed: bool
) -> StoreReport:
    """The report on a store whose damaged rows and wrong modes are known."""
    return StoreReport(
        entries=len(index.catalogue.rows),
        bytes=index.catalogue.used_bytes,
        orphans=tuple(str(path.relative_to(layout.root)) for path in orphans(layout, index)),
        corrupt=tuple((row.entry.name or row.entry.key, reason) for row, reason in corrupt),
        quarantined=tuple(layout.quarantined()),
        modes=tuple(str(path.relative_to(layout.root)) for path in modes),
        fixed=fixed,
    )


def damaged_rows(index: Index, reader: Reader, *, deep: bool) -> list[tuple[Row, str]]:
    """The rows whose file is not what they say, with the reason; `deep` reads the payloads too."""
    found = []
    for row in list(index.catalogue.rows.values()):
        try:
            reader.verify(row, deep=deep)
        except DamagedError as e:
            found.append((row, str(e)))
        except FileNotFoundError:
            found.append((row, "its file is gone"))
        except OSError as e:
            found.append((row, e.strerror or str(e)))
    return found


def wrong_modes(layout: Layout) -> list[Path]:
    """Files and folders of the store that are open to others; links are not followed."""
    paths = [layout.root, *sorted(layout.root.rglob("*"))]
    return [path for path in paths if not path.is_symlink() and _mode(path) & ~FOLDER_MODE]


def correct_modes(paths: list[Path]) -> None:
    """Takes group's and others' rights from these files and folders."""
    for path in paths:
        path.chmod(_mode(path) & FOLDER_MODE)


def _mode(path: Path) -> int:
    try:
        return stat.S_IMODE(path.lstat().st_mode)
    except FileNotFoundError:
        return 0
