"""What people try who come from other programs, or make the commonest mistakes: each works, or is told before the work."""
import os
import pty
import re
import select
import signal
import socket
import subprocess
import termios

from tests.cmd.support import PLUMB, path, run, tiny
from tests.tap import case, main

MODEL = tiny()


def told(*args, code=64, **more):
    out = run(*args, check=code, **more)
    assert out.stdout == b"", out
    return out.stderr.decode()


@case
def a_model_needs_no_dash_m():
    text = path("t", "hello the world")
    for args in (["generate", "-p", "hello", "-n", 2], ["tokenize", "-p", "hello"], ["detokenize", "-p", "[5,6]"], ["eval", "-f", text],
                 ["render", "--messages", path("c.json", '[{"role":"user","content":"a"}]')]):
        named = run(args[0], "-m", MODEL, *args[1:], check=0).stdout
        assert named != b"" and run(args[0], MODEL, *args[1:], check=0).stdout == named, args
        assert run(*args, MODEL, check=0).stdout == named, args
    for args in (["generate", "-m", MODEL, "another", "-p", "a"], ["tokenize", MODEL, "another"], ["cache", "another"]):
        assert "unexpected argument 'another'" in told(*args), args
    assert b"no such file" in run("serve", path("no-such-model"), check=1).stderr


@case
def a_question_may_follow_the_model():
    fixed = ["--temp", "0", "-n", "4"]
    asked = run("run", MODEL, "-p", "hello", *fixed, check=0).stdout
    assert asked != b"\n" and run("run", MODEL, "hello", *fixed, check=0).stdout == asked
    assert "TEXT and -p TEXT are both given" in told("run", MODEL, "hello", "-p", "hello")
    assert "unexpected argument 'c'" in told("run", MODEL, "a b", "c")


@case
def names_of_other_programs_lead_to_ours():
    for command, ours in (("show", "inspect"), ("chat", "run"), ("ls", "list"), ("download", "pull"), ("perplexity", "eval")):
        assert f"unknown command '{command}': did you mean '{ours}'?" in told(command, MODEL)
    for option, ours in (("--ctx-size", "--context"), ("--temperature", "--temp"), ("--n-predict", "--count"),
                         ("--max-tokens", "--count"), ("--n-gpu-layers", "--backend"), ("--kv-cache-dtype", "--kv-dtype")):
        assert f"unknown option {option}: did you mean {ours}?" in told("run", MODEL, option, "1")
    assert "did you mean" not in told("list", "--temperature", "1")  # which has nothing of the kind


@case
def a_port_that_is_taken_is_told_before_the_model_is_read():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        said = told("serve", "-m", path("no-such-model"), "--port", port, code=1)
        assert f"cannot listen on 127.0.0.1 port {port}: Address already in use (is another server running there? try --port)" in said, said
        assert "no-such-model" not in said
    said = told("serve", "-m", path("no-such-model"), "--host", "192.0.2.1", "--port", 8080, code=1)
    assert "cannot listen on 192.0.2.1 port 8080: Cannot assign requested address" in said and "another server" not in said, said


@case
def a_text_too_long_is_told_what_would_help():
    text = path("long", "a" * 600)
    small, whole = (told("generate", MODEL, "-f", text, *more, code=1).splitlines()[-1] for more in (["-c", 128], []))
    assert "the context holds 128 and 0 are used; raise --context (this model goes to 512) or shorten the text" in small, small
    assert "the context holds 512, all that the model was made for, and 0 are used; shorten the text" in whole, whole


@case
def localhost_is_an_address():
    p = subprocess.Popen([PLUMB, "serve", MODEL, "--host", "localhost", "--port", "0"], stderr=subprocess.PIPE)
    seen = b""
    while not (found := re.search(rb"listening on http://localhost:(\d+)", seen)):
        chunk = os.read(p.stderr.fileno(), 4096)
        assert chunk, seen
        seen += chunk
    socket.create_connection(("127.0.0.1", int(found[1])), 30).close()
    p.send_signal(signal.SIGTERM)
    assert p.wait(60) == 0
    p.stderr.close()


def talk(*args, **more):
    """A chat on a terminal, once it asks; (process, our end, their end, the terminal's settings before)."""
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    p = subprocess.Popen([PLUMB, "run", MODEL, *args], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
                         env={**os.environ, "PLUMB_HOME": path("home"), "TERM": "dumb"}, **more)
    seen = b""
    while not re.search(rb"> ", seen):
        assert select.select([ours], [], [], 60)[0], seen
        seen += os.read(ours, 4096)
    return p, ours, theirs, before


@case
def a_signal_that_ends_the_chat_gives_the_terminal_back():
    for number in (signal.SIGTERM, signal.SIGHUP):
        p, ours, theirs, before = talk()
        p.send_signal(number)
        assert p.wait(60) == -number
        assert termios.tcgetattr(theirs)[:4] == before[:4], number
        os.close(ours)
        os.close(theirs)


@case
def nohup_is_heeded():
    p = subprocess.Popen([PLUMB, "run", MODEL, "--temp", "0", "-n", "4"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, preexec_fn=lambda: [signal.signal(s, signal.SIG_IGN) for s in (signal.SIGHUP, signal.SIGINT)])
    p.stdin.write(b"hello\n")
    p.stdin.flush()
    seen = b""
    while b"answer" not in seen:
        chunk = os.read(p.stderr.fileno(), 4096)
        assert chunk, seen
        seen += chunk
    p.send_signal(signal.SIGHUP)
    p.send_signal(signal.SIGINT)
    out, _ = p.communicate(b"hello\n", timeout=60)
    assert p.returncode == 0 and out.count(b"\n") >= 2, (p.returncode, out)


main()
