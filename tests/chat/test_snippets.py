"""Recorded results of jinja2 for small templates: every filter, test and method, scopes, loops, macros, errors."""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.getcwd())
from tests.build import make  # noqa: E402
from tests.tap import case, main  # noqa: E402

DRIVER = "build/release/tests/chat/render_driver"
REFUSED = ("PL_LIMIT", "PL_UNSUPPORTED")
NAMED = ("UndefinedError", "TemplateError", "SecurityError", "TemplateRuntimeError")


@case
def snippets_give_what_jinja2_gave():
    make(DRIVER)
    with open("tests/golden/template_snippets.json", encoding="utf-8") as f:
        golden = json.load(f)
    lines = "".join(json.dumps({"template": c[0], "vars": golden["vars"], "now": 1753962304}) + "\n" for c in golden["cases"])
    done = subprocess.run([DRIVER], input=lines.encode(), stdout=subprocess.PIPE, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(golden["cases"]) > 1000
    faults, refused = [], 0
    for c, got in zip(golden["cases"], answers):
        if got["status"] in REFUSED:
            refused += 1
        elif c[1] == "ok":
            if got.get("text") != c[2]:
                faults.append(f"{c[0]!r}: {c[2]!r}, we {got.get('text', got.get('error'))!r}")
        elif got["status"] == "PL_OK" or (c[2] in NAMED and not got["error"].startswith(c[3])):
            faults.append(f"{c[0]!r}: raises {c[2]} {c[3]!r}, we {got.get('text', got.get('error'))!r}")
    assert not faults, f"{len(faults)} of {len(answers)}:\n" + "\n".join(faults[:60])
    assert refused < len(answers) // 20, f"{refused} refused"


main()
