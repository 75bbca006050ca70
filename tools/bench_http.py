#!/usr/bin/env python3
"""Serves one model with plumb and with llama-server, one after the other, and loads each with the same streamed completions.

  tools/bench_http.py --model FILE[=NAME] [--cases 64:96,16:32,1:3] [--plumb build/plumb] [--llama-server FILE]
                      [--prompt-tokens 400] [--tokens 128] [--context 768] [--budget SECONDS]
                      [--plumb-flags "..."] [--llama-flags "..."] [--load http_load.py]

A case is clients:requests. Prompts are random English words, greedy, the end token ignored, the same for both servers; one short
burst warms each server up. Each row names the machine's path: the backend line and the kernels of attention and of the products
that ran, from /v1/witness. A server that does not answer in time gets a row that says so. --load uses another load generator with
the options URL --clients --requests --prompt-tokens --tokens --seed --json; every case has prompts of its own, so that none is cached. With --together all servers are loaded before any is measured. --budget ends the whole run in time, with what there is.
Standard library only; loopback only."""
import argparse
import asyncio
import json
import multiprocessing
import os
import random
import shlex
import socket
import subprocess
import sys
import time
import urllib.request

WORDS = ("time year people way day man thing woman life child world school state family student group country problem hand part place "
         "case week company system program question work government number night point home water room mother area money story fact "
         "month lot right study book eye job word business issue side kind head house service friend father power hour game line").split()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(port, path, timeout=5):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=timeout) as r:
        return json.loads(r.read())


async def one(port, body):
    """One streamed completion: when its pieces came, and how many tokens the server says it generated."""
    began, times, usage, error = time.perf_counter(), [], None, None
    try:
        r, w = await asyncio.open_connection("127.0.0.1", port)
        data = json.dumps(body).encode()
        w.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n" % len(data) + data)
        status = int((await r.readline()).split()[1])
        while (line := await r.readline()) and line not in (b"\r\n", b"\n"):
            pass
        while line := await r.readline():
            if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                continue
            if b'"usage":null' in line and b'"text":"' in line and b'"text":""' not in line and b'"error"' not in line:
                times.append(time.perf_counter())  # a piece of text and nothing else: the load generator must not be what limits
                continue
            event = json.loads(line[5:])
            error = event.get("error", error)
            usage = event.get("usage") or usage
            if any(c.get("text") for c in event.get("choices", [])):
                times.append(time.perf_counter())
        w.close()
        if status != 200:
            error = error or f"status {status}"
    except (OSError, ValueError, IndexError) as e:
        error = repr(e)
    return {"error": error, "began": began, "times": times, "usage": usage or {}}


def at(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] * 1000 if values else float("nan")


