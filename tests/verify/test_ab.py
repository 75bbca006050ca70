"""The output gate must give the right verdict for sides that are wrong in known ways: each planted fault is a small
program, or a real run of plumb, and the exit code and the named reason are checked."""
import http.server
import json
import os
import stat
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))
from tests import tap  # noqa: E402

PLUMB = os.path.abspath(os.environ.get("PLUMB", "build/plumb"))
TEXT = "one two three four five six seven eight nine ten"
BACKEND = "plumb: kernel backend: cpu (test)"
KERNELS = [{"op": "linear", "kernel": "fused/gemv", "launches": 7}]
GOOD = {"text": TEXT, "ids": list(range(10)), "kernels": KERNELS,
        "logprobs": [{"id": i, "logprob": -0.1, "top": [[i, -0.1], [99, -0.1 - 0.01 * (i + 1)]]} for i in range(10)]}


class Sides:
    """Makes little programs that answer as told; `plumb` in the name and a `version` answer make them plumb's."""

    def __init__(self, directory):
        self.directory = directory
        self.count = 0

    def make(self, answer=GOOD, backend=BACKEND, build="b1", kernels="k1", extra="", code=0, name="plumb"):
        self.count += 1
        path = os.path.join(self.directory, f"{name}-{self.count}")
        out = json.dumps(answer) if not isinstance(answer, str) else answer
        with open(path, "w") as f:
            f.write(f"""#!/bin/sh
# side {self.count if build != 'same' else ''}
if [ "$1" = version ]; then echo 'plumb 0.1.0'; echo 'build id: {build}'; echo 'kernel hash: {kernels}'; exit 0; fi
{f"echo '{backend}' >&2" if backend else ""}
{extra}
cat <<'EOF'
{out}
EOF
exit {code}
""")
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path + " generate"


def ab(base, arm, *flags, prompts=("hello",), n=10):
    ask = [x for p in prompts for x in ("-p", p)]
    r = subprocess.run([PLUMB, "ab", "--base", base, "--arm", arm, *ask, "-n", str(n), *flags], capture_output=True, text=True, timeout=120)
    return r.returncode, r.stdout + r.stderr


def expect(result, code, *words):
    assert result[0] == code, result
    for w in words:
        assert w in result[1], (w, result[1])


def test_equal(s):
    expect(ab(s.make(), s.make(build="b2")), 0, "EQUAL", "fused/gemv")


def test_one_token_differs(s):
    other = {**GOOD, "ids": [0, 1, 2, 9] + list(range(4, 10)), "text": TEXT.replace("four", "FOUR")}
    expect(ab(s.make(), s.make(other, build="b2")), 1, "DIFFERS", "token 3", "FOUR", "0.0400")


def test_near_tie_is_never_equal(s):
    other = {**GOOD, "ids": [0, 1, 2, 9] + list(range(4, 10)), "text": TEXT.replace("four", "FOUR")}
    expect(ab(s.make(), s.make(other, build="b2"), "--tolerance", "near-tie=0.05"), 1, "near-tie")


def test_same_text_other_ids(s):
    expect(ab(s.make(), s.make({**GOOD, "ids": list(range(9)) + [77]}, build="b2")), 1, "token 9")


def test_equal_tokens_with_other_probabilities(s):
    moved = {**GOOD, "logprobs": [{**x, "logprob": x["logprob"] - (0.5 if i == 3 else 0)} for i, x in enumerate(GOOD["logprobs"])]}
    expect(ab(s.make(), s.make(moved, build="b2")), 0, "moved by at most 0.5", "token 3")
    expect(ab(s.make(), s.make(moved, build="b2"), "--tolerance", "logprob=0.1"), 1, "more than")
    expect(ab(s.make(), s.make(moved, build="b2"), "--tolerance", "logprob=0.6"), 0, "as allowed")
    blind = {k: v for k, v in GOOD.items() if k != "logprobs"}
    expect(ab(s.make(), s.make(blind, build="b2"), "--tolerance", "logprob=0.6"), 2, "no log-probabilities")


