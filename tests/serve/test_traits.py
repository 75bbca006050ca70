"""Chat templates that cannot show system messages, tools, calls or results, or take content in parts only: the prompt holds all of
it nevertheless, and /props says which of it the template shows. Templates of our own, each lacking something."""
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import tap  # noqa: E402
import tiny_chat_model  # noqa: E402
from support import Server  # noqa: E402

CHATML = tiny_chat_model.TEMPLATE
FULL = ("{% for t in tools %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
        "{% for c in m.tool_calls %}({{ c.function.name }} {{ c.function.arguments.x }}){% endfor %}{% endfor %}")
STRICT = ("{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
          "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
          "<{{ m.role }}>{{ m.content }}{% endfor %}")
PARTS = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
SYSTEM_TEXT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.tools %}<tools>{{ m.tools + '</tools>' }}{% endif %}{% endfor %}"
SYSTEM_LIST = ("{% for m in messages %}{% for t in m.tools %}#{{ t.function.name }}{% endfor %}"
               "<|{{ m.role }}|>{{ m.metadata }}\n{{ m.content }}{% endfor %}")
ONLY_SPEAKS = "{# tools #}" + CHATML
NAMED = "{{ messages[0].content }} for {{ custom.name }}"

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}}]
CALL = {"role": "assistant", "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"x": "Oslo"}'}}]}
TWO = {"role": "assistant", "content": "Let me.", "tool_calls": CALL["tool_calls"] + [
    {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": '{"x": "Rome"}'}}]}
SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Warm?"}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "3 degrees"}
SECOND = {"role": "tool", "tool_call_id": "c2", "content": "9 degrees"}


def prompts(template, *conversations):
    """What /props says of the template, and the prompts."""
    directory = tempfile.mkdtemp()
    try:
        tiny_chat_model.TEMPLATE = template
        tiny_chat_model.write(directory, context=512)
        s = Server(directory)
        shows = s.call("GET", "/props")[1]["chat_template_shows"]
        out = []
        for messages, more in conversations:
            status, answer, _ = s.post("/apply-template", {"messages": messages, **more})
            assert status == 200, answer
            out.append(answer["prompt"])
        assert s.stop() == 0
        return shows, out
    finally:
        tiny_chat_model.TEMPLATE = CHATML
        shutil.rmtree(directory)


@tap.case
def reasoning_comes_back_under_the_name_that_the_template_knows():
    """Which it has in the answers of this server and of others; not beside both text and calls where it is called 'thinking'."""
    shown = "{% for m in messages %}<{{ m.role }}>[{{ m.thinking }}|{{ m.reasoning_content }}|{{ m.reasoning }}]{{ m.content }}{% endfor %}"
    turn = lambda **more: [USER, {"role": "assistant", "content": "Yes.", **more}, USER]
    ends = [turn(reasoning_content="Hm."), turn(thinking="Hm."), turn(reasoning="Hm."), turn(reasoning="No.", reasoning_content="Hm."), turn(reasoning_content=None)]
    _, out = prompts(shown, *[(m, {}) for m in ends], ([USER, {**CALL, "reasoning": "Hm."}, RESULT], {"tools": TOOLS}),
                     ([USER, {**CALL, "content": "Yes.", "reasoning": "Hm."}, RESULT], {"tools": TOOLS}))
    assert all("<user>[||]Warm?<assistant>[Hm.|Hm.|Hm.]Yes.<user>" in p for p in out[:3]) and "<assistant>[Hm.|Hm.|No.]Yes." in out[3], out
    assert "<assistant>[|None|]Yes." in out[4] and "<assistant>[Hm.|Hm.|Hm.]" in out[5] and "<assistant>[|Hm.|Hm.]Yes." in out[6], out


@tap.case
def reasoning_of_other_apis_reaches_the_template():
    directory = tempfile.mkdtemp()
    try:
        tiny_chat_model.TEMPLATE = "{% for m in messages %}<{{ m.role }}>[{{ m.reasoning_content }}]{{ m.content }}{% endfor %}"
        tiny_chat_model.write(directory, context=512)
        s = Server(directory)
        thought = "Cold, warm or hot?"
        want = s.post("/v1/chat/completions", {"messages": [USER, {"role": "assistant", "content": "Yes.", "reasoning": thought}, USER], "max_tokens": 1})[1]["usage"]["prompt_tokens"]
        bare = s.post("/v1/chat/completions", {"messages": [USER, {"role": "assistant", "content": "Yes."}, USER], "max_tokens": 1})[1]["usage"]["prompt_tokens"]
        answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]}
        item = lambda **more: {"type": "reasoning", "id": "rs_1", "summary": [], **more}
        ask = lambda *items: s.post("/v1/responses", {"model": "x", "input": [USER, *items, USER], "max_output_tokens": 1})[1]["usage"]["input_tokens"]
        said = [{"type": "reasoning_text", "text": thought}]
        assert ask(item(content=said), answer) == want == ask(item(summary=[{"type": "summary_text", "text": thought}]), answer)
        assert ask(item(), answer) == bare == ask(answer, item(content=said)) and bare < want
        blocks = lambda *some: s.post("/v1/messages/count_tokens", {"model": "x", "messages": [USER, {"role": "assistant", "content": [*some, {"type": "text", "text": "Yes."}]}, USER]})[1]["input_tokens"]
        assert blocks({"type": "thinking", "thinking": thought, "signature": ""}) == want and blocks({"type": "redacted_thinking", "data": "x"}) == bare
        assert s.stop() == 0
    finally:
        tiny_chat_model.TEMPLATE = CHATML
        shutil.rmtree(directory)


@tap.case
def what_a_template_shows_is_left_to_it():
    shows, (prompt,) = prompts(FULL, ([SYSTEM, USER, CALL, RESULT], {"tools": TOOLS}))
    assert shows == {"system": True, "tools": "variable", "tool_calls": True, "tool_results": True, "parts_only": False}, shows
    assert prompt == "[weather]<system>Be brief.<user>Warm?<assistant>(weather Oslo)<tool>3 degrees", prompt


@tap.case
def calls_become_text_of_the_assistant():
    shows, (one, two) = prompts(CHATML, ([USER, CALL, RESULT], {}), ([USER, TWO, RESULT, SECOND], {}))
    assert shows["tool_calls"] is False and shows["tool_results"] is True and shows["tools"] == "described", shows
    assert '<|im_start|>assistant\n{"name": "weather", "arguments": {"x": "Oslo"}}<|im_end|>' in one, one
    assert "<|im_start|>tool\n3 degrees<|im_end|>" in one, one
    assert ('<|im_start|>assistant\nLet me.\n[{"name": "weather", "arguments": {"x": "Oslo"}}, {"name": "weather", "arguments": '
            '{"x": "Rome"}}]<|im_end|>') in two, two


@tap.case
def what_strict_templates_refuse_goes_to_the_user():
    shows, (plain, calls, more) = prompts(STRICT, ([SYSTEM, USER], {}), ([SYSTEM, USER, TWO, RESULT, SECOND], {}),
                                          ([USER, CALL, RESULT, USER, {"role": "assistant", "content": "Yes."}, SYSTEM], {}))
    assert shows["system"] is False and shows["tool_calls"] is False and shows["tool_results"] is False, shows
    assert plain == "<user>Be brief.\n\nWarm?", plain
    assert calls.startswith("<user>Be brief.\n\nWarm?<assistant>Let me.\n[{"), calls
    assert calls.endswith("<user>Result of weather:\n3 degrees\n\nResult of weather:\n9 degrees"), calls
    assert more.endswith("}<user>Result of weather:\n3 degrees\n\nWarm?<assistant>Yes.<user>Be brief."), more


@tap.case
def content_comes_in_parts_where_nothing_else_is_seen():
    shows, (prompt,) = prompts(PARTS, ([SYSTEM, USER], {}))
    assert shows["parts_only"] is True and shows["system"] is True, shows
    assert prompt == "<system>Be brief.<user>Warm?", prompt


@tap.case
def tools_stand_where_the_template_takes_them():
    shows, (prompt, described) = prompts(SYSTEM_TEXT, ([USER], {"tools": TOOLS}), ([USER], {}))
    assert shows["tools"] == "system text", shows
    assert prompt.startswith('<system><tools>[{"name": "weather",') and prompt.endswith("</tools><user>Warm?"), prompt
    assert described == "<user>Warm?", described
    shows, (prompt,) = prompts(ONLY_SPEAKS, ([USER], {"tools": TOOLS}))
    assert shows["tools"] == "described" and "You can call these functions" in prompt and '"weather"' in prompt, (shows, prompt)


@tap.case
def glm_has_calls_as_metadata():
    shows, (prompt,) = prompts("{# <|observation|> #}" + SYSTEM_LIST, ([SYSTEM, USER, TWO, RESULT, SECOND], {"tools": TOOLS}))
    assert shows == {"system": True, "tools": "system list", "tool_calls": True, "tool_results": True, "parts_only": False}, shows
    assert prompt == ('#weather<|system|>\nBe brief.<|user|>\nWarm?<|assistant|>\nLet me.<|assistant|>weather\n{"x": "Oslo"}'
                      '<|assistant|>weather\n{"x": "Rome"}<|observation|>\n3 degrees<|observation|>\n9 degrees'), prompt


@tap.case
def the_template_for_tools_is_taken_where_there_are_tools():
    both = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": FULL}]
    shows, (plain, tools) = prompts(both, ([USER], {}), ([USER, CALL, RESULT], {"tools": TOOLS}))
    assert shows["tools"] == "variable" and shows["tool_calls"] is True, shows
    assert plain.startswith("<|im_start|>user\nWarm?") and tools == "[weather]<user>Warm?<assistant>(weather Oslo)<tool>3 degrees", (plain, tools)


@tap.case
def a_template_of_which_nothing_is_known_is_left_alone():
    shows, _ = prompts(NAMED)
    assert shows["system"] and shows["tool_calls"] and shows["tool_results"] and not shows["parts_only"], shows


tap.main()
