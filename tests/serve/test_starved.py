"""Every allocation of a request fails once: the answer is then 503, a stream that ends with an error, or the whole answer; never a
client's mistake, never half of it, never a crash. By a server inside a driver (starved_driver.c)."""
import json
import os
import re
import subprocess
import sys

sys.path[:0] = [os.getcwd()]
from tests.build import make  # noqa: E402
from tests.cmd.support import tiny  # noqa: E402
from tests.tap import case, main  # noqa: E402

DRIVER = "build/release/tests/serve/starved_driver"
OBJECT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": OBJECT}}
CALLS = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]
HELLO = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "temperature": 0}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {**OBJECT, "additionalProperties": False}}}
# what differs from answer to answer: numbers of requests, times, what was computed before
VARIES = re.compile(r'(chatcmpl|cmpl|resp|msg|call|toolu|item|rs|fc)[_-][0-9a-f]{16}|"created(_at)?":\d+|'
                    r'"(cached_tokens|cache_read_input_tokens|input_tokens)":\d+')
ENDS = ("[DONE]", "message_stop", "response.completed", "response.incomplete")


def answers(*requests):
    """For each request [(status, body)]: the first of a server that lacked nothing."""
    make(DRIVER)
    asked = b""
    for path, body in requests:
        data = json.dumps(body).encode()
        asked += f"{path} {len(data)}\n".encode() + data
    out = subprocess.run([DRIVER, tiny()], input=asked, capture_output=True, timeout=300)
    assert out.returncode == 0, (out.returncode, out.stderr[-3000:])
    lists = [[line.split(" ", 2)[1:] for line in part.splitlines()] for part in out.stdout.decode().split("\n.\n")[:-1]]
    assert len(lists) == len(requests), out.stdout[-500:]
    return lists


def check(requests, least):
    for (path, _), (first, *others) in zip(requests, answers(*requests)):
        whole, stream = VARIES.sub("", first[1]), first[1].startswith(("data:", "event:"))
        assert first[0] == "200" and len(others) >= least, (path, first, len(others))
        failed = 0
        for n, (status, body) in enumerate(others, 1):
            if VARIES.sub("", body) == whole:
                continue
            failed += 1
            where = (path, n, status, body[:600])
            if stream and status == "200":
                assert "no memory" in body and not any(end in body for end in ENDS[1:3]), where
                for data in re.findall(r"data: (\{.*?\})  ", body):
                    json.loads(data)
                continue
            assert status == "503", where
            error = json.loads(body)["error"]
            assert "memory" in error["message"] and error["type"] in ("server_error", "api_error"), where
        assert failed >= least // 2, (path, failed, len(others))


@case
def chats():
    check([("/v1/chat/completions", {**HELLO, "messages": [{"role": "system", "content": "s"},
                                                           {"role": "user", "content": [{"type": "text", "text": "hello"}]}],
                                     "tools": [TOOL], "stop": ["zz"], "logprobs": True, "top_logprobs": 2, "n": 2}),
           ("/v1/chat/completions", {**HELLO, "messages": HELLO["messages"] + [
               {"role": "assistant", "content": None, "tool_calls": CALLS}, {"role": "tool", "tool_call_id": "1", "content": "7"}],
                                     "tools": [TOOL]}),
           ("/v1/chat/completions", {**HELLO, "tools": [TOOL], "tool_choice": "required", "max_tokens": 40})], 200)


@case
def forms_and_streams():
    check([("/v1/chat/completions", {**HELLO, "response_format": SCHEMA, "max_tokens": 5}),
           ("/v1/chat/completions", {**HELLO, "stream": True, "stream_options": {"include_usage": True}}),
           ("/v1/completions", {"prompt": ["hello", "the"], "max_tokens": 2, "temperature": 0, "echo": True, "logprobs": 2,
                                "logit_bias": {"5": 3}})], 80)


@case
def other_interfaces():
    check([("/v1/messages", {**HELLO, "system": "s", "tools": [{"name": "f", "input_schema": OBJECT}]}),
           ("/v1/messages", {**HELLO, "stream": True}),
           ("/v1/responses", {"input": "hello", "max_output_tokens": 3, "temperature": 0, "instructions": "s",
                              "tools": [{"type": "function", "name": "f", "parameters": OBJECT}]}),
           ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}],
                              "max_output_tokens": 3, "temperature": 0, "stream": True})], 150)
    check([("/v1/messages/count_tokens", {"messages": HELLO["messages"]}), ("/tokenize", {"content": "hello the"}),
           ("/detokenize", {"tokens": [5, 6]}), ("/apply-template", {"messages": HELLO["messages"]})], 12)


main()
