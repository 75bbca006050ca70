"""What is refused, and by which name; what only looks like something to refuse; who may ask at all.
Uses a tiny random model and the standard library."""
import json
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import tap  # noqa: E402
import tiny_chat_model  # noqa: E402
from support import Server, chat, completion  # noqa: E402

directory = tempfile.mkdtemp()
MODEL = os.path.join(directory, "tiny")
USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}


def refused(answer, param, word=""):
    status, body, _ = answer
    assert status == 400 and body["error"]["param"] == param and word in body["error"]["message"], (status, body)


@tap.case
def what_can_never_be_queued_is_no_429():
    s = Server(MODEL, "--queue", "8")
    refused(s.post("/v1/completions", completion(["a", "b", "c"], n=3)), "n", "3 prompts with 3 choices")
    refused(s.post("/v1/completions", completion(["a"] * 9)), "prompt")
    refused(s.post("/v1/chat/completions", chat("x", n=9)), "n")
    assert s.post("/v1/completions", completion(["a", "b"], n=4))[0] == 200
    assert s.stop() == 0


@tap.case
def numbers_out_of_range_name_their_parameter():
    s = Server(MODEL)
    for extra, name in (({"prompt": [1, 2, 10 ** 9]}, "prompt"), ({"prompt": [-1]}, "prompt"), ({"prompt": [[1], [10 ** 6]]}, "prompt"), ({"top_p": 1e-300}, "top_p"),
                        ({"typical_p": 1e-320}, "typical_p"), ({"repeat_penalty": 1e-30}, "repeat_penalty"), ({"seed": 2 ** 64}, "seed"), ({"max_tokens": 10 ** 30}, "max_tokens"),
                        ({"temperature": 10 ** 40}, "temperature"), ({"top_k": -2}, "top_k"), ({"n": -2 ** 70}, "n")):
        refused(s.post("/v1/completions", completion("x", **extra)) if "prompt" not in extra else s.post("/v1/completions", {**completion("x"), **extra}), name)
    assert s.post("/v1/completions", completion("x", top_k=-1))[1]["choices"] == s.post("/v1/completions", completion("x", top_k=0))[1]["choices"]
    assert s.post("/v1/completions", completion("x", metadata={"a": 10 ** 50}))[0] == 200  # beyond 64 bits where nobody reads it
    assert s.stop() == 0


@tap.case
def strings_do_not_end_at_a_zero():
    s = Server(MODEL, "--alias", "mine")
    for extra, name in (({"model": "mine\0x"}, "model"), ({"messages": [{"role": "user\0", "content": "x"}]}, "messages"), ({"response_format": {"type": "text\0"}}, "response_format"),
                        ({"reasoning_effort": "low\0"}, "reasoning_effort"), ({"tool_choice": "auto\0"}, "tool_choice"),
                        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["a\0b"]}}}}, "response_format")):
        refused(s.post("/v1/chat/completions", {**chat("x"), **extra}), name, "U+0000")
    assert s.call("GET", "/v1/models/mine")[0] == 200 and s.call("GET", "/v1/models/mine%00x")[0] == 404
    assert s.call("GET", "/v1/models/" + "mine" * 100)[0] == 404
    text = s.post("/v1/completions", completion("a\0b", echo=True))[1]["choices"][0]["text"]
    assert text.startswith("a\0b"), text
    streamed = "".join(c["text"] for e in s.stream("/v1/completions", completion("a\0b", echo=True)) for c in e["choices"])
    assert streamed == text, (streamed, text)
    assert "<|im_start|>user\na\0b<|im_end|>" in s.post("/apply-template", {"messages": [{"role": "user", "content": "a\0b"}]})[1]["prompt"]
    told = s.post("/apply-template", {"messages": [{"role": "system", "content": "a\0b"}, USER], "tools": [{"type": "function", "function": {"name": "f"}}]})[1]["prompt"]
    assert "a\0b" in told and '"name":"f"' in told, told
    assert s.post("/v1/completions", completion("x", stop="\0"))[0] == 200
    assert s.stop() == 0


@tap.case
def a_template_keeps_what_the_server_gives_it():
    s = Server(MODEL)
    for name in ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token"):
        refused(s.post("/v1/chat/completions", chat("x", chat_template_kwargs={name: "y"})), "chat_template_kwargs", name)
    assert s.post("/v1/chat/completions", chat("x", chat_template_kwargs={"enable_thinking": False, "documents": []}))[0] == 200
    assert s.stop() == 0


