"""A model whose layers all have a sliding window: sequences give pages back while they run, and texts stay those of a single
run that keeps them."""
import json
import os
import shutil
import subprocess
import tempfile
import threading

from tests.serve.support import PLUMB, Server
from tests.tap import case, main
from tests.tiny_chat_model import write

WORK = tempfile.mkdtemp(prefix="plumb-window-")
MODEL = os.path.join(WORK, "tiny")
PROMPTS = ["one two three four five " * 9 + tail for tail in ("a", "b c", "d e f", "g", "h i j k", "l")]


def make_model():
    write(MODEL)
    path = os.path.join(MODEL, "config.json")
    config = json.load(open(path))
    config.update(architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=24)
    with open(path, "w") as f:
        json.dump(config, f)


def single(prompt):
    out = subprocess.run([PLUMB, "generate", "-m", MODEL, "--backend", "cpu", "-p", prompt, "-n", "60", "--ignore-eos", "--json",
                          "--page-tokens", "16"], capture_output=True, check=True)
    return json.loads(out.stdout)["text"]


@case
def pages_before_the_window_are_given_back():
    server = Server(MODEL, "--backend", "cpu", "--parallel", "3", "-c", "512", "--page-tokens", "16", "--metrics")
    want = {p: single(p) for p in PROMPTS}
    got, least = {}, []

    def ask(prompt):
        status, answer, _ = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 60, "temperature": 0,
                                                            "ignore_eos": True})
        assert status == 200, answer
        got[prompt] = answer["choices"][0]["text"]
        least.append(answer["usage"]["prompt_tokens"])

    threads = [threading.Thread(target=ask, args=(p,)) for p in PROMPTS]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == want
    assert min(least) > 64  # far beyond the window
    assert server.metric("kv_pages_cached") == 0  # a sequence that gave its beginning back leaves none to share
    assert server.stop() == 0


if __name__ == "__main__":
    make_model()
    try:
        main()
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
