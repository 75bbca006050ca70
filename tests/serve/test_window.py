"""Models whose layers have a sliding window, all of them or some: sequences give pages back while they run, texts stay those of a
single run that keeps them, and what is said again begins with the prefix cache's windows."""
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
MODELS = [os.path.join(WORK, "all"), os.path.join(WORK, "some")]
WINDOW, PAGE = 24, 16
PROMPTS = ["one two three four five " * 9 + tail for tail in ("a", "b c", "d e f", "g", "h i j k", "l")]


def make_models():
    for model, family, name in zip(MODELS, ("llama", "windows"), ("Mistral", "Ministral")):
        write(model, family=family)
        path = os.path.join(model, "config.json")
        config = json.load(open(path))
        config.update(architectures=[name + "ForCausalLM"], model_type=name.lower(), sliding_window=WINDOW)
        with open(path, "w") as f:
            json.dump(config, f)


def single(model, prompt):
    out = subprocess.run([PLUMB, "generate", "-m", model, "--backend", "cpu", "-p", prompt, "-n", "60", "--ignore-eos", "--json",
                          "--page-tokens", str(PAGE), "--kv", "dense", "--invariant"], capture_output=True, check=True)
    return json.loads(out.stdout)["text"]


@case
def pages_before_the_window_are_given_back():
    for model in MODELS:
        one_model(model)


def one_model(model):
    server = Server(model, "--backend", "cpu", "--parallel", "3", "-c", "512", "--page-tokens", str(PAGE), "--metrics",
                    "--batch-rows", "32", "--invariant")
    want = {p: single(model, p) for p in PROMPTS}
    got, least = {}, []

    def ask(prompt):
        status, answer, _ = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 60, "temperature": 0,
                                                            "ignore_eos": True})
        assert status == 200, answer
        got[prompt] = answer["choices"][0]["text"]
        least.append(answer["usage"]["prompt_tokens"])

    for again in range(2):
        hits = server.metric("prefix_tokens_hit_total")
        got.clear()
        threads = [threading.Thread(target=ask, args=(p,)) for p in PROMPTS]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert got == want
    assert server.metric("prefix_tokens_hit_total") - hits > sum(least[len(PROMPTS):]) * 0.8  # their windows were kept
    assert min(least) > 64  # far beyond the window
    for group in ("kv_pages", "kv_window_pages"):
        assert server.metric(group + "_free") + server.metric(group + "_cached") == server.metric(group)
    # Windows at the ends of prompts and texts, not the pages of all tokens.
    cached = server.metric("kv_window_pages_cached"), server.metric("kv_pages_cached")
    print("#", os.path.basename(model), "cached pages of windowed layers and of all tokens:", *cached)
    assert 0 < cached[0] < cached[1]
    assert server.stop() == 0


if __name__ == "__main__":
    make_models()
    try:
        main()
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
