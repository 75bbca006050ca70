"""The server as its clients see it: endpoints, streaming, errors, limits, disconnects, shutdown. Uses a tiny random model
and nothing but the standard library, so it runs everywhere `make check` does."""
# test-sanitized: yes
import concurrent.futures
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import tap  # noqa: E402
import tiny_chat_model  # noqa: E402
from support import PLUMB, Server, chat, completion, until  # noqa: E402


def test_chat_whole_and_streamed_agree(s):
    status, whole, _ = s.post("/v1/chat/completions", chat("hello"))
    assert status == 200, whole
    assert whole["object"] == "chat.completion" and whole["choices"][0]["message"]["role"] == "assistant"
    assert whole["choices"][0]["finish_reason"] == "length" and whole["usage"]["completion_tokens"] == 12
    events = s.stream("/v1/chat/completions", chat("hello", stream_options={"include_usage": True}))
    text = "".join(c["delta"].get("content", "") for e in events for c in e["choices"])
    assert text == whole["choices"][0]["message"]["content"], (text, whole)
    assert events[-1]["usage"]["completion_tokens"] == 12 and events[-1]["choices"] == []
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"


def test_completion_forms(s):
    status, one, _ = s.post("/v1/completions", completion("hello the"))
    assert status == 200, one
    ids = s.post("/tokenize", {"content": "hello the"})[1]["tokens"]
    by_ids = s.post("/v1/completions", completion(ids))[1]
    many = s.post("/v1/completions", completion(["hello the", "and the"], n=2))[1]
    assert one["choices"][0]["text"] == by_ids["choices"][0]["text"] == many["choices"][0]["text"] == many["choices"][1]["text"]
    assert [c["index"] for c in many["choices"]] == [0, 1, 2, 3]
    echo = s.post("/v1/completions", completion("hello the", echo=True))[1]
    assert echo["choices"][0]["text"] == "hello the" + one["choices"][0]["text"]


def test_tokens_and_template(s):
    text = "hello <|im_end|> the \u00e9\U0001F600"
    ids = s.post("/tokenize", {"content": text})[1]["tokens"]
    assert s.post("/detokenize", {"tokens": ids})[1]["content"] == text
    prompt = s.post("/apply-template", {"messages": [{"role": "user", "content": "hi"}]})[1]["prompt"]
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", prompt


def test_content_cannot_inject_special_tokens(s):
    plain = s.post("/v1/chat/completions", chat("x"))[1]["usage"]["prompt_tokens"]
    hostile = s.post("/v1/chat/completions", chat("<|im_end|>"))[1]["usage"]["prompt_tokens"]
    assert hostile >= plain + 5, (plain, hostile)  # ten characters of text, not one token


def test_stop_strings(s):
    whole = s.post("/v1/completions", completion("hello the", max_tokens=40))[1]["choices"][0]["text"]
    stop = whole[5:8]
    status, cut, _ = s.post("/v1/completions", completion("hello the", max_tokens=40, stop=[stop]))
    assert status == 200 and cut["choices"][0]["text"] == whole[:whole.index(stop)], (cut, whole)
    assert cut["choices"][0]["finish_reason"] == "stop"
    events = s.stream("/v1/completions", completion("hello the", max_tokens=40, stop=stop))
    assert "".join(c["text"] for e in events for c in e["choices"]) == whole[:whole.index(stop)]


def test_logprobs(s):
    c = s.post("/v1/chat/completions", chat("hello", logprobs=True, top_logprobs=3))[1]["choices"][0]
    content = c["logprobs"]["content"]
    assert len(content) == 12
    for t in content:
        assert len(t["top_logprobs"]) == 3 and t["logprob"] <= 0
        assert abs(t["top_logprobs"][0]["logprob"] - t["logprob"]) < 1e-6  # greedy takes the likeliest
    events = s.stream("/v1/chat/completions", chat("hello", logprobs=True))
    streamed = [t for e in events for ch in e["choices"] if ch["logprobs"] for t in ch["logprobs"]["content"]]
    assert [t["token"] for t in streamed] == [t["token"] for t in content]  # one entry per token, always
    legacy = s.post("/v1/completions", completion("hello", logprobs=2))[1]["choices"][0]["logprobs"]
    assert len(legacy["tokens"]) == len(legacy["token_logprobs"]) == len(legacy["top_logprobs"]) == len(legacy["text_offset"]) == 12


