"""plumb generate: output formats, reproducibility, and every way to ask for something impossible."""
import json
import os
import signal
import struct
import subprocess
import time

from tests.cmd.support import GOLDEN, PLUMB, path, run, tiny
from tests.tap import case, main
from tests.terminal import on_terminal

MODEL = tiny()


def gen(*args, **more):
    return run("generate", "-m", MODEL, *args, **more)


def ids(*args):
    return json.loads(gen("--ids", *args, check=0).stdout)


@case
def text_ids_and_json_agree():
    text = gen("-p", "hello", "-n", 20, check=0)
    listed = ids("-p", "hello", "-n", 20)
    whole = json.loads(gen("-p", "hello", "-n", 20, "--json", check=0).stdout)
    assert whole["ids"] == listed and whole["text"] == text.stdout.decode()
    assert whole["finish_reason"] in ("length", "stop") and whole["generated_tokens"] == len(listed)
    assert whole["prompt_tokens"] == 1 and whole["kernels"] and whole["backend"].startswith("cpu (")
    assert text.stderr.startswith(b"plumb: kernel backend: cpu (")
    back = run("detokenize", "-m", MODEL, "--no-special", stdin=json.dumps(listed).encode(), check=0)
    assert back.stdout == text.stdout


@case
def logprobs_are_those_of_the_model():
    out = json.loads(gen("-p", "hello", "-n", 6, "--json", "--logprobs", 3, "--ignore-eos", check=0).stdout)
    assert [t["id"] for t in out["logprobs"]] == out["ids"] and len(out["ids"]) == 6
    for t in out["logprobs"]:
        assert len(t["top"]) == 3 and t["top"][0] == [t["id"], t["logprob"]]  # greedy takes the most likely
        assert t["top"][0][1] >= t["top"][1][1] >= t["top"][2][1]
    tokens = json.loads(run("tokenize", "-m", MODEL, "-p", "hello", check=0).stdout) + out["ids"]
    run("eval", "-m", MODEL, "--tokens", path("ids.json", json.dumps(tokens)), "--dump", path("dump.jsonl"), check=0)
    rows = [json.loads(line) for line in open(path("dump.jsonl"))]
    for row, t in zip(rows[1:], out["logprobs"]):
        assert row["id"] == t["id"] and abs(row["logprob"] - t["logprob"]) < 1e-3


@case
def greedy_does_not_depend_on_threads_or_chunks():
    prompt = ["-p", "the hand of the other hand " * 12, "-n", 24, "--ignore-eos"]
    want = ids(*prompt)
    assert len(want) == 24
    for more in (["-t", 1], ["-t", 3], ["--batch-rows", 1], ["--batch-rows", 7], ["--batch-rows", 64], ["--page-tokens", 16]):
        assert ids(*prompt, *more) == want, more


@case
def caches_in_few_bits_and_sparse_values_are_told_and_counted():
    prompt = ["-p", "the hand of the other hand " * 12, "-n", 8, "--ignore-eos"]
    for kind in ("int8", "fp8", "k8v4"):
        out = gen(*prompt, "--kv-dtype", kind, check=0)
        assert b"KV cache: paged (auto), " + kind.encode() + b"," in out.stderr and b"not read" not in out.stderr, out.stderr
    file = path("counters.json")
    seen = []
    for bound in (0.5, 0.001):
        out = gen(*prompt, "--sparse-v", bound, "--counters", file, check=0)
        assert b"attention: values whose weight is below %g are not read" % bound in out.stderr, out.stderr
        seen.append(json.load(open(file))["attention"])
    assert 0 < seen[0]["value_rows"] == seen[1]["value_rows"] > seen[0]["value_rows_skipped"] > seen[1]["value_rows_skipped"]
    gen(*prompt, "--counters", file, check=0)
    assert json.load(open(file))["attention"]["value_rows"] == 0


@case
def seeds_repeat_and_differ():
    base = ["-p", "hello", "-n", 24, "--temp", 1, "--ignore-eos"]
    a, b, other = ids(*base, "--seed", 5), ids(*base, "--seed", 5, "-t", 1), ids(*base, "--seed", 6)
    assert a == b != other
    assert ids(*base, "--seed", 5, "--batch-rows", 3) == a
    assert b"plumb: seed " in gen(*base).stderr  # a chosen seed is told
    greedy = ids("-p", "hello", "-n", 24, "--ignore-eos")
    assert ids("-p", "hello", "-n", 24, "--ignore-eos", "--temp", 0, "--seed", 9) == greedy
    assert ids(*base, "--seed", 5, "--top-k", 1) == greedy


