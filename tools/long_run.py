#!/usr/bin/env python3
"""Many sequences of random lengths through few slots, each text compared with what the same request gives alone.

A server with --invariant and `--slots` sequences takes `--requests` greedy requests, all in flight at once; then servers of one
slot each answer every request again, one after the other. Texts must be equal, every page must come back, and attention's
layer steps must be layers x steps exactly.

  tools/long_run.py --model MODEL [--plumb build/plumb] [--requests 1000] [--slots 64] [--alone 8] [--seed N] [--flags "..."]

--alone: how many servers of one slot share the second part. Standard library only; exit code 1 when anything differs."""
import argparse
import concurrent.futures
import http.client
import json
import random
import re
import signal
import subprocess
import sys
import threading
import time

WORDS = "time year people way day man thing woman life child world school state family student group country problem hand part".split()


class Server:
    running = []

    def __init__(self, args, slots, context):
        command = [args.plumb, "serve", "-m", args.model, "--port", "0", "--metrics", "--invariant", "--parallel", str(slots), "-c",
                   str(context), *args.flags.split()]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        Server.running.append(self)
        self.port, lines = 0, []
        for line in self.process.stderr:
            lines.append(line)
            found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                break
        if self.port == 0:
            sys.exit("the server did not start: " + "".join(lines))
        threading.Thread(target=self.process.stderr.read, daemon=True).start()  # a full pipe would stop it

    def call(self, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        c.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        text = r.read()
        c.close()
        if r.status != 200:
            raise RuntimeError(f"{path}: {r.status} {text[:300]!r}")
        return text.decode()

    def text(self, request):
        return json.loads(self.call("POST", "/v1/completions", request))["choices"][0]["text"]

    def metrics(self):
        rows = {}
        for line in self.call("GET", "/metrics").splitlines():
            if line.startswith("plumb_"):
                name, value = line.rsplit(" ", 1)
                rows[name] = float(value)
        return rows

    def stop(self):
        Server.running.remove(self)
        self.process.terminate()
        return self.process.wait(timeout=120)


def requests(args):
    draw = random.Random(args.seed)
    for i in range(args.requests):
        words = [draw.choice(WORDS) for _ in range(int(2 ** draw.uniform(1, args.words_log2)))]
        yield {"prompt": f"{i}: " + " ".join(words), "max_tokens": draw.randint(1, args.tokens), "temperature": 0, "ignore_eos": True}


def add_up(rows):
    """None, or what is wrong with the counters."""
    steps = rows["plumb_attention_steps_total"]
    layer_steps = sum(v for k, v in rows.items() if k.startswith("plumb_attention_layer_steps_total{"))
    if steps == 0 or layer_steps % steps != 0:
        return f"{layer_steps:.0f} layer steps in {steps:.0f} steps"
    forms = {k[len("plumb_attention_layer_steps_total"):]: int(v) for k, v in rows.items()
             if k.startswith("plumb_attention_layer_steps_total{")}
    print(f"attention: {steps:.0f} steps, {layer_steps / steps:.0f} layers, {forms}")
    return None


def run(args):
    todo, wrong = list(requests(args)), []
    start = time.monotonic()
    server = Server(args, args.slots, args.context)
    print(f"server ready: {time.monotonic() - start:.1f} s", flush=True)
    with concurrent.futures.ThreadPoolExecutor(2 * args.slots) as pool:
        together = list(pool.map(server.text, todo))
    took = time.monotonic() - start
    fault = add_up(server.metrics())
    if fault:
        wrong.append(fault)
    if server.stop() != 0:
        wrong.append("the server's exit code is not 0")
    print(f"{len(todo)} requests through {args.slots} slots: {took:.1f} s", flush=True)
    start = time.monotonic()
    servers = [Server(args, 1, args.context) for _ in range(args.alone)]

    def share(n):
        return [(i, servers[n].text(todo[i])) for i in range(n, len(todo), args.alone)]

    with concurrent.futures.ThreadPoolExecutor(args.alone) as pool:
        for part in pool.map(share, range(args.alone)):
            wrong += [f"request {i} ({len(todo[i]['prompt'].split())} words, {todo[i]['max_tokens']} tokens): alone {text[:60]!r}, in company "
                      f"{together[i][:60]!r}" for i, text in part if text != together[i]]
    for s in servers:
        s.stop()
    print(f"each alone: {time.monotonic() - start:.1f} s")
    for line in wrong[:10]:
        print("DIFFERS: " + line)
    print(f"long run: {len(todo) - sum(w.startswith('request') for w in wrong)} of {len(todo)} texts equal")
    return 1 if wrong else 0


def kill_servers():
    for server in Server.running:
        server.process.kill()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--plumb", default="build/plumb")
    p.add_argument("--model", required=True)
    p.add_argument("--requests", type=int, default=1000)
    p.add_argument("--slots", type=int, default=64)
    p.add_argument("--alone", type=int, default=8)
    p.add_argument("--context", type=int, default=1024, help="tokens of a sequence at most")
    p.add_argument("--words-log2", type=float, default=8.5, help="prompts have up to 2^this words")
    p.add_argument("--tokens", type=int, default=64, help="generated at most")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--flags", default="")
    args = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: (kill_servers(), sys.exit(143)))
    try:
        sys.exit(run(args))
    finally:
        kill_servers()


if __name__ == "__main__":
    main()
