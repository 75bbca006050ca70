"""The inner loops of the kernels that valgrind cannot run, read as machine code: AVX-512, AVX-VNNI and AMX, on any x86-64
machine. For each function its instructions inside innermost loops, and those of them that move a vector register from or to
the stack, beside stored numbers; so a change of source or compiler that lengthens a loop or spills is seen where the
instructions are not. Renewed, where that is meant:  python3 tests/cpu/test_vector_code.py --write
"""
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.getcwd())
from tests.build import make  # noqa: E402
from tests.cpu import stored  # noqa: E402
from tests.tap import Skip, case, main  # noqa: E402

FILES = ["avx2_vnni", "avx512_amx", "avx512_float", "avx512_groups", "avx512_q8_4bit", "avx512_q8_narrow", "avx512_q8_wide",
         "avx512_table", "avx512_terms", "avx512_unpack", "avx512_wide"]
STORED = "tests/golden/cpu_code.json"
TOLERANCE = 0.03
VECTOR = re.compile(r"%[xyz]mm\d+|%tmm\d")
ON_STACK = re.compile(r"\(%r[sb]p[,)]")


def object_of(name):
    return f"build/release/src/cpu/{name}.o"


def prepare():
    if os.uname().machine != "x86_64" or shutil.which("objdump") is None:
        raise Skip("needs x86_64 and objdump")
    make(*map(object_of, FILES))


def functions_of(path):
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], stdout=subprocess.PIPE, check=True).stdout.decode()
    parts = re.split(r"^[0-9a-f]+ <([^>]+)>:$", text, flags=re.M)
    for name, body in zip(parts[1::2], parts[2::2]):
        yield name, [(int(at, 16), code) for at, code in re.findall(r"^ +([0-9a-f]+):\t(.+)$", body, flags=re.M)]


def innermost_loops(code):
    """A jump back closes a loop; the ones that hold no other."""
    at = {address: i for i, (address, _) in enumerate(code)}
    loops = []
    for i, (_, text) in enumerate(code):
        jump = re.match(r"j\w+ +([0-9a-f]+) ", text)
        first = at.get(int(jump.group(1), 16), i + 1) if jump else i + 1
        if first <= i:
            loops.append((first, i))
    return [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]


def counts_of(path, file):
    """Of each function with vectors in its innermost loops: how many instructions these have, and how many of them spill."""
    counts = {}
    for name, code in functions_of(path):
        inside = [code[i][1] for i in sorted({i for a, b in innermost_loops(code) for i in range(a, b + 1)})]
        if not any(VECTOR.search(text) for text in inside):
            continue
        counts[f"{file}: {name}, instructions"] = len(inside)
        counts[f"{file}: {name}, spills"] = sum(bool(VECTOR.search(text) and ON_STACK.search(text)) for text in inside)
    return counts


def all_counts():
    return {name: n for f in FILES for name, n in counts_of(object_of(f), f).items()}


@case
def inner_loops_are_no_longer_than_stored():
    prepare()
    counts = all_counts()
    for file in FILES:
        assert any(name.startswith(file + ": ") for name in counts), f"no loop was found in {file}"
    faults = stored.outside(counts, stored.load(STORED), TOLERANCE)
    assert not faults, "; ".join(faults) + "; if that is meant, run this file with --write"


@case
def fewer_registers_are_seen_as_spills():
    prepare()
    file = "avx512_q8_4bit"
    source = f"src/cpu/{file}.c"
    said = make(object_of(file), options=("-n", "V=1", "-W", source))
    command = shlex.split(re.search(rf"^.* -c -o \S+ {source}", said, flags=re.M).group(0))
    with tempfile.TemporaryDirectory() as folder:
        command[command.index("-o") + 1] = f"{folder}/a.o"
        command = [word for word in command if word not in ("-MMD", "-MP")] + [f"-ffixed-xmm{i}" for i in range(20, 32)]
        subprocess.run(command, check=True)
        counts = counts_of(f"{folder}/a.o", file)
    before = {name: n for name, n in stored.load(STORED).items() if name.startswith(file + ": ")}
    worse = [name for name, n in before.items() if name.endswith("spills") and counts.get(name, 0) > n]
    longer = [name for name, n in before.items() if name.endswith("instructions") and counts.get(name, 0) > n * (1 + TOLERANCE)]
    assert worse and longer, f"of {len(before) // 2} functions none spills more: {counts}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        prepare()
        stored.save(STORED, all_counts())
    else:
        main()
