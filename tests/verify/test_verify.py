"""plumb verify: the plan, a whole quick pass that keeps to its schema, resuming, comparing, and servers from outside.
test-timeout: 900"""
import copy
import glob
import http.server
import json
import os
import stat
import subprocess
import threading
import time
import xml.etree.ElementTree as ET

from tests import tap
from tests.cmd.support import PLUMB, WORK, path, tiny
from tests.tap import case, main
from tests.verify.answers import Answers
from tests.verify.schema import faults

SCHEMA = json.load(open("docs/verify.schema.json"))
os.environ["XDG_CACHE_HOME"] = os.path.join(WORK, "cache")


def verify(*args, code=None, timeout=600):
    r = subprocess.run([PLUMB, "verify", *map(str, args)], capture_output=True, text=True, timeout=timeout)
    assert code is None or r.returncode == code, (r.returncode, r.stdout[-3000:], r.stderr[-3000:])
    return r.stdout + r.stderr


def report(directory, verdict=None):
    r = json.load(open(os.path.join(directory, "verify.json")))
    assert faults(r, SCHEMA) == [], faults(r, SCHEMA)[:5]
    assert "# Verification: " + r["verdict"] in open(os.path.join(directory, "verify.md")).read()
    assert (r["verdict"] == "UNFINISHED") if verdict else r["verdict"] in ("PASS", "FAIL", "INCONCLUSIVE")
    tags = {"pass": "pass", "fail": "failure", "inconclusive": "error", "skipped": "skipped"}
    assert junit(os.path.join(directory, "verify.xml")) == {i["name"]: tags[i["status"]] for i in r["items"]}
    return r


def item(r, name):
    return next(i for i in r["items"] if i["name"] == name)


def has_server():
    return subprocess.run([PLUMB, "serve", "--help"], capture_output=True).returncode == 0


@case
def the_plan_is_listed_first():
    out = verify("--plan", code=0)
    for name in ("build", "backend", "operations", "jit", "outputs", "counters", "bench", "server"):
        assert name in out, out
    assert "needs -m" in out and "identity" not in out
    assert "identity" in verify("--plan", "--url", "http://127.0.0.1:1", code=0)
    assert "against" in verify("--plan", "--against", "README.md", code=0)


WHOLE = os.path.join(WORK, "whole")


def whole():
    """A quick pass of everything, made by whoever needs it first."""
    if not has_server():
        raise tap.Skip("this build has no server")
    said = os.path.join(WORK, "whole.txt")
    if not os.path.exists(said):
        out = verify("-m", tiny(), "--quick", "--backend", "cpu", "--report", WHOLE)
        open(said, "w").write(out)
    return report(WHOLE), open(said).read()


@case
def a_quick_pass_keeps_to_its_schema():
    r, out = whole()
    bad = [(i["name"], i["summary"]) for i in r["items"] if i["status"] in ("fail", "inconclusive")]
    assert bad == [] and r["verdict"] == "PASS", (bad, out)
    assert {i["name"] for i in r["items"]} >= {"build", "backend", "routing", "operations", "forced", "outputs", "accuracy", "counters",
                                              "routes", "bench", "server"}
    assert any(n.startswith("tests:") for n in r["not_measured"])
    orders = item(r, "order")["evidence"]["orders"]
    assert {o["order"] for o in orders} >= {"shuffled (seed 1)", "each alone"} and all(o["different"] == 0 and o["cases"] > 20 for o in orders)
    assert {c["name"] for c in item(r, "outputs")["evidence"]["configurations"]} >= {"cache f32", "four sequences in a step, --invariant"}
    assert all(p["kernel"] and p["us"] > 0 for p in item(r, "op-bench")["evidence"]["rows"])
    e = item(r, "build")["evidence"]
    assert "src/cpu/attention.c" in e["sources"] and "kernels/paged.k.c" in e["sources"] and e["ceilings"]["host_read_gb_s"] > 0
    assert item(r, "build")["evidence"]["build"]["compiler"] and item(r, "backend")["evidence"]["line"].startswith("cpu (")
    cases = item(r, "operations")["evidence"]["backends"][0]["list"]
    operations = {row["op"] for row in item(r, "routing")["evidence"]["ports"]}
    assert len(operations) > 20 and {c["op"] for c in cases} == operations - {"rope_append"}, operations  # that one is in attention's
    assert item(r, "operations")["evidence"]["tested_by_the_suite_alone"] == []
    assert all(c["kernel"] and c["error"] <= c["bound"] for c in cases if c["status"] != "skipped")
    assert {c["op"] for c in cases if c["status"] == "skipped"} == {"argmax", "draw"} and all(c["why"] for c in cases if c["status"] == "skipped")
    assert len(item(r, "bench")["evidence"]["decode_tok_s_all"]) == 2 * 3 and item(r, "bench")["evidence"]["processes"] == 2
    assert item(r, "bench")["evidence"]["read_ceiling_gb_s"] > 0
    forced = {x["name"]: x for x in item(r, "forced")["evidence"]["implementations"]}
    assert any(name.startswith("linear=") for name in forced) and any(name.startswith("attention=") for name in forced), forced
    routes = {x["route"]: x for x in item(r, "routes")["evidence"]["routes"]}
    for name in ("attention as planned", "products of one row", "products of many rows", "gate and up", "sampling"):
        assert routes[name]["reached"] and routes[name]["what_ran"] and routes[name]["count"] > 0, routes[name]
    assert all(x["why"] for x in routes.values() if not x["reached"])


