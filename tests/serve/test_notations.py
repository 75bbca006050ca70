"""Forced tool calls in every notation that templates know: what the model writes is its own notation, what the client gets are
calls that the schemas allow, whole and streamed alike. Tiny random models, which write nonsense where the grammar lets them."""
import json
import os
import re
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
    "functionary": (">>>${recipient}", ("weather\n{", "numbers\n{"), "}"),
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


DSML = lambda text: text.replace("<", "<\uff5cDSML\uff5c").replace("<\uff5cDSML\uff5c/", "</\uff5cDSML\uff5c")
HY = lambda text: text.replace(">", ":opensource>")
# what stands before a text's value and after it, and what else must not stand in it
TEXTS = {
    "qwen3-coder": ("<parameter=%s>\n", "\n</parameter>\n", ["<parameter=", "</function>"]),
    "glm-4.5": ("<arg_key>%s</arg_key>\n<arg_value>", "</arg_value>\n", ["<arg_key>", "</tool_call>"]),
    "hunyuan": (HY("<arg_key>%s</arg_key>\n<arg_value>"), HY("</arg_value>") + "\n", [HY("<arg_key>"), HY("</tool_call>")]),
    "seed": ("<parameter=%s>", "</parameter>\n", ["<parameter=", "</function>"]),
    "minimax": ('<parameter name="%s">', "</parameter>\n", ['<parameter name="', "</invoke>"]),
    "deepseek v3.2": (DSML('<parameter name="%s" string="true">'), DSML("</parameter>") + "\n", [DSML('<parameter name="'), DSML("</invoke>")]),
    "deepseek v4": (DSML('<parameter name="%s" string="true">'), DSML("</parameter>") + "\n", [DSML('<parameter name="'), DSML("</invoke>")]),
    "minicpm": ('<param name="%s">', "</param>", ['<param name="', "</function>", "<![CDATA["]),
}
NOTE = [{"type": "function", "function": {"name": "note", "parameters": {"type": "object", "required": ["text", "more", "code", "day", "maybe", "kind"], "properties": {
    "text": {"type": "string"}, "more": {"type": "string", "minLength": 2}, "code": {"type": "string", "pattern": "^[a-c]{2}\"[0-9]$"},
    "day": {"type": "string", "format": "date"}, "maybe": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]}, "kind": {"$ref": "#/$defs/kind"}},
    "$defs": {"kind": {"enum": ["1", "2"]}}}}}]


def with_pieces(pieces):
    """A tokenizer that knows these as tokens, and their ids."""
    made = tiny_tokenizer()
    first = len(made["model"]["vocab"]) + len(made["added_tokens"])
    for i, text in enumerate(pieces):
        made["added_tokens"].append({"id": first + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False})
    return made, list(range(first, first + len(pieces)))


def text_case(name):
    """Values without a bound: whatever the model writes that looks like a mark's beginning, it is read back as it stands."""
    before, after, others = TEXTS[name]

    def test():
        directory = tempfile.mkdtemp()
        try:
            end = after.strip("\n")
            marks = [end, *others]
            pieces = sorted({m[:n] for m in marks for n in (1, 2, 4, len(m) - 1, len(m))} | {m[n:] for m in marks for n in (1, 4)} | {after})
            made, ids = with_pieces(pieces)
            tiny_chat_model.tokenizer = lambda: made
            tiny_chat_model.TEMPLATE = "{# " + NOTATIONS[name][0] + " #}{% for t in tools %}{{ t.function.name }}{% endfor %}" + TEMPLATE
            tiny_chat_model.write(directory, context=1024)
            s, texts = Server(directory), []
            for seed in range(8):
                body = chat("hi", tools=NOTE, tool_choice="required", parallel_tool_calls=False, temperature=1, seed=seed, max_tokens=400, logprobs=True,
                            logit_bias={str(i): 5 if piece == after else 3 for piece, i in zip(pieces, ids)})
                c = s.post("/v1/chat/completions", body)[1]["choices"][0]
                if c["finish_reason"] == "length":
                    continue
                raw = bytes(b for t in c["logprobs"]["content"] for b in t["bytes"]).decode(errors="replace")
                call = c["message"]["tool_calls"][0]["function"]
                arguments, at = json.loads(call["arguments"]), 0
                assert call["name"] == "note" and len(arguments) == 6 and len(arguments["more"]) >= 2 and arguments["kind"] in ("1", "2"), (raw, call)
                assert re.fullmatch('[a-c]{2}"[0-9]', arguments["code"]) and re.fullmatch(r"[12]\d{3}-\d\d-\d\d", arguments["day"]), (raw, call)
                assert arguments["maybe"] is None or isinstance(arguments["maybe"], str) and len(arguments["maybe"]) <= 3, (raw, call)
                for key in ("text", "more"):
                    at = raw.index(before % key, at) + len(before % key)
                    assert arguments[key] == raw[at:raw.index(after, at)], (raw, arguments)
                    assert not any(m in arguments[key] for m in marks), arguments
                    at = raw.index(after, at) + len(after)
                assert streamed(s, body) == [(call["name"], call["arguments"])], raw
                texts.append(arguments["text"])
            assert len(texts) >= 4 and any("<" in t for t in texts), texts
            assert s.stop() == 0
        finally:
            tiny_chat_model.tokenizer = tiny_tokenizer
            shutil.rmtree(directory)

    test.__name__ = "texts_without_a_bound_as_" + name.replace(" ", "_")
    return test


if __name__ == "__main__":
    TEMPLATE, tiny_tokenizer = tiny_chat_model.TEMPLATE, tiny_chat_model.tokenizer
    for notation in NOTATIONS:
        tap.case(case(notation))
    for notation in TEXTS:
        tap.case(text_case(notation))
    tap.main()
