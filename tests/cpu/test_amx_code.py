"""The machine code of the AMX products, read where it cannot be run: the order in which tiles are configured, filled,
multiplied, stored and released, and that the configuration is constant data, so that no store can come too late for it."""
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.getcwd())
from tests.tap import Skip, case, main  # noqa: E402

OBJECT = "build/release/src/cpu/avx512_amx.o"


def functions():
    if os.uname().machine != "x86_64" or shutil.which("objdump") is None:
        raise Skip("needs x86_64 and objdump")
    subprocess.run(["make", "-s", OBJECT], check=True, stdout=subprocess.DEVNULL)
    text = subprocess.run(["objdump", "-dr", "--no-show-raw-insn", OBJECT], stdout=subprocess.PIPE, check=True).stdout.decode()
    parts = re.split(r"^[0-9a-f]+ <([^>]+)>:$", text, flags=re.M)
    return {name: body for name, body in zip(parts[1::2], parts[2::2])}


def tile_words(body):
    return re.findall(r"\t(ldtilecfg|tilerelease|tilezero|tileloadd|tilestored|tdp\w+)", body)


@case
def the_configuration_is_constant_data_and_is_let_go():
    seen = 0
    for name, body in functions().items():
        words = tile_words(body)
        for operand in re.findall(r"\tldtilecfg ([^\n#]+)[^\n]*\n[^\n]*", body):
            assert "(%rip)" in operand, f"{name}: configuration at {operand}, which somebody may have to store first"
        for relocation in re.findall(r"\tldtilecfg [^\n]*\n([^\n]*)", body):
            assert ".rodata" in relocation, f"{name}: configuration is not constant: {relocation}"
        if "ldtilecfg" in words:
            seen += 1
            assert words[0] == "ldtilecfg" and "tilerelease" in words, f"{name}: {words}"
    assert seen >= 1, "nothing configures tiles"


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