async def load(port, clients, requests, prompt_tokens, tokens, seed):
    rng = random.Random(seed)
    bodies = iter([{"model": "x", "prompt": " ".join(rng.choice(WORDS) for _ in range(prompt_tokens)), "max_tokens": tokens, "temperature": 0,
                    "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}} for _ in range(requests)])
    done = []

    async def client():
        for body in bodies:
            done.append(await one(port, body))

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return done, began, time.perf_counter()


def load_alone(parts):
    return asyncio.run(load(*parts))


def summary(parts):
    """Of one or several processes, whose clocks are the same."""
    done = [d for p in parts for d in p[0]]
    wall = max(p[2] for p in parts) - min(p[1] for p in parts)
    good = [d for d in done if d["error"] is None and d["times"]]
    gaps = [b - a for d in good for a, b in zip(d["times"], d["times"][1:])]
    first = [d["times"][0] - d["began"] for d in good]
    made = sum(d["usage"].get("completion_tokens", len(d["times"])) for d in good)
    return {"ok": len(good), "failed": len(done) - len(good), "wall_s": round(wall, 2), "gen_tok_s": round(made / wall, 1),
            "ttft_p50_ms": round(at(first, .5), 1), "gap_p50_ms": round(at(gaps, .5), 2), "gap_p99_ms": round(at(gaps, .99), 2),
            "error": next((str(d["error"]) for d in done if d["error"]), None)}


def measure(args, port, clients, requests, seconds):
    seed = 1000 * clients + requests  # no two cases have a prompt in common
    if not args.load and clients < 2 * args.per_process:
        return summary([asyncio.run(asyncio.wait_for(load(port, clients, requests, args.prompt_tokens, args.tokens, seed), seconds))])
    if not args.load:
        n = -(-clients // args.per_process)
        share = lambda whole, i: whole * (i + 1) // n - whole * i // n
        with multiprocessing.Pool(n) as pool:
            parts = [(port, share(clients, i), share(requests, i), args.prompt_tokens, args.tokens, (seed << 8) + i) for i in range(n)]
            return summary(pool.map_async(load_alone, parts, chunksize=1).get(seconds))
    r = subprocess.run([sys.executable, args.load, f"http://127.0.0.1:{port}/v1/completions", "--clients", str(clients), "--requests", str(requests),
                        "--prompt-tokens", str(args.prompt_tokens), "--tokens", str(args.tokens), "--seed", str(seed), "--json"], capture_output=True, text=True, timeout=seconds)
    row = json.loads(r.stdout.splitlines()[0])
    return {**row, "error": r.stderr.strip()[:200] or None}


def what_ran(port):
    """Kernels of the latest request, attention and products first; only plumb says so."""
    try:
        latest = get(port, "/v1/witness")["data"][0]["id"]
        w = get(port, "/v1/witness/" + latest)
        kernels = [f"{k['op']}:{k['kernel']} x{k['launches']}" for k in w["kernels"] if k["op"] in ("attention", "linear", "linear_many", "sample", "pick")]
        declined = [f"DECLINED {d['op']}: {d['reason']}" for d in w["declined"]]
        return "; ".join(declined + sorted(kernels, key=lambda k: k.split(":")[0])) or "nothing told"
    except (OSError, ValueError, KeyError, IndexError):
        return "not told"


COUNTED = ("phase_seconds_total", "phase_steps_total", "phase_rows_total", "engine_seconds_total", "graphs_made_total", "graphs_made_seconds_total",
           "graphs_replayed_total", "graphs_once_total", "prefix_tokens_hit_total", "steps_late_total", "steps_ahead_total", "steps_waited_total", "surplus_rows_total", "preemptions_total")


def counters(port):
    """plumb's own, or nothing."""
    found = {}
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as r:
            for line in r.read().decode().split("\n"):
                name, _, value = line.rpartition(" ")
                if name.startswith("plumb_") and name[6:].split("{")[0] in COUNTED:
                    found[name[6:]] = float(value)
    except (OSError, ValueError):
        pass
    return found


def phases(before, after):
    """Where the time went between the two: the device's by phase, the engine thread's by part."""
    d = lambda name, **label: next((after[k] - before.get(k, 0) for k in after if k.split("{")[0] == name and all(f'{a}="{b}"' in k for a, b in label.items())), 0)
    out = []
    for p in ("prefill", "mixed", "decode"):
        steps = d("phase_steps_total", phase=p)
        if steps:
            out.append(f"{p} {d('phase_seconds_total', phase=p):.3f} s in {steps:.0f} steps of {d('phase_rows_total', phase=p) / steps:.0f} rows")
    out.append("engine " + ", ".join(f"{p} {d('engine_seconds_total', part=p):.3f}" for p in ("plan", "launch", "wait", "take", "idle")) + " s")
    out.append(f"graphs {d('graphs_replayed_total'):.0f} replayed, {d('graphs_made_total'):.0f} made in {d('graphs_made_seconds_total'):.3f} s, {d('graphs_once_total'):.0f} once")
    out.append(f"{d('steps_ahead_total'):.0f} ahead, {d('steps_late_total'):.0f} late, {d('surplus_rows_total'):.0f} surplus rows, {d('preemptions_total'):.0f} preemptions, {d('prefix_tokens_hit_total'):.0f} tokens cached")
    return "; ".join(out)


class Peer:
    def __init__(self, name, command, env, log):
        self.name, self.port = name, free_port()
        self.log = open(log, "w+", encoding="utf-8", errors="replace")
        self.process = subprocess.Popen([*command, "--host", "127.0.0.1", "--port", str(self.port)], stdout=self.log, stderr=self.log, env=env)

    def ready(self, until):
        while time.monotonic() < until and self.process.poll() is None:
            try:
                get(self.port, "/health")
                return True
            except (OSError, ValueError):
                time.sleep(0.1)
        return False

    def tail(self):
        self.log.flush()
        self.log.seek(0)
        lines = [line.rstrip() for line in self.log if line.strip()]
        return " / ".join(lines[-3:])[-400:]

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def row(values):
    print("| " + " | ".join(str(v) for v in values) + " |", flush=True)


def bench(args, peer, model, cases, until, rows):
    began = time.monotonic()
    if not peer.ready(until):
        rows.append([model, "", peer.name, "did not start: " + peer.tail()])
        return row(rows[-1])
    print(f"# {peer.name}: {model} ready after {time.monotonic() - began:.1f} s", flush=True)
    try:
        warm = min(cases[0][0], 8)
        asyncio.run(asyncio.wait_for(load(peer.port, warm, warm, 40, 8, 99), max(1, until - time.monotonic())))
    except (asyncio.TimeoutError, OSError):
        pass
    for clients, requests in cases:
        left = until - time.monotonic()
        try:
            if left < 2:
                raise TimeoutError
            before = counters(peer.port)
            r = measure(args, peer.port, clients, requests, left)
            after = counters(peer.port)
            if after:
                print(f"# {clients} clients: {phases(before, after)}", flush=True)
            rows.append([model, clients, peer.name, r["gen_tok_s"], r["ttft_p50_ms"], r["gap_p50_ms"], r["gap_p99_ms"], r["wall_s"],
                         f"{r['failed']} failed: {r['error']}" if r["failed"] else what_ran(peer.port)])
        except (asyncio.TimeoutError, TimeoutError, subprocess.TimeoutExpired, ValueError, IndexError, OSError) as e:
            rows.append([model, clients, peer.name, f"not measured: {type(e).__name__}, {left:.0f} s were left"])
        row(rows[-1])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", action="append", required=True, help="FILE, FILE=NAME, FILE=NAME=CASES or, for plumb alone, FILE=NAME=CASES=FLAGS")
    p.add_argument("--plumb", default="build/plumb")
    p.add_argument("--llama-server")
    p.add_argument("--llama-library-path", help="LD_LIBRARY_PATH of llama-server only")
    p.add_argument("--cases", default="64:96,16:32,1:3")
    p.add_argument("--prompt-tokens", type=int, default=400)
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--context", type=int, default=768)
    p.add_argument("--budget", type=float, default=600)
    p.add_argument("--plumb-flags", default="")
    p.add_argument("--llama-flags", default="-ngl 99")
    p.add_argument("--load")
    p.add_argument("--per-process", type=int, default=64, help="clients of one process of the load generator, when there are more")
    p.add_argument("--logs", default=".")
    p.add_argument("--together", action="store_true", help="load all servers first, where their memory allows it: less waiting")
    p.add_argument("--only", choices=["plumb", "llama-server"])
    args = p.parse_args()
    end, rows = time.monotonic() + args.budget, []
    jobs = []
    for spec in args.model:
        path, name, cases, flags = (spec.split("=", 3) + ["", "", ""])[:4]
        cases = [tuple(int(n) for n in c.split(":")) for c in (cases or args.cases).split(",")]
        widest = max(c for c, _ in cases)
        plumb = [args.plumb, "serve", "-m", path, "-c", str(args.context), "--parallel", str(widest), "--metrics", *shlex.split(args.plumb_flags), *shlex.split(flags)]
        llama = [args.llama_server, "-m", path, "-c", str(args.context * widest), "-np", str(widest), *shlex.split(args.llama_flags)]
        jobs.append(("plumb", plumb, name or os.path.basename(path), cases))
        if args.llama_server and not flags:
            jobs.append(("llama-server", llama, name or os.path.basename(path), cases))
    jobs = [j for j in jobs if args.only in (None, j[0])]
    jobs.sort(key=lambda j: j[0] != "plumb")  # should the budget end, the peer's rows are those that are missing
    peers = {}

    def start(i):
        env = dict(os.environ)
        if jobs[i][0] != "plumb" and args.llama_library_path:
            env["LD_LIBRARY_PATH"] = args.llama_library_path
        peers[i] = Peer(jobs[i][0], jobs[i][1], env, os.path.join(args.logs, f"{jobs[i][0]}-{i}.log"))

    try:
        for i in range(len(jobs) if args.together else 0):
            start(i)
        for i in range(len(jobs) if args.together else 0):  # nobody loads while another is measured
            peers[i].ready(end)
        for i, (_, _, model, cases) in enumerate(jobs):
            if i not in peers:
                start(i)
            bench(args, peers[i], model, cases, end, rows)
            peers.pop(i).stop()
    finally:
        for peer in peers.values():
            peer.stop()
    print(f"\nprompts of about {args.prompt_tokens} tokens, {args.tokens} generated, greedy, streamed")
    row(["model", "clients", "server", "generated, tok/s", "first token p50, ms", "gap p50, ms", "gap p99, ms", "wall, s", "what ran"])
    row(["---"] * 9)
    for r in sorted(rows, key=lambda r: (str(r[0]), -int(r[1] or 0), r[2])):
        row(r)


if __name__ == "__main__":
    main()
