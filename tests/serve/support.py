"""A server process for tests: starts it on a free port, calls it, ends it. Standard library only."""
import atexit
import http.client
import json
import os
import re
import signal
import subprocess
import time

PLUMB = os.environ.get("PLUMB", "build/plumb")


class Server:
    def __init__(self, model, *flags, env=None):
        self.process = subprocess.Popen([PLUMB, "serve", "-m", model, "--port", "0", *flags], stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **(env or {})})
        atexit.register(self.process.kill)  # a test that fails leaves none behind
        self.lines = []
        self.port = self.wait_listening()

    def wait_listening(self):
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", line)
            if found:
                return int(found.group(1))
        raise RuntimeError("the server did not start: " + "".join(self.lines))

    def call(self, method, path, body=None, headers=None, timeout=120):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        data = None if body is None else body if isinstance(body, (bytes, str)) else json.dumps(body)
        c.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        r = c.getresponse()
        text = r.read()
        c.close()
        try:
            return r.status, json.loads(text), r
        except ValueError:
            return r.status, text, r

    def post(self, path, body, **kw):
        return self.call("POST", path, body, **kw)

    def stream(self, path, body):
        status, text, _ = self.post(path, {**body, "stream": True})
        assert status == 200, text
        events = [e[6:] for e in text.decode().split("\n\n") if e.startswith("data: ")]
        assert events[-1] == "[DONE]", events[-1]
        return [json.loads(e) for e in events[:-1]]

    def metric(self, name, headers=None):
        status, text, _ = self.call("GET", "/metrics", headers=headers)
        assert status == 200
        found = re.search(r"^plumb_%s ([0-9.e+-]+)$" % re.escape(name), text.decode(), re.M)
        assert found, f"metric {name} is missing"
        return float(found.group(1))

    def held(self, path, body, headers=None):
        """A connection whose streamed answer goes on until it is closed: nobody reads it."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        c.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json", **(headers or {})})
        return c

    def stop(self, sig=signal.SIGTERM, timeout=90):
        self.process.send_signal(sig)
        return self.wait(timeout)

    def wait(self, timeout=90):
        code = self.process.wait(timeout)
        self.lines += self.process.stderr.readlines()
        return code


def until(what, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if what():
                return
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.02)
    raise AssertionError("it did not come to pass")


def chat(content, **kw):
    return {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 12, "ignore_eos": True, **kw}


def completion(prompt, **kw):
    return {"prompt": prompt, "temperature": 0, "max_tokens": 12, "ignore_eos": True, **kw}
