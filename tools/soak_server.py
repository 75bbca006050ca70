#!/usr/bin/env python3
"""Hurts a server and watches it: many clients with random lengths, disconnects at every phase, slow readers, half-open sockets,
pipelined and malformed HTTP, bodies cut anywhere, deep JSON, huge numbers, invalid UTF-8. Afterwards nothing may be lost:

  - the process lives and answers, its exit code is 0 (a sanitizer's report makes it another one)
  - every page is free or cached, nothing runs or waits
  - memory is flat after the first third
  - every answer that came whole equals the one the same request gives alone

  tools/soak_server.py [--plumb build/asan/plumb] [--model DIR] [--minutes 1] [--clients 64] [--seed N] [--flags "..."]

Without --model a tiny random one is made. Standard library only; prints one line a minute and the verdict."""
import argparse
import collections
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests"))
import tiny_chat_model  # noqa: E402


class Soak:
    def __init__(self, args):
        self.args = args
        self.port = 0
        self.done = threading.Event()
        self.lock = threading.Lock()
        self.seen = collections.Counter()
        self.answers = {}  # body -> text, as first heard
        self.wrong = []

    def connect(self, timeout=120):
        c = socket.create_connection(("127.0.0.1", self.port), timeout=timeout)
        return c

    def count(self, what):
        with self.lock:
            self.seen[what] += 1

    def fault(self, text):
        with self.lock:
            self.wrong.append(text)

    def heard(self, key, text):
        with self.lock:
            first = self.answers.setdefault(key, text)
        if first != text:
            self.fault(f"two answers to {key[:200]}: {first[:80]!r} and {text[:80]!r}")


def http(method, path, body=b"", extra=b""):
    return b"%s %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n" % (
        method.encode(), path.encode(), len(body), extra) + body


