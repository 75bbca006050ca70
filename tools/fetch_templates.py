#!/usr/bin/env python3
"""Fetches published chat templates for the template tests: the ones that llama-cpp-python's source distribution carries.

pip downloads the archive (pinned version) from its configured index; the .jinja files go to DIR, nothing else is kept
and nothing is committed. Usage: tools/fetch_templates.py [DIR]  (default build/cache/templates)
"""
import glob
import os
import subprocess
import sys
import tarfile
import tempfile

PACKAGE = "llama-cpp-python==0.3.36"
INSIDE = "/vendor/llama.cpp/models/templates/"


def fetch(folder):
    with tempfile.TemporaryDirectory() as tmp:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation",
             "--no-binary", ":all:", "--dest", tmp, PACKAGE],
            check=False, stdout=subprocess.DEVNULL,
        )
        archives = glob.glob(os.path.join(tmp, "*.tar.gz"))
        if not archives:
            raise SystemExit(f"fetch_templates: pip could not download {PACKAGE}")
        os.makedirs(folder, exist_ok=True)
        count = 0
        with tarfile.open(archives[0]) as tar:
            for member in tar:
                if not member.isfile() or INSIDE not in member.name or not member.name.endswith(".jinja"):
                    continue
                data = tar.extractfile(member).read()
                target = os.path.join(folder, os.path.basename(member.name))
                with open(target + ".part", "wb") as f:
                    f.write(data)
                os.replace(target + ".part", target)
                count += 1
    print(f"{count} templates in {folder}")


if __name__ == "__main__":
    fetch(sys.argv[1] if len(sys.argv) > 1 else "build/cache/templates")
