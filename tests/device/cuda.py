"""Speeds, sizes and memory on an NVIDIA GPU: `python tests/device/cuda.py FOLDER`."""

from __future__ import annotations

from measure import run

if __name__ == "__main__":
    print(run("cuda"))