def test_logprobs_of_a_zero_byte(s):
    """U+0000 can be no name of a field: the token stands there by its byte."""
    bias = {"0": 100}  # the tiny model's first token
    status, r, _ = s.post("/v1/completions", completion("hello", logprobs=2, logit_bias=bias))
    assert status == 200, r
    c = r["choices"][0]
    assert c["text"] == "\0" * 12 and c["logprobs"]["tokens"] == ["bytes:\\x00"] * 12
    assert all("bytes:\\x00" in top for top in c["logprobs"]["top_logprobs"])
    parts = [x for e in s.stream("/v1/completions", completion("hello", logprobs=2, logit_bias=bias)) for x in e["choices"]]
    assert [t for x in parts if x["logprobs"] for t in x["logprobs"]["top_logprobs"]] == c["logprobs"]["top_logprobs"]
    status, r, _ = s.post("/v1/chat/completions", chat("hello", logprobs=True, top_logprobs=2, logit_bias=bias))
    assert status == 200 and r["choices"][0]["logprobs"]["content"][0]["token"] == "\0"


def test_prompts_are_scored(s):
    prompt = "hello the \u00e9\U0001F600 and in the end"
    r = s.post("/v1/completions", completion(prompt * 5, logprobs=2, echo=True))[1]
    text, lp = r["choices"][0]["text"], r["choices"][0]["logprobs"]
    assert r["usage"]["prompt_tokens"] + 12 == len(lp["tokens"]) == len(lp["token_logprobs"]) == len(lp["top_logprobs"]) == len(lp["text_offset"])
    assert lp["token_logprobs"][0] is None and lp["top_logprobs"][0] is None and lp["text_offset"][0] == 0
    assert all(v <= 0 for v in lp["token_logprobs"][1:]) and all(t in top and len(top) <= 3 for t, top in zip(lp["tokens"][1:], lp["top_logprobs"][1:]))
    for token, at in list(zip(lp["tokens"], lp["text_offset"]))[:-12]:  # a random model's answer is no valid UTF-8
        assert token.startswith("bytes:") or text[at:at + len(token)] == token, (token, at)
    ids = s.post("/tokenize", {"content": text})[1]["tokens"]
    if len(ids) == len(lp["tokens"]):  # what was generated is scored as it was when it was generated
        again = s.post("/v1/completions", completion(text, logprobs=0, echo=True, max_tokens=0))[1]
        assert again["choices"][0]["text"] == text and again["usage"]["completion_tokens"] == 0 and again["choices"][0]["finish_reason"] == "length"
        assert again["choices"][0]["logprobs"]["token_logprobs"][1:] == lp["token_logprobs"][1:]
    events = s.stream("/v1/completions", completion(prompt * 5, logprobs=2, echo=True))
    parts = [c for e in events for c in e["choices"]]
    assert "".join(c["text"] for c in parts) == text
    for key in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        assert [x for c in parts if c["logprobs"] for x in c["logprobs"][key]] == lp[key], key
    full = [65 + i % 26 for i in range(512)]  # the whole context: there is room, since nothing is generated
    with concurrent.futures.ThreadPoolExecutor(6) as pool:  # beside others
        scored = list(pool.map(lambda i: s.post("/v1/completions", completion(full, logprobs=0, echo=True, max_tokens=0) if i % 2
                                                else completion(f"x{i}", max_tokens=60)), range(6)))
    assert all(status == 200 for status, _, _ in scored), scored
    assert scored[1][1]["choices"][0]["logprobs"] == scored[3][1]["choices"][0]["logprobs"] and len(scored[1][1]["choices"][0]["logprobs"]["tokens"]) == 512
    assert s.post("/v1/completions", completion("a", max_tokens=0))[1]["choices"][0]["text"] == ""
    assert s.post("/v1/completions", completion(full, max_tokens=1))[0] == 400


def test_seed_and_bias(s):
    ask = lambda seed: s.post("/v1/chat/completions", chat("hello", temperature=1, seed=seed))[1]["choices"][0]["message"]["content"]
    assert ask(5) == ask(5)
    assert len({ask(n) for n in range(6)}) > 1
    banned = s.post("/v1/completions", completion("hello", logit_bias={"65": 100}))[1]["choices"][0]["text"]
    assert banned == s.post("/detokenize", {"tokens": [65] * 12})[1]["content"]


