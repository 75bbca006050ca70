"""Counts that a test compares with stored ones of the same compiler and C library (tests/golden/cpu_*.json)."""
import json
import os
import platform
import subprocess

from tests.tap import Skip


def builder():
    done = subprocess.run(["gcc", "-dumpfullversion"], stdout=subprocess.PIPE, check=True)
    return "gcc %s, %s %s" % (done.stdout.decode().strip().split(".")[0], *platform.libc_ver())


def load(path):
    with open(path, encoding="utf-8") as f:
        stored = json.load(f)
    if stored["builder"] != builder():
        raise Skip(f"counts were stored for {stored['builder']}, this is {builder()}")
    return stored["counts"]


def save(path, counts):
    with open(path + ".new", "w", encoding="utf-8") as f:
        json.dump({"builder": builder(), "counts": counts}, f, indent=1)
        f.write("\n")
    os.replace(path + ".new", path)


def outside(counts, stored, tolerance):
    """What is missing, new, or not within the tolerance of what is stored, as text."""
    faults = [f"{k}: stored, but not there" for k in stored if k not in counts]
    for name, n in counts.items():
        if name not in stored:
            faults.append(f"{name}: not stored")
        elif not stored[name] * (1 - tolerance) <= n <= stored[name] * (1 + tolerance):
            faults.append(f"{name}: {n} where {stored[name]} are stored ({n / stored[name] if stored[name] else n:.2f})")
    return faults
