"""Attention over codes in one pass: a kernel for Metal and CUDA that reads each packed cell once.

Each warp (32 lanes) takes some cells of one KV head and attends to them for a few rows of queries at once: lanes share
out the channels, a running maximum keeps the softmax stable, and what each warp found is merged afterwards with the
whole cells (the partition of Flash-Decoding, Dao and others, 2023). The same text, with other first lines, is the body
for each device; the tests also compile it for the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pinfold.engines.mlx.kv_types import Steps
from pinfold.engines.mlx.packed import PackedCells

__all__ = ["Build", "Kernel", "builder", "kernel_body"]

Array = Any
Build = Callable[[str, str], Any]
"""(name, body) -> a kernel: called as those of `mx.fast` are, with the inputs and outputs named below."""

INPUTS = ("q", "k", "k_steps", "k_offsets", "v", "v_steps", "v_offsets", "sizes")
OUTPUTS = ("found", "stats")

_LANES = 32
_WARPS = 4
# Rows that one warp attends for, each a kernel of its own: its lanes keep this many times size / 32 sums.
_TILES = (1, 2, 4, 8)
_FEWEST_CELLS = 64
_MOST_SPLITS = 128

_METAL_FIRST = "const int thread_number = int(thread_position_in_grid.x);\n"
_METAL_HEADER = "#define LANE_SUM(x) simd_sum(x)\n#define EXP(x) exp(x)\n"
_CUDA_FIRST = "const int thread_number = int(blockIdx.x * blockDim.x + threadIdx.x);\n"
_CUDA_HEADER = """\
__device__ inline float lane_sum(float x) {
  for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}