TOOL = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}


def test_messages_of_every_form(s):
    render = lambda *messages, **kw: s.post("/apply-template", {"messages": list(messages), **kw})
    user = {"role": "user", "content": "hi"}
    plain = render(user)[1]["prompt"]
    assert render({"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]})[1]["prompt"] == plain
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}
    status, told, _ = render(user, {"role": "assistant", "content": None, "tool_calls": [call]},
                             {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sun"}]})
    assert status == 200 and "<|im_start|>tool\nsun<|im_end|>" in told["prompt"], told
    assert "<|im_start|>system\nbe brief" in render({"role": "developer", "content": "be brief"}, user)[1]["prompt"]
    tools = render(user, tools=[TOOL])[1]["prompt"]  # this template knows no tools: the system message tells of them
    assert '"name":"weather"' in tools and tools.index("weather") < tools.index("hi<|im_end|>")
    for bad, word in (({"role": "user"}, "no content"), ({"role": "king", "content": "x"}, "king"), ({"content": "x"}, "no role"), ("x", "no object"),
                      ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "image_url"),
                      ({"role": "user", "content": 3}, "no string"), ({"role": "assistant", "tool_calls": [{}]}, "names no function")):
        status, body, _ = render(bad)
        assert status == 400 and body["error"]["param"] == "messages" and word in body["error"]["message"], (bad, body)


SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 99},
          "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3}}, "required": ["name", "age", "tags"]}


def test_answers_follow_a_schema(s):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    for seed in range(4):  # a random model: what comes out right came out right because of the grammar
        status, r, _ = s.post("/v1/chat/completions", chat("hi", response_format=form, temperature=1.5, seed=seed, max_tokens=300))
        assert status == 200 and r["choices"][0]["finish_reason"] == "stop", r
        v = json.loads(r["choices"][0]["message"]["content"])
        assert list(v) == ["name", "age", "tags"] and len(v["name"]) <= 6 and 0 <= v["age"] <= 99, v
        assert 1 <= len(v["tags"]) <= 3 and set(v["tags"]) <= {"a", "b"}
    events = s.stream("/v1/chat/completions", chat("hi", response_format=form, temperature=1.5, seed=3, max_tokens=300))
    text = "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])
    assert json.loads(text) == v
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}
    for extra, name in (({"response_format": bad}, "response_format"), ({"response_format": {"type": "xml"}}, "response_format"),
                        ({"grammar": "root ::= root"}, "grammar"), ({"grammar": 3}, "grammar"), ({"grammar": "root ::= x", "response_format": form}, "grammar")):
        status, body, _ = s.post("/v1/chat/completions", chat("x", **extra))
        assert status == 400 and body["error"]["param"] == name, body


def test_grammars(s):
    for path, ask in (("/v1/completions", completion), ("/v1/chat/completions", chat)):
        r = s.post(path, ask("x", grammar='root ::= ("yes" | "no") " " [\u00e0-\u00ff]{3}', max_tokens=40))[1]
        c = r["choices"][0]
        text = c["text"] if "text" in c else c["message"]["content"]
        assert re.fullmatch(r"(yes|no) [\u00e0-\u00ff]{3}", text) and c["finish_reason"] == "stop", r
    with concurrent.futures.ThreadPoolExecutor(8) as pool:  # constrained beside free ones
        ask = lambda i: s.post("/v1/completions", completion(f"x{i}", max_tokens=24, **({"grammar": "root ::= [a-e]{20}"} if i % 2 else {})))[1]
        done = list(pool.map(ask, range(8)))
    assert all(re.fullmatch("[a-e]{20}", d["choices"][0]["text"]) for d in done[1::2]), done


def test_an_answer_is_continued(s):
    half = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello the "}], "temperature": 0, "max_tokens": 6, "ignore_eos": True}
    prompt = s.post("/apply-template", {"messages": half["messages"], "continue_final_message": True})[1]["prompt"]
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nHello the", prompt
    plain = s.post("/v1/completions", {**completion(prompt, max_tokens=6)})[1]["choices"][0]["text"]
    assert s.post("/v1/chat/completions", {**half, "continue_final_message": True, "add_generation_prompt": False})[1]["choices"][0]["message"]["content"] == plain
    assert s.post("/v1/messages", {**half, "model": "x"})[1]["content"][0]["text"] == plain
    assert s.post("/v1/chat/completions", half)[1]["choices"][0]["message"]["content"] != plain
    status, body, _ = s.post("/v1/chat/completions", {**chat("x"), "continue_final_message": True})
    assert status == 400 and body["error"]["param"] == "continue_final_message", body


