"""What must not hurt the server: a failing device, full disks, jumping clocks, slow bodies, greedy keys, scarce KV memory.
Uses a tiny random model and the standard library. test-timeout: 600"""
import concurrent.futures
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import tap  # noqa: E402
import tiny_chat_model  # noqa: E402
from support import PLUMB, Server, chat, completion, until  # noqa: E402

directory = tempfile.mkdtemp()
MODEL = os.path.join(directory, "tiny")
LONG = os.path.join(directory, "long")


def answer(s, body):
    return s.post("/v1/completions", body)[1]["choices"][0]["text"]


@tap.case
def a_failed_device_answers_503_with_the_reason_and_stays():
    s = Server(MODEL, "--fail-step", "9", "--on-device-failure", "stay", "--metrics")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda i: s.post("/v1/chat/completions", chat(f"x{i}", max_tokens=40)), range(4)))
    assert all(status == 503 and "device failure" in body["error"]["message"] for status, body, _ in done), done
    status, body, r = s.post("/v1/chat/completions", chat("later"))
    assert status == 503 and "device" in body["error"]["message"] and r.headers["Retry-After"]
    assert s.call("GET", "/health")[0] == 503 and "device failure" in s.call("GET", "/health")[1]["reason"]
    assert s.call("GET", "/ready")[0] == 503 and s.metric("device_failed") == 1
    assert s.metric("kv_pages_free") + s.metric("kv_pages_cached") == s.metric("kv_pages")
    assert s.stop() == 0


@tap.case
def a_stream_ends_with_the_reason():
    s = Server(MODEL, "--fail-step", "9", "--on-device-failure", "stay")
    status, text, _ = s.post("/v1/chat/completions", chat("x", max_tokens=40, stream=True))
    assert status == 200 and b"device failure" in text and b"[DONE]" not in text, text
    assert s.stop() == 0


@tap.case
def a_failed_device_ends_the_process():
    s = Server(MODEL, "--fail-step", "3")
    assert s.post("/v1/chat/completions", chat("x"))[0] == 503
    assert s.wait() == 1 and "leaving" in "".join(s.lines), s.lines


@tap.case
def a_failed_device_restarts_on_the_same_socket():
    s = Server(MODEL, "--fail-step", "3", "--on-device-failure", "restart")
    assert s.post("/v1/chat/completions", chat("x"))[0] == 503
    assert s.wait_listening() == s.port
    assert s.post("/v1/chat/completions", chat("x"))[0] == 200
    assert s.stop() == 0


def device_server(*flags):
    listed = subprocess.run([PLUMB, "devices"], capture_output=True, text=True, timeout=120).stdout
    if not re.search(r"^opencl +\d", listed, re.M):
        raise tap.Skip("no OpenCL device (Debian package pocl-opencl-icd)")
    return Server(MODEL, "--backend", "opencl", "--metrics", *flags)


@tap.case
def any_call_of_the_driver_may_fail():
    s = device_server()
    ask = [completion(f"hello {i}", max_tokens=6) for i in range(2)]
    expected = [answer(s, b) for b in ask]
    assert s.stop() == 0
    hit = 0
    for call in (1, 2, 3, 7, 20, 61, 150, 400):
        s = device_server("--fail-call", str(call), "--on-device-failure", "stay")
        status, body, r = s.post("/v1/completions", ask[0])
        if status == 200:  # it needed fewer calls
            assert body["choices"][0]["text"] == expected[0]
        elif s.call("GET", "/ready")[0] == 200:  # an allocation: the request failed alone
            hit += 1
            assert status >= 500 and body["error"]["message"] and answer(s, ask[1]) == expected[1], (call, body)
        else:
            hit += 1
            assert status == 503 and "device" in body["error"]["message"] and r.headers["Retry-After"], (call, body)
            status, body, _ = s.post("/v1/completions", ask[1])
            assert status == 503 and "injected" in body["error"]["message"], (call, body)
            assert s.call("GET", "/health")[0] == 503 and s.metric("device_failed") == 1
            assert s.metric("kv_pages_free") + s.metric("kv_pages_cached") == s.metric("kv_pages")
        assert s.stop() == 0
    assert hit >= 4, hit
    s = device_server("--fail-call", "20", "--on-device-failure", "restart")
    assert s.post("/v1/completions", ask[0])[0] == 503
    assert s.wait_listening() == s.port
    assert [answer(s, b) for b in ask] == expected
    assert s.stop() == 0