@case
def the_schema_checker_sees_faults():
    good = {"schema": "plumb-verify-1", "started": "", "build_id": "", "options": {"model": None, "flags": "", "backend": None, "url": None, "quick": True},
            "items": [{"name": "x", "what": "y", "question": 1, "status": "pass", "summary": "", "seconds": 1.5, "evidence": None}],
            "not_measured": [], "exit_code": 0, "verdict": "PASS"}
    assert faults(good, SCHEMA) == []
    for change in (lambda r: r.pop("items"), lambda r: r.update(extra=1), lambda r: r.update(exit_code=3), lambda r: r.update(exit_code=True),
                   lambda r: r["items"][0].update(status="ok"), lambda r: r["items"][0].update(seconds="1"),
                   lambda r: r["items"][0].update(evidence={"routes": [{}]}), lambda r: r["options"].update(quick=0)):
        bad = copy.deepcopy(good)
        change(bad)
        assert faults(bad, SCHEMA), bad


@case
def reports_kept_in_the_repository_keep_to_it():
    kept = glob.glob("docs/evidence/*.json")
    assert kept
    for name in kept:
        assert faults(json.load(open(name)), SCHEMA) == [], name


@case
def an_interrupted_run_goes_on():
    out = os.path.join(WORK, "resumed")
    verify("-m", tiny(), "--quick", "--only", "build,backend,routing", "--report", out, code=0)
    r = report(out)
    kept = item(r, "backend")
    r["items"] = [i for i in r["items"] if i["name"] != "routing"]
    json.dump(r, open(os.path.join(out, "verify.json"), "w"))
    verify("-m", tiny(), "--quick", "--only", "build,backend,routing", "--report", out, "--resume", code=0)
    r = report(out)
    assert item(r, "backend") == kept and item(r, "routing")["status"] == "pass"
    assert "leave --resume out" in verify("-m", tiny(), "--only", "build", "--report", out, "--resume", code=2)
    for change in (lambda i: i.pop("status"), lambda i: i.update(status="fine"), lambda i: i.update(evidence=[1]), lambda i: i.update(seconds=None)):
        bad = copy.deepcopy(r)
        change(bad["items"][1])
        json.dump(bad, open(os.path.join(out, "verify.json"), "w"))
        assert "changed by somebody" in verify("-m", tiny(), "--quick", "--only", "build,backend,routing", "--report", out, "--resume", code=2)
    open(os.path.join(out, "verify.json"), "w").write("{ cut")  # a torn file is a fresh start
    verify("-m", tiny(), "--quick", "--only", "build", "--report", out, "--resume", code=0)


