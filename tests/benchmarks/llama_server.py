"""llama-server (package xllamacpp) as a process: prints its address as JSON and serves until stdin closes."""

from __future__ import annotations

import argparse
import json
import sys

import xllamacpp

_FLASH_ATTENTION = 1
NGRAM_MODES = ("ngram_simple", "ngram_map_k", "ngram_mod", "ngram_cache")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("path")
    options.add_argument("--threads", type=int, required=True)
    options.add_argument("--slots", type=int, required=True)
    options.add_argument("--n-ctx", type=int, required=True, help="tokens of one slot")
    options.add_argument("--slot-save-path", default="", help="a folder for the slots' files")
    options.add_argument("--draft", choices=NGRAM_MODES, help="one of the server's n-gram modes")
    args = options.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = args.path
    params.n_parallel = args.slots
    params.n_ctx = args.slots * args.n_ctx
    params.flash_attn_type = _FLASH_ATTENTION
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    params.n_gpu_layers = 0
    params.fit_params = False
    params.verbosity = 0
    params.slot_save_path = args.slot_save_path
    if args.draft:
        kind = getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{args.draft.upper()}")
        params.speculative.types = [kind]
    server = xllamacpp.Server(params)
    print(json.dumps({"address": server.listening_address}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
