"""plumb run: piped and on a terminal, with its slash commands and Ctrl-C."""
import json
import os
import pty
import re
import select
import signal
import subprocess
import time

from tests.cmd.support import PLUMB, path, run, tiny
from tests import tiny_chat_model
from tests.tap import case, main

MODEL = tiny()
ENDS = json.loads(run("tokenize", "-m", MODEL, "-p", "<|im_end|><|endoftext|>", check=0).stdout)
BAN = ["--logit-bias", ",".join(f"{i}=-inf" for i in ENDS)]  # answers are as long as -n says
FIXED = ["--temp", "0", "-n", "12", *BAN]


def chat(text, *args, check=0):
    return run("run", MODEL, *FIXED, *args, stdin=text.encode(), check=check)


@case
def one_answer():
    out = run("run", MODEL, "-p", "hello", *FIXED, check=0)
    assert out.stdout.endswith(b"\n") and b"kernel backend: cpu" in out.stderr and b"tok/s" in out.stderr
    verbose = run("run", MODEL, "-p", "hello", *FIXED, "--verbose", check=0)
    assert b"kernel" in verbose.stderr and b"attention" in verbose.stderr and verbose.stdout == out.stdout
    raw = run("generate", "-m", MODEL, "-p", "hello", "--chat", "-n", 12, *BAN, check=0)
    assert out.stdout == raw.stdout + b"\n"
    assert b"empty" in run("run", MODEL, "-p", "", check=1).stderr