def processes_naming(text):
    """Numbers of the processes whose arguments hold it."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if text.encode() in f.read():
                    found.append(pid)
        except OSError:  # ended meanwhile
            pass
    return found


@case
def a_killed_run_goes_on_and_leaves_nothing_behind():
    out, args = os.path.join(WORK, "killed"), ("-m", tiny(), "--quick", "--backend", "cpu", "--only", "build,backend,operations,order,outputs,forced,accuracy,bench", "--report")
    p = subprocess.Popen([PLUMB, "verify", *map(str, args), out], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for line in p.stderr:  # the third item is done, the fourth has begun
        if line.startswith("plumb verify: operations"):
            break
    assert processes_naming(out)  # they are seen while they run
    p.kill()
    p.wait()
    r = report(out, "UNFINISHED")
    kept = len(r["items"])
    assert kept >= 3 and [i["name"] for i in r["items"]][:3] == ["build", "backend", "operations"]
    for _ in range(600):  # its item ends with it
        left = processes_naming(out)
        if not left:
            break
        time.sleep(0.1)
    assert left == [], left
    verify(*args, out, "--resume", code=0)
    after = report(out)
    assert all(item(after, i["name"]) == i for i in r["items"]) and after["started"] == r["started"] and len(after["items"]) == 8
    again = subprocess.run(item(after, "backend")["command"], shell=True, capture_output=True, text=True)
    assert json.loads(again.stdout)["status"] == "pass", again


@case
def a_budget_ends_a_pass_that_goes_on():
    out, args = os.path.join(WORK, "budget"), ("--quick", "--backend", "cpu", "--only", "build,operations,order", "--report")
    text = verify(*args, out, "--budget", 1, "--against", "docs/evidence/smollm2-cpu.json", code=2)
    r = report(out, "UNFINISHED")
    kept = [i["name"] for i in r["items"]]
    assert "order" not in kept and "against" not in kept and any(n.startswith("order: has not ended yet") for n in r["not_measured"]), text
    verify(*args, out, "--resume", code=0)
    after = report(out)
    assert all(item(after, n) == item(r, n) for n in kept) and [i["name"] for i in after["items"]] == ["build", "operations", "order"]
    assert not any("has not ended" in n for n in after["not_measured"])


@case
def other_models_reach_other_routes():
    if not has_server():
        raise tap.Skip("this build has no server")
    import tools.route_models as made
    out, models, names = os.path.join(WORK, "routes"), [], ("latent", "states", "ternary", "capped", "shared", "parallel")
    for name in names:
        models += ["--route-model", os.path.join(WORK, name + ".gguf")]
        made.MODELS[name](models[-1])
    verify("-m", tiny(), "--quick", "--backend", "cpu", "--only", "routes", "--report", out, *models, code=0)
    r = report(out)
    rows = {x["route"]: x for x in item(r, "routes")["evidence"]["routes"]}
    for route, model in (("latent attention: keys and values in one", "latent"), ("products of each head", "latent"), ("mixture of experts", "latent"),
                         ("state update", "states"), ("scan over states", "states"), ("ternary product", "ternary"), ("logits held below a bound", "capped"),
                         ("residual and norm in one", "capped"), ("shared experts behind a gate", "shared"), ("norm around a mean", "parallel")):
        assert rows[route]["reached"] and rows[route]["model"] == model + ".gguf", rows[route]
    assert rows["FFT"]["reached"] and rows["norm"]["model"] == "tiny" and r["options"]["route_models"] == models[1::2]
    assert item(r, "routes")["summary"].startswith(f"{sum(x['reached'] for x in rows.values())} of {sum(x['runnable'] for x in rows.values())} routes")
    assert {x["why"][:7] for x in rows.values() if not x["runnable"]} == {"the CPU", "on the "}
    verify("-m", tiny(), "--quick", "--backend", "cpu", "--only", "routes", "--report", out, "--route-model", "tests/golden/model/mamba2.gguf", code=2)
    assert "not driven: mamba2.gguf" in item(report(out), "routes")["summary"]
    assert "needs -m" in verify("--route-model", "x", code=64)


@case
def items_run_beside_each_other():
    """The same report in the plan's order, whoever is ready first; a context goes to every command."""
    out, only = os.path.join(WORK, "jobs"), "build,backend,operations,forced,outputs,accuracy,counters,bench"
    verify("-m", tiny(), "--quick", "--backend", "cpu", "-c", 192, "--jobs", 5, "--only", only, "--report", out, code=0)
    r = report(out)
    assert [i["name"] for i in r["items"]] == only.split(",") and all(i["status"] == "pass" for i in r["items"])
    assert "-c 192" in r["options"]["flags"]
    names = [c["name"] for c in item(r, "outputs")["evidence"]["configurations"]]
    assert names[-2:] == ["four sequences in a step", "four sequences in a step, --invariant"] and names[0] == "one thread"
    assert all("-c 192" in c["arm"] for c in item(r, "outputs")["evidence"]["configurations"])
    assert not [n for n in os.listdir(out) if n not in ("verify.json", "verify.md", "verify.xml")], os.listdir(out)