def test_shorter_answer(s):
    expect(ab(s.make(), s.make({**GOOD, "ids": list(range(9)), "text": TEXT[:-4]}, build="b2")), 1, "token 9")


def test_identical_builds(s):
    one = s.make()
    expect(ab(one, one), 2, "one build")
    expect(ab(one, one, "--allow-identical"), 0)
    expect(ab(s.make(build="b7"), s.make(build="b7")), 2, "one build")
    a, b = s.make(name="tool", build="same"), s.make(name="tool", build="same")  # a copy under another name
    expect(ab(a, b, "--without-witness"), 2, "byte-identical")


def test_empty_outputs(s):
    nothing = {**GOOD, "text": "", "ids": []}
    expect(ab(s.make(nothing), s.make(nothing, build="b2")), 2, "generated 0 tokens")
    expect(ab(s.make(""), s.make("", build="b2"), "--without-witness"), 2, "generated 0 tokens")


def test_too_few_tokens(s):
    few = {**GOOD, "text": "one two", "ids": [0, 1]}
    expect(ab(s.make(few), s.make(few, build="b2")), 2, "2 tokens", "8")
    expect(ab(s.make(few), s.make(few, build="b2"), "--min-tokens", "2"), 0)
    expect(ab(s.make(few), s.make(few, build="b2"), n=2), 0)  # N is smaller


def test_baseline_that_does_not_reproduce_itself(s):
    flag = os.path.join(s.directory, "flip")
    extra = f"if [ -e {flag} ]; then echo 'other text that has more than eight words in it now'; exit 0; fi; touch {flag}"
    expect(ab(s.make(extra=extra), s.make(build="b2"), "--without-witness"), 2, "does not reproduce itself")


def test_silent_backend(s):
    expect(ab(s.make(), s.make(backend="", build="b2")), 2, "no backend line")
    expect(ab(s.make(backend=""), s.make(build="b2")), 2, "no backend line")
    expect(ab(s.make(), s.make(backend="", build="b2"), "--without-witness"), 0, "route unknown")


def test_missing_witness(s):
    blind = {k: v for k, v in GOOD.items() if k != "kernels"}
    expect(ab(s.make(), s.make(blind, build="b2")), 2, "no witness")
    expect(ab(s.make(), s.make({**GOOD, "kernels": []}, build="b2")), 2, "no witness")


def test_fallback(s):
    slow = {**GOOD, "kernels": [{"op": "linear", "kernel": "composed/gather", "launches": 7}]}
    skipped = {**GOOD, "kernels": [{"op": "linear", "kernel": "fused/gemv", "launches": 0}]}
    expect(ab(s.make(), s.make(slow, build="b2")), 0)  # equal output cannot see it ...
    expect(ab(s.make(), s.make(slow, build="b2"), "--expect-kernel", "fused/gemv"), 2, "fell back", "arm")  # ... this can
    expect(ab(s.make(), s.make(skipped, build="b2"), "--expect-kernel", "fused/gemv"), 2, "fell back")
    expect(ab(s.make(), s.make(slow, build="b2"), "--expect-kernel", "base:fused/gemv"), 0)
    expect(ab(s.make(), s.make(slow, build="b2"), "--expect-kernel", "arm:composed"), 0)


def test_side_that_dies(s):
    expect(ab(s.make(), s.make(code=3, extra="echo 'out of luck' >&2", build="b2")), 2, "exit code 3", "out of luck")
    expect(ab(s.make(), s.make(extra="kill -9 $$", build="b2")), 2, "exit code 137")
    expect(ab(s.make(), s.make(extra="sleep 60", build="b2"), "--timeout", "1"), 2, "no end after 1 s")


def test_one_bad_prompt_of_many(s):
    extra = 'case "$*" in *bad*) echo "{}" ; exit 0;; esac'
    expect(ab(s.make(), s.make(extra=extra, build="b2"), prompts=["a", "bad", "c"]), 2, "1 of 3")


