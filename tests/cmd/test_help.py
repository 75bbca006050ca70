"""Every command explains itself and refuses what it does not know."""
import os
import re
import subprocess

from tests.tap import case, main

PLUMB = os.path.abspath(os.environ.get("PLUMB", "build/plumb"))


def run(*args):
    return subprocess.run([PLUMB, *args], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)


def commands():
    out = run("--help")
    assert out.returncode == 0 and out.stderr == "", out
    return re.findall(r"^  ([a-z]+) ", out.stdout, re.M)


@case
def the_list_names_the_commands():
    assert {"pull", "list", "rm", "version"} <= set(commands())


@case
def help_has_usage_and_examples():
    for name in commands():
        out = run(name, "--help")
        assert out.returncode == 0 and out.stderr == "", (name, out)
        assert f"plumb {name}" in out.stdout and re.search("example", out.stdout, re.I), (name, out.stdout)
        assert max(map(len, out.stdout.splitlines())) <= 140, name


@case
def unknown_options_and_commands_are_usage_errors():
    for args in ([], ["nonsense"], *([name, "--no-such-option"] for name in commands())):
        out = run(*args)
        assert out.returncode == 64 and out.stdout == "" and out.stderr.startswith("plumb"), (args, out)
    assert "'list'" in run("lits").stderr


main()