@case
def biases_and_penalties_reach_the_sampler():
    first = ids("-p", "hello", "-n", 1, "--ignore-eos")[0]
    assert ids("-p", "hello", "-n", 1, "--ignore-eos", "--logit-bias", f"{first}=-inf")[0] != first
    assert ids("-p", "hello", "-n", 3, "--ignore-eos", "--logit-bias", "7=100") == [7, 7, 7]
    spread = ids("-p", "hello", "-n", 30, "--ignore-eos", "--logit-bias", "7=30", "--presence-penalty", 2,
                 "--frequency-penalty", 2, "--repeat-last-n", -1)
    assert 7 in spread and len(set(spread)) > 1


@case
def zero_tokens_print_nothing():
    assert gen("-p", "hello", "-n", 0, check=0).stdout == b""
    assert ids("-p", "hello", "-n", 0) == []
    assert json.loads(gen("-p", "hello", "-n", 0, "--json", check=0).stdout)["text"] == ""


@case
def an_end_token_ends_the_text():
    end = json.loads(run("tokenize", "-m", MODEL, "-p", "<|im_end|>", check=0).stdout)
    assert len(end) == 1
    out = json.loads(gen("-p", "hello", "-n", 9, "--json", "--logit-bias", f"{end[0]}=1000", check=0).stdout)
    assert out["finish_reason"] == "stop" and out["ids"] == [] and out["text"] == ""
    out = json.loads(gen("-p", "hello", "-n", 9, "--json", "--ignore-eos", "--special", "--logit-bias", f"{end[0]}=1000",
                         check=0).stdout)
    assert out["ids"] == end * 9 and out["text"] == "<|im_end|>" * 9


@case
def numbers_out_of_range_name_the_option():
    for option, value, code in (("-n", "-1", 64), ("-n", "99999999999999999999", 64), ("-n", "3x", 64), ("-n", "", 64),
                                ("--temp", "-0.1", 64), ("--temp", "nan", 64), ("--temp", "1e9", 64), ("--top-p", "0", 64),
                                ("--top-p", "1.5", 64), ("--min-p", "1", 64), ("--typical-p", "0", 64), ("--top-k", "-5", 64),
                                ("--repeat-penalty", "0", 64), ("--presence-penalty", "3", 64), ("--seed", "-1", 64),
                                ("--logprobs", "21", 64), ("--logit-bias", "x=1", 64), ("--logit-bias", "1=nan", 64),
                                ("--logit-bias", "5000=1", 1), ("--threads", "-2", 64), ("--context", "1000000", 1),
                                ("--kv-dtype", "q4", 64), ("--sparse-v", "1", 64), ("--sparse-v", "-0.1", 64), ("--isa", "mmx", 64), ("--backend", "abacus", 64),
                                ("--page-tokens", "17", 64), ("--threads", "513", 64), ("--memory-limit", "1", 1)):
        extra = ["--json"] if option == "--logprobs" else []
        out = gen("-p", "hello", option, value, *extra, check=code)
        assert out.stdout == b"", (option, value)
        name = {"--context": "context"}.get(option, option)
        assert name.encode() in out.stderr, (option, value, out.stderr)


@case
def a_missing_prompt_is_told_before_the_model_is_opened():
    for command in ("generate", "eval"):
        out = run(command, "-m", path("no-such-model.gguf"), "-f", path("no-such-prompt.txt"), check=1)
        assert b"no-such-prompt.txt" in out.stderr and b"no-such-model" not in out.stderr
        assert b"-m MODEL is missing" in run(command, "-f", path("no-such-prompt.txt"), check=64).stderr


@case
def advice_names_options_that_the_command_has():
    for argv in (["generate", "-p", "a"], ["eval", "-f", path("a.txt", "a b c")], ["run", "-p", "a"]):
        said = run(argv[0], "-m", MODEL, *argv[1:], "--memory-limit", 1000, check=1).stderr
        assert b"lower --context, or" in said, said
    assert b"--context or --parallel" in run("serve", "-m", MODEL, "--memory-limit", 1000, check=1).stderr