@tap.case
def what_openai_refuses():
    s = Server(MODEL)
    refused(s.post("/v1/chat/completions", chat("x", reasoning_effort="very")), "reasoning_effort")
    refused(s.post("/v1/chat/completions", chat("x", max_completion_tokens=3)), "max_tokens", "together")  # chat() says max_tokens
    assert s.post("/v1/chat/completions", chat("x", max_completion_tokens=None))[0] == 200
    assert s.post("/v1/chat/completions", {**chat("x"), "max_tokens": None, "max_completion_tokens": 3})[1]["usage"]["completion_tokens"] == 3
    for name in ("functions", "function_call"):
        refused(s.post("/v1/chat/completions", chat("x", **{name: [{"name": "f"}]})), name, "tool")
    render = lambda *messages: s.post("/apply-template", {"messages": list(messages)})
    calls, result = {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c1", "content": "sun"}
    assert render(USER, calls, result)[0] == 200
    refused(render(USER, result), "messages", "does not make")
    refused(render(USER, calls, {**result, "tool_call_id": "c2"}), "messages", "c1")
    refused(render(USER, calls, result, {**result, "tool_call_id": "c2"}), "messages", "c2")
    refused(render(USER, {"role": "tool", "content": "sun"}), "messages", "tool_call_id")
    refused(render(USER, calls, USER), "messages", "c1")
    refused(render(USER, calls), "messages", "c1")
    refused(render(USER, calls, USER, result), "messages", "c1")
    two = {**calls, "tool_calls": [CALL, {**CALL, "id": "c2"}]}
    assert render(USER, two, {**result, "tool_call_id": "c2"}, result, USER)[0] == 200
    refused(render(USER, two, result, USER), "messages", "c2")
    refused(render(USER, calls, {**result, "tool_calls": [CALL]}, result), "messages", "makes calls")
    once = render(USER, two, result, {**result, "tool_call_id": "c2"})[1]["prompt"]
    assert once == render(USER, two, {**result, "name": "weather"}, {**result, "tool_call_id": "c2", "name": "weather"})[1]["prompt"]
    items = [{"type": "message", "role": "user", "content": "x"}, {"type": "function_call_output", "call_id": "c9", "output": "sun"}]
    refused(s.post("/v1/responses", {"input": items, "max_output_tokens": 4}), "input", "c9")
    assert s.stop() == 0


@tap.case
def what_another_endpoint_knows_is_not_passed_over():
    s = Server(MODEL)
    for extra, name in (({"messages": [USER]}, "messages"), ({"response_format": {"type": "json_object"}}, "response_format"), ({"max_tokens": 3}, "max_tokens"), ({"echo": True}, "echo"),
                        ({"reasoning": "low"}, "reasoning"), ({"text": []}, "text"), ({"include": {}}, "include"), ({"background": 1}, "background"), ({"top_logprobs": "3"}, "top_logprobs")):
        refused(s.post("/v1/responses", {"input": "x", "max_output_tokens": 2, **extra}), name)
    assert s.post("/v1/responses", {"input": "x", "max_tokens": 2, "top_logprobs": 3, "background": False, "messages": None})[0] == 200
    refused(s.post("/v1/chat/completions", chat("x", echo=True)), "echo")
    for extra in ({"stop": ["x"]}, {"echo": True}, {"logprobs": True}):
        status, body, _ = s.post("/v1/messages", {"messages": [USER], "max_tokens": 2, **extra})
        assert status == 400 and next(iter(extra)) + " is not known here" in body["error"]["message"], (status, body)
    assert s.post("/v1/messages", {"messages": [USER], "max_tokens": 2, "stop": None, "stop_sequences": ["x"]})[0] == 200
    assert s.stop() == 0


@tap.case
def many_calls_are_looked_up_not_searched():
    s, n = Server(MODEL), 20000
    ids = ["c%d" % i for i in range(n)]
    answers = [{"role": "tool", "tool_call_id": i, "content": ""} for i in reversed(ids)]
    status, body, _ = s.post("/apply-template", {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [{**CALL, "id": i} for i in ids]}, *answers]}, timeout=200)
    assert status == 200, body
    status, body, _ = s.post("/apply-template", {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, *[{**answers[0], "tool_call_id": "c1"}] * n]}, timeout=200)
    assert status == 200, body
    with open("/proc/%d/stat" % s.process.pid) as f:
        fields = f.read().rsplit(")", 1)[1].split()
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # of the processor, not of the clock on the wall
    assert seconds < 20, seconds  # 0.6 here; each looking through all the others took minutes
    assert s.stop() == 0


@tap.case
def the_older_form_of_calls_is_read():
    s = Server(MODEL)
    render = lambda *messages: s.post("/apply-template", {"messages": list(messages)})[1]["prompt"]
    old = render(USER, {"role": "assistant", "content": None, "function_call": CALL["function"]}, {"role": "function", "name": "weather", "content": "sun"})
    assert old == render(USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "sun"})
    status, body, _ = s.post("/apply-template", {"messages": [USER, {"role": "function", "name": "weather", "content": "sun"}]})
    assert status == 400 and body["error"]["param"] == "messages", body
    assert s.stop() == 0