@case
def without_its_backend_nothing_else_is_asked():
    out = os.path.join(WORK, "wrong-backend")
    text = verify("-m", tiny(), "--backend", "rocm", "--quick", "--only", "build,backend,outputs,counters", "--report", out)
    r = report(out)
    if item(r, "backend")["status"] == "pass":
        raise tap.Skip("this machine has such a device")
    assert r["verdict"] == "FAIL" and [item(r, n)["status"] for n in ("outputs", "counters")] == ["skipped"] * 2, text
    assert "'backend' failed" in item(r, "outputs")["summary"] and any(n.startswith("question 4") for n in r["not_measured"])


def junit(name):
    return {c.get("name"): (c[0].tag if len(c) else "pass") for c in ET.parse(name).getroot()}


@case
def what_is_missing_is_said():
    out = os.path.join(WORK, "nomodel")
    verify("--quick", "--only", "build,routing,tests,outputs", "--report", out, code=0)
    r = report(out)
    assert item(r, "outputs")["status"] == "skipped" and "no model" in item(r, "outputs")["summary"]
    verify("-m", tiny(), "--backend", "cuda", "--only", "backend", "--report", out)
    r = report(out)
    if item(r, "backend")["status"] != "pass":  # a machine without that device
        assert r["exit_code"] == 1 and "cuda" in item(r, "backend")["summary"]
    for args, words in ((["--url", "ftp://x"], "http"), (["--only", "nonsense"], "nonsense"), (["--backend", "directx"], "directx"),
                        (["--against", "/no/such"], "/no/such"), (["--tests", "/no/such"], "/no/such"), (["--tests", "README.md", "--order", "README.md,/no/such"], "/no/such"),
                        (["--only", ","], "names no item"), (["--url", "http://x", "-m", "y"], "exclude"), (["--item", "x"], "no item")):
        assert words in verify(*args, code=64), args
    assert "no-such-model" in verify("-m", "no-such-model", code=2)


JUNIT = """<testsuites><testsuite name="a"><testcase classname="a" name="one" time="0"/>
<testcase classname="a" name="two"><skipped message="why"/></testcase>
<testcase classname="b" name="three">{}</testcase></testsuite></testsuites>"""


@case
def results_of_the_suite():
    out = os.path.join(WORK, "tests")
    verify("--only", "tests", "--tests", path("good.xml", JUNIT.format("")), "--report", out, code=0)
    e = item(report(out), "tests")["evidence"]
    assert e["cases"] == {"a: one": "pass", "a: two": "skipped", "b: three": "pass"}
    verify("--only", "tests", "--tests", path("good.xml") + "," + path("more.xml", JUNIT.replace("classname=\"", "classname=\"gpu-").format("")), "--report", out, code=0)
    assert len(item(report(out), "tests")["evidence"]["cases"]) == 6 and "4 passed, 0 failed, 2 skipped" in item(report(out), "tests")["summary"]
    verify("--only", "tests", "--tests", path("bad.xml", JUNIT.format("<failure>x</failure>")), "--report", out, code=1)
    verify("--only", "tests", "--tests", path("empty.xml", "<x/>"), "--report", out, code=2)
    # One of two files without a case, and one that was cut, prove nothing; what failed in them did.
    for text, code, words in ((JUNIT.format("")[:-20], 2, "ends in the middle"), ("<x/>", 2, "holds no test cases"),
                              (JUNIT.format("<error/>")[:-20], 1, "1 failed")):
        said = verify("--only", "tests", "--tests", path("good.xml") + "," + path("cut.xml", text), "--report", out, code=code)
        assert words in said, said


