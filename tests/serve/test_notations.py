"""Forced tool calls in every notation that templates know: what the model writes is its own notation, what the client gets are
calls that the schemas allow, whole and streamed alike. Tiny random models, which write nonsense where the grammar lets them."""
import json
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import tap  # noqa: E402
import tiny_chat_model  # noqa: E402
from support import Server, chat  # noqa: E402

DS = lambda name: "<\uff5ctool\u2581" + name + "\uff5c>"
NOTATIONS = {  # what a template shows of it, and how an answer must begin and end
    "hermes": ("<tool_call>", '<tool_call>\n{"name": "', "}\n</tool_call>"),
    "llama": ("<|python_tag|>", '{"name": "', "}"),
    "mistral": ("[TOOL_CALLS]", '[TOOL_CALLS][{"name": "', "}]"),
    "mistral, names before arguments": ("[TOOL_CALLS] [ARGS]", "[TOOL_CALLS]", "}"),
    "gemma": ("```tool_code", '```tool_code\n{"name": "', "}\n```"),
    "qwen3-coder": ("<tool_call> <function=", "<tool_call>\n<function=", "</function>\n</tool_call>"),
    "deepseek v3": (DS("calls\u2581begin") + " ```json", DS("calls\u2581begin") + DS("call\u2581begin") + "function" + DS("sep"), DS("calls\u2581end")),
    "deepseek v3.1": (DS("calls\u2581begin"), DS("calls\u2581begin") + DS("call\u2581begin"), DS("calls\u2581end")),
    "granite": ("<|tool_call|>", '<|tool_call|>[{"name": "', "}]"),
    "nemotron": ("<TOOLCALL>", '<TOOLCALL>[{"name": "', "}]</TOOLCALL>"),
    "jamba": ("<tool_calls>", '<tool_calls>[\n{"name": "', "}\n]</tool_calls>"),
    "command": ("<|START_ACTION|>", '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "', "}\n]<|END_ACTION|>"),
    "olmo": ("<function_calls>", '<function_calls>[{"name": "', "}]</function_calls>"),
    "functiongemma": ("<start_function_call>", "<start_function_call>call:", "}<end_function_call>"),
    "glm": ("<|observation|>", ("weather\n{", "numbers\n{"), "}"),
    "glm-4.5": ("<tool_call> <arg_key>", ("<tool_call>weather\n<arg_key>", "<tool_call>numbers\n<arg_key>"), "</arg_value>\n</tool_call>"),
    "hunyuan": ("<arg_key{}>", "<tool_calls:opensource>\n<tool_call:opensource>", "</tool_call:opensource>\n</tool_calls:opensource>"),
    "seed": ("<seed:tool_call> <function=", "<seed:tool_call>\n<function=", "</parameter>\n</function>\n</seed:tool_call>"),
    "minimax": ("<minimax:tool_call>", '<minimax:tool_call>\n<invoke name="', "</parameter>\n</invoke>\n</minimax:tool_call>"),
    "deepseek v3.2": ("\uff5cDSML\uff5c function_calls>", '<\uff5cDSML\uff5cfunction_calls>\n<\uff5cDSML\uff5cinvoke name="', "</\uff5cDSML\uff5cfunction_calls>"),
    "deepseek v4": ("\uff5cDSML\uff5c", '<\uff5cDSML\uff5ctool_calls>\n<\uff5cDSML\uff5cinvoke name="', "</\uff5cDSML\uff5ctool_calls>"),
    "kimi": ("<|tool_calls_section_begin|>", "<|tool_calls_section_begin|><|tool_call_begin|>functions.", "<|tool_call_end|><|tool_calls_section_end|>"),
    "minicpm": ('<function name="', ('<function name="weather"><param name="city">', '<function name="numbers"><param name="list">'), "</param></function>"),
    "apertus": ("<|tools_prefix|>", '<|tools_prefix|>[{"', "}]<|tools_suffix|>"),
    "gigachat": ("<|function_call|>", '<|function_call|>{"name": "', "}"),
    "gpt-oss": ("<|channel|>", "<|channel|>", "}"),
    "json": ("", ('{"name": "', '[{"name": "'), ("}", "]")),
}
FIRST = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 6}, "unit": {"type": "string", "enum": ["c", "f"]},
                                          "days": {"type": "integer", "minimum": 1, "maximum": 9}, "exact": {"type": "boolean"}},
         "required": ["city", "unit", "days"]}
