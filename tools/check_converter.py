#!/usr/bin/env python3
"""Files made by llama.cpp's own converter against transformers: the tiny checkpoints of tests/golden/model are converted to
f32 GGUF by convert_hf_to_gguf's classes, take the place of our own GGUF files in a copy of that folder, and test_golden runs
on it.

    python tools/check_converter.py LLAMA_CPP_CHECKOUT [build/release/tests/model/test_golden]

Left out: tokenizers (the checkpoints have none), and mistral, whose sliding window the converter does not write.
Needs torch, transformers, and llama.cpp's own gguf-py.
"""
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CASES = ("llama2", "llama3", "qwen2", "qwen3", "gemma3")


def convert(source, target):
    import json

    import gguf
    import torch
    from conversion import gemma, llama, qwen  # noqa: F401: each registers its classes
    from conversion.base import ModelBase, ModelType, TextModel
    name = json.loads((source / "config.json").read_text())["architectures"][0]
    made_by = ModelBase._model_classes[ModelType.TEXT][name]
    made_by.set_vocab = lambda self: None
    if name.startswith("Gemma3"):  # its method counts the tokenizer's rows before it adds one to the norms
        made_by.modify_tensors = lambda self, t, n, b: TextModel.modify_tensors(self, t + self.norm_shift(n), n, b)
    with torch.inference_mode():
        made_by(source, gguf.LlamaFileType.ALL_F32, target).write()


def main():
    checkout = sys.argv[1]
    test = Path(sys.argv[2] if len(sys.argv) > 2 else "build/release/tests/model/test_golden").resolve()
    sys.path[:0] = [checkout, f"{checkout}/gguf-py"]
    with tempfile.TemporaryDirectory() as tmp:
        models = Path(tmp) / "tests/golden/model"
        shutil.copytree("tests/golden/model", models)
        for case in CASES:
            (models / f"{case}.gguf").unlink()
            convert(models / case, models / f"{case}.gguf")
        done = subprocess.run([test], cwd=tmp, env=dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP"), capture_output=True,
                              text=True)
    wanted = tuple(f"{c}.gguf" for c in CASES)
    print("\n".join(line for line in (done.stdout + done.stderr).splitlines()
                    if line.startswith(("ok", "not ok")) or any(w in line for w in wanted)))
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
