"""The web page in a real Chromium (headless), driven over its debugging pipe. Skipped, and said so, where there is none.
PLUMB_SCREENSHOTS=DIR keeps pictures of what it saw."""
import base64
import http.client
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

# test-timeout: 300
sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import tap  # noqa: E402
import tiny_chat_model  # noqa: E402
from support import Server  # noqa: E402

CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")) if p), None)
HOSTILE = ("<img src=x onerror=\"window.pwned=1\"><script>window.pwned=1</script>\n\n[a](javascript:window.pwned=1) [b](data:text/html,x) **<b onclick=x>bold</b>**\n\n"
           "```html\n<script>window.pwned=1</script>\n```\n\n| a | b |\n|---|---|\n| <svg onload=window.pwned=1> | " + "long" * 60 + " |\n\n"
           "1. one\n2. `<i>two</i>`\n\n> <iframe src=javascript:window.pwned=1>\n\n" + "x" * 300 + "\n\n```\n" + "y" * 300 + "\n```\n")


class Canned(http.server.BaseHTTPRequestHandler):
    """The server's own page and settings, with answers that no honest model gives."""

    upstream = left = 0
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def relay(self):
        c = http.client.HTTPConnection("127.0.0.1", self.upstream)
        c.request("GET", self.path)
        r = c.getresponse()
        body = r.read()
        self.send_response(r.status)
        for name in ("Content-Type", "Content-Security-Policy"):
            if r.headers[name]:
                self.send_header(name, r.headers[name])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = relay

    def count_slowly(self):
        """Words until the client leaves."""
        try:
            for i in range(3000):
                self.wfile.write(b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": f"{i} "}, "finish_reason": None}]}).encode() + b"\n\n")
                self.wfile.flush()
                time.sleep(0.02)
        except OSError:
            Canned.left += 1
        self.close_connection = True

    def do_POST(self):
        slowly = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][-1]["content"] == "slowly"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        if slowly:
            return self.count_slowly()
        for field, text in (("reasoning_content", "<b>why</b><script>window.pwned=1</script>"), *(("content", HOSTILE[i:i + 40]) for i in range(0, len(HOSTILE), 40))):
            self.wfile.write(b"data: " + json.dumps({"choices": [{"index": 0, "delta": {field: text}, "finish_reason": None}]}).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True


class Browser:
    def __init__(self, directory):
        to_read, self.to = os.pipe()
        self.from_, from_write = os.pipe()
        for fd in (to_read, from_write):
            os.set_inheritable(fd, True)
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-component-update",
                 "--disable-extensions", "--disable-sync", f"--user-data-dir={directory}", "--remote-debugging-pipe", "about:blank"]
        code = f"import os; os.dup2({to_read}, 13); os.dup2({from_write}, 14); os.dup2(13, 3); os.dup2(14, 4); os.execv({CHROMIUM!r}, {[CHROMIUM, *flags]!r})"
        self.process = subprocess.Popen([sys.executable, "-c", code], close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(from_write)
        self.buffer, self.number, self.session = b"", 0, None
        target = next(t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        self.send("Page.enable")

    def send(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.buffer:
                part = os.read(self.from_, 1 << 20)
                if not part:
                    raise RuntimeError("Chromium ended")
                self.buffer += part
            line, self.buffer = self.buffer.split(b"\0", 1)
            answer = json.loads(line)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def js(self, expression):
        r = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in r:
            raise RuntimeError(f"{expression}: {r['exceptionDetails']}")
        return r["result"].get("value")

    def until(self, expression, seconds=90):
        end = time.monotonic() + seconds
        while not self.js(expression):
            if time.monotonic() > end:
                raise AssertionError(f"never true: {expression}; page: {self.js('document.body.innerText')[:500]}")
            time.sleep(0.02)

    def open(self, port):
        self.send("Page.navigate", url=f"http://127.0.0.1:{port}/")
        self.until("document.readyState === 'complete' && !!document.getElementById('input') && location.port === '%d'" % port)

    def endless(self):
        """Answers end at their limit only: a random model might end at once."""
        self.js("(() => { const plain = request; request = () => ({ ...plain(), ignore_eos: true }); })()")

    def fresh(self, port, **settings):
        self.open(port)
        self.js("localStorage.clear()")
        if settings:
            self.js(f"Object.assign(settings, {json.dumps(settings)}); store.set('settings', settings)")
        self.open(port)
        self.endless()

    def key(self, name, code=0, text="", modifiers=0):
        self.send("Input.dispatchKeyEvent", type="keyDown", key=name, code=name, windowsVirtualKeyCode=code, text=text, modifiers=modifiers)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=name, code=name, windowsVirtualKeyCode=code, modifiers=modifiers)

    def type(self, text):
        self.send("Input.insertText", text=text)

    def picture(self, name):
        where = os.environ.get("PLUMB_SCREENSHOTS")
        if where:
            with open(os.path.join(where, name + ".png"), "wb") as f:
                f.write(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        try:
            self.send("Browser.close")
        except (RuntimeError, OSError):
            pass
        self.process.wait(30)


browser, server, canned = None, None, None
IDLE = "running === null && document.getElementById('send').hidden === false"
LAST = "turns[turns.length - 1]"


def ask(text):
    browser.js("document.getElementById('input').focus()")
    browser.type(text)
    browser.key("Enter", 13, "\r")


def page(function):
    def case():
        if CHROMIUM is None:
            raise tap.Skip("no Chromium is installed (Debian package chromium)")
        function()
    case.__name__ = function.__name__
    return tap.case(case)


@page
def the_panel_says_what_ran():
    browser.fresh(server.port, max_tokens="40", temperature="0")
    ask("hello there")
    browser.until(IDLE + " && turns.length === 2")
    assert browser.js(LAST + ".content.length") > 0 and "40 tokens" in browser.js("document.getElementById('ran-line').textContent")
    browser.js("document.getElementById('ran').open = true")
    panel = browser.js("document.getElementById('ran-table').innerText")
    for word in ("time to first token", "backend", "attention", "fallbacks", "none", "prefix cache", "steps"):
        assert word in panel, panel
    browser.picture("answer")


@page
def an_answer_streams_until_it_is_stopped():
    browser.fresh(canned.server_port)
    browser.js("window.lengths = new Set(); new MutationObserver(() => lengths.add(document.getElementById('log').innerText.length)).observe(document.getElementById('log'), "
               "{ childList: true, subtree: true, characterData: true })")
    ask("slowly")
    browser.until("running !== null && lengths.size > 5")  # it grows on the page while it comes
    assert browser.js("document.getElementById('send').hidden && !document.getElementById('stop').hidden")
    left = Canned.left
    browser.js("document.getElementById('stop').click()")
    browser.until(IDLE)
    end = time.monotonic() + 60
    while Canned.left == left:  # the server sees its client go
        assert time.monotonic() < end
        time.sleep(0.02)
    assert browser.js(LAST + ".content").startswith("0 1 2 ") and browser.js("turns.length") == 2
    ask("slowly")
    browser.until("running !== null && " + LAST + ".content.length > 0")
    browser.key("Escape", 27)
    browser.until(IDLE + " && turns.length === 4")
    ask("slowly")
    browser.until("running !== null && " + LAST + ".content.length > 0")
    browser.js("document.getElementById('fresh').click()")  # forgetting it ends it too
    browser.until(IDLE + " && turns.length === 0")


@page
def regenerate_and_edit():
    browser.fresh(server.port, max_tokens="12", temperature="1")
    ask("first words")
    browser.until(IDLE + " && turns.length === 2")
    before = browser.js(LAST + ".content")
    for _ in range(5):
        browser.js("[...document.querySelectorAll('button')].find(b => b.textContent === 'Regenerate').click()")
        browser.until(IDLE + " && turns.length === 2")
        if browser.js(LAST + ".content") != before:
            break
    else:
        raise AssertionError("five times the same answer")
    browser.js("[...document.querySelectorAll('button')].find(b => b.textContent === 'Edit').click()")
    assert browser.js("document.getElementById('input').value") == "first words" and browser.js("turns.length") == 0
    browser.type(" and more")
    browser.key("Enter", 13, "\r")
    browser.until(IDLE + " && turns.length === 2")
    assert browser.js("turns[0].content") == "first words and more"
    browser.open(server.port)  # the conversation is kept
    assert browser.js("turns.length") == 2 and "first words and more" in browser.js("document.body.innerText")


@page
def nothing_an_answer_says_becomes_markup():
    browser.fresh(canned.server_port)
    ask(HOSTILE)
    browser.until(IDLE + " && turns.length === 2")
    browser.open(canned.server_port)  # once more, from what was stored
    time.sleep(0.2)
    assert browser.js("window.pwned") is None
    bad = browser.js("document.querySelectorAll('#log script, #log img, #log iframe, #log svg, #log b, #log i, #log [onerror], #log [onclick], #log [onload]').length")
    assert bad == 0, browser.js("document.getElementById('log').innerHTML")[:2000]
    links = browser.js("[...document.querySelectorAll('#log a')].map(a => a.getAttribute('href'))")
    assert not [h for h in links if not h.startswith(("http://", "https://"))], links
    assert browser.js("document.querySelectorAll('#log pre').length") == 2 and browser.js("document.querySelectorAll('#log table').length") == 1
    assert "<script>window.pwned=1</script>" in browser.js("document.querySelector('#log pre').innerText")
    assert "why" in browser.js("document.querySelector('.why').textContent")
    browser.picture("hostile")


@page
def it_fits_a_phone():
    browser.send("Emulation.setDeviceMetricsOverride", width=360, height=640, deviceScaleFactor=2, mobile=True)
    try:
        browser.fresh(canned.server_port)
        ask(HOSTILE)
        browser.until(IDLE + " && turns.length === 2")
        assert browser.js("document.documentElement.scrollWidth") <= 360 and browser.js("document.getElementById('main').scrollWidth") <= 360
        browser.js("document.getElementById('main').scrollTop = 0")
        browser.picture("phone")
        browser.js("document.getElementById('open-settings').click()")
        box = browser.js("(() => { const b = document.getElementById('settings').getBoundingClientRect(); return [b.left, b.right]; })()")
        assert box[0] >= 0 and box[1] <= 360, box
        browser.picture("phone-settings")
        browser.key("Escape", 27)
    finally:
        browser.send("Emulation.clearDeviceMetricsOverride")


@page
def the_keyboard_is_enough():
    browser.fresh(server.port, max_tokens="8")
    assert browser.js("document.activeElement.id") == "input"
    browser.type("by keyboard")
    browser.key("Enter", 13, "\r")
    browser.until(IDLE + " && turns.length === 2")
    seen = []
    for _ in range(20):
        browser.key("Tab", 9)
        seen.append(browser.js("document.activeElement.id || document.activeElement.textContent.trim().slice(0, 40)"))
    for wanted in ("fresh", "open-settings", "Edit", "Regenerate", "Copy", "input", "send"):
        assert wanted in seen, (wanted, seen)
    while browser.js("document.activeElement.id") != "open-settings":
        browser.key("Tab", 9)
    assert browser.js("getComputedStyle(document.activeElement).outlineStyle") != "none"  # the focus can be seen
    browser.key("Enter", 13, "\r")
    browser.until("document.getElementById('settings').open")
    browser.key("Tab", 9)
    assert browser.js("document.getElementById('settings').contains(document.activeElement)")
    browser.key("Escape", 27)
    browser.until("!document.getElementById('settings').open")
    unnamed = browser.js("[...document.querySelectorAll('button, input, textarea')].filter(e => !(e.labels && e.labels.length) && !e.getAttribute('aria-label') && !e.textContent.trim()).length")
    assert unnamed == 0


def contrast(a, b):
    def light(text):
        parts = [int(x) / 255 for x in text[text.index("(") + 1:text.index(")")].split(",")[:3]]
        r, g, b_ = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b_
    high, low = sorted((light(a), light(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@page
def dark_and_light_can_be_read():
    browser.fresh(canned.server_port)
    ask("x")
    browser.until(IDLE + " && turns.length === 2")
    backgrounds = set()
    for scheme in ("light", "dark"):
        browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        style = lambda selector, what: browser.js(f"getComputedStyle(document.querySelector('{selector}')).{what}")
        background = style("body", "backgroundColor")
        backgrounds.add(background)
        for selector in ("body", "header .model", ".turn .who", ".body blockquote", "#ran"):
            assert contrast(style(selector, "color"), background) >= 4.5, (scheme, selector, style(selector, "color"), background)
        assert contrast(style(".body pre code", "color"), style(".body pre", "backgroundColor")) >= 4.5
        browser.picture(scheme)
    browser.send("Emulation.setEmulatedMedia", features=[])
    assert len(backgrounds) == 2


@page
def an_error_is_shown_and_can_be_mended():
    browser.fresh(server.port, max_tokens="8", temperature="7")
    ask("x")
    browser.until(IDLE + " && turns.some(t => t.error)")
    assert "temperature" in browser.js("document.querySelector('.turn.error').innerText")
    browser.js("settings.temperature = '0'; [...document.querySelectorAll('button')].find(b => b.textContent === 'Regenerate').click()")
    browser.until(IDLE + " && turns.length === 2 && !turns[1].error")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        if CHROMIUM:
            model = os.path.join(directory, "tiny")
            tiny_chat_model.write(model)
            server = Server(model, "--metrics")
            Canned.upstream = server.port
            canned = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Canned)
            threading.Thread(target=canned.serve_forever, daemon=True).start()
            browser = Browser(os.path.join(directory, "profile"))
        try:
            tap.main()
        finally:
            if CHROMIUM:
                browser.close()
                server.stop()