SECOND = {"type": "object", "properties": {"list": {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 3, "minItems": 1}}, "required": ["list"],
          "$defs": {"n": {"type": "integer", "minimum": 0, "maximum": 5}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": FIRST}}, {"type": "function", "function": {"name": "numbers", "parameters": SECOND}}]


def check_arguments(name, a):
    if name == "weather":
        assert set(a) <= {"city", "unit", "days", "exact"} and isinstance(a["city"], str) and len(a["city"]) <= 6 and a["unit"] in ("c", "f"), a
        assert isinstance(a["days"], int) and 1 <= a["days"] <= 9 and isinstance(a.get("exact", True), bool), a
    else:
        assert name == "numbers" and 1 <= len(a["list"]) <= 3 and all(0 <= n <= 5 for n in a["list"]), (name, a)


def streamed(s, body):
    calls = {}
    for e in s.stream("/v1/chat/completions", body):
        for c in e["choices"]:
            for d in c["delta"].get("tool_calls", []):
                call = calls.setdefault(d["index"], {"name": d["function"].get("name"), "arguments": ""})
                call["arguments"] += d["function"].get("arguments", "")
    return [(c["name"], c["arguments"]) for _, c in sorted(calls.items())]


def check(s, begin, end, choice, single, seed):
    body = chat("hi", tools=TOOLS, tool_choice=choice, temperature=1, seed=seed, max_tokens=440, logprobs=True, **({"parallel_tool_calls": False} if single else {}))
    r = s.post("/v1/chat/completions", body)[1]
    c = r["choices"][0]
    if c["finish_reason"] == "length":  # a random model may think, or call, for long
        return 0
    raw = bytes(b for t in c["logprobs"]["content"] for b in t["bytes"]).decode(errors="replace")
    assert raw.startswith(begin) and raw.endswith(end), raw
    calls = [(t["function"]["name"], t["function"]["arguments"]) for t in c["message"].get("tool_calls", [])]
    assert c["finish_reason"] == "tool_calls" and c["message"]["content"] is None and calls, (raw, r)
    assert len(calls) == 1 or not single
    for name, arguments in calls:
        assert choice == "required" or name == "weather", calls
        check_arguments(name, json.loads(arguments))
    assert streamed(s, body) == calls, raw
    return len(calls)


def case(name):
    mark, begin, end = NOTATIONS[name]

    def test():
        directory = tempfile.mkdtemp()
        try:
            shown = "{# " + mark + " #}{% for t in tools %}{{ t.function.name }}{% endfor %}"  # tools must be seen in the prompt
            tiny_chat_model.TEMPLATE = shown + TEMPLATE if mark else TEMPLATE
            tiny_chat_model.write(directory, context=1024)
            s = Server(directory)
            named = {"type": "function", "function": {"name": "weather"}}
            counts = [check(s, begin, end, choice, single, seed) for seed in range(4) for choice, single in (("required", False), ("required", True), (named, False))]
            assert sum(n > 0 for n in counts) >= 3, counts
            assert s.stop() == 0
        finally:
            shutil.rmtree(directory)

    test.__name__ = "forced_calls_as_" + name.replace(" ", "_").replace(",", "")
    return test


if __name__ == "__main__":
    TEMPLATE = tiny_chat_model.TEMPLATE
    for notation in NOTATIONS:
        tap.case(case(notation))
    tap.main()
