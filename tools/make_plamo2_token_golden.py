#!/usr/bin/env python3
"""Makes tests/golden/token/plamo2.json: a small vocabulary in the form of PLaMo 2's tokenizer.jsonl, and the ids that the model's
own tokenizer gives.

    python tools/make_plamo2_token_golden.py tokenization_plamo.py    (the file of a published PLaMo 2 directory; needs numba)

The file holds {"lines": [[token, score, type], ...], "cases": [{"text", "plain"}]}. Scores are coarse, so that paths tie.
"""
import importlib.util
import json
import random
import sys
from pathlib import Path

from make_token_golden import OUT, SEED, words

CONTROL = ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>", "<|plamo:op|>"]


def vocabulary(seed=5, pieces=420):
    rng = random.Random(seed)
    text = SEED * 2
    lines = [[t, 0.0, "UNKNOWN" if i == 0 else "CONTROL"] for i, t in enumerate(CONTROL)]
    lines += [[f"<0x{b:02X}>", 0.0, "BYTE"] for b in range(256)]
    seen = {line[0] for line in lines}
    for c in sorted(set(text)):
        if rng.random() < 0.7 and c not in seen:  # the others become bytes
            seen.add(c)
            lines.append([c, -round(8 + 4 * rng.random(), 1), "NORMAL"])
    while pieces > 0:
        at, n = rng.randrange(len(text) - 8), rng.choice([2, 2, 3, 3, 4, 5, 7])
        piece = text[at : at + n]
        if piece not in seen:
            seen.add(piece)
            lines.append([piece, -round(6 + 2.5 * n * rng.random(), 1), "NORMAL"])
            pieces -= 1
    return lines


def main():
    spec = importlib.util.spec_from_file_location("tokenization_plamo", sys.argv[1])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    lines = vocabulary()
    reference = module.AhoCorasick()
    reference.build(lines)
    texts = ["", " ", "\n\n", "a", "\ufeffx", "日本語😀", SEED] + [words(i) for i in range(80)]
    texts = [t for t in texts if not any(c in t for c in CONTROL)]
    cases = [{"text": t, "plain": [int(i) for i in reference.encode(t)] if t else []} for t in texts]
    out = {"lines": lines, "cases": cases}
    (Path(OUT) / "plamo2.json").write_text(json.dumps(out, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
