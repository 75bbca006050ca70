"""The counter gate: servers whose counters are wrong in known ways, each with its verdict and its named finding."""
import http.server
import json
import os
import subprocess
import tempfile
import threading
import xml.etree.ElementTree as ET

from tests import tap
from tests.tap import case
from tests.verify.answers import Answers

PLUMB = os.path.abspath(os.environ.get("PLUMB", "build/plumb"))
LAYERS = 6
FINE = {"steps": 10, "alone": 2, "kernels": {("attention", "paged_v2"): 60, ("attention", "paged_merge"): 12, ("linear", "gemv"): 300,
                                              ("rope_append", "rope"): 60, ("gather", "copy/gather"): 20}, "declined": {}}


class Handler(Answers):
    def page(self):
        w = self.server.what
        n = self.server.answers
        old = 1000  # what an earlier life of the server left in its counters
        rows = {"plumb_steps_total": w["steps"] * n + old, "plumb_generated_tokens_total": w.get("tokens", 8) * n,
                "plumb_requests_failed_total": 0, "plumb_requests_running": 0, "plumb_step_sequences_count": w["steps"] * n + old,
                'plumb_step_sequences_bucket{le="1"}': w["alone"] * n + old}
        for (op, kernel), count in w["kernels"].items():
            rows[f'plumb_kernel_launches_total{{op="{op}",kernel="{kernel}"}}'] = count * n + w.get("offset", old)
        for (form, reason), count in w.get("forms", {}).items():
            rows[f'plumb_attention_layer_steps_total{{form="{form}",reason="{reason}"}}'] = count * n
        if "plans" in w:
            rows["plumb_attention_plans_total"] = w["plans"] * n
            rows["plumb_attention_merged_rows_total"] = w["merged"] * n
        for (op, reason), count in w["declined"].items():
            rows[f'plumb_kernel_declined_total{{op="{op}",reason="{reason}"}}'] = count * n
        for key in w.get("missing", ()):
            rows = {k: v for k, v in rows.items() if not k.startswith(key)}
        if w.get("restarted") and n:
            rows["plumb_steps_total"] = 3
        return "# HELP x y\n" + "".join(f"{k} {v}\n" for k, v in rows.items()) + "broken line\n"

    def do_GET(self):
        w = self.server.what
        if self.path == "/metrics" and w.get("off"):
            return self.send(501, "{}")
        if self.path == "/metrics":
            return self.send(200, self.page())
        self.send(404, "{}")

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.answers += 1
        if self.server.what.get("fails"):
            return self.send(503, json.dumps({"error": {"message": "out of luck"}}))
        self.send(200, json.dumps({"choices": [{"text": "x"}]}))