@tap.case
def a_drill_of_calls_needs_a_device():
    r = subprocess.run([PLUMB, "serve", "-m", MODEL, "--backend", "cpu", "--fail-call", "3"], capture_output=True, text=True, timeout=60)
    assert r.returncode == 64 and "--fail-call" in r.stderr, r


@tap.case
def first_come_first_unless_they_say_so():
    """The order is the server's own, as its witnesses stand: a long answer may reach its client after short ones that ended later."""
    s = Server(LONG, "--parallel", "1", "--priorities", "--metrics", "--context", "8192")
    names = {}

    def run(name, **more):
        most = 8000 if name == "running" else 40  # the others must be there before it ends
        status, body, _ = s.post("/v1/completions", completion(name, max_tokens=most, **more), timeout=600)
        assert status == 200, body
        names[body["id"]] = name

    ended = lambda: s.call("GET", "/v1/witness")[1]["data"]
    threads = []
    for n, (name, more) in enumerate((("running", {}), ("first", {}), ("second", {"priority": 5}), ("urgent", {"priority": -3}))):
        threads.append(threading.Thread(target=run, args=(name,), kwargs=more))
        threads[-1].start()
        until(lambda: s.metric("requests_total") > n)
        if n == 0:
            until(lambda: s.metric("requests_running") == 1)
    if len(ended()) > 0:
        raise tap.Skip("this machine is too slow to start four requests before the first ends")
    for t in threads:
        t.join()
    order = [names[w["id"]] for w in reversed(ended())]
    assert order == ["running", "urgent", "first", "second"], order
    assert s.post("/v1/completions", completion("x", priority=1001))[1]["error"]["param"] == "priority"
    assert s.stop() == 0
    s = Server(MODEL)
    status, body, _ = s.post("/v1/completions", completion("x", priority=-1))
    assert status == 400 and body["error"]["param"] == "priority" and "--priorities" in body["error"]["message"], body
    assert s.post("/v1/completions", completion("x", priority=0))[0] == 200
    assert s.stop() == 0


@tap.case
def headers_that_never_end_are_cut():
    s = Server(MODEL, "--timeout", "1", "--body-timeout", "1")
    c = socket.create_connection(("127.0.0.1", s.port), timeout=60)
    c.sendall(b"GET /health HTTP/1.1\r\n")
    try:
        for i in range(600):
            c.sendall(b"X-%d: 1\r\n" % i)
            time.sleep(0.1)
    except OSError:
        pass
    else:
        raise AssertionError("the connection stayed open")
    silent = socket.create_connection(("127.0.0.1", s.port), timeout=60)
    silent.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
    assert silent.recv(100) == b""  # no first byte of a body
    assert s.call("GET", "/health")[0] == 200
    assert s.stop() == 0


@tap.case
def a_socket_can_be_handed_in():
    listener = socket.create_server(("127.0.0.1", 0))
    os.set_inheritable(listener.fileno(), True)
    code = f"import os; os.dup2({listener.fileno()}, 3); os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid())); " \
           f"os.execv({PLUMB!r}, [{PLUMB!r}, 'serve', '-m', {MODEL!r}])"
    p = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, close_fds=False)
    port = listener.getsockname()[1]
    listener.close()
    assert any(f"127.0.0.1:{port}" in line for line in p.stderr)  # reads to the line, or to the end of a server that failed
    p.send_signal(signal.SIGTERM)
    assert p.wait(60) == 0


@tap.case
def a_full_disk_loses_log_lines_and_nothing_else():
    s = Server(MODEL, "--access-log", "/dev/full", "--metrics")
    assert s.post("/v1/chat/completions", chat("x"))[0] == 200
    until(lambda: s.metric("log_lines_lost_total") > 0)
    assert s.stop() == 0


