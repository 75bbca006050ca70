"""A model file that is cut short, or written to, while it is used: a sentence and exit code 1, not a crash; the terminal as it was."""
import os
import pty
import re
import resource
import select
import shutil
import signal
import subprocess
import termios
import urllib.request

from tests.cmd.support import PLUMB, WORK, path, run, tiny
from tests.tap import case, main

MODEL = tiny()
ASK = ["--temp", "0", "-n", "4"]
TOLD = re.compile(rb"plumb: \S*model.safetensors was cut short while it was in use: 4,096 bytes now, ([\d,]+) when it was opened: fetch or "
                  rb"copy it again, under another name until it is complete\n")


def copy(name):
    """A model of its own, to be destroyed; (folder, the file of its weights)."""
    folder = os.path.join(WORK, name)
    shutil.copytree(MODEL, folder)
    return folder, os.path.join(folder, "model.safetensors")


def read_until(fd, pattern, seen=b""):
    while not re.search(pattern, seen):
        assert select.select([fd], [], [], 60)[0], seen
        chunk = os.read(fd, 4096)
        assert chunk, seen
        seen += chunk
    return seen


@case
def a_file_cut_short_between_two_answers():
    folder, weights = copy("cut")
    size = os.path.getsize(weights)
    p = subprocess.Popen([PLUMB, "run", folder, *ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdin.write(b"hello\n")
    p.stdin.flush()
    first = read_until(p.stderr.fileno(), rb"answer \d+ token")
    os.truncate(weights, 4096)
    out, err = p.communicate(b"hello again\n", timeout=60)
    told = TOLD.search(first + err)
    assert p.returncode == 1 and told, (p.returncode, err)
    assert int(told.group(1).replace(b",", b"")) == size and out.count(b"\n") >= 1
    assert (first + err).count(b"was cut short") == 1, err


@case
def the_terminal_is_given_back():
    folder, weights = copy("cut-terminal")
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    p = subprocess.Popen([PLUMB, "run", folder, *ASK], stdin=theirs, stdout=theirs, stderr=theirs,
                         env={**os.environ, "PLUMB_HOME": path("home"), "TERM": "dumb"}, start_new_session=True)
    read_until(ours, rb"> ")
    os.write(ours, b"hello\n")
    read_until(ours, rb"answer \d+ token(.|\n)*> ")
    os.truncate(weights, 4096)
    os.write(ours, b"hello again\n")
    read_until(ours, rb"\nplumb: \S*model.safetensors was cut short")
    assert p.wait(60) == 1
    assert termios.tcgetattr(theirs)[:4] == before[:4]
    os.close(ours)
    os.close(theirs)


@case
def a_server_says_it_too():
    folder, weights = copy("cut-served")
    p = subprocess.Popen([PLUMB, "serve", "-m", folder, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    at = re.search(rb"listening on (http://\S+)", read_until(p.stderr.fileno(), rb"listening on http://\S+ ")).group(1).decode()
    os.truncate(weights, 4096)
    asked = urllib.request.Request(at + "/v1/completions", b'{"prompt": "hello", "max_tokens": 2}', {"Content-Type": "application/json"})
    try:
        assert False, urllib.request.urlopen(asked, timeout=60).read()
    except OSError:
        pass
    assert p.wait(60) == 1 and TOLD.search(p.stderr.read())


@case
def a_file_that_took_its_name_is_no_trouble():
    folder, weights = copy("renamed")
    p = subprocess.Popen([PLUMB, "run", folder, *ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    read_until(p.stderr.fileno(), rb"KV cache")
    with open(weights + ".new", "wb") as new:
        new.write(b"another")
    os.rename(weights + ".new", weights)
    out, err = p.communicate(b"hello\n", timeout=60)
    assert p.returncode == 0 and out == run("run", MODEL, *ASK, stdin=b"hello\n", check=0).stdout, err


@case
def a_file_written_to_in_use_is_told_once():
    folder, weights = copy("written")
    p = subprocess.Popen([PLUMB, "run", folder, *ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdin.write(b"hello\n")
    p.stdin.flush()
    before = read_until(p.stderr.fileno(), rb"answer \d+ token")
    os.utime(weights, (1, 1))
    out, err = p.communicate(b"/reset\nhello\n/reset\nhello\n", timeout=60)
    assert p.returncode == 0 and b"written to" not in before and err.count(b"was written to while it was in use") == 1, err
    answers = out.split(b"\n")
    assert len(answers) == 4 and answers[0] == answers[1] == answers[2], out


@case
def a_sigbus_that_no_file_raised_does_what_it_did():
    p = subprocess.Popen([PLUMB, "run", MODEL, *ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
    read_until(p.stderr.fileno(), rb"KV cache")
    p.send_signal(signal.SIGBUS)
    out, err = p.communicate(timeout=60)
    assert p.returncode == -signal.SIGBUS and b"cut short" not in err, (p.returncode, err)


main()
