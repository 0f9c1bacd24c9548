"""Functions of llama.cpp's library that its C header leaves out: layer taps, and what a drafter says of itself.

They are exported under their C++ names, which differ between compilers and come and go between versions, so each is
looked up and may be missing.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from types import ModuleType
from typing import Any

__all__ = ["TapSymbols", "find_taps"]

_FLOATS = ctypes.POINTER(ctypes.c_float)
_INTS = ctypes.POINTER(ctypes.c_int32)
# By field: the exported name, what it returns, and what it takes.
_EXPORTS: dict[str, tuple[str, Any, list[Any]]] = {
    "set_layer_input": (
        "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
        None,
        [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool],
    ),
    "get_layer_input": (
        "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
        _FLOATS,
        [ctypes.c_void_p, ctypes.c_uint32],
    ),
    "target_layers": ("_Z28llama_model_target_layer_idsPK11llama_model", _INTS, [ctypes.c_void_p]),
    "count_target_layers": ("_Z30llama_model_target_layer_ids_nPK11llama_model", ctypes.c_uint32, [ctypes.c_void_p]),
}


@dataclass(frozen=True, slots=True)
class TapSymbols:
    """The functions, ready to be called."""

    set_layer_input: Any
    get_layer_input: Any
    target_layers: Any
    count_target_layers: Any


def find_taps(lib: ModuleType) -> TapSymbols | None:
    """The functions of the library behind the module `lib`; None if this build lacks one of them."""
    library = getattr(lib.llama_cpp, "_lib", None)
    found: dict[str, Any] = {}
    for field, (name, result, takes) in _EXPORTS.items():
        try:
            function = library[name] if isinstance(library, ctypes.CDLL) else None
        except AttributeError:
            function = None
        if function is None:
            return None
        function.restype, function.argtypes = result, takes
        found[field] = function
    return TapSymbols(**found)
