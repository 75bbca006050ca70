"""The description at /openapi.json against the server: same endpoints, fuzzed with schemathesis when it is installed; the
metrics against promtool, the dashboard and the documentation."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

# test-timeout: 600
sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import tap  # noqa: E402
import tiny_chat_model  # noqa: E402
from support import Server, chat  # noqa: E402

server = None


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


@tap.case
def every_route_is_described():
    routes = set(re.findall(r'\{"(GET|POST)", "([^"]+)", ', read("src/serve/http.c")))
    paths = server.call("GET", "/openapi.json")[1]["paths"]
    described = {(method.upper(), path) for path, item in paths.items() for method in item}
    prefixed = {("GET", "/v1/models/{id}"), ("GET", "/v1/witness/{id}")}
    assert len(routes) > 20 and described == routes | prefixed, described ^ (routes | prefixed)
    documented = read("docs/server.md")
    missing = [p for p in paths if p.split("{")[0].replace("/v1/health", "/health") not in documented and p.count("/") > 1]
    assert not missing, missing


@tap.case
def schemathesis_finds_nothing():
    try:
        import schemathesis  # noqa: F401
    except ImportError:
        raise tap.Skip("the Python package schemathesis is not installed") from None
    url = f"http://127.0.0.1:{server.port}/openapi.json"
    # What fits the description may still not fit the context, a grammar or a template: a 400 is right then.
    r = subprocess.run([sys.executable, "-m", "schemathesis.cli", "run", url, "--max-examples", os.environ.get("EXAMPLES", "8"), "--generation-deterministic",
                        "--request-timeout", "60", "--phases", "coverage,fuzzing", "--exclude-checks", "positive_data_acceptance",
                        "--suppress-health-check", "all", "--no-color"], capture_output=True, text=True, timeout=500, cwd=directory)
    assert r.returncode == 0, r.stdout[-6000:] + r.stderr[-2000:]
    assert server.process.poll() is None and server.call("GET", "/health")[0] == 200


def metric_names():
    server.post("/v1/chat/completions", chat("x"))
    text = server.call("GET", "/metrics")[1].decode()
    return text, set(re.findall(r"^# TYPE (plumb_\w+) \w+$", text, re.M))


@tap.case
def metrics_are_well_formed():
    text, names = metric_names()
    assert names == set(re.findall(r"^# HELP (plumb_\w+) \S.*$", text, re.M)) and len(names) > 30
    for line in text.splitlines():
        assert line.startswith("#") or re.fullmatch(r'plumb_\w+(\{(\w+="[^"]*",?)+\})? (\S+)', line), line
    sequences = float(re.search(r"^plumb_step_sequences_sum (\S+)", text, re.M).group(1))
    steps = float(re.search(r"^plumb_step_sequences_count (\S+)", text, re.M).group(1))
    assert sequences >= steps == float(re.search(r"^plumb_steps_total (\S+)", text, re.M).group(1))


@tap.case
def promtool_agrees():
    promtool = shutil.which("promtool")
    if promtool is None:
        raise tap.Skip("promtool is not installed (Debian package prometheus)")
    r = subprocess.run([promtool, "check", "metrics"], input=metric_names()[0], capture_output=True, text=True, timeout=60)
    assert r.returncode == 0, r.stdout + r.stderr


@tap.case
def dashboard_and_documentation_name_what_exists():
    _, names = metric_names()
    dashboard = read("docs/grafana.json")
    json.loads(dashboard)
    for source, found in (("docs/grafana.json", re.findall(r"plumb_\w+", dashboard)),
                          ("docs/server.md", ["plumb_" + n for n in re.findall(r"^\| `(\w+)`[^|]*\| (?:counter|gauge|histogram)", read("docs/server.md"), re.M)])):
        base = {re.sub(r"_(bucket|sum|count)$", "", n) if re.sub(r"_(bucket|sum|count)$", "", n) in names else n for n in found}
        assert len(base) > 15 and base <= names, (source, base - names)
        if source == "docs/server.md":
            assert names <= base, names - base


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        model = os.path.join(directory, "tiny")
        tiny_chat_model.write(model)
        server = Server(model, "--metrics", "--parallel", "6", "--ceiling-gbs", "50")
        try:
            tap.main()
        finally:
            assert server.stop() == 0
