"""What the documents say exists: options, commands, files, tests, targets of make, environment variables, folders."""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import documents
import house
from tests.tap import case, main

PLUMB = os.path.abspath(os.environ.get("PLUMB", "build/plumb"))
# Logs of measurements name what there was when they were made.
DOCS = ["README.md", "CONTRIBUTING.md"] + sorted(os.path.join("docs", f) for f in os.listdir("docs") if f.endswith(".md"))
READMES = sorted(os.path.join(d, "README.md") for top in ("src", "kernels", "fuzz") for d, _, fs in os.walk(top) if "README.md" in fs)


def text(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


def ask(*args):
    return subprocess.run([PLUMB, *args], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)


TEXTS = {f: text(f) for f in DOCS}
HELPS = {name: ask(name, "--help").stdout for name in re.findall(r"^  ([a-z]+) ", ask("--help").stdout, re.M)}
OPTIONS = {name: documents.options_of(shown) for name, shown in HELPS.items()}


def none(faults):
    assert not faults, "\n".join(faults[:40])


@case
def options_that_are_named_exist():
    known = set().union(*OPTIONS.values())
    none([fault for f, t in TEXTS.items() for fault in documents.unknown_options(f, t, known)])
    none([fault for f, t in TEXTS.items() for fault in documents.misplaced_options(f, t, OPTIONS)])


@case
def options_that_exist_are_named():
    everything = "\n".join(TEXTS.values())
    none([f"plumb {name} --{o} stands in no document" for name, options in OPTIONS.items() for o in documents.unmentioned(options, everything)])


@case
def every_command_is_described():
    none([f"docs/commands.md does not speak of plumb {name}" for name in HELPS
          if not re.search(rf"^## .*\b{name}\b|`plumb {name}\b", TEXTS["docs/commands.md"], re.M)])


@case
def examples_are_understood():
    """Each example, with --help behind it: everything before that is parsed, and nothing runs."""
    shown = {f"plumb {name} --help": "\n".join("  " + line for line in h.splitlines()) for name, h in HELPS.items()}
    tried, faults = 0, []
    for place, t in {**TEXTS, **shown}.items():
        for words in documents.shell_lines(t):
            if words and words[0] in HELPS:
                out, tried = ask(*words, "--help"), tried + 1
                if out.returncode != 0 or not out.stdout.startswith("usage:"):
                    faults.append(f"{place}: plumb {' '.join(words)}: {out.stderr.strip()}")
    none(faults)
    assert tried > 80, tried


@case
def files_and_tests_that_are_named_exist():
    none([fault for f in DOCS + READMES for fault in documents.missing_places(f, text(f))])
    names, programs = set(), []
    for d, _, fs in os.walk("tests"):
        programs += [os.path.join(d, f) for f in fs if f.endswith((".c", ".py"))]
    for f in programs:
        names |= {os.path.splitext(os.path.basename(f))[0], *re.findall(r"\btest_\w+", text(f))}
    none([fault for f in DOCS + READMES for fault in documents.missing_tests(f, text(f), names)])


@case
def headings_that_are_linked_exist():
    more = [os.path.join(d, f) for d, _, fs in os.walk("docs") for f in fs if f.endswith(".md")]
    none([fault for f in sorted({*DOCS, *more, *READMES}) for fault in documents.missing_anchors(f, text(f), text)])


@case
def targets_of_make_exist():
    targets = set(re.findall(r"^([a-z][\w-]*):", text("Makefile"), re.M))
    none([f"{f}: there is no 'make {t}'" for f in DOCS for t in re.findall(r"(?:`|^ +)make (?:[A-Z]+=\S+ )*([a-z][\w-]*)", TEXTS[f], re.M)
          if t not in targets])


def files_for_make(makefile):
    """Targets that make would take for files: with a folder of that name it finds nothing to do."""
    phony = set(" ".join(re.findall(r"^\.PHONY:((?:.*\\\n)*.*)", makefile, re.M)).split())
    return sorted(set(re.findall(r"^## make +([a-z][\w-]+)  ", makefile, re.M)) - phony)


@case
def what_make_offers_is_made_whatever_lies_about():
    none(files_for_make(text("Makefile")))
    assert files_for_make(text("Makefile").replace(" fuzz soak dist", " soak dist")) == ["fuzz"]


@case
def environment_variables_are_both_read_and_described():
    sources = "\n".join(text(os.path.join(d, f)) for top in ("src", "tests", "tools") for d, _, fs in os.walk(top)
                        for f in fs if f.endswith((".c", ".h", ".py", ".sh")))
    everything, man = "\n".join(TEXTS.values()), text("docs/plumb.1")
    named = {v for v in re.findall(r"\bPLUMB_[A-Z_]*[A-Z]", everything + man) if not v.startswith("PLUMB_ARG")}
    read = set(re.findall(r'getenv\("(PLUMB_\w+)"', "\n".join(text(os.path.join(d, f)) for d, _, fs in os.walk("src") for f in fs)))
    none([f"{v} is described and nothing reads it" for v in sorted(named) if f'"{v}"' not in sources and f"${v}" not in sources])
    none([f"{v} is read and not described" for v in sorted(read - named)])


@case
def the_table_of_folders_is_that_of_the_checker():
    rows = re.findall(r"^\| (\d) \| `(?:src/)?([\w/]+)` \|", TEXTS["docs/architecture.md"], re.M)
    levels = [tuple(line.split()) for line in text("src/deps.txt").splitlines() if line.strip() and not line.startswith("#")]
    assert rows == levels and house.read_levels(text("src/deps.txt")), set(rows) ^ set(levels)


@case
def planted_faults_are_found():
    of = {"run": {"seed": "s", "temp": None}, "list": {"json": None}}
    assert documents.options_of("  -s, --seed N    x\n      --temp T   y\n") == {"seed": "s", "temp": None}
    assert documents.unknown_options("a", "`--sede`", {"seed"}) and not documents.unknown_options("a", "`--seed` --jinja x--y", {"seed"})
    assert documents.misplaced_options("a", "`plumb list --seed 3`", of) and not documents.misplaced_options("a", "plumb run --seed; --json", of)
    assert not documents.misplaced_options("a", "plumb run --temp '--json'", of)
    assert documents.unmentioned(of["run"], "speaks of -s alone") == ["temp"] and documents.unmentioned(of["run"], "--temperature") == ["seed", "temp"]
    there = {"tests/a/test_b.c", "docs/x.md"}.__contains__
    assert not documents.missing_places("README.md", "`tests/a/test_b` docs/x.md path/src/none", there)
    assert documents.missing_places("README.md", "`tests/a/{test_b,test_c}.c`", there)
    assert documents.missing_tests("a", "`test_none`", {"test_b"}) and not documents.missing_tests("a", "`test_b`", {"test_b"})
    assert documents.anchors("# A b, `--c` (d)\n```\n# no\n```\n") == {"a-b---c-d"}
    assert documents.missing_anchors("docs/a.md", "# X y\n[z](#x-z)", None) and not documents.missing_anchors("docs/a.md", "# X y\n[z](#x-y)", None)
    assert documents.missing_anchors("docs/a.md", "[z](p/b.md#k)", {"docs/p/b.md": "# K l"}.get)
    block = "prose plumb x\n    plumb list --json | jq .; plumb rm a  # plumb no\n    plumb run \\\n        -p 'a b'\n```sh\nplumb rm b && x\n```\n"
    assert list(documents.shell_lines(block)) == [["list", "--json"], ["rm", "a"], ["run", "-p", "a b"], ["rm", "b"]]


main()