@tap.case
def pages_of_others_are_refused():
    s = Server(MODEL)
    own, body = f"127.0.0.1:{s.port}", json.dumps(chat("x"))
    ask = lambda **headers: s.call("POST", "/v1/chat/completions", body, headers={k.replace("_", "-"): v for k, v in headers.items()})[0]
    assert ask() == 200 and ask(Origin=f"http://{own}") == 200
    assert ask(Host=f"localhost:{s.port}", Origin=f"http://localhost:{s.port}") == 200 and ask(Host="plumb:80") == 200 and ask(Host=f"[::1]:{s.port}") == 200
    for headers in ({"Origin": "https://evil.example.org"}, {"Origin": "null"}, {"Origin": f"http://{own}.evil.example.org"}, {"Origin": "http://127.0.0.1:1"},
                    {"Host": f"evil.example.org:{s.port}", "Origin": f"http://evil.example.org:{s.port}"}, {"Host": "evil.example.org"}):  # the latter two: its name points here
        assert ask(**headers) == 403, headers
    status, error, _ = s.call("GET", "/props", headers={"Host": "evil.example.org"})
    assert status == 403 and "--allow-host" in error["error"]["message"] and error["error"]["type"] == "permission_error", error
    assert s.stop() == 0
    s = Server(MODEL, "--allow-host", "llm.example.org")
    assert ask(Host="llm.example.org", Origin="https://llm.example.org") == 200 and ask(Origin="https://LLM.example.org:8443") == 200
    assert ask(Origin="https://evil.example.org") == 403
    assert s.stop() == 0
    s = Server(MODEL, "--cors")
    assert ask(Origin="https://evil.example.org") == 200
    assert s.stop() == 0
    s = Server(MODEL, "--api-key", "k")  # no browser adds it by itself
    assert ask(Origin="https://evil.example.org") == 401 and ask(Origin="https://evil.example.org", Authorization="Bearer k") == 200
    assert s.stop() == 0


@tap.case
def a_query_that_is_too_long_is_answered_at_once():
    s = Server(MODEL, "--timeout", "3600", "--body-timeout", "3600")
    ask = lambda query: s.call("GET", f"/health?{query}")
    many = lambda count: "&".join(f"a{i}=1" for i in range(count))
    assert ask(many(64))[0] == 200 and ask("a" * 8000)[0] == 200
    for query in (many(65), many(1000), many(3000), "a" * 8192, "a=1&b=" + "2" * 30000):
        status, body, _ = ask(query)
        assert status == 414 and "8192 bytes" in body["error"]["message"] and "64 arguments" in body["error"]["message"], (status, body)
    assert s.call("POST", f"/v1/chat/completions?{many(900)}", chat("x"))[0] == 414
    assert s.stop() == 0


@tap.case
def anthropic_lists_and_formats():
    s = Server(MODEL, "--alias", "mine")
    version = {"anthropic-version": "2023-06-01"}
    listed = s.call("GET", "/v1/models", headers=version)[1]
    assert listed["has_more"] is False and listed["first_id"] == listed["last_id"] == "mine", listed
    model = listed["data"][0]
    assert model["type"] == "model" and model["id"] == model["display_name"] == "mine" and model["created_at"].endswith("Z"), model
    assert s.call("GET", "/v1/models/mine", headers=version)[1] == model
    assert s.call("GET", "/v1/models?after_id=mine", headers=version)[1] == {"data": [], "has_more": False, "first_id": None, "last_id": None}
    status, body, _ = s.call("GET", "/v1/models/other", headers=version)
    assert status == 404 and body["type"] == "error" and body["error"]["type"] == "not_found_error", body
    assert s.call("GET", "/v1/models")[1]["object"] == "list"
    ask = lambda **config: s.post("/v1/messages", {"model": "mine", "max_tokens": 60, "temperature": 0, "messages": [USER], "output_config": config})
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    status, body, _ = ask(format={"type": "json_schema", "schema": schema}, effort="low")
    assert status == 200 and json.loads(body["content"][0]["text"])["a"] in (1, 2), body
    for config, word in (({"format": {"type": "text"}}, "output_config.format"), ({"effort": "very"}, "output_config.effort"), ({"depth": 3}, "output_config.depth"),
                         ({"format": {"type": "json_schema", "schema": {"not": {}}}}, "'not'")):
        status, body, _ = ask(**config)
        assert status == 400 and word in body["error"]["message"], body
    assert s.stop() == 0


if __name__ == "__main__":
    try:
        tiny_chat_model.write(MODEL)
        tap.main()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
