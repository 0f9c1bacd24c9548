"""MLX through mlx-lm's models, with caches of our own.

In: token spans and sequence ids. Out: logits, and KV that is shared, cut and saved by sequence. Everything that names
`mlx`, `mlx_lm` or `tokenizers` is in this folder; nothing here may import from the rooms above engines/.

    kv_types.py   the types of cells, and when auto packs
    resident.py   the cells that a model keeps, tried before they are used
    packing.py    which layers pack, and the trial
    packed.py     a cache of packed cells
    attention.py  attention over them
    library.py    the packages, or the error that names the extra
    folder.py     what the files of a model's folder say, checked
    tokenizer.py  text <-> token ids
    loading.py    options and a folder -> a model on its device
    caches.py     what a model sees as its cache, and the plan of which layer has which
    sequences.py  sequences over shared pieces
    state.py      a sequence's arrays as bytes
    layout.py     a sequence's KV as bytes
    rehearsal.py  a short forward at load that shows the shapes, and that reuse changes nothing
    together.py   one forward for several sequences
    engine.py     the engine itself
"""