@case
def results_by_other_writers():
    """'>' and quotes of the other kind in names, what only looks like an element, equal names, many cases."""
    out = os.path.join(WORK, "writers")
    text = """<?xml version='1.0'?><!-- <testcase classname="c" name="no"/> --><testsuite>
<testcase name='a->b "c"' time="0" classname='g'/><testcase classname="g" name="two"><system-out><![CDATA[ <failure> </testcase> ]]></system-out>
</testcase><testcase
  file="x" name="x=y" classname="g"><skipped/></testcase>
<testcase classname="g" name="twice"><skipped/></testcase><testcase classname="g" name="twice"/></testsuite>"""
    verify("--only", "tests", "--tests", path("writers.xml", text), "--report", out, code=0)
    assert item(report(out), "tests")["evidence"]["cases"] == {'g: a->b "c"': "pass", "g: two": "pass", "g: x=y": "skipped", "g: twice": "skipped"}
    many = "<x>" + "".join(f'<testcase classname="g" name="{i}"/>' for i in range(50000)) + "</x>"
    verify("--only", "tests", "--tests", path("many.xml", many), "--report", out, code=0)  # in proportion to its length
    assert len(item(report(out), "tests")["evidence"]["cases"]) == 50000


@case
def the_suite_in_other_orders():
    out = os.path.join(WORK, "orders")
    xml = '<x><testcase classname="a" name="one"/><testcase classname="a" name="two">{}</testcase></x>'
    base, same, other = path("base.xml", xml.format("")), path("same.xml", xml.format("")), path("other.xml", xml.format("<failure/>"))
    verify("--only", "order", "--quick", "--backend", "cpu", "--tests", base, "--order", same, "--report", out, code=0)
    assert "same verdicts in every order" in item(report(out), "order")["summary"]
    text = verify("--only", "order", "--quick", "--backend", "cpu", "--tests", base, "--order", f"{same},{other}", "--report", out, code=1)
    assert "a: two: pass, then fail" in text, text
    verify("--order", same, code=64)


def old_report(name, **evidence):
    r = {"schema": "plumb-verify-1", "started": "", "build_id": "", "options": {}, "items": [
        {"name": n, "what": "", "question": 0, "status": "pass", "summary": "", "seconds": 0, "evidence": e} for n, e in evidence.items()]}
    return path(name, json.dumps(r))


@case
def worse_than_an_earlier_report():
    out = os.path.join(WORK, "against")
    now = ("--only", "tests", "--report", out, "--tests", path("now.xml", JUNIT.format("")))
    same = {"cases": {"a: one": "pass", "a: two": "skipped", "b: three": "pass"}}
    verify(*now, "--against", old_report("same.json", tests=same), code=0)
    for name, change, words in (("skip", {"a: two": "pass"}, "skipped now"), ("gone", {"c: four": "pass"}, "gone now")):
        text = verify(*now, "--against", old_report(f"{name}.json", tests={"cases": {**same["cases"], **change}}), code=1)
        assert words in text, text
    text = verify(*now, "--against", old_report("item.json", tests=same, outputs={}), code=1)
    assert "item outputs passed before and is absent" in text, text
    assert "neither a report" in verify(*now, "--against", path("no.json", "[]"), code=2)


@case
def slower_than_noise():
    r, _ = whole()
    bench = item(r, "bench")
    out = os.path.join(WORK, "slower")
    for factor, code in ((0.2, 0), (5.0, 1)):  # this build is much faster, or much slower, than that report says
        e = copy.deepcopy(bench["evidence"])
        for key in ("prefill_tok_s_all", "decode_tok_s_all"):
            e[key] = [v * factor for v in e[key]]
        text = verify("-m", tiny(), "--quick", "--backend", "cpu", "--only", "bench", "--report", out, "--against", old_report(f"{factor}.json", bench=e), code=code)
        assert ("of its former speed" in text) == (code == 1), text
    text = verify("-m", tiny(), "--quick", "--backend", "cpu", "--only", "bench", "--report", out, "--floor", 1000, code=1)
    assert "below the floor" in text
    verify("-m", tiny(), "--quick", "--backend", "cpu", "--only", "bench", "--report", out, "--against", path("5.0.json"), code=1)
    speeds = item(report(out), "against")["evidence"]["speeds"]
    assert {s["what"] for s in speeds} == {"prompt", "decode"} and all(s["low"] <= s["ratio"] <= s["high"] for s in speeds)


