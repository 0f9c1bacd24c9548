"""A snapshot's cells from one type to another, as llama.cpp would have written them.

llama.cpp turns each head by a Hadamard matrix before it rounds it into blocks, and does not say so in the state: the
size of that matrix, for keys and for values, is found by computing the same few tokens with both types.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pinfold.engines.base import Span
from pinfold.engines.llama_cpp.kv_types import KVTypes, is_block_type, row_bytes, type_number
from pinfold.engines.llama_cpp.loading import Loaded, open_lane
from pinfold.engines.llama_cpp.state import parse_state
from pinfold.errors import UnsupportedModeError
from pinfold.kv.snapshot import Heads, Opaque, Part, Plane, Section, Snapshot
from pinfold.options import RuntimeOptions

__all__ = ["Transcoder"]

F32 = NDArray[np.float32]

_PROBE_TOKENS = 24
_PROBE_CELLS = 256
_NOT_TURNED = 1
_SIZES = (_NOT_TURNED, 32, 64, 128, 256)
# Rounding to 4 bits alone gives a tenth; any other matrix gives more than 1.
_MOST_ERROR = 0.5


class Transcoder:
    """Transcodes for one loaded model. Runs on the engine's thread: the first use of a type computes a few tokens."""

    def __init__(self, loaded: Loaded, options: RuntimeOptions) -> None:
        self._loaded = loaded
        self._options = options
        self._sizes: dict[tuple[Part, str], int] = {}
        self._ggml = _Ggml(loaded)

    def to(self, snapshot: Snapshot, kv_types: KVTypes) -> Snapshot:
        """The snapshot with cells of `kv_types`.

        Raises:
            UnsupportedModeError: parts of it are not keys and values, or this build of llama.cpp cannot convert them.
        """
        sections: list[Section | Opaque] = []
        for section in snapshot.sections:
            if not isinstance(section, Section):
                msg = f"Cells of this model cannot change their type: {section.reason}."
                raise UnsupportedModeError(msg)
            planes = [self._plane(plane, section.heads, kv_types) for plane in section.planes]
            sections.append(replace(section, planes=planes))
        return replace(snapshot, sections=sections)

    def _plane(self, plane: Plane, heads: Heads, kv_types: KVTypes) -> Plane:
        kind = kv_types.k if plane.part == "k" else kv_types.v
        if kind == plane.kind:
            return plane
        size = heads.k_size if plane.part == "k" else heads.v_size
        values = self._turned(self._ggml.values(plane, size), plane.part, plane.kind)
        return replace(plane, kind=kind, rows=self._ggml.rows(self._turned(values, plane.part, kind), kind))

    def _turned(self, values: F32, part: Part, kind: str) -> F32:
        """`values` as cells of `kind` have them, or back: the matrix is its own inverse."""
        size = self._size(part, kind)
        if size == _NOT_TURNED:
            return values
        return (values.reshape(len(values), -1, size) @ _hadamard(size)).reshape(values.shape)

    def _size(self, part: Part, kind: str) -> int:
        if not is_block_type(kind):
            return _NOT_TURNED
        if (part, kind) not in self._sizes:
            self._sizes[part, kind] = self._probe(part, kind)
        return self._sizes[part, kind]

    def _probe(self, part: Part, kind: str) -> int:
        plain = self._first_plane(part, KVTypes("f16", "f16"))
        other = self._first_plane(part, KVTypes(kind, kind))
        errors = {}
        for size in _SIZES:
            if plain.shape[1] % size == 0:
                turned = (plain.reshape(len(plain), -1, size) @ _hadamard(size)).reshape(plain.shape)
                errors[size] = float(np.linalg.norm(turned - other) / np.linalg.norm(other))
        best = min(errors, key=lambda size: errors[size])
        if errors[best] > _MOST_ERROR:
            msg = f"This build of llama.cpp keeps {kind} cells in a way that is not known; use kv_resident at start."
            raise UnsupportedModeError(msg)
        return best

    def _first_plane(self, part: Part, kv_types: KVTypes) -> F32:
        """K or V of the first layer, of some tokens."""
        lane = open_lane(self._loaded, self._options, kv_types, cells=_PROBE_CELLS)
        try:
            tokens = [(7 * n + 11) % self._loaded.tokenizer.n_vocab for n in range(_PROBE_TOKENS)]
            lane.forward([Span(0, 0, tokens, "last")])
            section = parse_state(lane.snapshot(0), len(tokens), self._loaded.heads).sections[0]
            if not isinstance(section, Section):
                msg = f"Cells of this model cannot change their type: {section.reason}."
                raise UnsupportedModeError(msg)
            plane = next(plane for plane in section.planes if plane.part == part)
            size = section.heads.k_size if part == "k" else section.heads.v_size
            return self._ggml.values(plane, size).copy()
        finally:
            lane.close()


class _Ggml:
    """ggml's own rounding, by its C functions. Arrays are float32 [tokens, channels]."""

    def __init__(self, loaded: Loaded) -> None:
        self._library: Any = loaded.lib.llama_cpp._lib  # noqa: SLF001 - the handle that the symbols are found in

    def values(self, plane: Plane, head: int) -> F32:
        rows = np.ascontiguousarray(plane.rows)
        if plane.kind == "f16":
            return rows.view(np.float16).astype(np.float32)
        if plane.kind == "f32":
            return rows.view(np.float32).copy()
        if plane.kind == "bf16":
            return (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        channels = rows.shape[1] // row_bytes(plane.kind, head) * head
        values = np.empty((len(rows), channels), dtype=np.float32)
        function = self._function(f"dequantize_row_{plane.kind}")
        function(ctypes.c_void_p(rows.ctypes.data), ctypes.c_void_p(values.ctypes.data), ctypes.c_int64(values.size))
        return values

    def rows(self, values: F32, kind: str) -> NDArray[np.uint8]:
        if kind == "f16":
            return np.clip(values, -65504, 65504).astype(np.float16).view(np.uint8)
        if kind == "f32":
            return values.astype(np.float32).view(np.uint8)
        if kind == "bf16":
            return ((values.view(np.uint32) + 0x8000) >> 16).astype(np.uint16).view(np.uint8)
        values = np.ascontiguousarray(values)
        rows = np.empty((len(values), row_bytes(kind, values.shape[1])), dtype=np.uint8)
        function = self._function("ggml_quantize_chunk")
        function.restype = ctypes.c_size_t
        written = function(
            ctypes.c_int(type_number(kind)),
            ctypes.c_void_p(values.ctypes.data),
            ctypes.c_void_p(rows.ctypes.data),
            ctypes.c_int64(0),
            ctypes.c_int64(len(values)),
            ctypes.c_int64(values.shape[1]),
            ctypes.c_void_p(None),
        )
        if written != rows.size:
            msg = f"ggml wrote {written} of {rows.size} bytes of {kind} cells."
            raise UnsupportedModeError(msg)
        return rows

    def _function(self, name: str) -> Any:
        try:
            return getattr(self._library, name)
        except AttributeError as e:
            msg = f"This build of llama.cpp does not export {name}; choose kv_resident when the Runtime is opened."
            raise UnsupportedModeError(msg) from e


@cache
def _hadamard(size: int) -> F32:
    matrix = np.ones((1, 1), dtype=np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    scaled: F32 = (matrix / np.sqrt(size)).astype(np.float32)
    return scaled
