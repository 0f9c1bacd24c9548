"""Builds a kernel's body for the CPU: a warp is 32 threads that meet wherever its lanes exchange numbers."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pinfold.engines.mlx.kernel import Build

FRAME = """\
#include <barrier>
#include <cmath>
#include <cstddef>
#include <thread>
#include <vector>
static float given[32];
static std::barrier<> meeting(32);
static float lane_sum(int lane, float x) {
  given[lane] = x;
  meeting.arrive_and_wait();
  float whole = 0.0f;
  for (int n = 0; n < 32; n++) whole += given[n];
  meeting.arrive_and_wait();
  return whole;
}
#define LANE_SUM(x) lane_sum(lane, x)
#define EXP(x) std::exp(x)
static void kernel(int thread_number, const float* q, const unsigned int* k, const float* k_steps,
    const float* k_offsets, const unsigned int* v, const float* v_steps, const float* v_offsets, const int* sizes,
    float* found, float* stats) {
%s
}
extern "C" void run(int warps, const float* q, const unsigned int* k, const float* k_steps, const float* k_offsets,
    const unsigned int* v, const float* v_steps, const float* v_offsets, const int* sizes, float* found, float* stats) {
  std::vector<std::thread> lanes;
  for (int lane = 0; lane < 32; lane++) lanes.emplace_back([=] {
    for (int warp = 0; warp < warps; warp++)
      kernel(32 * warp + lane, q, k, k_steps, k_offsets, v, v_steps, v_offsets, sizes, found, stats);
  });
  for (auto& lane : lanes) lane.join();
}
"""


def compiler() -> str | None:
    """A C++ compiler of this machine."""
    return shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


def host_builder(mx: Any, folder: Path) -> Build:
    """Kernels as `mx.fast` makes them, compiled in `folder`."""

    def build(name: str, body: str) -> Any:
        stem = folder / f"{name}_{hashlib.sha256(body.encode()).hexdigest()[:8]}"
        source, library = stem.with_suffix(".cpp"), stem.with_suffix(".so")
        source.write_text(FRAME % body)
        command = [compiler() or "c++", "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", source, "-o", library]
        subprocess.run(command, check=True, capture_output=True)
        run = ctypes.CDLL(str(library)).run

        def call(
            *,
            inputs: Sequence[Any],
            output_shapes: Sequence[tuple[int, ...]],
            output_dtypes: Sequence[Any],
            grid: tuple[int, int, int],
            threadgroup: tuple[int, int, int],
        ) -> list[Any]:
            assert grid[1:] == threadgroup[1:] == (1, 1)
            assert grid[0] % 32 == threadgroup[0] % 32 == 0
            assert list(output_dtypes) == [mx.float32, mx.float32]
            given = [np.ascontiguousarray(np.array(_as_host(mx, each))) for each in inputs]
            made = [np.full(shape, np.nan, np.float32) for shape in output_shapes]
            run(grid[0] // 32, *(ctypes.c_void_p(each.ctypes.data) for each in [*given, *made]))
            return [mx.array(each) for each in made]

        return call

    return build


def _as_host(mx: Any, array: Any) -> Any:
    return array if array.dtype in (mx.uint32, mx.int32) else array.astype(mx.float32)
