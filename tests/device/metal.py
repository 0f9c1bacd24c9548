"""Speeds, sizes and memory on a Mac: `python tests/device/metal.py FOLDER`."""

from __future__ import annotations

from measure import run

if __name__ == "__main__":
    print(run("metal"))