@tap.case
def hangup_reopens_the_log():
    log = os.path.join(directory, "access.log")
    s = Server(MODEL, "--access-log", log)
    s.post("/v1/chat/completions", chat("secret words"))
    until(lambda: os.path.getsize(log) > 0)
    os.rename(log, log + ".1")
    s.process.send_signal(signal.SIGHUP)
    until(lambda: os.path.exists(log))
    s.post("/v1/completions", completion("x", stream=True))
    until(lambda: os.path.getsize(log) > 0)
    first, second = (json.loads(open(f, encoding="utf-8").readline()) for f in (log + ".1", log))
    assert first["path"] == "/v1/chat/completions" and first["status"] == 200 and first["generated_tokens"] == 12 and not first["stream"]
    assert second["path"] == "/v1/completions" and second["stream"] and "secret" not in open(log + ".1", encoding="utf-8").read()
    assert s.stop() == 0
    s = Server(MODEL, "--access-log", log, "--log-bodies")
    s.post("/v1/chat/completions", chat("asked for"))
    assert s.stop() == 0 and "asked for" in open(log, encoding="utf-8").read()


@tap.case
def a_client_that_leaves_is_counted_and_logged_as_one():
    """The answer that ends its request is written without an error, streamed or not; it is no completed request."""
    log = os.path.join(directory, "left.log")
    s = Server(LONG, "--parallel", "1", "--metrics", "--context", "8192", "--access-log", log)
    for count, stream in enumerate((True, False), 1):
        c = http.client.HTTPConnection("127.0.0.1", s.port)
        c.request("POST", "/v1/completions", json.dumps(completion("x", max_tokens=8000, ignore_eos=True, stream=stream)))
        until(lambda: s.metric("requests_running") == 1)
        c.sock.shutdown(socket.SHUT_RDWR)
        c.close()
        until(lambda: s.metric("http_disconnects_total") == count)
        until(lambda: s.metric("requests_running") == 0)
        assert s.metric("requests_cancelled_total") == count
    assert s.stop() == 0
    lines = [x for x in map(json.loads, open(log, encoding="utf-8")) if x["path"] == "/v1/completions"]
    assert [(x["stream"], x["completed"]) for x in lines] == [(True, False), (False, False)], lines


@tap.case
def half_an_answer_is_not_given_as_a_whole_one():
    """A client that closes only its sending half still reads: it is told that its request was cancelled."""
    s = Server(LONG, "--parallel", "1", "--context", "8192")
    for stream in (False, True):
        body = json.dumps(completion("hello", max_tokens=8000, stream=stream)).encode()
        with socket.create_connection(("127.0.0.1", s.port), timeout=120) as c:
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            c.shutdown(socket.SHUT_WR)
            answer = c.makefile("rb").read().decode()
        assert "cancels its request" in answer and '"finish_reason":"stop"' not in answer, answer[-500:]
        assert answer.startswith("HTTP/1.1 200 " if stream else "HTTP/1.1 499 "), answer[:100]
    assert s.stop() == 0


@tap.case
def a_second_signal_ends_at_once():
    s = Server(LONG, "--parallel", "1", "--drain", "600", "--metrics", "--context", "8192")  # it must not be done before the second
    answers = []
    ask = lambda i: answers.append(s.post("/v1/completions", completion(f"x{i}", max_tokens=8000), timeout=600))
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
    for t in threads:
        t.start()
    until(lambda: s.metric("requests_total") == 12)
    s.process.send_signal(signal.SIGTERM)
    for line in s.process.stderr:
        s.lines.append(line)
        if "terminating" in line:
            break
    assert s.call("GET", "/ready")[0] == 503  # and connections are still answered
    status, body, _ = s.post("/v1/completions", completion("late"))
    assert status == 503 and "shutting down" in body["error"]["message"], body
    s.process.send_signal(signal.SIGHUP)  # asks for new logs, not for an end
    assert s.call("GET", "/ready")[0] == 503
    s.process.send_signal(signal.SIGTERM)
    assert s.wait() == 0
    for t in threads:
        t.join()
    assert len(answers) == 12 and {a[0] for a in answers} <= {200, 503}, answers
    assert all(a[1]["choices"][0]["finish_reason"] == "length" if a[0] == 200 else "shutting down" in a[1]["error"]["message"] for a in answers), answers