def test_plain_text_sides(s):
    a, b, c = s.make(TEXT, name="peer"), s.make(TEXT, name="peer", extra=":"), s.make(TEXT + " eleven", name="peer", extra=": :")
    expect(ab(a, b, "--without-witness"), 0, "route unknown")
    expect(ab(a, c, "--without-witness"), 1, "byte")
    expect(ab(a, b), 2, "no witness")


def test_placeholders_and_quoting(s):
    path = os.path.join(s.directory, "args")
    with open(path, "w") as f:
        f.write('#!/bin/sh\nprintf "%s|" "$@"\n')
    os.chmod(path, 0o755)
    hostile = "it's \"$(touch /tmp/never)\" `x` \\ {n}"
    one = f"sh {path} 'a b' x\\ y {{prompt}} -n {{n}}"
    two = f"sh {path} 'a b' 'x y' {{prompt}} -n {{n}} "
    expect(ab(one, two, "--without-witness", "--allow-identical", prompts=[hostile]), 0)
    expect(ab(f"echo 'open", "echo x"), 64, "open quote")
    expect(ab("echo one {prompt} {n}", "printf \"two %s\" {prompt}", "--without-witness", "--min-tokens", "1", prompts=["a b"]), 1, "echo one 'a b' 10\n", "%s\" 'a b'\n")


def test_usage(s):
    one = s.make()
    run = lambda *a: (lambda r: (r.returncode, r.stdout + r.stderr))(subprocess.run([PLUMB, "ab", *a], capture_output=True, text=True))
    expect(run("--base", one, "-p", "x"), 64, "arm")
    expect(run("--base", one, "--arm", one), 64, "prompt")
    expect(run("--base", one, "--arm", "no-such-program", "-p", "x"), 64, "no-such-program")
    expect(run("--base", one, "--arm", one, "-p", "x", "-n", "0"), 64, "-n")
    expect(run("--base", one, "--arm", one, "-p", "x", "--tolerance", "x=1"), 64, "near-tie")
    expect(run("--base-url", "ftp://x", "--arm", one, "-p", "x"), 64, "ftp://x")
    for name, data, code, words in (("none.txt", None, 2, "No such file"), ("cut.json", b'["x"', 64, "no JSON list"), ("object.json", b'{"a": 1}', 64, "no JSON list"),
                                    ("nul.txt", b"a\0b\n", 64, "zero byte"), ("nul.json", b'["a\\u0000b"]', 64, "no JSON list"), ("ids.json", b"[1]", 64, "no string")):
        file = os.path.join(s.directory, name)
        if data is not None:
            open(file, "wb").write(data)
        expect(run("--base", one, "--arm", s.make(build="b2"), "--prompts", file), code, words)  # never 1: an error is no difference
    with open("/dev/full", "wb") as full:
        r = subprocess.run([PLUMB, "ab", "--base", one, "--arm", s.make(build="b2"), "-p", "x", "-n", "10"], stdout=full, stderr=subprocess.PIPE)
    assert r.returncode == 2 and b"No space left" in r.stderr, r
    p = subprocess.Popen([PLUMB, "ab", "--base", one, "--arm", s.make({**GOOD, "ids": [5] + list(range(1, 10))}, build="b2"), "-p", "x", "-n", "10"], stdout=subprocess.PIPE)
    p.stdout.close()  # a reader that leaves ('| head -1') does not make it EQUAL
    assert p.wait() == 1
    expect(run("--nonsense"), 64, "nonsense")
    empty = os.path.join(s.directory, "empty.txt")
    open(empty, "w").close()
    expect(run("--base", one, "--arm", s.make(build="b2"), "--prompts", empty), 2, "prompt set is empty")