#define LANE_SUM(x) lane_sum(x)
#define EXP(x) __expf(x)
"""

# In the common part of both languages; without pointers of its own, as Metal's have address spaces.
_BODY = """\
constexpr int OWN = SIZE / 32;
constexpr int AHEAD = 4;
constexpr float NEVER = -1e30f;
const int rows = sizes[0], k_room = sizes[1], v_room = sizes[2], count = sizes[3];
const int chunk = sizes[4], splits = sizes[5], tiles = sizes[6], heads = sizes[7];
const int lane = thread_number % 32, warp = thread_number / 32;
const int split = warp % splits, tile = warp / splits % tiles, head = warp / (splits * tiles);
if (head >= heads) return;
const int start = split * chunk;
const int end = start + chunk < count ? start + chunk : count;
float query[ROWS][OWN], sum[ROWS][OWN], peak[ROWS], total[ROWS];
#pragma unroll
for (int r = 0; r < ROWS; r++) {
  const int row = tile * ROWS + r < rows ? tile * ROWS + r : rows - 1;
  peak[r] = NEVER;
  total[r] = 0.0f;
  #pragma unroll
  for (int e = 0; e < OWN; e++) {
    query[r][e] = q[(size_t(head) * rows + row) * SIZE + lane * OWN + e];
    sum[r][e] = 0.0f;
  }
}
for (int first = start; first < end; first += AHEAD) {
  float score[ROWS][AHEAD];
  #pragma unroll
  for (int a = 0; a < AHEAD; a++) {
    const int cell = first + a < end ? first + a : end - 1;
    const size_t at = size_t(head) * k_room + cell;
    float key[OWN];
    #pragma unroll
    for (int e = 0; e < OWN; e++) {
      const int channel = lane * OWN + e, bit = channel * K_BITS, word = bit / 32, shift = bit % 32;
      unsigned int code = k[at * (SIZE * K_BITS / 32) + word] >> shift;
      if (shift + K_BITS > 32) code |= k[at * (SIZE * K_BITS / 32) + word + 1] << (32 - shift);
      const size_t group = at * (SIZE / GROUP) + channel / GROUP;
      key[e] = float(code & ((1u << K_BITS) - 1u)) * float(k_steps[group]) + float(k_offsets[group]);
    }
    #pragma unroll
    for (int r = 0; r < ROWS; r++) {
      float part = 0.0f;
      #pragma unroll
      for (int e = 0; e < OWN; e++) part += query[r][e] * key[e];
      const float whole = LANE_SUM(part);
      score[r][a] = first + a < end ? whole : NEVER;
    }
  }
  #pragma unroll
  for (int r = 0; r < ROWS; r++) {
    float most = peak[r];
    #pragma unroll
    for (int a = 0; a < AHEAD; a++) most = score[r][a] > most ? score[r][a] : most;
    const float kept = EXP(peak[r] - most);
    peak[r] = most;
    total[r] *= kept;
    #pragma unroll
    for (int e = 0; e < OWN; e++) sum[r][e] *= kept;
    #pragma unroll
    for (int a = 0; a < AHEAD; a++) {
      score[r][a] = EXP(score[r][a] - most);
      total[r] += score[r][a];
    }
  }
  #pragma unroll
  for (int a = 0; a < AHEAD; a++) {
    const int cell = first + a < end ? first + a : end - 1;
    const size_t at = size_t(head) * v_room + cell;
    #pragma unroll
    for (int e = 0; e < OWN; e++) {
      const int channel = lane * OWN + e, bit = channel * V_BITS, word = bit / 32, shift = bit % 32;
      unsigned int code = v[at * (SIZE * V_BITS / 32) + word] >> shift;
      if (shift + V_BITS > 32) code |= v[at * (SIZE * V_BITS / 32) + word + 1] << (32 - shift);
      const size_t group = at * (SIZE / GROUP) + channel / GROUP;
      const float value = float(code & ((1u << V_BITS) - 1u)) * float(v_steps[group]) + float(v_offsets[group]);
      #pragma unroll
      for (int r = 0; r < ROWS; r++) sum[r][e] += score[r][a] * value;
    }
  }
}
#pragma unroll
for (int r = 0; r < ROWS; r++) {
  const int row = tile * ROWS + r;
  if (row < rows) {
    const size_t at = (size_t(head) * rows + row) * splits + split;
    #pragma unroll
    for (int e = 0; e < OWN; e++) found[at * SIZE + lane * OWN + e] = sum[r][e];
    if (lane == 0) {
      stats[at * 2] = peak[r];
      stats[at * 2 + 1] = total[r];
    }
  }
}
"""


def kernel_body(size: int, k: Steps, v: Steps, rows: int) -> str:
    """The kernel for heads of `size` channels and `rows` rows of queries a warp, but for its first line."""
    constants = {"SIZE": size, "K_BITS": k.bits, "V_BITS": v.bits, "GROUP": k.group, "ROWS": rows}
    return "".join(f"constexpr int {name} = {value};\n" for name, value in constants.items()) + _BODY


def builder(mx: Any, device: str) -> Build | None:
    """What builds the kernel for `device`; None for a CPU, or where this version of MLX cannot."""
    kinds = {"metal": ("metal_kernel", _METAL_FIRST, _METAL_HEADER), "cuda": ("cuda_kernel", _CUDA_FIRST, _CUDA_HEADER)}
    if device not in kinds or not hasattr(mx.fast, kinds[device][0]):
        return None
    function, first, header = kinds[device]

    def build(name: str, body: str) -> Any:
        make = getattr(mx.fast, function)
        return make(name=name, input_names=list(INPUTS), output_names=list(OUTPUTS), source=first + body, header=header)

    return build


@dataclass(frozen=True, slots=True)
class _Share:
    """How the rows and packed cells of one call are given out."""

    rows: int
    tile: int
    count: int
    chunk: int

    @classmethod
    def of(cls, rows: int, count: int) -> _Share:
        cells = max(_FEWEST_CELLS, -(-count // _MOST_SPLITS))
        tile = next((tile for tile in _TILES if tile >= rows), _TILES[-1])
        return cls(rows, tile, count, -(-cells // _FEWEST_CELLS) * _FEWEST_CELLS)

    @property
    def splits(self) -> int:
        return -(-self.count // self.chunk)

    @property
    def tiles(self) -> int:
        return -(-self.rows // self.tile)


class Kernel:
    """The kernel on one device, built for each layout of cells when it is first met."""

    def __init__(self, mx: Any, build: Build) -> None:
        self._mx = mx
        self._build = build
        self._kernels: dict[str, Any] = {}
        self._sizes: tuple[tuple[int, ...], Array] = ((), None)

    def packed(self, queries: Array, cells: PackedCells) -> tuple[Array, Array, Array]:
        """Attention of queries [1, KV heads, rows, size], scaled, to the packed cells alone.

        Returns float32 sums of values [1, KV heads, rows, splits, size], and of each split the greatest score and the
        sum of weights [1, KV heads, rows, splits], both relative to that score.
        """
        mx, packing = self._mx, cells.packing
        if cells.k is None or cells.v is None:
            msg = "there are no packed cells to attend to"
            raise ValueError(msg)
        k, v = cells.k, cells.v
        _, heads, rows, size = queries.shape
        share = _Share.of(rows, cells.packed)
        known = (rows, k[0].shape[2], v[0].shape[2], share.count, share.chunk, share.splits, share.tiles, heads)
        if self._sizes[0] != known:  # all layers of a step have the same
            self._sizes = (known, mx.array(known, dtype=mx.int32))
        threads = heads * share.tiles * share.splits * _LANES
        found, stats = self._kernel(size, packing.k, packing.v, share.tile, str(k[1].dtype))(
            inputs=[queries.astype(mx.float32), *k, *v, self._sizes[1]],
            output_shapes=[(1, heads, rows, share.splits, size), (1, heads, rows, share.splits, 2)],
            output_dtypes=[mx.float32, mx.float32],
            grid=(threads, 1, 1),
            threadgroup=(min(threads, _WARPS * _LANES), 1, 1),
        )
        return found, stats[..., 0], stats[..., 1]

    def _kernel(self, size: int, k: Steps, v: Steps, rows: int, kind: str) -> Any:
        parts = (size, k.bits, v.bits, k.group, rows, kind.rpartition(".")[2])
        name = "pinfold_attend_" + "_".join(map(str, parts))
        if name not in self._kernels:
            self._kernels[name] = self._build(name, kernel_body(size, k, v, rows))
        return self._kernels[name]
