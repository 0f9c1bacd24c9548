"""llama.cpp through its low-level C API.

In: token spans and sequence ids. Out: logits, and KV that is shared, cut and saved by sequence. Everything that names
`llama_cpp` is in this folder; nothing here may import from the rooms above engines/.

    library.py    the shared library: import, log capture
    loading.py    options and a GGUF file -> a model and a context
    tokenizer.py  text <-> token ids
    batch.py      the C batch, filled through numpy views
    engine.py     the engine itself
"""
