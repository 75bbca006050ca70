#!/usr/bin/env python3
"""Makes tests/golden/token/*.json: small tokenizers trained here and what Hugging Face `tokenizers` does with them.

    python3 tools/make_token_golden.py        (needs: pip install tokenizers; written with 0.23)

Each file holds {"tokenizer": ..., "cases": [{"text", "ids", "plain", "shown", "hidden"}]}: ids with and without special
tokens added, and the decoded text with and without special tokens shown.
"""
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import decoders as D
from tokenizers import models as M
from tokenizers import normalizers as N
from tokenizers import pre_tokenizers as P
from tokenizers import processors as R
from tokenizers import trainers as T

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/token"
SEED = """The quick brown fox doesn't jump over 1234567 lazy dogs; they'll sleep, he's sure, I'VE seen it.
Быстрая лиса прыгает через ленивую собаку. Пример текста на русском языке.
快速的棕色狐狸跳过懒狗。这是一个中文的例子，数字是四十二。 これは日本語の文章です。カタカナもあります。
한국어 문장도 있습니다. العربية نص قصير هنا. עברית גם כאן. हिन्दी में एक छोटा वाक्य। ภาษาไทยก็มี
def main(argc, argv):\n    for i in range(10):\n\t\tprint("value = %d" % i)  # comment\n    return {"a": [1, 2, 3]}
Élan vital, naïve façade, coöperate, Ångström, ﬁne ﬂuﬀ, ①②③ ½ Ⅷ x² emoji 😀🚀👨‍👩‍👧 🇩🇪 done.
"""
SPECIAL = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>"]
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")


def words(seed):
    rng = random.Random(seed)
    pieces = SEED.split() + ["\n", "\t", "  ", " ", "\r\n", "don't", "I'LL", "<|im_end|>", "<s>", "<tool>", "sw", "xsw", " LEFT",
                             "RIGHT  ", "<mask>", "    ", "e\u0301", "a\u0308\u0327", "\u00a0", "\u3000", "\u200d", "3.14", "▁", "Ġ"]
    out = []
    for _ in range(rng.randint(1, 9)):
        w = rng.choice(pieces)
        out.append(w if rng.random() < 0.7 else w[: rng.randint(1, len(w))])
        out.append(rng.choice([" ", "", "", "  ", "\n"]))
    return "".join(out)


def extras(tok):
    tok.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("sw", single_word=True), AddedToken("LEFT", lstrip=True),
                    AddedToken("RIGHT", rstrip=True, normalized=False), AddedToken("    ", normalized=False)])
    tok.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])


def write(name, tok):
    cases = []
    for text in ["", " ", "  ", "\n", "a", "<s>", "Hello, world"] + [words(i) for i in range(60)]:
        ids = tok.encode(text).ids
        plain = tok.encode(text, add_special_tokens=False).ids
        cases.append({"text": text, "ids": ids, "plain": plain, "shown": tok.decode(ids, skip_special_tokens=False),
                      "hidden": tok.decode(ids, skip_special_tokens=True)})
    OUT.mkdir(parents=True, exist_ok=True)
    body = json.dumps({"tokenizer": json.loads(tok.to_str()), "cases": cases}, ensure_ascii=False, separators=(",", ":"))
    (OUT / f"{name}.json").write_text(body + "\n", encoding="utf-8")


def bpe(name, norm, pre, dec, post=None, **kw):
    tok = Tokenizer(M.BPE(**kw))
    if norm: tok.normalizer = norm
    if pre: tok.pre_tokenizer = pre
    if dec: tok.decoder = dec
    level = isinstance(dec, D.ByteLevel)
    tok.train_from_iterator(SEED.split("\n") * 3, T.BpeTrainer(
        vocab_size=700 if level else 500, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=P.ByteLevel.alphabet() if level else [], end_of_word_suffix=kw.get("end_of_word_suffix") or ""))
    extras(tok)
    if post: tok.post_processor = post
    write(name, tok)


def unigram(name, norm, pre, dec):
    tok = Tokenizer(M.Unigram())
    if norm: tok.normalizer = norm
    tok.pre_tokenizer, tok.decoder = pre, dec
    tok.train_from_iterator(SEED.split("\n") * 3, T.UnigramTrainer(vocab_size=400, special_tokens=SPECIAL, unk_token="<unk>",
                                                                   show_progress=False))
    extras(tok)
    write(name, tok)


def wordpiece(name, norm):
    tok = Tokenizer(M.WordPiece(unk_token="[UNK]"))
    tok.normalizer, tok.pre_tokenizer, tok.decoder = norm, P.BertPreTokenizer(), D.WordPiece()
    tok.train_from_iterator(SEED.split("\n") * 3, T.WordPieceTrainer(
        vocab_size=500, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False))
    tok.post_processor = R.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    write(name, tok)


def main():
    frame = R.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    split = lambda p: P.Sequence([P.Split(Regex(p), "isolated"), P.ByteLevel(False, use_regex=False)])
    bpe("gpt2", None, P.ByteLevel(add_prefix_space=True), D.ByteLevel(), R.ByteLevel())
    bpe("cl100k", N.NFC(), split(CL100K), D.ByteLevel())
    bpe("o200k", None, split(O200K), D.ByteLevel())
    bpe("falcon", None, P.Sequence([P.Punctuation("contiguous"), P.ByteLevel(False), P.Digits(False),
                                    P.Split(Regex("[0-9][0-9][0-9]"), "isolated")]), D.ByteLevel())
    bpe("fallback", N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]), None,
        D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)]), frame,
        byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    bpe("metaspace", N.Sequence([N.NFKD(), N.StripAccents(), N.Lowercase()]), P.Metaspace(prepend_scheme="first"),
        D.Metaspace(prepend_scheme="first"), unk_token="<unk>", fuse_unk=True)
    bpe("suffix", N.BertNormalizer(), P.BertPreTokenizer(), D.BPEDecoder("</w>"), unk_token="<unk>", end_of_word_suffix="</w>")
    bpe("split", None, P.Sequence([P.Split(Regex("[0-9,]|[A-Z]+"), "merged_with_next"), P.Split("e", "merged_with_previous"),
                                   P.Whitespace()]), None, unk_token="<unk>")
    unigram("unigram", N.NFKC(), P.Metaspace(), D.Metaspace())
    wordpiece("wordpiece", N.BertNormalizer())
    wordpiece("wordpiece_cased", N.BertNormalizer(lowercase=False, strip_accents=True))


if __name__ == "__main__":
    main()
