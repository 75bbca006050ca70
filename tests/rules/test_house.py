"""Rules of the house that a compiler does not check: includes, lengths, READMEs, format, warnings, packages, words."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import house
from tests.tap import Skip, case, main

BUILD = os.environ.get("PLUMB_BUILD", "build")


def tracked():
    """Files of the repository; without git (an archive), everything that is not built."""
    try:
        out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=True)
        names = out.stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        names = [os.path.relpath(os.path.join(d, f), ".") for d, dirs, fs in os.walk(".") for f in fs]
        names = [n for n in names if not n.startswith((BUILD + "/", ".git/", ".venv/")) and "__pycache__" not in n]
    return sorted(n for n in names if os.path.isfile(n))


FILES = tracked()


def text(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


def none(faults):
    assert not faults, "\n".join(faults[:40])


def c_files(*tops):
    return [f for f in FILES if f.endswith((".c", ".h")) and f.split("/")[0] in tops]


@case
def includes_follow_the_order_of_folders():
    folders = house.read_levels(text("src/deps.txt"))
    present = set(FILES)
    none([fault for f in c_files("src") for fault in house.include_faults(f, text(f), folders, present.__contains__)])


@case
def include_check_finds_planted_faults():
    folders, yes = ["base", "kernels/args", "tensor", "file", "ops"], {"src/file/near.h"}.__contains__
    check = lambda path, line: house.include_faults(path, line, folders, yes)
    assert check("src/file/a.c", '#include "tensor/t.h"\n#include "file/x.h"\n#include "near.h"') == []
    assert check("src/file/a.c", '#include "ops/ops.h"') and check("src/base/a.c", ' # include "file/x.h"')
    assert check("src/file/a.c", '#include "file/b.c"') and check("src/new/a.c", "") and check("src/file/a.c", '#include "z.h"')
    assert check("src/file/deep/a.c", '#include "ops/ops.h"') and not check("src/tensor/a.c", '#include "kernels/args/a.h"')


@case
def functions_and_files_are_short():
    none([fault for f in c_files("src", "include", "tests", "fuzz", "examples") for fault in house.length_faults(f, text(f))])


@case
def length_check_finds_planted_faults():
    body = "    x();\n" * 101
    assert house.length_faults("a.c", "static int f(int a) {\n" + body + "}\n")
    assert house.length_faults("a.c", "static int f(int a,\n             int b) {\n" + body + "}\n")
    assert not house.length_faults("a.c", "/* long function: a table */\nint f(void) {\n" + body + "}\n")
    assert not house.length_faults("a.c", "int f(void) {\n" + "    x();\n" * 50 + "}\n\nint g(void) {\n" + "    x();\n" * 60 + "}\n")
    assert not house.length_faults("a.c", "static const int t[] = {\n" + body + "};\n")
    assert house.length_faults("a.c", "\n" * 1001)
    assert [f[0] for f in house.functions("int a(void) {\n    if (x) {\n    }\n}\nvoid b(int x,\n       int y) {\n}\n")] == ["a", "b"]


@case
def every_folder_has_its_readme():
    folders = {f.split("/")[1] for f in c_files("src") if f.endswith(".c") and f.count("/") >= 2}
    none([f"src/{d} has no README.md" for d in sorted(folders) if f"src/{d}/README.md" not in FILES])


@case
def words_and_addresses_fit_a_public_repository():
    none([fault for f in FILES if not f.endswith((".bin", ".gguf", ".gz", ".safetensors", ".wav")) and "fuzz/corpus/" not in f
          for fault in house.word_faults(f, text(f))])


@case
def word_check_finds_planted_faults():
    scheme = "https:" + "//"
    assert house.word_faults("a", f"see {scheme}evil.test/x") and house.word_faults("a", "from py" + "pi.org get it")
    assert house.word_faults("a", "in /ho" + "me/me/x") and house.word_faults("a", f"{scheme}u:p@evil.test/")
    assert not house.word_faults("a", "https://huggingface.co/a and http://127.0.0.1:80/ and src/home/x and ~/x")


@case
def links_lead_somewhere():
    faults = []
    for f in FILES:
        if f.endswith(".md"):
            for target in re.findall(r"\]\(([^)#\s]+)", text(f)):
                if "://" not in target and not os.path.exists(os.path.join(os.path.dirname(f), target)):
                    faults.append(f"{f}: {target} is not there")
    none(faults)


@case
def files_are_small():
    none([f"{f}: {os.path.getsize(f)} bytes, over 1 MiB" for f in FILES if os.path.getsize(f) > 1 << 20])


@case
def sources_are_formatted():
    tool = shutil.which("clang-format-14") or shutil.which("clang-format")
    version = subprocess.run([tool, "--version"], capture_output=True, text=True).stdout if tool else "none"
    if not re.search(r"version 14\.", version):
        raise Skip(f"clang-format 14 decides, here is: {version.strip()}")
    out = subprocess.run([tool, "--dry-run", "-Werror", *c_files("src", "include", "tests", "fuzz", "examples")],
                         capture_output=True, text=True)
    places = sorted(set(re.findall(r"^([^\s:]+):\d+:\d+: error", out.stderr, re.M)))
    assert out.returncode == 0, "run 'make format': " + " ".join(places)


def no_warnings(variant, compiler):
    path = os.path.join(BUILD, variant, "flags")
    if not os.path.exists(path):
        raise Skip(f"{BUILD}/{variant} was not built")
    used = text(path).split()[0]
    if compiler not in os.path.basename(used):
        raise Skip(f"{BUILD}/{variant} was built with {used}")
    found = [os.path.join(d, f) for d, _, fs in os.walk(os.path.join(BUILD, variant)) for f in fs if f.endswith(".o.warn")]
    found = [f for f in found if os.path.exists(os.path.relpath(f, os.path.join(BUILD, variant))[:-7] + ".c")]
    said = []
    for path in sorted(found):
        try:
            said += [f"{compiler}: {text(path)[:600]}"] if text(path) else []
        except FileNotFoundError:
            pass  # another test has just built something: the file of a compiler with nothing to say goes away again
    none(said)


@case
def builds_side_by_side_do_not_meet():
    """Programs of the suite build what they need while others do: each through tests/build.py, which lets one at a time, and
    the header that every build writes anew survives the builds that do not wait."""
    none([f"{f} runs make itself: tests/build.py does" for f in FILES if re.match(r"tests/.*[.]py$", f) and f != "tests/build.py"
          and re.search(r"""run[(]\[["']make["']""", text(f))])
    with tempfile.TemporaryDirectory() as folder:
        header = os.path.join(folder, "build_info.h")
        builds = [subprocess.Popen(["sh", "tools/build_info.sh", header], stderr=subprocess.PIPE) for _ in range(8)]
        said = [build.communicate()[1].decode() for build in builds]
        assert not any(said) and not any(build.returncode for build in builds), said
        assert os.listdir(folder) == ["build_info.h"] and "PL_BUILD_ID" in text(header)


@case
def gcc_has_nothing_to_say():
    no_warnings("release", "gcc")


@case
def clang_has_nothing_to_say():
    no_warnings("clang", "clang")


PACKAGE = {"jansson": "libjansson-dev", "pcre2-8": "libpcre2-dev", "utf8proc": "libutf8proc-dev", "curl": "libcurl4-openssl-dev",
           "edit": "libedit-dev", "microhttpd": "libmicrohttpd-dev", "z": "zlib1g-dev", "kissfft-float": "libkissfft-dev", "cmocka": "libcmocka-dev",
           "dl": "libc6-dev", "pthread": "libc6-dev", "m": "libc6-dev"}


@case
def every_library_has_its_package():
    script = text("tools/install_deps.sh")
    linked = set(re.findall(r"(?<![\w-])-l([a-z][\w-]*)", text("Makefile").replace("-linux-", "") + text("tools/configure.sh")))
    assert {"jansson", "curl", "cmocka"} <= linked
    none([f"-l{lib}: no package is known for it in this test" for lib in sorted(linked) if lib not in PACKAGE])
    none([f"-l{lib}: {PACKAGE[lib]} is not in tools/install_deps.sh" for lib in sorted(linked)
          if not re.search(rf"\b{re.escape(PACKAGE[lib])}\b", script)])


@case
def the_binary_needs_only_what_is_listed():
    binary = os.environ.get("PLUMB", "build/plumb")
    if not shutil.which("readelf"):
        raise Skip("no readelf")
    out = subprocess.run(["readelf", "-d", binary], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"NEEDED.*\[lib([^\]]+?)\.so", out))
    assert needed and needed <= set(PACKAGE) | {"c"}, needed


main()