SHIM = """#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
#include <sys/syscall.h>
#include <unistd.h>
static _Atomic unsigned calls;
int clock_gettime(clockid_t id, struct timespec *t) {
    int r = (int)syscall(SYS_clock_gettime, id, t);
    if (id == CLOCK_REALTIME) t->tv_sec += (++calls & 1) ? 400000000 : -400000000;
    return r;
}
time_t time(time_t *out) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}
"""


@tap.case
def jumping_clocks_change_nothing():
    cc = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if cc is None:
        raise tap.Skip("no C compiler")
    source, shim = os.path.join(directory, "shim.c"), os.path.join(directory, "shim.so")
    with open(source, "w", encoding="utf-8") as f:
        f.write(SHIM)
    subprocess.run([cc, "-shared", "-fPIC", "-o", shim, source], check=True)
    straight = Server(MODEL)
    expected = [answer(straight, completion(f"x{i}", max_tokens=60)) for i in range(4)]
    assert straight.stop() == 0
    s = Server(MODEL, "--metrics", env={"LD_PRELOAD": shim})
    created = {s.post("/v1/chat/completions", chat("x"))[1]["created"] // 10**8 for _ in range(6)}
    assert len(created) > 1, created  # the shim works: the wall clock jumps by years
    assert [answer(s, completion(f"x{i}", max_tokens=60)) for i in range(4)] == expected
    assert s.call("GET", "/health")[0] == 200 and s.metric("inter_token_seconds_sum") < 60
    assert s.stop() == 0


@tap.case
def a_body_that_trickles_is_cut():
    s = Server(MODEL, "--body-timeout", "1")
    c = socket.create_connection(("127.0.0.1", s.port), timeout=60)
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    try:
        for _ in range(600):
            c.sendall(b" ")
            time.sleep(0.05)
    except OSError:
        pass
    else:
        raise AssertionError("the connection stayed open")
    assert s.post("/v1/completions", completion("x"))[0] == 200
    assert s.stop() == 0


@tap.case
def one_address_cannot_take_all_connections():
    s = Server(MODEL, "--connections-per-address", "4")
    held = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(12)]
    alive = 0
    for c in held:  # those beyond the limit are closed at once
        c.settimeout(60)
        try:
            c.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            alive += len(c.recv(100)) > 0
        except OSError:
            pass
    for c in held:
        c.close()
    assert 0 < alive <= 4, alive
    until(lambda: s.call("GET", "/health")[0] == 200)
    assert s.stop() == 0


@tap.case
def a_greedy_key_does_not_starve_another():
    s = Server(MODEL, "--api-key", "greedy", "--api-key", "modest", "--parallel", "2", "--metrics", "--per-key", "40")
    order, lock = [], threading.Lock()

    def run(key, i):
        status = s.post("/v1/completions", completion(f"{key} {i}", max_tokens=300), headers={"Authorization": "Bearer " + key})[0]
        with lock:
            order.append((key, status))

    greedy = [threading.Thread(target=run, args=("greedy", i)) for i in range(24)]
    for t in greedy:
        t.start()
    auth = {"Authorization": "Bearer greedy"}
    until(lambda: b"plumb_requests_waiting 2" in s.call("GET", "/metrics", headers=auth)[1] or len(order) > 0)  # 20 and more wait
    modest = threading.Thread(target=run, args=("modest", 0))
    modest.start()
    for t in [*greedy, modest]:
        t.join()
    assert all(status == 200 for _, status in order), order
    waits = lambda key: [w["queued_ms"] for w in s.call("GET", "/v1/witness", headers={"Authorization": "Bearer " + key})[1]["data"]]
    assert waits("modest")[0] < max(waits("greedy")) / 2, (waits("modest"), waits("greedy"))  # in arrival order it would be the longest of all
    assert s.stop() == 0


