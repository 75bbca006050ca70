"""The public Python clients against the server: openai and anthropic, with jsonschema as the judge of structured answers.
Skipped, and said so, where they are not installed (tools/requirements-test.txt names them)."""
# test-sanitized: yes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import tap  # noqa: E402
import tiny_chat_model  # noqa: E402

PLUMB = os.environ.get("PLUMB", "build/plumb")
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"], "additionalProperties": False}
USER = [{"role": "user", "content": "hello"}]
server = {}


def client(name):
    try:
        module = __import__(name)
    except ImportError:
        raise tap.Skip(f"the Python package {name} is not installed") from None
    base = f"http://127.0.0.1:{server['port']}"
    if name == "openai":
        return module, module.OpenAI(base_url=base + "/v1", api_key="key", max_retries=0)
    return module, module.Anthropic(base_url=base, api_key="key", max_retries=0)


@tap.case
def openai_chat():
    _, c = client("openai")
    one = c.chat.completions.create(model="x", messages=USER, temperature=0, max_tokens=8)
    parts = list(c.chat.completions.create(model="x", messages=USER, temperature=0, max_tokens=8, stream=True, stream_options={"include_usage": True}))
    assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == one.choices[0].message.content
    assert parts[-1].usage.completion_tokens == one.usage.completion_tokens
    assert c.models.list().data[0].id == c.models.retrieve(c.models.list().data[0].id).id
    assert c.completions.create(model="x", prompt="a", max_tokens=3, logprobs=1, temperature=0, extra_body={"ignore_eos": True}).choices[0].logprobs.tokens


@tap.case
def openai_errors():
    module, c = client("openai")
    for call, kind in ((lambda: c.chat.completions.create(model="x", messages=USER, temperature=9), module.BadRequestError),
                       (lambda: c.responses.create(model="x", input="a", previous_response_id="resp_1"), module.BadRequestError),
                       (lambda: c.models.retrieve("nothing"), module.NotFoundError)):
        try:
            call()
        except kind as e:
            assert e.status_code in (400, 404) and str(e)
        else:
            raise AssertionError("no error came")