def serve(**changes):
    h = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    h.what, h.answers, h.lock = {**FINE, **changes}, 0, threading.Lock()
    threading.Thread(target=h.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{h.server_address[1]}"


def ab(base, arm, *flags):
    r = subprocess.run([PLUMB, "ab", "--counters", "--base-url", base, "--arm-url", arm, "-p", "a", "-p", "b", "-n", "8", *flags],
                       capture_output=True, text=True, timeout=120)
    return r.returncode, r.stdout + r.stderr


def expect(result, code, *words):
    assert result[0] == code, result
    for w in words:
        assert w in result[1], (w, result[1])


def kernels(**changes):
    k = dict(FINE["kernels"])
    for (op, name), count in changes.pop("set", {}).items():
        k[op, name] = count
    for key in changes.pop("drop", ()):
        k.pop(key)
    return k


@case
def equal_servers():
    expect(ab(serve(), serve()), 0, "EQUAL", "4 requests")


def junit(directory):
    root = ET.parse(os.path.join(directory, "counters.xml")).getroot()
    return {c.get("name"): (c[0].tag if len(c) else "pass") for c in root}


@case
def reports_for_people_and_ci():
    out = os.path.join(tempfile.mkdtemp(prefix="plumb-counters-"), "report")
    expect(ab(serve(), serve(), "--report", out), 0)
    assert json.load(open(os.path.join(out, "counters.json")))["verdict"] == "EQUAL" and junit(out) == {"verdict": "pass"}
    expect(ab(serve(), serve(kernels=kernels(set={("attention", "paged_gather"): 60})), "--report", out), 1)
    assert "DIFFERS" in open(os.path.join(out, "counters.md")).read()
    assert junit(out)["verdict"] == "failure" and junit(out)["finding 1"] == "failure"
    expect(ab(serve(), serve(off=True), "--report", out), 2)
    assert junit(out)["verdict"] == "error"


@case
def one_server_twice():
    url = serve()
    expect(ab(url, url), 2, "same server")
    expect(ab(url, url, "--allow-identical"), 0)


@case
def metrics_off_is_no_zero():
    expect(ab(serve(), serve(off=True)), 2, "501", "switched off", "arm")
    expect(ab(serve(off=True), serve()), 2, "501", "base")


@case
def a_missing_counter_is_an_error():
    for name in ("plumb_steps_total", "plumb_generated_tokens_total", "plumb_step_sequences_count", "plumb_step_sequences_bucket",
                 "plumb_requests_failed_total", "plumb_kernel_launches_total"):
        expect(ab(serve(), serve(missing=(name,))), 2, "error: arm", name, "no zero")
    expect(ab(serve(), serve(restarted=True)), 2, "went down")


@case
def batched_routes_must_be_reached():
    expect(ab(serve(), serve(alone=10)), 2, "arm: no step had more than one sequence")


@case
def merges_must_be_reached_where_they_are_counted():
    never = kernels(set={("attention", "paged_merge"): 0})
    expect(ab(serve(), serve(kernels=never)), 2, "arm: nothing was merged")
    none = kernels(drop=[("attention", "paged_merge")])
    expect(ab(serve(kernels=none), serve(kernels=none)), 0, "not counted")
    expect(ab(serve(kernels=none), serve(kernels=none), "--require-merge"), 2, "no counter of merges")
    expect(ab(serve(), serve(kernels=none)), 1, "merges are counted on base alone")


@case
def gathered_on_the_arm_alone():
    gathered = kernels(set={("attention", "paged_gather"): 60})
    expect(ab(serve(), serve(kernels=gathered)), 1, "gathered on the arm alone", "300")
    expect(ab(serve(kernels=gathered), serve(kernels=gathered)), 0)


@case
def fused_launches_may_not_be_zero():
    zero = {k: 0 for k in FINE["kernels"]}
    expect(ab(serve(), serve(kernels={**zero, ("attention", "paged_merge"): 12, ("attention", "paged_gather"): 60})), 1, "never on arm")
    expect(ab(serve(kernels=zero), serve(kernels=zero)), 2, "neither may be zero")


@case
def a_counter_that_does_not_move():
    stuck = kernels(set={("linear", "gemv"): 0})
    expect(ab(serve(), serve(kernels=stuck)), 1, "linear was launched", "never on arm")


@case
def forms_of_attention():
    none = kernels(drop=[("attention", "paged_merge")])
    fine = dict(kernels=none, plans=10, merged=7, forms={("v2", ""): 40, ("v1", "short"): 20})
    expect(ab(serve(**fine), serve(**fine)), 0)
    expect(ab(serve(**fine), serve(**{**fine, "merged": 0})), 2, "arm: nothing was merged")
    expect(ab(serve(**fine), serve(**{**fine, "forms": {("v2", ""): 40, ("gather", "kill switch"): 20}})), 1, "gathered on the arm alone")
    expect(ab(serve(**fine), serve(**{**fine, "forms": {("v2", ""): 40, ("v1", "short"): 15}})), 1, "not one form for each")
    unplanned = dict(kernels=none, plans=0, merged=0, forms={("cpu", ""): 60})  # a backend that has nothing to merge
    expect(ab(serve(**unplanned), serve(**unplanned)), 0, "not counted")


@case
def one_skipped_launch():
    expect(ab(serve(), serve(kernels=kernels(set={("rope_append", "rope"): 59}))), 1, "no whole number", "arm")
    expect(ab(serve(), serve(kernels=kernels(set={("rope_append", "rope"): 50}))), 1, "6 times in a step of base and 5")


@case
def declined_reasons_do_not_hide_each_other():
    both = {("attention", "too short"): 3}
    expect(ab(serve(declined=both), serve(declined=both)), 0)
    more = {**both, ("attention", "odd head size 96"): 1}
    expect(ab(serve(declined=both), serve(declined=more)), 1, "declined on arm alone", "odd head size 96")
    expect(ab(serve(declined=more), serve(declined=both)), 1, "declined on base alone")
    expect(ab(serve(declined=both), serve(declined=more), "--allow-declined", "head size"), 0)


@case
def requests_that_fail():
    expect(ab(serve(), serve(fails=True)), 2, "5 of 5 requests failed", "out of luck")
    out = ab(serve(), "http://127.0.0.1:1")
    expect(out, 2, "127.0.0.1:1")


@case
def wrong_usage():
    run = lambda *a: (lambda r: (r.returncode, r.stdout + r.stderr))(subprocess.run([PLUMB, "ab", *a], capture_output=True, text=True))
    expect(run("--counters", "--base-url", "http://x", "--arm-url", "http://y", "-p", "x", "--concurrency", "1"), 64, "--concurrency")
    expect(run("--base", "x", "--arm", "y", "-p", "x", "--require-merge"), 64, "--counters")


@case
def servers_of_our_own():
    """Two configurations of this binary: started, asked together, stopped; and the report as JSON."""
    from tests.tiny_chat_model import write
    with tempfile.TemporaryDirectory() as directory:
        model, out = os.path.join(directory, "tiny"), os.path.join(directory, "out")
        write(model)
        if subprocess.run([PLUMB, "serve", "--help"], capture_output=True).returncode != 0:
            raise tap.Skip("this build has no server")
        run = lambda *a: (lambda r: (r.returncode, r.stdout + r.stderr))(subprocess.run(
            [PLUMB, "ab", "--counters", "-m", model, "-p", "the hand", "-p", "and", "-n", "40", "--rounds", "4", "--concurrency", "8", *a],
            capture_output=True, text=True, timeout=200))
        flags = "-c 128 --parallel 4"
        expect(run("--base-flags", flags, "--arm-flags", flags + " --isa scalar", "--report", out), 0, "only the arm took this kernel")
        report = json.load(open(os.path.join(out, "counters.json")))
        assert report["verdict"] == "EQUAL" and report["arm"]["steps_batched"] > 0 and report["table"]
        expect(run("--base-flags", flags, "--arm-flags", flags), 2, "one build with one command")
        expect(run("--base-flags", flags, "--arm-flags", flags + " --no-such-flag"), 2, "did not start", "no-such-flag")


if __name__ == "__main__":
    tap.main()