@case
def beside_another_build():
    if not has_server():
        raise tap.Skip("this build has no server")
    old = path("plumb-old", f"""#!/bin/sh
if [ "$1 $2" = "version --verbose" ]; then echo 'plumb 0.0.9'; echo 'build id: older'; echo 'kernel hash: older'; exit 0; fi
exec {PLUMB} "$@"
""")
    os.chmod(old, os.stat(old).st_mode | stat.S_IXUSR)
    out = os.path.join(WORK, "beside")
    text = verify("-m", tiny(), "--quick", "--backend", "cpu", "--only", "build", "--report", out, "--against", old)
    e = item(report(out), "against")["evidence"]
    assert e["kind"] == "build" and len(e["speeds"]) == 2 and all(s["paired"] for s in e["speeds"]), text
    assert any("sources: 0 of" in n for n in e["notes"]), e["notes"]
    assert any("own pass: PASS" in n for n in e["notes"]), e["notes"]
    assert [i["name"] for i in json.load(open(os.path.join(out, "other", "verify.json")))["items"]] == ["build"]
    assert [x for x in e["regressions"] if "former speed" not in x] == [], text  # one program: speed alone may wobble
    text = verify("-m", tiny(), "--quick", "--backend", "cpu", "--only", "build", "--report", out, "--against", PLUMB, code=1)
    assert "one build" in text, text


class Foreign(Answers):
    """Somebody else's server: OpenAI's endpoints and nothing more."""

    def do_GET(self):
        self.send(200, {"data": [{"id": "their-model"}]}) if self.path == "/v1/models" else self.send(404, {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/completions":
            return self.send(404, {})
        if not isinstance(body.get("prompt"), str):
            return self.send(400, {"error": {"message": "prompt"}})
        self.server.count += 1
        self.send(200, {"choices": [{"text": f"an answer{self.server.count if self.server.unsteady else ''}"}]})


def foreign(unsteady=False):
    h = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Foreign)
    h.count, h.unsteady = 0, unsteady
    threading.Thread(target=h.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{h.server_address[1]}"


@case
def servers_from_outside():
    out = os.path.join(WORK, "outside")
    verify("--url", foreign(), "--quick", "--report", out, code=0)
    r = report(out)
    assert "route is unknown" in item(r, "identity")["summary"] and item(r, "outside-counters")["status"] == "skipped"
    assert item(r, "scoring")["status"] == "skipped" and item(r, "answers")["status"] == "pass"
    assert any("question 7" in n for n in r["not_measured"])
    assert item(r, "outside-speed")["status"] == "skipped" and any("question 9" in n for n in r["not_measured"])
    verify("--url", foreign(unsteady=True), "--quick", "--report", out, code=2)
    assert "do not repeat" in item(report(out), "answers")["summary"]
    verify("--url", "http://127.0.0.1:1", "--quick", "--report", out, code=1)


@case
def plumbs_server_from_outside():
    if not has_server():
        raise tap.Skip("this build has no server")
    from tests.serve.support import Server
    out = os.path.join(WORK, "own")
    server = Server(tiny(), "--metrics", "-c", "128", "--parallel", "4")
    try:
        verify("--url", f"http://127.0.0.1:{server.port}", "--quick", "--report", out, code=0)
    finally:
        server.stop()
    r = report(out)
    assert item(r, "identity")["evidence"]["backend"].startswith("cpu (") and item(r, "outside-counters")["status"] == "pass"
    assert item(r, "outside-speed")["status"] == "pass" and item(r, "outside-speed")["evidence"]["tok_s"] > 0
    assert item(r, "scoring")["evidence"]["echo_logprobs"] and item(r, "outside-health")["evidence"]["proves_progress"]


if __name__ == "__main__":
    main()