@case
def piped_text_comes_before_the_question():
    want = run("run", MODEL, "-p", "the one\n\nhello", *FIXED, check=0).stdout
    assert want != run("run", MODEL, "-p", "hello", *FIXED, check=0).stdout
    for args in (["-p", "hello"], ["hello"], ["-p", "hello", "-f", "-"], ["-p", "hello", "-f", path("one.txt", "the one\n")]):
        assert run("run", MODEL, *args, *FIXED, stdin=b"the one\n", check=0).stdout == want, args
    with open(path("one.txt"), "rb") as f:
        p = subprocess.run([PLUMB, "run", MODEL, "-p", "hello", *FIXED], stdin=f, capture_output=True)
    assert p.stdout == want, p
    both = run("run", MODEL, "-p", "hello", "-f", path("one.txt"), *FIXED, stdin=b"not this", check=0)
    alone = run("run", MODEL, "-f", path("two.txt", "the one\n\nhello\n"), *FIXED, check=0)
    assert both.stdout == want and alone.stdout == want and run("run", MODEL, "-p", "", *FIXED, stdin=b"the one\n\nhello", check=0).stdout == want
    late = subprocess.Popen([PLUMB, "run", MODEL, "-p", "hello", *FIXED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert b"waiting up to 30 s for the text on standard input" in late.stderr.readline()
    out, err = late.communicate(b"the one\n", 400)
    assert late.returncode == 0 and out == want, err
    assert b"UTF-8" in run("run", MODEL, "-p", "hello", *FIXED, stdin=b"\xff\xfe", check=1).stderr
    assert b"empty" in run("run", MODEL, "-f", path("empty.txt", ""), check=1).stderr
    assert b"no-such" in run("run", MODEL, "-f", "no-such.txt", check=1).stderr


@case
def a_conversation_reuses_its_prefix():
    out = chat("hello\nthe other hand\n")
    reused = [int(n) for n in re.findall(rb"\((\d+) reused\)", out.stderr)]
    assert len(reused) == 2 and reused[0] == 0 and reused[1] > 5, out.stderr


def with_template(template):
    """The tiny model with a chat template of ours."""
    folder = path("template")
    kept, tiny_chat_model.TEMPLATE = tiny_chat_model.TEMPLATE, template
    tiny_chat_model.write(folder)
    tiny_chat_model.TEMPLATE = kept
    return folder


@case
def what_a_template_cannot_show_is_rewritten_and_told_once():
    refuses = with_template("{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
                            "<{{ m.role }}>{{ m.content }}{% endfor %}")
    told = b"the chat template shows no system messages: they begin the user's message that follows"
    asked = run("run", refuses, *FIXED, "--system", "be kind", stdin=b"hello\nhello\n", check=0)
    plain = run("run", refuses, *FIXED, "-p", "be kind\n\nhello", check=0)
    assert asked.stdout.startswith(plain.stdout) and asked.stderr.count(told) == 1, asked
    assert told not in plain.stderr, plain
    parts = with_template("{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}")
    whole = run("run", parts, *FIXED, "-p", "hello", check=0)
    assert whole.stdout == run("generate", "-m", parts, "-n", 12, "--temp", "0", *BAN, "-p", "hello", "--chat", check=0).stdout + b"\n"
    same = with_template("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    assert run("run", same, *FIXED, "-p", "hello", check=0).stdout == whole.stdout


@case
def reset_repeats_the_first_answer():
    first = chat("hello\n").stdout
    again = chat("hello\n/reset\nhello\n").stdout
    assert again == first + first
    assert chat("/system be kind\nhello\n").stdout != first
    assert chat("hello\n", "--system", "be kind").stdout == chat("/system be kind\nhello\n").stdout


@case
def saving_and_loading():
    saved = path("saved.json")
    whole = chat("hello\nthe other\n").stdout
    first = chat(f"hello\n/save {saved}\n").stdout
    assert [m["role"] for m in json.load(open(saved))] == ["user", "assistant"]
    assert first + chat(f"/load {saved}\nthe other\n").stdout == whole
    for bad in ("no-such.json", path("bad.json", '{"a":1}'), path("half.json", "[{")):
        out = chat(f"/load {bad}\nhello\n")
        assert bad.encode() in out.stderr and out.stdout == chat("hello\n").stdout
    assert b"/no/such" in chat("hello\n/save /no/such/x\n").stderr


@case
def settings():
    assert chat("/set count 3\nhello\n").stdout != chat("hello\n").stdout
    warm = chat("/set temp 1\n/set seed 4\nhello\n").stdout
    assert warm == run("run", MODEL, "-n", 12, "--temp", 1, "--seed", 4, *BAN, stdin=b"hello\n", check=0).stdout
    for line, expect in (("/set tmp 1", b"temp"), ("/set temp x", b"number"), ("/set top-p 0", b"--top-p is 0"), ("/nonsense", b"/help"),
                         ("/set", b"known")):
        assert expect in chat(line + "\n").stderr
    assert b"/reset" in chat("/help\n").stderr
    assert chat("/quit\nhello\n").stdout == b""


@case
def a_text_too_long_is_told_and_the_talk_goes_on():
    out = chat("a" * 4000 + "\nhello\n")
    assert b"do not fit" in out.stderr and out.stdout == chat("hello\n").stdout
    assert b"UTF-8" in run("run", MODEL, *FIXED, stdin=b"\xff\xfe\nhello\n", check=0).stderr


class Terminal:
    """plumb run on a pseudo terminal."""

    def __init__(self, *args, model=MODEL):
        self.master, slave = pty.openpty()
        env = {**os.environ, "PLUMB_HOME": path("home"), "TERM": "dumb"}
        self.p = subprocess.Popen([PLUMB, "run", model, *args], stdin=slave, stdout=slave, stderr=slave, env=env,
                                  start_new_session=True, preexec_fn=lambda: __import__("fcntl").ioctl(0, 0x540E, 0))
        os.close(slave)
        self.seen = b""

    def until(self, pattern, seconds=60):
        end = time.time() + seconds
        while not re.search(pattern, self.seen):
            assert time.time() < end, (pattern, self.seen)
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.master, 4096)
                except OSError:
                    assert re.search(pattern, self.seen), (pattern, self.seen)

    def type(self, text):
        os.write(self.master, text)

    def leave_saved(self, name):
        """Saves the conversation and ends it; its messages."""
        self.type(b"/save " + path(name).encode() + b"\n")
        self.until(rb"saved as")
        assert self.close() == 0
        said = json.load(open(path(name)))
        return said["messages"] if isinstance(said, dict) else said

    def close(self):
        self.type(b"\x04")
        end = time.time() + 120
        while self.p.poll() is None and time.time() < end:
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.master, 4096)
                except OSError:
                    break
        code = self.p.wait(10)
        os.close(self.master)
        return code


@case
def control_c_stops_the_answer_and_not_the_program():
    slow = tiny("slow", context=32768)
    t = Terminal("--temp", "1", "--seed", "3", "-n", "30000", "--context", "32768", *BAN, model=slow)
    t.until(rb"> ")
    t.type(b"hello\n")
    t.until(rb"hello\r?\n(.|\n){40}")
    t.type(b"\x03")
    t.until(rb"answer \d+ tokens")
    tokens = int(re.search(rb"answer (\d+) tokens", t.seen).group(1))
    assert 0 < tokens < 30000, tokens
    t.seen = b""
    t.type(b"/set count 4\n")
    t.type(b"hello again\n")
    t.until(rb"answer 4 tokens")
    assert t.close() == 0
    assert t.p.returncode == 0


@case
def characters_beyond_ascii_are_kept():
    t = Terminal(*FIXED)
    t.until(rb"> ")
    t.type("Grüße 日é🙂".encode())
    t.until("日é🙂".encode())  # the editor has it
    t.type(b"\x7f!\n")
    t.until(rb"answer \d+ tokens")
    said = t.leave_saved("typed.json")
    assert said[0]["content"] == "Grüße 日é!", said


@case
def control_c_at_the_prompt_drops_the_line():
    t = Terminal(*FIXED)
    t.until(rb"> ")
    t.type(b"\x03")
    t.until(rb"> (.|\n)*\n> ")
    t.type(b"half typed")
    t.until(rb"half typed")
    t.seen = b""
    t.type(b"\x03")
    t.until(rb"\n> ")
    t.type(b"hello\n")
    t.until(rb"answer 12 tokens")
    said = t.leave_saved("kept.json")
    assert said[0]["content"] == "hello", said


@case
def control_d_typed_ahead_ends_the_talk_after_the_answer():
    slow = tiny("slow", context=32768)
    t = Terminal("--temp", "1", "--seed", "3", "-n", "3000", "--context", "32768", *BAN, model=slow)
    t.until(rb"> ")
    t.type(b"hello\n")
    t.until(rb"hello\r?\n(.|\n){40}")  # the answer is being written
    assert b"answer" not in t.seen
    assert t.close() == 0
    assert re.search(rb"answer \d+ tokens", t.seen)


@case
def history_is_kept_between_talks():
    t = Terminal(*FIXED)
    t.until(rb"> ")
    t.type(b"first line\n")
    t.until(rb"answer")
    assert t.close() == 0
    if not os.path.exists(path("home/history")):
        return  # built without line editing
    assert "first" in open(path("home/history")).read()


main()
