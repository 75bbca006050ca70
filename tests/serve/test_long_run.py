"""The small form of tools/long_run.py: requests of random lengths through few slots, each text equal to the one it has alone.

test-timeout: 900"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

from tests.serve.support import PLUMB
from tests.tap import Skip, case, main
from tests.tiny_chat_model import write

WORK = tempfile.mkdtemp(prefix="plumb-long-")
MODEL = os.path.join(WORK, "tiny")


def device():
    for kind in json.loads(subprocess.run([PLUMB, "devices", "--json"], capture_output=True, check=True).stdout):
        if kind["devices"]:
            return kind["kind"]
    raise Skip("no device here")


def long_run(*more):
    out = subprocess.run([sys.executable, "tools/long_run.py", "--plumb", PLUMB, "--model", MODEL, "--context", "256", "--words-log2", "5",
                          "--tokens", "20", "--alone", "2", *more], capture_output=True, text=True, timeout=800,
                         env={**os.environ, "XDG_CACHE_HOME": os.path.join(os.getcwd(), "build", "test-cache")})
    assert out.returncode == 0, out.stdout + out.stderr
    return out.stdout


@case
def on_the_cpu():
    assert "60 of 60 texts equal" in long_run("--requests", "60", "--slots", "8")


@case
def on_a_device():
    out = long_run("--requests", "24", "--slots", "6", "--flags", f"--backend {device()} --page-tokens 16")
    assert "24 of 24 texts equal" in out and '"v2"' in out, out


if __name__ == "__main__":
    write(MODEL)
    try:
        main()
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