def test_forced_tool_calls(s):
    other = {"type": "function", "function": {"name": "other", "parameters": {}}}
    named = {"type": "function", "function": {"name": "weather"}}
    for choice, names in (("required", {"weather", "other"}), (named, {"weather"})):
        body = chat("hi", tools=[TOOL, other], tool_choice=choice, temperature=1, seed=7, max_tokens=400, parallel_tool_calls=False)
        r = s.post("/v1/chat/completions", body)[1]
        c = r["choices"][0]
        if c["finish_reason"] == "length":  # a random model may write a long string
            continue
        assert c["finish_reason"] == "tool_calls" and c["message"]["content"] is None, r
        call = c["message"]["tool_calls"][0]
        assert len(c["message"]["tool_calls"]) == 1 and call["function"]["name"] in names and call["id"] and call["type"] == "function"
        args = json.loads(call["function"]["arguments"])
        assert call["function"]["name"] != "weather" or isinstance(args["city"], str), args
        deltas = [d for e in s.stream("/v1/chat/completions", body) for ch in e["choices"] for d in ch["delta"].get("tool_calls", [])]
        assert deltas[0]["function"]["name"] == call["function"]["name"] and deltas[0]["id"] and {d["index"] for d in deltas} == {0}
        assert "".join(d["function"].get("arguments", "") for d in deltas) == call["function"]["arguments"]
    bare = {"type": "function", "function": {"name": "bare"}}  # no parameters: a function that takes none
    r = s.post("/v1/chat/completions", chat("hi", tools=[bare], tool_choice="required", temperature=1, seed=3, max_tokens=400, parallel_tool_calls=False))[1]
    assert json.loads(r["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]) == {}, r
    pick = lambda mode, *names: {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [{"type": "function", "function": {"name": n}} for n in names]}}
    for seed in range(4):
        r = s.post("/v1/chat/completions", chat("hi", tools=[TOOL, other], tool_choice=pick("required", "other"), temperature=1, seed=seed, max_tokens=200))[1]
        assert all(c["function"]["name"] == "other" for c in r["choices"][0]["message"].get("tool_calls", [])), r
    for wrong in (pick("required", "nothing"), pick("auto"), pick("never", "other")):
        assert s.post("/v1/chat/completions", chat("hi", tools=[TOOL, other], tool_choice=wrong))[1]["error"]["param"] == "tool_choice"
    flat = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]}
    tools = [{"type": "function", **t["function"]} for t in (TOOL, other)]
    r = s.post("/v1/responses", {"input": "hi", "tools": tools, "tool_choice": flat, "max_output_tokens": 200, "temperature": 0})[1]
    assert all(i["name"] == "other" for i in r["output"] if i["type"] == "function_call") and r["tool_choice"] == flat, r
    assert "tool_calls" not in s.post("/v1/chat/completions", chat("hi", tools=[TOOL], tool_choice="none"))[1]["choices"][0]["message"]


def test_messages_and_responses(s):
    ask = {"model": "x", "max_tokens": 8, "temperature": 0, "ignore_eos": True, "messages": [{"role": "user", "content": "hello"}]}
    text = s.post("/v1/chat/completions", chat("hello", max_tokens=8))[1]["choices"][0]["message"]["content"]
    status, m, _ = s.post("/v1/messages", ask)
    assert status == 200 and m["content"] == [{"type": "text", "text": text}] and m["stop_reason"] == "max_tokens", m
    raw = s.post("/v1/messages", {**ask, "stream": True})[1].decode()
    events = [(e.split("\n")[0][7:], json.loads(e.split("\n")[1][6:])) for e in raw.split("\n\n") if e]
    assert all(name == data["type"] for name, data in events)
    kinds = [name for name, _ in events if name not in ("ping", "content_block_delta")]
    assert kinds == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"], kinds
    assert "".join(d["delta"]["text"] for n, d in events if n == "content_block_delta") == text
    status, bad, _ = s.post("/v1/messages", {"messages": ask["messages"]})
    assert status == 400 and bad["type"] == "error" and "max_tokens" in bad["error"]["message"]
    r = s.post("/v1/responses", {"input": "hello", "temperature": 0, "max_output_tokens": 8, "ignore_eos": True})[1]
    assert r["output"][0]["content"][0]["text"] == text and r["incomplete_details"] == {"reason": "max_output_tokens"}, r
    for extra, name in (({"previous_response_id": "r"}, "previous_response_id"), ({"background": True}, "background"), ({"input": 3}, "input"),
                        ({"input": [{"type": "image"}]}, "input"), ({"max_output_tokens": 0}, "max_output_tokens"), ({"tools": [{"type": "web_search"}]}, "tools")):
        status, body, _ = s.post("/v1/responses", {"input": "x", **extra})
        assert status == 400 and body["error"]["param"] == name, (extra, body)


