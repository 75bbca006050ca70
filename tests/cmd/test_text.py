"""plumb tokenize, detokenize and render."""
import json

from tests.cmd.support import GOLDEN, path, run, tiny
from tests.tap import case, main

MODEL = tiny()
CHAT = [{"role": "user", "content": "hello <|im_end|>"}]


def tok(*args, **more):
    return json.loads(run("tokenize", "-m", MODEL, *args, check=0, **more).stdout)


@case
def round_trips():
    for text in ("hello the world", " two  spaces\n\ttab", "h\u00e9llo \u2603 \U0001f600", "", "<|im_start|>x<|im_end|>"):
        ids = tok("-p", text)
        assert run("detokenize", "-m", MODEL, "-p", json.dumps(ids), check=0).stdout == text.encode()
        assert tok(stdin=text.encode()) == ids == tok("-f", path("text.txt", text))
        spaced = " ".join(map(str, ids)).encode()
        assert run("detokenize", "-m", MODEL, stdin=spaced, check=0).stdout == text.encode()


@case
def special_names_are_parsed_unless_told():
    assert len(tok("-p", "<|im_end|>")) == 1
    assert len(tok("-p", "<|im_end|>", "--no-parse-special")) > 1
    assert run("detokenize", "-m", MODEL, "--no-special", "-p", str(tok("-p", "a<|im_end|>b")), check=0).stdout == b"ab"


@case
def bytes_that_are_no_text():
    for data in (b"\xff", b"a\0b", b"\xe2\x82", bytes(range(256))):
        ids = tok(stdin=data)
        assert ids and all(isinstance(i, int) for i in ids)
    assert tok(stdin=b"") == []


@case
def wrong_ids():
    for text, expect in (("[1,99999]", b"99999"), ("[1;2]", b"byte 2"), ("-4", b"byte 0"), ("[123456789012]", b"larger"),
                         ("[1,2", b"without its ]"), ("[1][2]", b"byte 3"), ("[1 2]", b"byte 3"), ("[1,,2]", b"byte 3"),
                         ("[1,]", b"byte 3"), ("1,,2", b"byte 2"), ("[", b"without"), ("1]", b"byte 1"), ("[1,", b"without"), ("1,", b"byte 2")):
        out = run("detokenize", "-m", MODEL, "-p", text, check=1)
        assert expect in out.stderr and out.stdout == b""
    for text in ("[]", "", " [ ] "):
        assert run("detokenize", "-m", MODEL, "-p", text, check=0).stdout == b""
    assert run("detokenize", "-m", MODEL, stdin=b"[1,\0 2]", check=1).stdout == b""
    one = [run("detokenize", "-m", MODEL, "-p", text, check=0).stdout for text in ("[40,41]", "40 41", "40, 41", " [40 ,\t41]\n")]
    assert one[0] != b"" and one == one[:1] * 4
    assert b"no tokenizer" in run("tokenize", "-m", GOLDEN, "-p", "x", check=1).stderr


def render(messages, *args, check=0):
    return run("render", "--messages", path("chat.json", json.dumps(messages)), *args, check=check)


@case
def render_adds_nothing():
    want = b"<|im_start|>user\nhello <|im_end|><|im_end|>\n"
    assert render(CHAT, "-m", MODEL).stdout == want + b"<|im_start|>assistant\n"
    assert render(CHAT, "-m", MODEL, "--no-generation-prompt").stdout == want
    assert render({"messages": CHAT}, "-m", MODEL, "--no-generation-prompt").stdout == want


@case
def render_variables():
    t = path("t.jinja", "{{ bos_token }}|{{ eos_token }}|{{ x }}|{{ tools | tojson }}|{{ messages[0].content }}")
    out = render(CHAT, "--template", t, "--bos", "<s>", "--eos", "</s>", "--set", 'x={"a":[1,null]}', "--tools",
                 path("tools.json", '[{"n":1}]'))
    assert out.stdout == b"<s>|</s>|{'a': [1, None]}|[{\"n\": 1}]|hello <|im_end|>", out.stdout
    out = render({"messages": CHAT, "tools": [2], "x": 5}, "--template", t)
    assert out.stdout == b"||5|[2]|hello <|im_end|>", out.stdout
    assert render({"messages": CHAT, "x": 5}, "--template", t, "--set", "x=6").stdout == b"||6|null|hello <|im_end|>"


@case
def render_errors():
    raising = path("raise.jinja", "{{ raise_exception('roles must alternate') }}")
    out = render(CHAT, "--template", raising, check=1)
    assert b"roles must alternate" in out.stderr and out.stdout == b""
    for args, code in ((["--template", path("bad.jinja", "{% if %}")], 1), (["--template", "no-such"], 1), ([], 64),
                       (["-m", MODEL, "--set", "x"], 64), (["-m", MODEL, "--set", "x={"], 64), (["-m", GOLDEN], 1)):
        assert render(CHAT, *args, check=code).stdout == b""
    run("render", "-m", MODEL, check=64)
    for bad in ("{", "3", '{"messages":3}', ""):
        run("render", "-m", MODEL, "--messages", path("bad.json", bad), check=1)


main()