def test_reports(s):
    out = os.path.join(s.directory, "report")
    other = {**GOOD, "ids": [5] + list(range(1, 10)), "text": "<&\"" + TEXT}
    expect(ab(s.make(), s.make(other, build="b2"), "--report", out), 1)
    report = json.load(open(os.path.join(out, "ab.json")))
    assert report["verdict"] == "DIFFERS" and report["exit_code"] == 1 and report["differences"][0]["unit"] == "token"
    import xml.dom.minidom
    suite = xml.dom.minidom.parse(os.path.join(out, "ab.xml")).documentElement
    assert suite.getAttribute("failures") == "2" and suite.getAttribute("errors") == "0"  # the prompt and the verdict
    moved = {**GOOD, "logprobs": [{**x, "logprob": x["logprob"] - 0.5} for x in GOOD["logprobs"]]}
    expect(ab(s.make(), s.make(moved, build="b3"), "--tolerance", "logprob=0.1", "--report", out), 1)
    suite = xml.dom.minidom.parse(os.path.join(out, "ab.xml")).documentElement
    assert suite.getAttribute("failures") == "1", "a verdict without a differing prompt is a failure too"
    expect(ab(s.make(), s.make(other, build="b2"), "--report", out), 1)
    assert "DIFFERS" in open(os.path.join(out, "ab.md")).read()