def test_errors_name_the_parameter(s):
    cases = [({"temperature": 3}, "temperature"), ({"temperature": "hot"}, "temperature"), ({"top_p": 0}, "top_p"),
             ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": -1}, "max_tokens"), ({"max_tokens": 1e30}, "max_tokens"),
             ({"max_tokens": 10 ** 30}, "max_tokens"), ({"n": 0}, "n"), ({"n": 1000}, "n"), ({"stop": [1]}, "stop"), ({"stop": [""]}, "stop"),
             ({"logit_bias": {"x": 1}}, "logit_bias"), ({"logit_bias": {"99999": 1}}, "logit_bias"), ({"stream": "yes"}, "stream"),
             ({"presence_penalty": 2.5}, "presence_penalty"), ({"top_logprobs": 3}, "top_logprobs"), ({"seed": 1.5}, "seed"),
             ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"), ({"no_such_thing": 1}, "no_such_thing"),
             ({"tools": [{}]}, "tools"), ({"tools": 3}, "tools"), ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
             ({"tool_choice": "required"}, "tool_choice"), ({"tools": [TOOL], "tool_choice": "some"}, "tool_choice"),
             ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
             ({"parallel_tool_calls": 1}, "parallel_tool_calls"), ({"reasoning_format": "x"}, "reasoning_format"),
             ({"messages": []}, "messages"), ({"messages": "hi"}, "messages"), ({"stream_options": {}}, "stream_options"),
             ({"suffix": "x"}, "suffix"), ({"n_probs": 3}, "n_probs"), ({"priority": 1}, "priority"), ({"priority": "x"}, "priority"),
             ({"reasoning_effort": 3}, "reasoning_effort"), ({"modalities": ["text", "audio"]}, "modalities"),
             ({"stream": True, "stream_options": {"x": 1}}, "stream_options")]
    for extra, name in cases:
        status, body, _ = s.post("/v1/chat/completions", {**chat("x"), **extra})
        assert status == 400, (extra, status, body)
        assert body["error"]["message"] and (name is None or body["error"]["param"] == name), (extra, body)
    for extra, words in (({"max_tokens": 2.0}, "max_tokens is 2.0, expected an integer"), ({"max_tokens": 1e18}, "is 1e18, expected"),
                         ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "of type 'text' whose text is missing"),
                         ({"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]}, "whose text is no string")):
        status, body, _ = s.post("/v1/chat/completions", {**chat("x"), **extra})
        assert status == 400 and words in body["error"]["message"], (extra, body)
    status, body, _ = s.post("/v1/completions", completion("x", best_of=3))
    assert status == 400 and body["error"]["param"] == "best_of"
    status, body, _ = s.post("/v1/completions", {"max_tokens": 3})
    assert status == 400 and body["error"]["param"] == "prompt"
    for path, ask in (("/tokenize", {"content": "x"}), ("/detokenize", {"tokens": [1]}), ("/apply-template", {"messages": [{"role": "user", "content": "x"}]})):
        assert s.post(path, ask)[0] == 200 and s.post(path, {**ask, "model": "x"})[0] == 200
        status, body, _ = s.post(path, {**ask, "nothing": 1})
        assert status == 400 and body["error"]["param"] == "nothing", (path, body)
    pieces = s.post("/tokenize", {"content": "hello \u00e9", "with_pieces": True})[1]["tokens"]
    assert pieces[0]["piece"] == "hello" and b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces).decode() == "hello \u00e9", pieces
    for harmless in ({"user": "me"}, {"metadata": {"a": 1}}, {"frequency_penalty": None}, {"model": "gpt-4"}, {"suffix": ""}, {"n_probs": 0}, {"priority": 0},
                     {"reasoning_effort": "low"}, {"modalities": ["text"]}, {"chat_template_kwargs": {"a": 1}, "reasoning_effort": "none"}):
        assert s.post("/v1/chat/completions", {**chat("x"), **harmless})[0] == 200, harmless


def test_hostile_bodies(s):
    deep = "[" * 100000 + "]" * 100000
    for body in (b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", deep, b'{"a":1}garbage', b'{"messages":' + deep.encode() + b"}",
                 b'{"messages":[{"role":"user","content":"\xff"}]}', b'{"a":1,"a":2}', b"{" + b" " * 1000000):
        status, answer, _ = s.post("/v1/chat/completions", body)
        assert status == 400 and answer["error"]["message"], (body[:30], status, answer)
    status, answer, _ = s.post("/v1/chat/completions", b"x" * (17 << 20))
    assert status == 413, (status, answer)
    status, answer, _ = s.post("/v1/chat/completions", chat("word " * 5000))
    assert status == 400 and "context" in answer["error"]["message"], answer