def read_answer(c):
    """Status, headers and body of one answer; the connection may be cut: then the body is None."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = c.recv(65536)
        if not part:
            return None, {}, None, b""
        data += part
    head, data = data.split(b"\r\n\r\n", 1)
    lines = head.decode("latin-1").split("\r\n")
    status = int(lines[0].split()[1])
    if status == 100:
        return read_answer_rest(c, data)
    headers = {k.lower(): v.strip() for k, v in (l.split(":", 1) for l in lines[1:] if ":" in l)}
    if "content-length" in headers:
        n = int(headers["content-length"])
        while len(data) < n:
            part = c.recv(65536)
            if not part:
                return status, headers, None, b""
            data += part
        return status, headers, data[:n], data[n:]
    body = b""
    while True:  # chunked
        while b"\r\n" not in data:
            part = c.recv(65536)
            if not part:
                return status, headers, None, b""
            data += part
        size, data = data.split(b"\r\n", 1)
        n = int(size.split(b";")[0], 16)
        while len(data) < n + 2:
            part = c.recv(65536)
            if not part:
                return status, headers, None, b""
            data += part
        if n == 0:
            return status, headers, body, data[2:]
        body, data = body + data[:n], data[n + 2:]


def read_answer_rest(c, data):
    raise AssertionError("a 100 answer was not asked for")


def request(rng):
    """A body with a deterministic answer, from a pool small enough that each comes again."""
    n = rng.randrange(60)
    local = random.Random(n)
    words = " ".join(local.choice(["the", "hello", "and", "word", "in", "an", "\u00e9\u00df\U0001F600"]) for _ in range(local.choice([1, 3, 10, 40, 120])))
    common = {"max_tokens": local.choice([1, 2, 7, 20, 60]), "seed": n, "temperature": local.choice([0, 0, 1]), "ignore_eos": local.random() < 0.5}
    kind = local.randrange(5)
    if kind == 0:
        return "/v1/completions", {"prompt": words, **common}
    if kind == 1:
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": words}], **common}
    if kind == 2:
        return "/v1/completions", {"prompt": words, "echo": True, "logprobs": 0, **common}
    if kind == 3:
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": words}], "n": 2, "stop": ["e"], **common}
    return "/v1/completions", {"prompt": words, "grammar": "root ::= [a-z ]{1,20}", **common}


def text_of(path, status, body, stream):
    if status != 200:
        return None
    if not stream:
        return json.dumps([[c["index"], c.get("text", c.get("message", {}).get("content")), c["finish_reason"]] for c in json.loads(body)["choices"]])
    texts, ends = collections.defaultdict(str), {}
    events = [e[6:] for e in body.decode().split("\n\n") if e.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        return None
    for e in events[:-1]:
        event = json.loads(e)
        if "error" in event:
            return None
        for c in event["choices"]:
            texts[c["index"]] += c.get("text") or (c.get("delta") or {}).get("content") or ""
            ends[c["index"]] = c["finish_reason"] or ends.get(c["index"])
    return json.dumps([[i, texts[i], ends[i]] for i in sorted(ends)])


def honest(s, rng):
    path, body = request(rng)
    stream = rng.random() < 0.5
    key = path + json.dumps(body)
    c = s.connect()
    try:
        for _ in range(rng.choice([1, 1, 3])):  # keep-alive
            c.sendall(http("POST", path, json.dumps({**body, "stream": stream}).encode()))
            status, _, data, _ = read_answer(c)
            if data is None:
                return s.count("cut by the server")
            if status == 429:
                return s.count("429")
            text = text_of(path, status, data, stream)
            if text is None:
                return s.fault(f"{status} for {key[:200]}: {data[:200]!r}")
            s.heard(key, text)
            s.count("whole")
    finally:
        c.close()


def leave(s, rng):
    """Sends a part of a request, reads a part of the answer, goes, politely or not."""
    path, body = request(rng)
    data = http("POST", path, json.dumps({**body, "stream": rng.random() < 0.7, "max_tokens": 200}).encode())
    c = s.connect()
    c.sendall(data[:rng.randrange(len(data) + 1)] if rng.random() < 0.5 else data)
    for _ in range(rng.randrange(4)):
        c.settimeout(rng.choice([0.001, 0.05, 0.5]))
        try:
            if not c.recv(rng.choice([1, 100, 4096])):
                break
        except OSError:
            break
    if rng.random() < 0.3:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST
    if rng.random() < 0.3:
        try:
            c.shutdown(rng.choice([socket.SHUT_RD, socket.SHUT_WR]))
        except OSError:
            pass
        time.sleep(rng.random() * 0.2)
    c.close()
    s.count("left")


def slow(s, rng):
    path, body = request(rng)
    key = path + json.dumps(body)
    c = socket.socket()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    c.settimeout(120)
    c.connect(("127.0.0.1", s.port))
    data = http("POST", path, json.dumps({**body, "stream": True}).encode())
    for i in range(0, len(data), 50):
        c.sendall(data[i:i + 50])
        time.sleep(0.001)
    got = b""
    while not s.done.is_set():
        part = c.recv(rng.choice([1, 64, 512]))
        got += part
        if not part or got.endswith(b"0\r\n\r\n"):
            break
        time.sleep(0.001)
    c.close()

    class Replay:
        def recv(self, _):
            nonlocal got
            out, got = got, b""
            return out
    status, _, answer, _ = read_answer(Replay()) if got else (None, {}, None, b"")
    if answer is not None and status == 200:
        text = text_of(path, status, answer, True)
        if text is not None:
            s.heard(key, text)
    s.count("slow")


def idle(s, rng):
    c = s.connect()
    if rng.random() < 0.5:
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Le"[:rng.randrange(50)])
    s.done.wait(rng.random() * 3)
    c.close()
    s.count("half open")


def pipelined(s, rng):
    path, body = request(rng)
    one = http("POST", path, json.dumps(body).encode())
    c = s.connect()
    c.sendall(one + http("GET", "/health") + one + http("GET", "/nothing"))
    c.settimeout(120)
    want, data = 4, b""
    while want > 0:
        part = c.recv(65536)
        if not part:
            break
        data += part
        want = 4 - data.count(b"HTTP/1.1 ")
        if want == 0:
            break
    c.close()
    s.count("pipelined")


def deep(n):
    return b'{"messages":' + b"[" * n + b"]" * n + b"}"


MALFORMED = [
    b"GET\r\n\r\n", b"\r\n\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET " + b"/a" * 40000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n{}", b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 7\r\n\r\n{}   ", b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 5000 + b"\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X" * 70000 + b": y\r\n\r\n", bytes(range(256)) * 8, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100,
]
BODIES = [
    deep(10), deep(100), deep(5000), deep(100000), b'{"a":' * 3000 + b"1" + b"}" * 3000, b'{"prompt":"\xff\xfe"}', b'{"prompt":"\\ud800"}', b'{"prompt":"\\u0000"}', b"\xef\xbb\xbf{}",
    b'{"prompt":"a","max_tokens":1e400}', b'{"prompt":"a","max_tokens":-1}', b'{"prompt":"a","max_tokens":99999999999999999999999}', b'{"prompt":"a","temperature":NaN}',
    b'{"prompt":"a","temperature":' + b"9" * 5000 + b"}", b'{"prompt":[' + b"1," * 50000 + b"1]}", b'{"prompt":[[' + b"1" * 400 + b"]]}", b'{"prompt":"a","seed":-9223372036854775808,"max_tokens":1}',
    b'{"prompt":"a","logit_bias":{"1":1e308}}', b'{"prompt":"a","stop":[' + b'"x",' * 100 + b'"y"]}', b'{"prompt":"a","n":128,"max_tokens":1}', b'{"prompt":"' + b"a" * 200000 + b'"}', b"[]", b"null", b"", b"{",
    b'{"prompt":"a","grammar":"' + b"root ::= " + b"(" * 2000 + b'"}', b'{"prompt":"a","grammar":"root ::= root"}', b'{"prompt":"a","grammar":"root ::= [a-z]{0,99999999}"}',
    b'{"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema","json_schema":{"schema":' + b'{"items":' * 200 + b"{}" + b"}" * 200 + b"}}}",
    b'{"messages":[{"role":"user","content":[' + b'{"type":"text","text":"a"},' * 500 + b'{"type":"text","text":"b"}]}],"max_tokens":1}',
]
PATHS = ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/tokenize", "/detokenize", "/apply-template"]


def hostile(s, rng):
    c = s.connect(30)
    if rng.random() < 0.4:
        data = rng.choice(MALFORMED)
    else:
        data = http("POST", rng.choice(PATHS), rng.choice(BODIES))
    if rng.random() < 0.3:
        data = data[:rng.randrange(len(data) + 1)]
    if rng.random() < 0.3 and data:
        i = rng.randrange(len(data))
        data = data[:i] + bytes([rng.randrange(256)]) + data[i + 1:]
    try:
        c.sendall(data)
        c.shutdown(socket.SHUT_WR)
        while True:
            part = c.recv(65536)
            if not part:
                break
            if b"HTTP/1.1 500" in part:
                s.fault(f"500 for {data[:300]!r}")
    except OSError:
        pass
    c.close()
    s.count("hostile")


def look(s, rng):
    path = rng.choice(["/metrics", "/health", "/slots", "/props", "/v1/models", "/v1/witness", "/v1/kernels", "/openapi.json", "/"])
    c = s.connect()
    c.sendall(http("GET", path))
    status, _, data, _ = read_answer(c)
    c.close()
    if status != 200 or data is None:
        s.fault(f"{status} for GET {path}")
    if path == "/v1/witness" and data:
        for r in json.loads(data)["data"][:1]:
            c = s.connect()
            c.sendall(http("GET", "/v1/witness/" + r["id"]))
            read_answer(c)
            c.close()
    s.count("look")


ACTS = [honest] * 6 + [leave] * 5 + [slow, idle, pipelined, hostile, hostile, hostile, look]


def client(s, number):
    rng = random.Random(s.args.seed * 1000003 + number)
    while not s.done.is_set():
        act = rng.choice(ACTS)
        try:
            act(s, rng)
        except (OSError, ValueError) as e:
            s.count(f"{act.__name__}: {type(e).__name__}")


def memory_mb(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS")) / 1024


def metrics(s):
    c = s.connect()
    c.sendall(http("GET", "/metrics"))
    _, _, data, _ = read_answer(c)
    c.close()
    return {line.split()[0]: float(line.split()[1]) for line in data.decode().splitlines() if line and line[0] != "#" and "{" not in line}


def settle(s, seconds=180):
    """Everything has ended and no page is missing, or what is wrong."""
    end = time.monotonic() + seconds
    while True:
        m = metrics(s)
        busy = m["plumb_requests_running"] + m["plumb_requests_waiting"]
        lost = sum(m[f"plumb_{group}"] - m[f"plumb_{group}_free"] - m[f"plumb_{group}_cached"]
                   for group in ("kv_pages", "kv_window_pages"))
        if busy == 0 and lost == 0:
            return None
        if time.monotonic() > end:
            return f"{busy:.0f} sequences still there and {lost:.0f} pages missing {seconds} s after the last client left"
        time.sleep(0.2)


def alone(s):
    """Every body whose answer was heard, once more with nobody beside it."""
    for key, heard in sorted(s.answers.items()):
        path, body = key[:key.index("{")], key[key.index("{"):]
        c = s.connect()
        c.sendall(http("POST", path, body.encode()))
        status, _, data, _ = read_answer(c)
        c.close()
        text = text_of(path, status, data, False)
        if text != heard:
            s.fault(f"alone: {key[:200]} gives {str(text)[:100]!r}, beside others {heard[:100]!r}")


def run(args, model):
    s = Soak(args)
    env = dict(os.environ, ASAN_OPTIONS="detect_leaks=1:allocator_may_return_null=1", UBSAN_OPTIONS="print_stacktrace=1",
               LSAN_OPTIONS=f"suppressions={ROOT}/tools/lsan.supp:print_suppressions=0", TSAN_OPTIONS="halt_on_error=0:exitcode=66")
    log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
    p = subprocess.Popen([args.plumb, "serve", "-m", model, "--port", "0", "--metrics", "--parallel", "8", "--timeout", "20", *args.flags.split()],
                         stderr=log, env=env)
    end = time.monotonic() + 120
    while not s.port and time.monotonic() < end and p.poll() is None:
        log.seek(0)
        for line in log:
            if "listening on http://127.0.0.1:" in line:
                s.port = int(line.split("127.0.0.1:")[1].split()[0])
        time.sleep(0.1)
    if not s.port:
        log.seek(0)
        raise SystemExit("the server did not start:\n" + log.read())
    threads = [threading.Thread(target=client, args=(s, i), daemon=True) for i in range(args.clients)]
    began, base, peak, minute = time.monotonic(), 0.0, 0.0, 0
    for t in threads:
        t.start()
    while time.monotonic() - began < args.minutes * 60 and p.poll() is None and len(s.wrong) < 20:
        time.sleep(1)
        rss = memory_mb(p.pid) if p.poll() is None else 0
        if time.monotonic() - began < args.minutes * 20:
            base = max(base, rss)
        else:
            peak = max(peak, rss)
        if time.monotonic() - began > 60 * (minute + 1):
            minute += 1
            print(f"soak: {minute} min, {rss:.0f} MB, {dict(s.seen)}", flush=True)
    s.done.set()
    for t in threads:
        t.join(150)
    if p.poll() is None:
        trouble = settle(s)
        if trouble:
            s.fault(trouble)
        alone(s)
        p.send_signal(signal.SIGTERM)
    try:
        code = p.wait(180)
    except subprocess.TimeoutExpired:
        p.kill()
        code = "no exit after SIGTERM"
    log.seek(0)
    report = log.read()
    if code != 0:
        s.fault(f"exit code {code}\n{report[-6000:]}")
    elif "Sanitizer" in report:
        s.fault(report[-6000:])
    if "asan" not in args.plumb and "tsan" not in args.plumb and peak > base * 1.25 + 16:
        s.fault(f"memory grew from {base:.0f} to {peak:.0f} MB")
    print(f"soak: {sum(s.seen.values())} acts, {len(s.answers)} different answers compared, memory {base:.0f} -> {peak:.0f} MB, {dict(sorted(s.seen.items()))}")
    for text in s.wrong[:20]:
        print("soak: WRONG:", text)
    print("soak:", "failed" if s.wrong else "nothing was lost", f"(seed {args.seed})")
    return 1 if s.wrong else 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--plumb", default="build/plumb")
    p.add_argument("--model")
    p.add_argument("--minutes", type=float, default=1)
    p.add_argument("--clients", type=int, default=64)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--flags", default="", help="more flags of plumb serve")
    args = p.parse_args()
    threading.stack_size(512 * 1024)
    with tempfile.TemporaryDirectory() as directory:
        model = args.model or os.path.join(directory, "tiny")
        if not args.model:
            tiny_chat_model.write(model)
        sys.exit(run(args, model))


if __name__ == "__main__":
    main()