@tap.case
def openai_error_words():
    module, c = client("openai")

    def error(call, kind):
        try:
            call()
        except kind as e:
            return e
        raise AssertionError(f"no {kind.__name__} came")

    create = lambda **kw: c.chat.completions.create(**{"model": "x", "messages": USER, **kw})
    for kw, param, code in (({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_value"), ({"messages": []}, "messages", "invalid_value"),
                            ({"extra_body": {"foo": 1}}, "foo", "unknown_parameter"), ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
                            ({"messages": [{"role": "user", "content": "word " * 3000}]}, "messages", "context_length_exceeded"),
                            ({"tool_choice": "required"}, "tool_choice", "invalid_value"), ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value")):
        e = error(lambda kw=kw: create(**kw), module.BadRequestError)
        assert (e.status_code, e.type, e.param, e.code) == (400, "invalid_request_error", param, code), (kw, e.body)
    e = error(lambda: c.models.retrieve("nothing"), module.NotFoundError)
    assert e.code == "model_not_found" and e.type == "invalid_request_error"
    e = error(lambda: c.responses.create(model="x", input="a", max_output_tokens=0), module.BadRequestError)
    assert e.param == "max_output_tokens"
    error(lambda: c.with_options(timeout=0.001).chat.completions.create(model="x", messages=USER, max_tokens=900, extra_body={"ignore_eos": True}),
          module.APITimeoutError)
    raw = c.chat.completions.with_raw_response.create(model="x", messages=USER, max_tokens=1)
    assert raw.headers["x-request-id"] == raw.parse().id and raw.parse()._request_id == raw.parse().id


@tap.case
def openai_choices_logprobs_and_stops():
    _, c = client("openai")
    kw = dict(model="x", messages=USER, max_tokens=6, extra_body={"ignore_eos": True})
    r = c.chat.completions.create(**kw, n=3, seed=5, temperature=1, logprobs=True, top_logprobs=2)
    assert [x.index for x in r.choices] == [0, 1, 2] and all(len(x.logprobs.content) == 6 and len(x.logprobs.content[0].top_logprobs) == 2 for x in r.choices)
    assert r.usage.completion_tokens == 18 and r.choices[0].finish_reason == "length"
    again = c.chat.completions.create(**kw, n=3, seed=5, temperature=1)
    assert [x.message.content for x in again.choices] == [x.message.content for x in r.choices]
    parts = list(c.chat.completions.create(**kw, n=3, seed=5, temperature=1, stream=True))
    for i in range(3):
        assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices and p.choices[0].index == i) == r.choices[i].message.content
    scored = c.completions.create(model="x", prompt="hello the", echo=True, logprobs=2, max_tokens=0).choices[0]
    assert scored.text == "hello the" and scored.logprobs.token_logprobs[0] is None and scored.logprobs.text_offset[0] == 0
    assert len(scored.logprobs.tokens) == len(scored.logprobs.top_logprobs) and scored.finish_reason == "length"


@tap.case
def openai_streamed_tools():
    _, c = client("openai")
    tools = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
    calls = {}
    for part in c.chat.completions.create(model="x", messages=USER, tools=tools, tool_choice="required", max_tokens=300, stream=True):
        for d in (part.choices[0].delta.tool_calls or []) if part.choices else []:
            call = calls.setdefault(d.index, {"id": d.id, "name": d.function.name, "arguments": [], "type": d.type})
            call["arguments"].append(d.function.arguments or "")
    assert calls and all(v["id"] and v["type"] == "function" and v["name"] == "weather" for v in calls.values()), calls
    assert "city" in json.loads("".join(calls[0]["arguments"])) and len(calls[0]["arguments"]) > 2
    r = c.chat.completions.create(model="x", messages=USER, tools=tools, tool_choice="none", max_tokens=4)
    assert r.choices[0].message.tool_calls is None


@tap.case
def openai_tools_and_schema():
    _, c = client("openai")
    tools = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
    r = c.chat.completions.create(model="x", messages=USER, tools=tools, tool_choice="required", max_tokens=200, parallel_tool_calls=False)
    call = r.choices[0].message.tool_calls[0]
    assert r.choices[0].finish_reason == "tool_calls" and "city" in json.loads(call.function.arguments)
    again = USER + [r.choices[0].message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "sun"}]
    assert c.chat.completions.create(model="x", messages=again, tools=tools, max_tokens=4).choices
    form = {"type": "json_schema", "json_schema": {"name": "w", "strict": True, "schema": WEATHER}}
    text = c.chat.completions.create(model="x", messages=USER, response_format=form, max_tokens=200).choices[0].message.content
    try:
        import jsonschema
    except ImportError:
        raise tap.Skip("the Python package jsonschema is not installed") from None
    jsonschema.validate(json.loads(text), WEATHER)


@tap.case
def openai_responses():
    _, c = client("openai")
    r = c.responses.create(model="x", input="hello", instructions="be brief", temperature=0, max_output_tokens=8, extra_body={"ignore_eos": True})
    assert r.status == "incomplete" and r.incomplete_details.reason == "max_output_tokens" and r.usage.output_tokens == 8, r
    events = list(c.responses.create(model="x", input=USER, instructions="be brief", temperature=0, max_output_tokens=8, extra_body={"ignore_eos": True}, stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type == "response.incomplete"
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == r.output_text == events[-1].response.output_text
    tools = [{"type": "function", "name": "weather", "parameters": WEATHER}]
    called = list(c.responses.create(model="x", input="hello", tools=tools, tool_choice="required", max_output_tokens=200,
                                     parallel_tool_calls=False, stream=True))
    item = called[-1].response.output[0]
    assert item.type == "function_call" and "city" in json.loads(item.arguments), called[-1]
    assert "".join(e.delta for e in called if e.type == "response.function_call_arguments.delta") == item.arguments
    back = [*USER, item.model_dump(exclude_none=True), {"type": "function_call_output", "call_id": item.call_id, "output": "sun"}]
    assert c.responses.create(model="x", input=back, max_output_tokens=4).output
    form = {"format": {"type": "json_schema", "name": "w", "schema": WEATHER}}
    assert "city" in json.loads(c.responses.create(model="x", input="a", text=form, max_output_tokens=200).output_text)


@tap.case
def anthropic_messages():
    module, c = client("anthropic")
    r = c.messages.create(model="x", max_tokens=8, messages=USER, system="be brief", extra_body={"temperature": 0, "ignore_eos": True})
    assert r.stop_reason in ("max_tokens", "end_turn") and r.content[0].type == "text" and r.usage.output_tokens > 0
    with c.messages.stream(model="x", max_tokens=8, messages=USER, system="be brief", extra_body={"temperature": 0, "ignore_eos": True}) as stream:
        assert "".join(stream.text_stream) == r.content[0].text
        assert stream.get_final_message().stop_reason == r.stop_reason
    listed = list(c.models.list())
    assert len(listed) == 1 and listed[0].type == "model" and c.models.retrieve(listed[0].id).to_dict() == listed[0].to_dict(), listed
    held = {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 5}}, "required": ["a"], "additionalProperties": False}
    formed = c.messages.create(model="x", max_tokens=80, messages=USER, output_config={"effort": "low", "format": {"type": "json_schema", "schema": held}}, extra_body={"temperature": 0})
    assert formed.stop_reason == "max_tokens" or json.loads(formed.content[0].text)["a"] % 5 == 0, formed
    counted = c.messages.count_tokens(model="x", messages=USER, system="be brief").input_tokens
    assert counted == r.usage.input_tokens + (r.usage.cache_read_input_tokens or 0)
    stop = r.content[0].text[2:4]
    if stop:
        cut = c.messages.create(model="x", max_tokens=8, messages=USER, system="be brief", extra_body={"temperature": 0, "ignore_eos": True}, stop_sequences=[stop])
        assert cut.stop_reason == "stop_sequence" and cut.stop_sequence == stop
    for bad in (dict(max_tokens=0, messages=USER), dict(max_tokens=4, messages=[])):
        try:
            c.messages.create(model="x", **bad)
        except module.BadRequestError as e:
            assert e.body["type"] == "error" and e.body["error"]["type"] == "invalid_request_error"
        else:
            raise AssertionError("no error came")


@tap.case
def anthropic_events_and_errors():
    module, c = client("anthropic")
    events = list(c.messages.create(model="x", max_tokens=6, messages=USER, stream=True, extra_body={"temperature": 0, "ignore_eos": True}))
    kinds = [e.type for e in events if e.type != "ping"]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"] and kinds[1] == "content_block_start" and kinds[-3] == "content_block_stop"
    assert events[-2].usage.output_tokens == 6 and events[-2].delta.stop_reason == "max_tokens"
    for bad, kind, word in ((dict(max_tokens=4, messages=USER, temperature=1.5), module.BadRequestError, "temperature"),
                            (dict(max_tokens=4, messages=[{"role": "user", "content": "word " * 3000}]), module.BadRequestError, "context"),
                            (dict(max_tokens=4, messages=USER, tool_choice={"type": "any"}), module.BadRequestError, "tool")):
        try:
            c.messages.create(model="x", **{k: v for k, v in bad.items() if k != "temperature"}, extra_body={k: v for k, v in bad.items() if k == "temperature"})
        except kind as e:
            assert e.body["error"]["type"] == "invalid_request_error" and word in e.body["error"]["message"], e.body
        else:
            raise AssertionError("no error came")
    try:
        c.messages.create(model="x", max_tokens=0, messages=USER)
    except module.BadRequestError as e:
        assert e.request_id and e.body["request_id"] == e.request_id, e.body
    raw = c.messages.with_raw_response.create(model="x", max_tokens=1, messages=USER)
    assert raw.headers["request-id"] == raw.parse().id


@tap.case
def anthropic_tools():
    _, c = client("anthropic")
    tools = [{"name": "weather", "description": "d", "input_schema": WEATHER}]
    ask = dict(model="x", max_tokens=200, messages=USER, tools=tools, tool_choice={"type": "any", "disable_parallel_tool_use": True})
    r = c.messages.create(**ask)
    use = r.content[-1]
    assert r.stop_reason == "tool_use" and use.type == "tool_use" and use.name == "weather" and "city" in use.input, r
    with c.messages.stream(**ask) as stream:
        final = stream.get_final_message()
    assert final.content[-1].type == "tool_use" and "city" in final.content[-1].input, final
    back = USER + [{"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in r.content]},
                   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "sun"}]}]
    assert c.messages.create(model="x", max_tokens=4, messages=back, tools=tools).content is not None