def test_hostile_http(s):
    for raw in (b"GARBAGE\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", b"\x00" * 64,
                b"GET /" + b"a" * 200000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20000 + b"\r\n"):
        c = socket.create_connection(("127.0.0.1", s.port), timeout=10)
        try:
            c.sendall(raw)
            c.shutdown(socket.SHUT_WR)
            while c.recv(65536):
                pass
        except OSError:
            pass
        c.close()
    assert s.call("GET", "/health")[0] == 200
    assert s.call("GET", "/nothing")[0] == 404
    with socket.create_connection(("127.0.0.1", s.port), timeout=30) as c:  # names that are no UTF-8 come back as what can be shown
        c.sendall(b"GET /v1/m\xa7dels HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b" 404 " in c.makefile("rb").readline()
    for header, status in ((b"Transfer-Encoding: gzip", b" 501 "), (b"Transfer-Encoding: gzip, chunked", b" 501 "), (b"Host: y", b" 400 ")):
        with socket.create_connection(("127.0.0.1", s.port), timeout=30) as c:  # no waiting for a body that has no end
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n0\r\n\r\n")
            assert status in c.makefile("rb").readline(), header
    status, body, _ = s.post("/v1/completions", {"prompt": "x", "\u00e9" * 60 + "x" * 9: 1})
    assert status == 400 and body["error"]["code"] == "unknown_parameter", body
    assert s.call("GET", "/v1/chat/completions")[0] == 405
    assert s.call("DELETE", "/health")[0] == 405


def test_models_props_health(s):
    listed = s.call("GET", "/v1/models")[1]["data"][0]["id"]
    assert s.call("GET", "/v1/models/" + listed)[1]["id"] == listed
    assert s.call("GET", "/v1/models/other")[0] == 404
    assert s.call("GET", "/props")[1]["backend"].startswith("cpu")
    assert s.call("GET", "/ready")[1]["ready"] is True
    status, page, r = s.call("GET", "/")
    assert status == 200 and b"<title>plumb</title>" in page and "default-src 'none'" in r.headers["Content-Security-Policy"]
    assert len(s.call("GET", "/v1/kernels")[1]["kernels"]) > 3


def test_many_clients_get_their_single_run(s):
    prompts = [f"hello {i} the and in {'word ' * (i % 7)}" for i in range(24)]
    alone = [s.post("/v1/completions", completion(p, max_tokens=20))[1]["choices"][0]["text"] for p in prompts]
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        together = list(pool.map(lambda p: s.post("/v1/completions", completion(p, max_tokens=20))[1]["choices"][0]["text"], prompts))
    assert together == alone
    steps = s.call("GET", "/metrics")[1].decode()
    assert re.search(r'plumb_step_sequences_bucket{le="1"} (\d+)', steps).group(1) != re.search(r"plumb_step_sequences_count (\d+)", steps).group(1)


def test_prefix_cache_is_reported(s):
    body = chat("the same long beginning " * 6)
    s.post("/v1/chat/completions", body)
    again = s.post("/v1/chat/completions", body)[1]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32, again["usage"]


def test_a_client_that_leaves_gives_its_pages_back(s):
    for stream in (True, False):
        begun = s.metric("requests_total")
        free = s.metric("kv_pages_free") + s.metric("kv_pages_cached")
        c = http.client.HTTPConnection("127.0.0.1", s.port)
        c.request("POST", "/v1/chat/completions", json.dumps(chat("hello", max_tokens=400, stream=stream)))
        until(lambda: s.metric("requests_total") > begun)  # it is answered now; a fast machine may have done so already
        c.sock.close() if stream else c.sock.shutdown(socket.SHUT_RDWR)
        c.close()
        until(lambda: s.metric("requests_waiting") + s.metric("requests_running") == 0)  # in this order: what waited may run by now
        assert s.metric("kv_pages_free") + s.metric("kv_pages_cached") == free


def raw(port, request):
    """What comes back until the server closes the connection."""
    out = b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as c:
        c.sendall(request)
        try:
            while piece := c.recv(65536):
                out += piece
        except ConnectionResetError:  # closed with some of the request unread
            pass
    return out


def resident(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{pid}/status").read()).group(1))


def test_headers_alone_can_refuse(_, model):
    s = Server(model, "--api-key", "right")
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    key = b"Authorization: Bearer right\r\n"
    # An end of the body that is anybody's guess: one answer, and what follows is no request.
    for framing in (b"Content-Length: 2\r\nContent-Length: 33\r\n", b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"):
        got = raw(s.port, head + key + framing + b"\r\n{}GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
        assert got.count(b"HTTP/1.1 ") == 1 and got.startswith(b"HTTP/1.1 400 "), got[:300]
    # A client that asks before it sends hears at once what would come of it.
    for line, status in ((key + b"Content-Length: 99999999\r\n", b"413"), (b"Content-Length: 10\r\n", b"401")):
        got = raw(s.port, head + line + b"Expect: 100-continue\r\n\r\n")
        assert got.startswith(b"HTTP/1.1 " + status) and b"100 Continue" not in got, got[:300]
    # One that sends without asking hears it while its body is still to come, be the size declared or only seen.
    for framing, sent in ((b"Content-Length: 99999999\r\n", b"x" * 100), (b"Transfer-Encoding: chunked\r\n", b"%x\r\n" % (17 << 20) + b"x" * (17 << 20))):
        with socket.create_connection(("127.0.0.1", s.port), timeout=20) as c:
            c.sendall(head + key + framing + b"\r\n" + sent)
            got = c.recv(65536)
            assert got.startswith(b"HTTP/1.1 413 ") and b"Connection: close" in got and b"larger than" in got, got[:300]
            try:
                while c.send(b"x" * 100000):  # not for ever
                    pass
            except OSError:
                pass
    # One that sends anyway is answered too, and nothing of a stranger's body is kept.
    assert s.post("/v1/completions", b"x" * (1 << 20))[0] == 401
    before, open_ones = resident(s.process.pid), []
    for _ in range(8):
        c = socket.create_connection(("127.0.0.1", s.port), timeout=60)
        c.sendall(head + b"Content-Length: 16000000\r\n\r\n" + b"x" * 12000000)
        open_ones.append(c)
    grown = resident(s.process.pid) - before
    for c in open_ones:
        c.close()
    assert grown < 48 * 1024, f"{grown} KB more"
    # A port is one server's.
    second = subprocess.run([PLUMB, "serve", "-m", model, "--port", str(s.port)], capture_output=True, text=True, timeout=120)
    assert second.returncode == 1 and "cannot listen" in second.stderr, second.stderr
    assert s.stop() == 0


def test_metrics_are_off_unless_asked(_, model):
    s = Server(model)
    status, body, _ = s.call("GET", "/metrics")
    assert status == 501 and "--metrics" in body["error"]["message"]
    assert s.stop() == 0


def test_keys_queue_and_shutdown(_, model):
    s = Server(model + "-long", "--api-key", "right", "--api-key", "other", "--parallel", "1", "--queue", "2", "--metrics")
    assert s.call("GET", "/health")[0] == 200
    assert s.call("GET", "/v1/models")[0] == 401
    for key in ("wrong", "righ", "rightt", ""):
        assert s.call("GET", "/v1/models", headers={"Authorization": "Bearer " + key})[0] == 401, key
    auth = {"Authorization": "Bearer right"}
    assert s.call("GET", "/v1/models", headers=auth)[0] == 200
    assert s.call("GET", "/v1/models", headers={"x-api-key": "other"})[0] == 200
    ask = lambda content, **kw: s.post("/v1/chat/completions", chat(content, **kw), headers=auth)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        running = s.held("/v1/chat/completions", chat("running", max_tokens=30000), auth)
        until(lambda: s.metric("requests_running", auth) == 1)
        queued = [pool.submit(ask, f"{i}") for i in range(2)]
        until(lambda: s.metric("requests_waiting", auth) == 2)
        status, _, r = ask("one too many")
        assert status == 429 and r.headers["Retry-After"], status
        running.close()
        assert [q.result()[0] for q in queued] == [200, 200]
        accepted = s.metric("requests_total", auth)
        slow = pool.submit(ask, "last", max_tokens=300)
        until(lambda: s.metric("requests_total", auth) > accepted)
        assert s.stop() == 0  # drains
        assert slow.result()[0] == 200


def test_free_places_are_no_queue(_, model):
    """What comes at once takes the free places first: --queue is what waits beside them."""
    s = Server(model, "--parallel", "4", "--queue", "1", "--metrics")
    for _ in range(5):
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            codes = list(pool.map(lambda i: s.post("/v1/completions", completion(f"x{i}", max_tokens=40))[0], range(5)))
        assert codes == [200] * 5, codes
    assert s.stop() == 0


def test_start_errors(_, model):
    for flags, word in ((["--host", "nowhere"], "nowhere"), (["--port", "99999"], "99999"), (["--paralel", "2"], "parallel"),
                        (["-fa"], "--attn"), (["-ctk", "f16", "-ctv", "q8_0"], "--kv-dtype"), (["--ssl-key-file", "x"], "reverse proxy")):
        r = subprocess.run([PLUMB, "serve", "-m", model, *flags], capture_output=True, text=True, timeout=60)
        assert r.returncode in (1, 64) and word in r.stderr and "kernel backend" not in r.stderr, (flags, r)  # before loading


def test_names_of_llama_server(_, model):
    s = Server(model, "-np", "2", "-cb", "--jinja", "-ngl", "99", "-b", "64", "-ctk", "f16", "-ctv", "f16", "-to", "9")
    assert s.call("GET", "/props")[1]["total_slots"] == 2 and len(s.call("GET", "/slots")[1]) == 2
    assert s.stop() == 0


def test_environment(_, model):
    run = lambda **env: subprocess.run([PLUMB, "serve", "--paralel", "1"], capture_output=True, text=True, timeout=60, env={**os.environ, **env})
    r = run(LLAMA_ARG_CTX_SIZ="5")
    assert r.returncode != 0 and "LLAMA_ARG_CTX_SIZ " in r.stderr and "LLAMA_ARG_CTX_SIZE" in r.stderr, r
    assert "PLUMB_ARG_METRICS" in run(PLUMB_ARG_METRICS="maybe").stderr
    os.environ.update(LLAMA_ARG_MODEL=model, LLAMA_ARG_ENDPOINT_METRICS="1", PLUMB_ARG_API_KEY="k", LLAMA_ARG_PORT="1")
    try:
        s = Server(model)  # its --port 0 wins
    finally:
        for name in ("LLAMA_ARG_MODEL", "LLAMA_ARG_ENDPOINT_METRICS", "PLUMB_ARG_API_KEY", "LLAMA_ARG_PORT"):
            del os.environ[name]
    assert s.call("GET", "/metrics")[0] == 401 and s.call("GET", "/metrics", headers={"x-api-key": "k"})[0] == 200
    assert s.stop() == 0


def main():
    with tempfile.TemporaryDirectory() as directory:
        model = os.path.join(directory, "tiny")
        tiny_chat_model.write(model)
        tiny_chat_model.write(model + "-long", context=32768)
        server = Server(model, "--metrics", "--parallel", "6")
        for name, f in list(globals().items()):
            if not name.startswith("test_"):
                continue
            bound = (lambda f=f: f(server)) if f.__code__.co_argcount == 1 else (lambda f=f: f(None, model))
            bound.__name__ = name
            tap.case(bound)

        def test_the_shared_server_ends_well():
            code = server.stop()
            assert code == 0, f"exit code {code}: " + "".join(server.lines)[-2000:]

        tap.case(test_the_shared_server_ends_well)
        tap.main()


if __name__ == "__main__":
    main()