@tap.case
def a_key_has_its_limit():
    s = Server(LONG, "--api-key", "k", "--per-key", "2", "--metrics", "--parallel", "4")
    auth = {"Authorization": "Bearer k"}
    ask = lambda: s.post("/v1/completions", completion("x"), headers=auth)[0]
    held = [s.held("/v1/completions", completion("x", max_tokens=30000), auth) for _ in range(2)]
    until(lambda: s.metric("requests_running", auth) == 2)
    assert ask() == 429
    held.pop().close()
    until(lambda: ask() == 200)
    held.pop().close()
    assert s.stop() == 0


@tap.case
def scarce_kv_memory_changes_no_answer():
    bodies = [completion(f"x{i} " + "word " * (4 * i), max_tokens=400) for i in range(8)]  # any two are too many at their ends
    wide = Server(MODEL, "--parallel", "8", "--metrics")
    expected = [answer(wide, b) for b in bodies]
    pages = wide.metric("kv_pages")
    assert wide.stop() == 0
    r = subprocess.run([PLUMB, "serve", "-m", MODEL, "--kv-memory", "1000"], capture_output=True, text=True, timeout=60)
    assert r.returncode != 0 and "--kv-memory" in r.stderr, r
    least = int(re.search(r"\((\d+) bytes\)", r.stderr).group(1))
    s = Server(MODEL, "--parallel", "8", "--metrics", "--kv-memory", str(least * 3 // 2))
    assert s.metric("kv_pages") == pages / 8 * 3 // 2
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda b: answer(s, b), bodies)) == expected
    assert s.metric("preemptions_total") > 0
    assert s.metric("kv_pages_free") + s.metric("kv_pages_cached") == s.metric("kv_pages")
    assert s.stop() == 0


@tap.case
def long_prompts_leave_running_sequences_their_steps():
    s = Server(LONG, "--parallel", "4", "--metrics", "--gap-ms", "1", "--no-prefix-cache")
    alone = answer(s, completion([65 + i % 26 for i in range(400)]))
    running = [s.held("/v1/completions", completion(f"r{i}", max_tokens=30000)) for i in range(3)]
    until(lambda: s.metric("requests_running") == 3)
    assert [answer(s, completion([65 + i % 26 for i in range(400)])) for _ in range(3)] == [alone] * 3
    for c in running:
        c.close()
    _, text, _ = s.call("GET", "/metrics")
    assert re.search(rb'plumb_phase_rows_total\{phase="mixed"\} [1-9]', text), text
    assert s.stop() == 0


@tap.case
def a_witness_tells_what_ran():
    s = Server(MODEL, "--api-key", "a", "--api-key", "b")
    a, b = ({"Authorization": "Bearer " + k} for k in "ab")
    _, body, r = s.post("/v1/chat/completions", chat("x", n=2, max_tokens=400), headers=a)
    assert r.headers["x-request-id"] == body["id"]
    w = s.call("GET", "/v1/witness/" + body["id"], headers=a)[1]
    assert w["generated_tokens"] == 800 and w["choices"] == 2 and w["steps"] >= 800 and w["declined"] == [] and w["outcome"] == "ok"
    assert w["sequences_per_step"]["max"] <= 2 and {k["op"] for k in w["kernels"]} >= {"attention", "linear"}
    assert all(k["launches"] > 0 for k in w["kernels"])
    assert s.call("GET", "/v1/witness/" + body["id"], headers=b)[0] == 404  # another key's
    assert s.call("GET", "/v1/witness", headers=b)[1]["data"] == [] and len(s.call("GET", "/v1/witness", headers=a)[1]["data"]) == 1
    assert s.call("GET", "/v1/witness/none", headers=a)[0] == 404
    assert s.stop() == 0


if __name__ == "__main__":
    try:
        tiny_chat_model.write(MODEL)
        tiny_chat_model.write(LONG, context=32768)
        tap.main()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