def post_raw(path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{server['port']}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as r:
        return r.read().decode()


def post_events(path, body):
    return [json.loads(line[6:]) for line in post_raw(path, {**body, "stream": True}).split("\n") if line.startswith("data: ") and line != "data: [DONE]"]


@tap.case
def shapes_are_those_the_packages_declare():
    """Both packages take what lacks a field without a word; here their declarations are held against every answer and event."""
    client("openai"), client("anthropic")
    from anthropic.types import Message, ModelInfo, RawMessageStreamEvent
    from openai.types import Completion
    from openai.types.chat import ChatCompletion, ChatCompletionChunk
    from openai.types.responses import Response, ResponseStreamEvent
    from pydantic import TypeAdapter
    types = {t: TypeAdapter(t) for t in (Message, RawMessageStreamEvent, Completion, ChatCompletion, ChatCompletionChunk, Response, ResponseStreamEvent)}
    function = {"name": "weather", "parameters": WEATHER}
    chat_tools = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    response_tools = {"tools": [{"type": "function", **function}], "tool_choice": "required"}
    message_tools = {"tools": [{"name": "weather", "input_schema": WEATHER}], "tool_choice": {"type": "any"}}
    logprobs = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    cases = [("/v1/chat/completions", {"messages": USER, "max_tokens": 60}, ChatCompletion, ChatCompletionChunk, ({}, {"logprobs": True, "top_logprobs": 2}, {"n": 2}, chat_tools)),
             ("/v1/completions", {"prompt": "hello", "max_tokens": 6}, Completion, None, ({}, {"logprobs": 2}, {"n": 2, "echo": True})),
             ("/v1/responses", {"input": "hello", "max_output_tokens": 60}, Response, ResponseStreamEvent, ({}, {"max_output_tokens": 2}, logprobs, response_tools)),
             ("/v1/messages", {"model": "x", "messages": USER, "max_tokens": 60}, Message, RawMessageStreamEvent, ({}, {"stop_sequences": ["e"]}, message_tools))]
    for path, body, whole, event, extras in cases:
        for extra in extras:
            types[whole].validate_python(json.loads(post_raw(path, {**body, **extra})))
            for e in post_events(path, {**body, **extra}):
                if event is not None and e.get("type") != "ping":
                    types[event].validate_python(e)
    TypeAdapter(ModelInfo).validate_python(client("anthropic")[1].models.with_raw_response.list().http_response.json()["data"][0])
    parts = post_events("/v1/chat/completions", {"messages": USER, "max_tokens": 3, "stream_options": {"include_usage": True}})
    assert all(p["usage"] is None for p in parts[:-1]) and parts[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}, parts
    answer = json.loads(post_raw("/v1/responses", {"input": "hello", "max_output_tokens": 4, "ignore_eos": True, **logprobs}))
    text = answer["output"][0]["content"][0]
    assert len(text["logprobs"]) == 4 and len(text["logprobs"][0]["top_logprobs"]) == 2 and answer["top_logprobs"] == 2, answer
    sent = [x for e in post_events("/v1/responses", {"input": "hello", "max_output_tokens": 4, "ignore_eos": True, "temperature": 0, **logprobs})
            if e["type"] == "response.output_text.delta" for x in e["logprobs"]]
    assert 0 < len(sent) <= 4 and all("logprob" in x for x in sent), sent
    full = json.loads(post_raw("/v1/messages", {"model": "x", "messages": USER, "max_tokens": 100000, "ignore_eos": True}))
    assert full["stop_reason"] == "model_context_window_exceeded", full["stop_reason"]


@tap.case
def curl():
    try:
        out = subprocess.run(["curl", "-sN", f"http://127.0.0.1:{server['port']}/v1/chat/completions", "-d",
                              json.dumps({"messages": USER, "max_tokens": 3, "stream": True})], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        raise tap.Skip("curl is not installed") from None
    assert out.stdout.endswith("data: [DONE]\n\n"), out.stdout


@tap.case
def wrk():
    script = os.path.join(os.environ.get("TMPDIR", tempfile.gettempdir()), "plumb-wrk.lua")
    with open(script, "w", encoding="utf-8") as f:
        f.write("wrk.method = 'POST'\nwrk.headers['Content-Type'] = 'application/json'\n"
                "wrk.body = '{\"prompt\": \"hello\", \"max_tokens\": 2, \"ignore_eos\": true, \"temperature\": 0}'\n")
    try:
        out = subprocess.run(["wrk", "-t1", "-c16", "-d2s", "--timeout", "30s", "-s", script, f"http://127.0.0.1:{server['port']}/v1/completions"],
                             capture_output=True, text=True, timeout=90)
    except FileNotFoundError:
        raise tap.Skip("wrk is not installed") from None
    finally:
        os.unlink(script)
    assert out.returncode == 0 and "Requests/sec" in out.stdout and "Non-2xx" not in out.stdout and "Socket errors" not in out.stdout, out.stdout + out.stderr


def main():
    with tempfile.TemporaryDirectory() as directory:
        model = os.path.join(directory, "tiny")
        tiny_chat_model.write(model, context=1024)
        process = subprocess.Popen([PLUMB, "serve", "-m", model, "--port", "0"], stderr=subprocess.PIPE, text=True)
        for line in process.stderr:
            found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", line)
            if found:
                server["port"] = int(found.group(1))
                break
        try:
            tap.main()
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


if __name__ == "__main__":
    main()