def interrupted(*args, begins=b"", more=True):
    """Sends SIGINT once something came out (or at once when nothing will) and returns everything with the exit code."""
    p = subprocess.Popen([PLUMB, *map(str, args)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                         preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    begun = p.stdout.read(1) if more else b""
    while not more and begins not in (seen := p.stderr.readline()):
        assert seen, "it ended by itself"
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60)
    return p.returncode, begun + out, err


@case
def an_interrupt_ends_with_130_and_keeps_what_was_printed():
    long = tiny("long", context=60000)
    base = ["-m", long, "-p", "hello", "--ignore-eos", "--context", 60000, "-n", 50000]
    code, out, err = interrupted("generate", *base)
    assert code == 130 and b"interrupted" in err, (code, err)
    whole = run("generate", *base[:-1], 400, check=0).stdout
    assert len(out) > 0 and (out.startswith(whole) or whole.startswith(out))
    code, out, err = interrupted("generate", *base, "--json", begins=b"kernel backend", more=False)
    assert code == 130  # while the prompt is read there is nothing to keep; later the object is whole
    assert out == b"" or json.loads(out)["finish_reason"] == "interrupted"
    ids_file = path("many.json", json.dumps([7] * 50000))
    code, out, err = interrupted("eval", "-m", long, "--tokens", ids_file, "--dump", "-", "--context", 60000)
    assert code == 130 and out.endswith(b"\n"), (code, out[-100:])
    assert [json.loads(line)["pos"] for line in out.splitlines()] == list(range(len(out.splitlines())))


@case
def an_interrupt_ends_the_wait_for_a_prompt():
    p = subprocess.Popen([PLUMB, "generate", "-m", MODEL, "-f", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    p.stdin.write(b"x")
    p.stdin.flush()
    while p.poll() is None:  # as often as it takes: the first may come before the program is up
        p.send_signal(signal.SIGINT)
        time.sleep(0.05)
    assert p.returncode in (130, -signal.SIGINT)  # the latter: before the handler stood


@case
def prompts_that_cannot_be_used():
    assert b"empty" in gen("-p", "", check=1).stderr
    assert b"empty" in gen("-f", path("nothing.txt", b""), check=1).stderr
    long = gen("-p", "a" * 3000, "-n", 1, check=1)
    assert b"3000" in long.stderr and b"512" in long.stderr  # what was asked for and what there is
    assert b"exclude" in gen("-p", "a", "-f", "b", check=64).stderr
    assert b"missing" in gen(check=64).stderr
    assert b"no-such-file" in gen("-f", "no-such-file", check=1).stderr
    assert b"-m MODEL" in run("generate", "-p", "hi", check=64).stderr


@case
def what_the_metadata_refuses_is_refused_before_a_backend_is_opened():
    """The backend line comes before weights are read and kernels are compiled: a command that cannot go on never says it."""
    opened = b"kernel backend"
    assert opened in gen("-p", "a", "-n", 1, check=0).stderr
    text = path("some.txt", "some text")
    for words in (["generate", "-p", "hi"], ["generate", "--chat", "-p", "hi"], ["run", "-p", "hi"], ["serve", "--port", 0],
                  ["eval", "-f", text], ["verify", "--quick", "--report", path("never")]):
        out = run(words[0], "-m", GOLDEN, *words[1:], check=2 if words[0] == "verify" else 1)
        assert b"no tokenizer" in out.stderr and opened not in out.stderr + out.stdout, (words, out.stderr)
    assert not os.path.exists(path("never"))
    mute = tiny("mute")
    config = json.load(open(mute + "/tokenizer_config.json"))
    del config["chat_template"]
    path("mute/tokenizer_config.json", json.dumps(config))
    for words in (["generate", "--chat", "-p", "hi"], ["run", "-p", "hi"]):
        out = run(words[0], "-m", mute, *words[1:], check=1)
        assert b"no chat template" in out.stderr and opened not in out.stderr, (words, out.stderr)
    for words, said in ((["generate", "-p", ""], b"empty"), (["generate", "-p", "a" * 3000], b"3000 tokens do not fit"),
                        (["generate", "--chat", "-p", b"\xff"], b"UTF-8"), (["eval", "-f", path("nothing.txt", b"")], b"fewer than two tokens"),
                        (["eval", "--tokens", path("far.json", "[1, 99999999]")], b"the vocabulary has")):
        out = run(words[0], "-m", MODEL, *words[1:], check=1)
        assert said in out.stderr and opened not in out.stderr, (words, out.stderr)


@case
def any_bytes_are_a_prompt():
    for data in (b"\xff\xfe\x80", b"a\0b\0", b"\xf0\x9f\x98", bytes(range(256))):
        json.loads(gen("-f", path("bytes.txt", data), "-n", 3, "--json", check=0).stdout)
        assert gen("-f", "-", "-n", 3, "--ids", stdin=data, check=0).stdout == gen("-f", path("bytes.txt"), "-n", 3,
                                                                                   "--ids", check=0).stdout
    json.loads(gen("-p", b"\xff\xfe", "-n", 3, "--json", check=0).stdout)
    assert b"UTF-8" in gen("--chat", "-p", b"\xff\xfe", "-n", 3, check=1).stderr


@case
def a_full_context_stops_the_text():
    out = json.loads(gen("-p", "hello " * 10, "-n", 1000, "--context", 64, "--json", "--ignore-eos", check=0).stdout)
    assert out["finish_reason"] == "context" and out["prompt_tokens"] + out["generated_tokens"] == 64


@case
def a_reader_that_leaves_is_no_error():
    p = subprocess.Popen([PLUMB, "generate", "-m", MODEL, "-p", "hello", "-n", "400", "--ignore-eos"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    p.stdout.read(1)
    p.stdout.close()
    assert p.wait(60) == 0
    assert b"cannot" not in p.stderr.read()
    with open("/dev/full", "wb") as full:
        out = subprocess.run([PLUMB, "generate", "-m", MODEL, "-p", "hello", "-n", "4"], stdout=full, stderr=subprocess.PIPE)
    assert out.returncode == 1 and b"No space left" in out.stderr


@case
def the_witness_counts_launches():
    where = path("witness.json")
    gen("-p", "hello", "-n", 5, "--ignore-eos", "--witness", where, check=0)
    seen = json.load(open(where))
    layers = sum(k["launches"] for k in seen["kernels"] if k["op"] == "attention")
    assert layers == 2 * 5, seen  # two layers, one prefill step and four of one token: the last one is not computed
    assert os.path.exists(where) and seen["build_id"]
    assert b"cannot write" in gen("-p", "a", "-n", 1, "--witness", "/no/such/dir/w.json", check=1).stderr


@case
def the_last_token_is_told_and_not_computed():
    """The same text for every length, whether a callback, the count or the context ends it."""
    whole = json.loads(gen("-p", "hello", "-n", 12, "--ignore-eos", "--ids", check=0).stdout)
    for n in (1, 2, 5):
        assert json.loads(gen("-p", "hello", "-n", n, "--ignore-eos", "--ids", check=0).stdout) == whole[:n]
    where = path("one.json")
    gen("-p", "hello", "-n", 1, "--ignore-eos", "--counters", where, check=0)
    assert json.load(open(where))["attention"]["steps"] == 1


@case
def a_closed_standard_input_is_no_empty_text():
    for args in (["generate", "-m", MODEL, "-f", "-"], ["tokenize", "-m", MODEL, "-f", "-"]):
        out = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", PLUMB, *args], capture_output=True)
        assert out.returncode == 1 and b"standard input: it is closed" in out.stderr, out
    out = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", PLUMB, "generate", "-m", MODEL, "-p", "hello", "-n", "2"], capture_output=True)
    assert out.returncode == 0 and out.stdout, out


@case
def a_device_number_needs_a_device():
    for flags in (["--backend", "cpu"], ["--isa", "scalar"]):
        out = gen("-p", "hello", "-n", 1, "--device", 1, *flags, check=1)
        assert b"device is 1" in out.stderr and b"CPU" in out.stderr, out.stderr


@case
def chat_wraps_the_prompt():
    raw = json.loads(gen("-p", "hello", "-n", 1, "--json", check=0).stdout)["prompt_tokens"]
    chat = json.loads(gen("-p", "hello", "-n", 1, "--json", "--chat", check=0).stdout)["prompt_tokens"]
    assert chat > raw + 3


@case
def messages_on_a_terminal_begin_a_line():
    """Progress is wiped before a message, and the summary does not continue the text; the output itself stays as it is."""
    code, seen = on_terminal([PLUMB, "generate", "-m", MODEL, "-p", "hello the world", "-n", "5", "--ignore-eos"])
    assert code == 0 and b"loading" in seen, seen
    parts = seen.split(b"plumb: ")
    assert len(parts) > 3 and all(part == b"" or part.endswith((b"\n", b"\r\x1b[K")) for part in parts[:-1]), seen


@case
def a_warning_comes_once():
    data = bytearray(open(GOLDEN, "rb").read())
    key = b"llama.vocab_size"
    at = data.index(key) + len(key)
    kind, told = struct.unpack_from("<II", data, at)
    struct.pack_into("<I", data, at + 4, told - 1)
    assert kind == 4
    out = run("eval", "-m", path("told.gguf", bytes(data)), "--tokens", path("few.json", "[1,2,3]"), check=0)
    assert out.stderr.count(b"llama.vocab_size is") == 1, out.stderr
    assert run("inspect", path("told.gguf"), check=0).stderr.count(b"llama.vocab_size is") == 1


main()
