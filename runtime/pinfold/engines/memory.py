"""The largest context that a machine's memory holds."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pinfold.errors import UnsupportedModeError

__all__ = ["Fitted", "fit_context", "free_memory"]

# Part of the free memory that KV may take: the rest is for the forward's own buffers, folded sessions and the user.
_SHARE = 0.5
_STEP = 256
_LEAST = 1024


@dataclass(frozen=True, slots=True)
class Fitted:
    """A context length, and how it was come to, in words."""

    n_ctx: int
    reason: str


def fit_context(free: int, bytes_per_token: int, n_ctx_train: int, n_cells: int | None) -> Fitted:
    """The most tokens for one request such that the cells of all fit into half of `free` bytes.

    `n_cells` is what the user set, None for twice the context. `n_ctx_train` of 0 is not known.

    Raises:
        UnsupportedModeError: not even a small context fits.
    """
    budget = int(free * _SHARE)
    fits = (n_cells if n_cells is not None else budget // (2 * bytes_per_token)) // _STEP * _STEP
    if fits < _LEAST:
        msg = (
            f"n_ctx='auto': {budget >> 20} MiB, half of the memory that is free, hold {fits} tokens at "
            f"{bytes_per_token} bytes each, fewer than {_LEAST}. Free some memory, or set n_ctx and a smaller "
            f"kv_resident type."
        )
        raise UnsupportedModeError(msg)
    n_ctx = min(fits, n_ctx_train or fits)
    what = "what the model was trained for" if n_ctx == n_ctx_train else "what half of the free memory holds"
    if n_cells is not None and n_ctx == fits:
        what = "all of kv_cells"
    return Fitted(n_ctx, f"{n_ctx} tokens: {what} ({free >> 20} MiB free, {bytes_per_token} bytes a token, 2 requests)")


def free_memory() -> int:
    """Bytes of main memory that a new process may take without others being swapped out.

    Raises:
        UnsupportedModeError: this system does not say.
    """
    if sys.platform == "darwin":
        return _free_on_macos()
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) << 10
    except (OSError, ValueError, StopIteration) as e:
        msg = "n_ctx='auto' needs to know the free memory, which this system does not say. Give n_ctx a number."
        raise UnsupportedModeError(msg) from e
    return min([available, *_limits()])


def _limits() -> list[int]:
    """What a container leaves to this process."""
    group = Path("/sys/fs/cgroup")
    try:
        most = (group / "memory.max").read_text(encoding="ascii").strip()
        used = int((group / "memory.current").read_text(encoding="ascii"))
        return [max(int(most) - used, 0)] if most != "max" else []
    except (OSError, ValueError):
        return []


def _free_on_macos() -> int:
    try:
        said = subprocess.run(["/usr/sbin/sysctl", "-n", "hw.memsize"], capture_output=True, check=True, timeout=5)
        return int(said.stdout) // 2
    except (OSError, ValueError, subprocess.SubprocessError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
