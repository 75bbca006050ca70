"""Commands used wrongly: each ends with its code and a sentence that names what was typed, before the work that would be lost."""
import os
import signal
import subprocess

from tests.cmd.support import GOLDEN, PLUMB, path, run, tiny
from tests.tap import case, main

MODEL = tiny()
NOWHERE = path("no-folder") + "/x"


def said(*args, code=64, **more):
    """The one message; a wrong use prints nothing on standard output."""
    out = run(*args, check=code, **more)
    assert out.stdout == b"", (args, out.stdout)
    lines = [line for line in out.stderr.splitlines() if not line.startswith((b"plumb: kernel backend", b"plumb: KV cache"))]
    assert len(lines) == 1, (args, out.stderr)
    return lines[0].decode()


@case
def an_option_is_named_as_it_was_typed():
    for option in ("-n", "--count"):
        assert f": {option} is 'x' but must be a whole number" in said("generate", "-m", MODEL, "-p", "a", option, "x"), option
    assert ": -n is '=2' but" in said("generate", "-m", MODEL, "-p", "a", "-n=2")
    assert ": -s: 'x' must" in said("generate", "-m", MODEL, "-p", "a", "-s", "x")
    assert "from 0 to 0.999999 (" in said("generate", "-m", MODEL, "-p", "a", "--sparse-v", "2")
    assert "--stride is 3 but" in said("eval", "-m", MODEL, "-f", path("t", "abc"), "--window", 2, "--stride", 3)
    assert "ab: --tolerance: 'x=1' is not" in said("ab", "-m", MODEL, "-p", "a", "--tolerance", "x=1")


@case
def options_before_the_command_are_no_commands():
    for args in (["-m", MODEL], ["--json", "list"], ["--"]):
        assert said(*args).startswith("plumb: a command comes first"), args
    assert "did you mean 'list'" in said("lits")


@case
def what_was_typed_cannot_command_a_terminal():
    for args in ([b"\x1b[2Jrun"], ["generate", b"--\x1b[2J"], ["cache", b"a\xff\x1b[2J"], ["rm", b"\x1b[2J", "--", b"\x1b"]):
        out = run(*args)
        assert b"\x1b" not in out.stderr and b"\xff" not in out.stderr and b"?" in out.stderr, (args, out)


@case
def options_that_would_do_nothing_are_refused():
    for extra in (["--svg", path("x.svg")], ["--sweep"], ["--batch", 3], ["--portable"]):
        assert f"{extra[0]} measures one operation and needs --op" in said("bench", "-m", MODEL, *extra)
    assert "needs --save-reference" in said("eval", "-m", MODEL, "-f", path("t", "abc"), "--reference-dtype", "f32")
    for command in ("run", "inspect"):
        assert "both given" in said(command, MODEL, "-m", MODEL)


@case
def inspect_heeds_the_options_of_kernels():
    assert "no port to Metal; there are auto, cpu," in said("generate", "-m", MODEL, "-p", "a", "--backend", "metal")
    for option, value in (("--kv-dtype", "f9"), ("--backend", "abacus"), ("--page-tokens", 3), ("--isa", "mmx"), ("--kv", "x")):
        assert f": {option} is '{value}' but" in said("inspect", MODEL, option, value).replace("is 3", "is '3'")
    assert "no operation 'x'" in said("inspect", MODEL, "--force-kernel", "x=y")
    assert "scalar/bf16xf32" in run("inspect", MODEL, "--force-kernel", "linear=scalar", check=0).stdout.decode()
    assert "no operation 'x'" in said("inspect", MODEL, env={**os.environ, "PLUMB_KERNEL": "x=y"})


@case
def places_that_cannot_be_written_are_told_before_the_work():
    for option, what in (("--witness", "witness"), ("--counters", "counters")):
        for place, why in ((NOWHERE, "No such file"), (os.path.dirname(PLUMB), "Is a directory"), (PLUMB + "/x", "Not a directory")):
            for args in (["generate", "-p", "a"], ["run", "-p", "a"], ["eval", "-f", path("t", "abc")], ["bench", "-p", 1, "-n", 1]):
                message = said(args[0], "-m", path("no-such-model"), *args[1:], option, place, code=1)
                assert f"{place}: cannot write the {what}: {why}" in message, message
    for option, what in (("--save-reference", "reference"), ("--scores", "scores")):
        message = said("eval", "-m", path("no-such-model"), "-f", path("t", "abc"), option, NOWHERE, code=1)
        assert f"{NOWHERE}: cannot write the {what}: No such file" in message, message
    assert "cannot write the dump" in said("eval", "-m", GOLDEN, "--tokens", path("t.json", "[1,2]"), "--dump", NOWHERE, code=1)
    assert "cannot write the access log" in said("serve", "-m", MODEL, "--access-log", NOWHERE, code=1)
    assert "cannot write the picture" in said("bench", "--op", "paged-decode", "--sweep", "--svg", NOWHERE, code=1)
    assert "cannot write the kernels" in said("cache", "--ship", NOWHERE, code=1)
    assert "cannot write the table" in said("tune", "--file", NOWHERE, code=1)
    witness = path("made-here.json")
    run("generate", "-m", MODEL, "-p", "a", "-n", 1, "--witness", os.path.basename(witness), cwd=os.path.dirname(witness), check=0)
    assert os.path.getsize(witness) > 0
    full = run("generate", "-m", MODEL, "-p", "a", "-n", 1, "--witness", "/dev/full", check=1)
    assert b"/dev/full: cannot write the witness: No space left" in full.stderr


