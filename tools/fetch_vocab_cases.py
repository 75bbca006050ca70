#!/usr/bin/env python3
"""Fetches llama.cpp's vocabulary files and their published cases: ggml-vocab-*.gguf with .inp and .out.

    python3 tools/fetch_vocab_cases.py [FOLDER]

They come from the source archive of llama-cpp-python 0.3.36, through pip (about 75 MB, once). FOLDER defaults to
$PLUMB_VOCAB_CASES, else ~/.cache/plumb/vocab-cases. Nothing of it belongs into the repository.
"""
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

PACKAGE = "llama-cpp-python==0.3.36"
INSIDE = "vendor/llama.cpp/models/ggml-vocab-"


def folder():
    chosen = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("PLUMB_VOCAB_CASES", "~/.cache/plumb/vocab-cases")
    return pathlib.Path(chosen).expanduser()


def main():
    out = folder()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as tmp:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python",
                        "--dest", tmp, PACKAGE], check=True)
        archive = next(pathlib.Path(tmp).glob("*.tar.gz"))
        count = 0
        with tarfile.open(archive) as tar:
            for member in tar:
                if not member.isfile() or INSIDE not in member.name:
                    continue
                (out / pathlib.PurePosixPath(member.name).name).write_bytes(tar.extractfile(member).read())
                count += 1
    print(f"{count} files in {out}")


if __name__ == "__main__":
    main()
