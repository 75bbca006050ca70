"""Published chat templates, as the tests of rendering and of reading find them."""
import glob
import os
import subprocess
import sys

from tests.tap import Skip

FOLDER = "build/cache/templates"
LEAST = 60


def templates():
    """[(name, source)]; Skip where tools/fetch_templates.py cannot have them."""
    if len(glob.glob(FOLDER + "/*.jinja")) < LEAST:
        subprocess.run([sys.executable, "tools/fetch_templates.py", FOLDER], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    found = sorted(glob.glob(FOLDER + "/*.jinja"))
    if len(found) < LEAST:
        raise Skip(f"{len(found)} templates in {FOLDER}: tools/fetch_templates.py could not fetch them")
    return [(os.path.basename(f)[:-6], open(f, encoding="utf-8", newline="").read()) for f in found]