@case
def names_that_no_pull_would_take_are_not_offered_to_it():
    for name in ("hf:a", "hf:", "hf:a/b@", "hf:../b"):
        message = said("inspect", name, code=1)
        assert "expected hf:owner/repo" in message and "fetches" not in message, message
    assert "'plumb pull hf:a/b:c' fetches it" in said("inspect", "hf:a/b:c", code=1)


@case
def a_name_that_is_nearly_one_is_told_the_one():
    home = path("near-home")
    stored = os.path.join(home, "models", "mine-7b-chat")
    os.makedirs(stored, exist_ok=True)
    with open(os.path.join(stored, "plumb.json"), "w") as f:
        f.write('{"name": "mine-7b-chat", "source": "x", "main": "m.gguf"}')
    env = {**os.environ, "PLUMB_HOME": home}
    for typed, meant in (("mine-7b-chta", "mine-7b-chat"), ("mine", "mine-7b-chat"), ("smollm2-135m", "smollm2-135m-instruct")):
        assert f"{typed}: no such file, directory or stored model: did you mean {meant}?" in said("inspect", typed, code=1, env=env)
    for typed in ("another", path("mine-7b.gguf")):
        assert "'plumb list' shows what is stored" in said("inspect", typed, code=1, env=env)


@case
def a_limit_is_told_in_figures_that_differ():
    message = said("generate", "-m", MODEL, "-p", "a", "--memory-limit", 1000000, code=1)
    assert "but 1.00 MB may be used (--memory-limit)" in message and "up to 1.4" in message, message


@case
def closed_and_endless_standard_input():
    shut = subprocess.run(["sh", "-c", 'exec "$0" run "$1" <&-', PLUMB, MODEL], capture_output=True)
    assert shut.returncode == 1 and b"standard input is closed" in shut.stderr and b"loading" not in shut.stderr, shut
    assert run("run", MODEL, stdin=b"", check=0).stdout == b""
    with open("/dev/zero", "rb") as zeros:
        out = subprocess.run([PLUMB, "tokenize", "-m", MODEL], stdin=zeros, capture_output=True)
    assert out.returncode == 1 and b"standard input is larger than the 256 MB" in out.stderr, out


@case
def steps_and_sequences_that_do_not_fit_are_told():
    serve = ("serve", "-m", MODEL, "--port", "0")
    assert "leaves no room for prompts beside --parallel 4: use at least 5" in said(*serve, "--max-tokens-per-step", 4)
    assert "--batch-rows is 64" in said(*serve, "--batch-rows", 64, "--max-tokens-per-step", 65)


@case
def a_file_of_keys_holds_keys():
    for text in ("", "  \n\t\n", "# none\n", "\r\n \r\n"):
        line = said("serve", "-m", MODEL, "--port", "0", "--api-key-file", path("keys", text), code=1)
        assert "holds no API key" in line, (text, line)


@case
def a_full_disk_is_told_by_every_command():
    text = path("t", "abc")
    for args in (["--help"], ["generate", "--help"], ["version"], ["list"], ["cache"], ["inspect", GOLDEN], ["inspect", GOLDEN, "--json"],
                 ["tokenize", "-m", MODEL, "-p", "a"], ["generate", "-m", MODEL, "-p", "a", "-n", "1", "--json"],
                 ["eval", "-m", MODEL, "-f", text], ["bench", "-m", GOLDEN, "-p", "2", "-n", "0", "-r", "1"]):
        with open("/dev/full", "wb") as full:
            out = subprocess.run([PLUMB, *args], stdout=full, stderr=subprocess.PIPE)
        assert out.returncode == 1 and b"cannot write to standard output: No space left" in out.stderr, (args, out)


@case
def a_server_that_loads_can_be_interrupted():
    for number in (signal.SIGINT, signal.SIGTERM):
        def pending():
            signal.pthread_sigmask(signal.SIG_BLOCK, [number])
            os.kill(os.getpid(), number)

        out = subprocess.run([PLUMB, "serve", "-m", MODEL, "--port", "0"], capture_output=True, timeout=60, preexec_fn=pending)
        assert out.returncode == 130 and b"listening" not in out.stderr, out


main()