def test_servers(s):
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *a):
            pass

        def send(self, code, value):
            data = json.dumps(value).encode()
            self.send_response_only(code)
            self.send_header("Date", "Fri, 01 Jan 1999 00:00:00 GMT")  # a clock that is wrong
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self):
            if self.server.tells and self.path == "/props":
                self.send(200, {"backend": "cpu (test)", "chat_template": self.server.template})
            elif self.server.tells and self.path == "/v1/kernels":  # launches since the start, as plumb counts them
                self.send(200, {"kernels": [{**k, "launches": 7 * self.server.answers + 3} for k in KERNELS]})
            else:
                self.send(404, {})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if "logprobs" in body and self.server.old:
                return self.send(400, {"error": {"message": "no logprobs here"}})
            if self.path == "/tokenize":
                return self.send(200, {"tokens": [ord(c) + self.server.shift for c in body["content"]]})
            if self.server.lasts == 0:  # gone, as after a crash
                self.server.gone = True
            if self.server.gone:
                return self.connection.close()
            self.server.lasts -= 1
            if not self.server.stuck:
                self.server.answers += 1
            if self.server.dies:
                return self.send(503, {"error": {"message": "device failed"}})
            self.send(200, {"choices": [{"text": self.server.text, **(self.server.reply or {})}], "usage": {"completion_tokens": 10}})

    def start(text=TEXT, tells=True, old=False, dies=False, lasts=-1, stuck=False, shift=0, template="t", reply=None):
        h = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        h.text, h.tells, h.old, h.dies, h.lasts, h.stuck, h.shift, h.template = text, tells, old, dies, lasts, stuck, shift, template
        h.answers, h.gone, h.reply = 0, False, reply
        threading.Thread(target=h.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{h.server_address[1]}/"

    def run(a, b, *flags, prompts=("x", "y")):
        ask = [w for p in prompts for w in ("-p", p)]
        r = subprocess.run([PLUMB, "ab", "--base-url", a, "--arm-url", b, *ask, "-n", "10", *flags], capture_output=True, text=True)
        return r.returncode, r.stdout + r.stderr

    good = start()
    expect(run(good, start()), 0, "cpu (test)")
    expect(run(good, good), 2, "same server")
    expect(run(good, start(text="another text")), 1, "curl", "/v1/completions")
    expect(run(good, start(tells=False)), 2, "no backend line")
    expect(run(good, start(tells=False, old=True), "--without-witness"), 0, "route unknown")
    expect(run(good, start(dies=True)), 2, "503", "device failed")
    expect(run(good, "http://127.0.0.1:1/"), 2, "127.0.0.1:1")
    expect(run(good, start(), "--concurrency", "4"), 0, "0 of 2 answers")
    # Launches from before this answer prove nothing.
    expect(run(good, start(stuck=True)), 2, "no witness")
    # Two models by mistake, told apart by template, or by the ids of a test sentence.
    expect(run(good, start(template="u")), 2, "two different models", "chat templates")
    expect(run(good, start(shift=1)), 2, "two different models", "tokenizers")
    expect(run(good, start(shift=1), "--allow-different-models"), 0)
    # A server that dies in the middle: what failed is counted, and nobody waits for every further prompt.
    many = [f"p{i}" for i in range(40)]
    expect(run(good, start(lasts=10), prompts=many), 2, "arm failed on 30 of 40", "prompt 11", "not asked: a side was gone")
    expect(run(start(lasts=10), good, prompts=many), 2, "base failed on 30 of 40")
    # Margins and places from both forms of log-probabilities.
    def content(words):
        return {"logprobs": {"content": [{"id": i, "token": w, "logprob": -0.1, "top_logprobs": [
            {"id": i, "logprob": -0.1}, {"id": 9, "logprob": -0.125}]} for i, w in enumerate(words)]}}

    def legacy(words):
        return {"logprobs": {"tokens": words, "token_logprobs": [-0.1] * len(words),
                             "top_logprobs": [{w: -0.1, "?": -0.125} for w in words]}}
    for form in (content, legacy):
        a = start(text="one two six", reply=form(["one", " two", " six"]))
        words = ["one", " two", " ten"]
        other = form(words)
        if form is content:
            other["logprobs"]["content"][2]["id"] = 77
        b = start(text="one two ten", reply=other)
        expect(run(a, b, "--tolerance", "near-tie=0.05"), 1, "token 2", "0.0250", "near-tie")


def test_hostile_servers(s):
    """Nonsense of every kind is a reason to doubt, said in words, and never an equal pair."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *a):
            pass

        def do_GET(self):
            self.send_error(404)

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            what = self.server.what
            self.send_response_only(302 if what == "redirect" else 200)
            if what == "redirect":
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            if what != "endless":
                data = b"" if what == "redirect" else what if isinstance(what, bytes) else json.dumps(what).encode()
                self.send_header("Content-Length", str(len(data) + (100 if what == b"cut" else 0)))
                self.end_headers()
                return self.wfile.write(data)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b" " * (1 << 20))
            except OSError:
                pass

    def pair(what):
        urls = []
        for _ in range(2):
            h = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            h.what = what
            threading.Thread(target=h.serve_forever, daemon=True).start()
            urls.append(f"http://127.0.0.1:{h.server_address[1]}")
        r = subprocess.run([PLUMB, "ab", "--base-url", urls[0], "--arm-url", urls[1], "-p", "x", "-n", "10", "--without-witness"], capture_output=True, text=True)
        return r.returncode, r.stdout + r.stderr

    text = {"choices": [{"text": "a b c"}]}
    expect(pair("redirect"), 2, "redirects (HTTP 302) to http://127.0.0.1:1/elsewhere", "not followed")
    expect(pair(b"<html>hello</html>"), 2, "the answer is no JSON")
    expect(pair(b'{"choices": [{"text": "\xff\xfe"}]}'), 2, "the answer is no JSON")
    expect(pair(b"[" * 100000), 2, "the answer is no JSON")
    expect(pair([1, 2]), 2, "the answer has no text")
    expect(pair({"choices": [{"text": None}]}), 2, "the answer has no text")
    expect(pair({**text, "usage": {"completion_tokens": -5}}), 2, "generated 2 tokens")
    expect(pair({"choices": [{"text": "a b c", "logprobs": {"content": [{"id": -1, "token": 7, "logprob": "x", "top_logprobs": 3}] * 3}}]}), 2, "generated 3 tokens")
    expect(pair("endless"), 2, "larger than 64 MB")
    expect(pair(b"cut"), 2, "artial")


def test_answers_that_change_under_concurrency(s):
    """Alone always the same, together another: a rate, or with --invariant a difference. Each run leaves a mark: the first four
    are those alone, and of the four together each waits until there are two, so they must really run side by side."""
    def pair(name):
        marks = os.path.join(s.directory, name)
        os.makedirs(marks)
        extra = f"""mkdir {marks}/$$
if [ $(ls {marks} | wc -l) -gt 4 ]; then
i=0; while [ $(ls {marks} | wc -l) -lt 6 ] && [ $i -lt 300 ]; do sleep 0.1; i=$((i + 1)); done
if [ $i -lt 300 ]; then
echo '{{"text": "quite another text than the usual one", "ids": [9,9,9,9,9,9,9,9,9,9], "kernels": {json.dumps(KERNELS)}}}'; exit 0
fi; fi"""
        return s.make(), s.make(extra=extra, build="b2")

    out = ab(*pair("rate"), "--concurrency", "4", prompts=("a", "b", "c", "d"))
    expect(out, 0, "4 of 4 answers", "a rate")
    expect(ab(*pair("invariant"), "--concurrency", "4", "--invariant", prompts=("a", "b", "c", "d")), 1, "DIFFERS")
    expect(ab(*pair("alone"), "--invariant"), 64, "--concurrency")


def test_different_models_as_commands(s):
    def with_print(vocabulary, template):
        return {**GOOD, "fingerprint": {"vocabulary": vocabulary, "chat_template": template, "probe": None}}
    one = s.make(with_print("aa", "bb"))
    expect(ab(one, s.make(with_print("aa", "bb"), build="b2")), 0)
    expect(ab(one, s.make(with_print("ac", "bb"), build="b2")), 2, "two different models", "vocabularies")
    expect(ab(one, s.make(with_print("aa", "bc"), build="b2")), 2, "two different models", "templates")
    expect(ab(one, s.make(with_print("aa", "bc"), build="b2"), "--allow-different-models"), 0)
    expect(ab(one, s.make(build="b2")), 0)  # says nothing about its model


def test_many_differences(s):
    """Reports stay readable, JUnit stays complete."""
    out = os.path.join(s.directory, "many")
    base = s.make(TEXT, name="peer")
    arm = s.make(TEXT + " more", name="peer")
    expect(ab(base, arm, "--without-witness", "--report", out, prompts=[f"p{i}" for i in range(70)]), 1, "and 6 more")
    import xml.dom.minidom
    suite = xml.dom.minidom.parse(os.path.join(out, "ab.xml")).documentElement
    assert suite.getAttribute("failures") == "71" and len(suite.getElementsByTagName("failure")) == 71


def test_configurations_of_this_binary(s):
    """--base-env, --arm-env, --arm-flags: what each side got is what its answer shows."""
    from tests.tiny_chat_model import write
    model = os.path.join(s.directory, "tiny")
    write(model)
    run = lambda *a: (lambda r: (r.returncode, r.stdout + r.stderr))(subprocess.run([PLUMB, "ab", "-m", model, "-p", "the hand", "-n", "12", *a], capture_output=True, text=True))
    expect(run("--arm-flags", "--isa scalar --ignore-eos", "--base-flags", "--ignore-eos", "--tolerance", "near-tie=0.01", "--expect-kernel", "arm:scalar"), 0)
    expect(run("--arm-flags", "--threads 1 --ignore-eos", "--base-flags", "--ignore-eos"), 0)
    expect(run("--arm-flags", "--isa nonsense"), 2, "nonsense")
    expect(run("--base-flags", "--ignore-eos", "--arm-flags", "--ignore-eos"), 2, "one build")  # nothing differs
    show = os.path.join(s.directory, "show")
    with open(show, "w") as f:
        f.write("#!/bin/sh\necho one two three four five six seven eight $FLAVOUR\n")
    os.chmod(show, 0o755)
    both = ("--without-witness", "--allow-identical")
    expect(ab(show, show, *both, "--base-env", "FLAVOUR=plain", "--arm-env", "FLAVOUR=plain"), 0)
    expect(ab(show, show, *both, "--base-env", "FLAVOUR=plain", "--arm-env", "FLAVOUR=sweet"), 1, "plain", "sweet", "FLAVOUR=sweet")
    expect(ab(show, show, "--arm-env", "nothing"), 64, "NAME=VALUE")


def main():
    with tempfile.TemporaryDirectory() as directory:
        sides = Sides(directory)
        for name, f in list(globals().items()):
            if name.startswith("test_"):
                bound = lambda f=f: f(sides)
                bound.__name__ = name
                tap.case(bound)
        tap.main()


if __name__ == "__main__":
    main()
