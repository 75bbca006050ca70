"""The machine code of the AMX products, read where it cannot be run: the order in which tiles are configured, filled,
multiplied, stored and released, and that the configuration is constant data, so that no store can come too late for it."""
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.getcwd())
from tests.build import make  # noqa: E402
from tests.tap import Skip, case, main  # noqa: E402

OBJECT = "build/release/src/cpu/avx512_amx.o"


def functions():
    if os.uname().machine != "x86_64" or shutil.which("objdump") is None:
        raise Skip("needs x86_64 and objdump")
    make(OBJECT)
    text = subprocess.run(["objdump", "-dr", "--no-show-raw-insn", OBJECT], stdout=subprocess.PIPE, check=True).stdout.decode()
    parts = re.split(r"^[0-9a-f]+ <([^>]+)>:$", text, flags=re.M)
    return {name: body for name, body in zip(parts[1::2], parts[2::2])}


def tile_words(body):
    return re.findall(r"\t(ldtilecfg|tilerelease|tilezero|tileloaddt1|tileloadd|tilestored|tdp\w+)", body)


@case
def the_configuration_is_constant_data_and_is_let_go():
    seen = 0
    for name, body in functions().items():
        words = tile_words(body)
        if "ldtilecfg" not in words:
            continue
        seen += 1
        assert words[0] == "ldtilecfg" and "tilerelease" in words, f"{name}: {words}"
        before = body[:body.index("\tldtilecfg")].splitlines()[-8:]  # one of a constant table, or the constant itself
        after = body[body.index("\tldtilecfg"):].splitlines()[:2]
        if "(%rip)" in after[0]:
            assert ".rodata" in after[1], f"{name}: configuration is not constant: {after}"
        else:
            assert any(".rodata" in line for line in before), f"{name}: configuration is not constant: {before} {after}"
        assert words.count("ldtilecfg") == 1, f"{name}: {words}"
    assert seen == 3, f"{seen} functions configure tiles"  # bytes, float terms, wide


@case
def float_products_run_into_three_sums_that_are_stored():
    body = "".join(b for name, b in functions().items() if "\ttdpbf16ps" in b and "wide" not in name)
    words = tile_words(body)
    assert words.count("tdpbf16ps") >= 6, words
    for word in ("tilezero", "tilestored"):
        assert words.count(word) > 0 and words.count(word) % 3 == 0, f"{word}: {words}"
    for into in (0, 1, 2):
        assert re.search(rf"\ttdpbf16ps %tmm[67],%tmm[345],%tmm{into}\b", body), f"nothing goes to sum {into}"


@case
def wide_products_meet_two_by_two_in_four_sums():
    body = "".join(b for name, b in functions().items() if "\ttdpbf16ps" in b and "wide" in name)
    words = tile_words(body)
    assert words.count("tilezero") == words.count("tilestored") == 6, words  # four sums, and two of an odd last group
    seen = set(re.findall(r"\ttdpbf16ps %tmm([67]),%tmm([45]),%tmm([0-3])\b", body))
    assert seen == {("6", "4", "0"), ("7", "4", "1"), ("6", "5", "2"), ("7", "5", "3")}, seen
    assert len(re.findall(r"\ttdpbf16ps", body)) == words.count("tdpbf16ps") >= 12


@case
def every_product_starts_from_zero_and_is_stored():
    products = 0
    for name, body in functions().items():
        if not name.startswith("chunk_"):
            continue
        words = tile_words(body)
        kind = "tdpbssd" if "signed" in name else "tdpbsud"
        step = ["tilezero", "tileloadd", "tileloadd", kind, "tilestored"]
        assert len(words) % 5 == 0 and words == step * (len(words) // 5), f"{name}: {words}"
        products += len(words) // 5
    assert products >= 8 * 3, f"only {products} products in the code"


if __name__ == "__main__":
    main()
