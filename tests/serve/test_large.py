"""Large requests, which are read by threads of their own: answered like small ones, in no one's way, left and stopped like them.
Uses a tiny random model and the standard library.
test-sanitized: yes
test-timeout: 600"""
import concurrent.futures
import http.client
import json
import os
import re
import socket
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import tap  # noqa: E402
import tiny_chat_model  # noqa: E402
from support import Server, chat, completion, until  # noqa: E402

MODEL = os.path.join(tempfile.mkdtemp(), "tiny")
PAD = " " * 40000  # of the body, not of what it says


def shown(status, answer):
    text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    text = re.sub(rb'"(id|request_id|response_id|item_id|system_fingerprint)": ?"[^"]*"', b"", text)
    text = re.sub(rb'"[a-z_]*(?:created|created_at|cached_tokens|completed_at|_ms|_ns|per_second)": ?[0-9.e+-]+', b"", text)
    return status, text


@tap.case
def they_answer_like_small_ones():
    s = Server(MODEL, "--metrics")
    calls = [
        ("/v1/chat/completions", chat("hello")), ("/v1/chat/completions", chat("hello", n=2, logprobs=True)),
        ("/v1/chat/completions", chat("hello", stream=True)), ("/v1/completions", completion("hello", stream=True)),
        ("/v1/completions", completion(["one", "two"])), ("/v1/completions", completion("")), ("/v1/chat/completions", {"messages": 3}),
        ("/v1/chat/completions", chat("x", nonsense=1)), ("/v1/chat/completions", chat("x", model=7)), ("/tokenize", {"content": "hello"}),
        ("/detokenize", {"tokens": [1, 2, 3]}), ("/detokenize", {"tokens": "x"}), ("/v1/completions", completion("x" * 9000)),
        ("/v1/responses", {"input": "hello", "max_output_tokens": 8, "temperature": 0}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "temperature": 0}), ("/health", {})]
    statuses = set()
    for path, body in calls:
        s.post(path, body)  # what is in the cache from here on is the same for both
        small, large = s.post(path, body), s.post(path, json.dumps(body) + PAD)
        assert shown(*small[:2]) == shown(*large[:2]), (path, body, small[:2], large[:2])
        assert small[2].headers["Content-Type"] == large[2].headers["Content-Type"]
        statuses.add(large[0])
    assert {200, 400} <= statuses, statuses
    broken = s.post("/v1/completions", "{" + PAD)
    assert broken[0] == 400 and "JSON" in broken[1]["error"]["message"], broken
    with concurrent.futures.ThreadPoolExecutor(12) as pool:  # many at once, two threads
        got = list(pool.map(lambda i: s.post("/v1/completions", json.dumps(completion(f"number {i % 3}", stream=i % 2 == 1)) + PAD), range(36)))
    assert all(g[0] == 200 for g in got), got
    for i in range(6):
        assert all(shown(*g[:2]) == shown(*got[i][:2]) for g in got[i::6])
    until(lambda: s.metric("requests_running") == 0)
    assert s.stop() == 0


@tap.case
def nobody_waits_for_them():
    s = Server(MODEL)
    body = json.dumps(completion("abcdefghijklmnopqrstuvwxyz" * 150000))
    slowest, probes = 0.0, 0
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        large = [pool.submit(s.post, "/v1/completions", body) for _ in range(8)]
        while not all(f.done() for f in large):
            since = time.monotonic()
            assert s.call("GET", "/health")[0] == 200
            slowest, probes = max(slowest, time.monotonic() - since), probes + 1
            time.sleep(0.02)
        took = time.monotonic() - begun
        assert all(f.result()[0] == 400 and "the context holds" in f.result()[1]["error"]["message"] for f in large)
    print(f"# 8 large requests took {took:.2f} s; of {probes} small ones meanwhile the slowest {slowest * 1000:.0f} ms")
    assert probes > 5 and slowest < took / 4, (slowest, took)
    assert s.stop() == 0


def sent(s, path, body):
    """A connection over which a whole request has gone out."""
    c = socket.create_connection(("127.0.0.1", s.port))
    c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (path, len(body)) + body)
    return c


@tap.case
def clients_may_leave():
    s = Server(MODEL, "--metrics")
    for _ in range(5):
        for body in (completion("hello", max_tokens=400), completion("hello", max_tokens=400, stream=True)):
            sent(s, b"/v1/completions", json.dumps(body).encode() + PAD.encode()).close()
        sent(s, b"/tokenize", json.dumps({"content": "abc" * 100000}).encode()).close()
    until(lambda: s.metric("requests_running") == 0 and s.metric("kv_pages_free") + s.metric("kv_pages_cached") == s.metric("kv_pages"))
    assert s.post("/v1/completions", completion("hello"))[0] == 200
    assert s.stop() == 0


@tap.case
def the_server_ends_with_them_in_its_hands():
    s = Server(MODEL)
    body = json.dumps({"content": "abcdefghijklmnopqrstuvwxyz" * 40000}).encode()
    open_ones = [sent(s, b"/tokenize", body) for _ in range(8)]
    assert s.call("GET", "/health")[0] == 200
    assert s.stop() == 0
    answers = []
    for c in open_ones:
        r = http.client.HTTPResponse(c)
        try:
            r.begin()
            answers.append(r.status)
            r.read()
        except (OSError, http.client.HTTPException):
            answers.append(None)  # it had not been read whole
        c.close()
    assert set(answers) <= {200, 503, None}, answers


if __name__ == "__main__":
    tiny_chat_model.write(MODEL)
    tap.main()
