"""plumb cache, and what becomes of the folder when a process is stopped in a compilation or the folder goes away.

test-timeout: 600"""
import json
import os
import shutil
import signal
import subprocess

from tests.cmd.support import PLUMB, WORK, run, tiny
from tests.tap import Skip, case, main

MODEL = tiny()


def env_of(name):
    home = os.path.join(WORK, name)
    return {**os.environ, "XDG_CACHE_HOME": home, "POCL_CACHE_DIR": os.path.join(home, "pocl")}


def device():
    for kind in json.loads(run("devices", "--json", env=env_of("probe"), check=0).stdout):
        if kind["devices"]:
            return kind["kind"]
    raise Skip("no device here")


def arguments(kind):
    return ["generate", "-m", MODEL, "--backend", kind, "-p", "hello", "-n", 3, "--ids", "--ignore-eos"]


def listing(env):
    return json.loads(run("cache", "--json", env=env, check=0).stdout)


@case
def listed_and_cleared():
    kind, env = device(), env_of("a")
    assert listing(env) == {"dir": "", "bytes": 0, "count": 0, "entries": []}
    want = run(*arguments(kind), env=env, check=0).stdout
    found = listing(env)
    assert found["count"] == len(found["entries"]) > 8 and found["bytes"] == sum(e["bytes"] for e in found["entries"])
    assert all(e["sound"] and e["kind"] == kind and e["entry"].startswith("pk_") for e in found["entries"])
    text = run("cache", env=env, check=0).stdout.decode()
    assert f"{found['count']} kernels" in text and text.count("\n") == found["count"] + 1
    warm = run(*arguments(kind), env=env, check=0)
    assert warm.stdout == want and b"compiling" not in warm.stderr
    checked = run(*arguments(kind), "--jit-cache", "verify", env=env, check=0, timeout=300)
    assert checked.stdout == want
    assert b"removed" in run("cache", "--clear", env=env, check=0).stdout
    assert listing(env)["count"] == 0
    run("cache", "--clear", "--json", env=env, check=64)


@case
def stopped_in_a_compilation():
    kind, env = device(), env_of("b")
    p = subprocess.Popen([PLUMB] + [str(a) for a in arguments(kind)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for line in p.stderr:
        if b"compiling" in line:
            break
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=120)
    assert p.returncode in (130, -signal.SIGINT) and out == b"", (p.returncode, out, err)
    assert all(e["sound"] for e in listing(env)["entries"])  # nothing half written under a real name
    again = run(*arguments(kind), env=env, check=0)
    assert again.stdout == run(*arguments(kind), "--jit-cache", "off", env=env, check=0).stdout
    assert all(e["sound"] for e in listing(env)["entries"])


@case
def the_folder_goes_away_under_two_processes():
    kind, env = device(), env_of("c")
    want = run(*arguments(kind), env=env, check=0).stdout
    first = [subprocess.Popen([PLUMB] + [str(a) for a in arguments(kind)], env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) for _ in range(2)]
    shutil.rmtree(os.path.join(env["XDG_CACHE_HOME"], "plumb"), ignore_errors=True)
    for p in first:
        out, err = p.communicate(timeout=200)
        assert p.returncode == 0 and out == want, err
    assert run(*arguments(kind), env=env, check=0).stdout == want


if __name__ == "__main__":
    main()
