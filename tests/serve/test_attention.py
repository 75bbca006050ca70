"""Attention in a server on a device: sequences that share a prefix run as a cascade, layer steps add up in the metrics, and
in invariant mode a text alone is the text in company.

test-timeout: 600"""
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading

from tests.serve.support import PLUMB, Server
from tests.tap import Skip, case, main
from tests.tiny_chat_model import write

WORK = tempfile.mkdtemp(prefix="plumb-attention-")
MODEL = os.path.join(WORK, "tiny")
ENV = {"XDG_CACHE_HOME": os.path.join(os.getcwd(), "build", "test-cache")}
PREFIX = "one two three four five six seven eight " * 6
LAYERS = 2


def device():
    for kind in json.loads(subprocess.run([PLUMB, "devices", "--json"], capture_output=True, check=True).stdout):
        if kind["devices"]:
            return kind["kind"]
    raise Skip("no device here")


def ask(server, tail, count=6, **more):
    status, answer, _ = server.post("/v1/completions", {"prompt": PREFIX + tail, "max_tokens": count, "temperature": 0,
                                                        "ignore_eos": True, **more})
    assert status == 200, answer
    return answer


def together(server, tails):
    answers = {}
    threads = [threading.Thread(target=lambda t=t: answers.__setitem__(t, ask(server, t))) for t in tails]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return answers


def rows(server, name):
    status, text, _ = server.call("GET", "/metrics")
    assert status == 200
    found = re.findall(r'^plumb_%s\{\w+="([^"]*)",reason="([^"]*)"\} (\d+)$' % name, text.decode(), re.M)
    return {(form, reason): int(n) for form, reason, n in found}


def flags(*more):
    return ["--backend", device(), "--parallel", "4", "-c", "512", "--page-tokens", "16", "--metrics", *more]


@case
def a_shared_prefix_is_a_cascade():
    server = Server(MODEL, *flags("--attn", "cascade"), env=ENV)
    ask(server, "a", 1)  # its pages are kept
    answers = together(server, ["b", "c", "d"])
    assert all(a["usage"]["prompt_tokens_details"]["cached_tokens"] > 0 for a in answers.values())
    forms = rows(server, "attention_layer_steps_total")
    assert sum(forms.values()) == LAYERS * server.metric("attention_steps_total"), forms
    assert forms[("cascade", "")] > 0
    assert rows(server, "attention_cascade_layer_steps_total")[("used", "")] == forms[("cascade", "")]
    assert server.metric("attention_cascade_tokens_saved_total") > 0 and server.metric("attention_merged_rows_total") > 0
    assert server.stop() == 0


@case
def invariant_texts_do_not_depend_on_company():
    server = Server(MODEL, *flags("--invariant"), env=ENV)
    tails = ["b", "c and more", "d", "e, a longer one than the others"]
    alone = {t: ask(server, t)["choices"][0]["text"] for t in tails}
    for _ in range(3):
        beside = together(server, tails)
        assert {t: a["choices"][0]["text"] for t, a in beside.items()} == alone
    forms = rows(server, "attention_layer_steps_total")
    assert set(forms) == {("v2", "")}, forms
    assert server.stop() == 0


if __name__ == "__main__":
    write(MODEL)
    try:
        main()
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
