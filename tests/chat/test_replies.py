"""Published templates write a turn with reasoning and calls; it is read back as the same reasoning and calls, whole and cut.

Skipped, and said so, when the templates (tools/fetch_templates.py) cannot be had.
"""
import json
import os
import subprocess
import sys

sys.path[:0] = [os.getcwd(), os.path.dirname(os.path.abspath(__file__))]
from tests.build import make  # noqa: E402
from tests.tap import case, main  # noqa: E402
from published import templates  # noqa: E402

RENDER, REPLY = "build/release/tests/chat/render_driver", "build/release/tests/chat/reply_driver"
TYPES = {"city": "string", "number": "string", "days": "integer", "list": "array", "deep": "object", "ok": "boolean"}
TOOLS = [{"type": "function", "function": {"name": name, "description": "x", "parameters": {
    "type": "object", "properties": {k: {"type": t, "description": "x"} for k, t in TYPES.items()}, "required": ["city"]}}}
    for name in ("weather", "get_numbers")]
CALLS = [("weather", {"city": "Oslo <b> & \u6771\u4eac", "number": "12", "days": 3, "list": [1, 2], "deep": {"b": True, "c": [0.5, "x"]}, "ok": False}),
         ("get_numbers", {"city": "two\n lines", "number": "True"}), ("weather", {"city": ""})]
# what each published template is read as, and how many of the calls it shows in one turn
KINDS = {
    "Apertus-8B-Instruct": ("apertus", 3), "Bielik-11B-v3.0-Instruct": ("hermes", 3),
    "ByteDance-Seed-OSS": ("seed", 3), "Cohere2MoE": ("command", 3), "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("command", 3),
    "GLM-4.6": ("arg_key", 3), "GLM-4.7-Flash": ("arg_key", 3), "GigaChat3.1-10B-A1.8B": ("gigachat", 1), "LFM2.5-8B-A1B": ("json", 3),
    "MiMo-VL": ("hermes", 3), "MiniMax-M1": ("jamba", 3), "MiniMax-M2": ("minimax", 3), "Mistral-Small-3.2-24B-Instruct-2506": ("mistral", 3),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("xml", 3), "NVIDIA-Nemotron-Nano-v2": ("nemotron", 3),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": ("hermes", 3), "Qwen-QwQ-32B": ("hermes", 3), "Qwen-Qwen2.5-7B-Instruct": ("hermes", 3),
    "Qwen-Qwen3-0.6B": ("hermes", 3), "Qwen3-Coder": ("xml", 3), "Qwen3.5-4B": ("xml", 3), "Spark2.5": ("arg_key", 3), "StepFun3.5-Flash": ("xml", 3),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("deepseek", 3), "deepseek-ai-DeepSeek-V3.1": ("deepseek", 3),
    "deepseek-ai-DeepSeek-V3.2": ("dsml", 3), "deepseek-ai-DeepSeek-V4": ("dsml_v4", 3), "deepseek-ai-DeepSeek-V4-Flash-0731": ("dsml_v4", 3),
    "google-gemma-4-31B-it": ("json", 3), "google-gemma-4-31B-it-interleaved": ("json", 3), "ibm-granite-granite-4.0": ("hermes", 3),
    "inclusionai-ling-3.0-flash": ("arg_key", 3), "meetkai-functionary-medium-v3.1": ("xml", 3), "meetkai-functionary-medium-v3.2": ("functionary", 3), "meta-llama-Llama-3.1-8B-Instruct": ("llama", 1),
    "meta-llama-Llama-3.3-70B-Instruct": ("llama", 1), "mistralai-Ministral-3-14B-Reasoning-2512": ("mistral", 3),
    "mistralai-Mistral-Nemo-Instruct-2407": ("mistral", 3), "moonshotai-Kimi-K2": ("kimi", 3), "openai-gpt-oss-120b": ("harmony", 1),
    "openbmb-MiniCPM5-1B": ("minicpm", 3), "poolside-Laguna-S-2.1": ("arg_key", 3), "poolside-Laguna-XS-2.1": ("arg_key", 3),
    "tencent-Hy3": ("hunyuan", 3), "unsloth-Apriel-1.5": ("hermes", 3), "unsloth-mistral-Devstral-Small-2507": ("mistral", 3),
}


class Pipe:
    def __init__(self, path):
        make(path)
        self.p = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **request):
        self.p.stdin.write(json.dumps(request).encode() + b"\n")
        self.p.stdin.flush()
        return json.loads(self.p.stdout.readline())


def assistant(calls, as_text):
    turn = {"role": "assistant", "content": "", "reasoning_content": "First.", "tool_calls": [
        {"id": f"abcdefgh{i}", "type": "function", "function": {"name": n, "arguments": json.dumps(a, ensure_ascii=False) if as_text else a}} for i, (n, a) in enumerate(calls)]}
    return turn


def render(pipe, source, messages, generate):
    answer = pipe.ask(template=source, now=1753962304, vars={"messages": messages, "tools": TOOLS, "add_generation_prompt": generate, "bos_token": "<s>", "eos_token": "</s>"})
    return answer.get("text")


def turn(pipe, source, calls):
    """The prompt and what the assistant's turn adds to it; None when the template does not show such a turn."""
    user = [{"role": "user", "content": "Well?"}]
    prompt = render(pipe, source, user, True)
    for as_text in (False, True):
        whole = render(pipe, source, user + [assistant(calls, as_text)], False)
        end = render(pipe, source, user + [{"role": "assistant", "content": "qzx7"}], False)
        if prompt and whole and end and "qzx7" in end and calls[0][1]["city"] in whole:
            break
    else:
        return None, None
    common = len(os.path.commonprefix([prompt, whole]))
    mark = prompt.rfind("<", 0, common)
    if mark >= 0 and ">" not in prompt[mark:common]:  # in the middle of two marks that begin alike
        common = mark
    end = end[end.rindex("qzx7") + 4:]
    return prompt[:common], whole[common:len(whole) - len(end)] if end and whole.endswith(end) else whole[common:]


@case
def published_templates_are_read_back():
    render_pipe, reply_pipe, seen = Pipe(RENDER), Pipe(REPLY), set()
    for name, source in templates():
        kind, count = KINDS.get(name, (None, 0))
        if count == 0:
            continue
        prompt, reply = turn(render_pipe, source, CALLS[:count])
        assert reply is not None, f"{name} shows no calls"
        for step in (1, 5, 1000000):
            got = reply_pipe.ask(template=source, prompt=prompt, reply=reply, tools=TOOLS, step=step)
            calls = [(n, json.loads(a)) for n, a in got["calls"]]
            assert got["kind"] == kind and calls == CALLS[:count], f"{name}, {step} bytes at a time: {reply!r} gives {got}"
            assert "weather" not in got["text"] and "First." not in got["text"], f"{name}: {got}"
            assert got["reasoning"] == ("First." if "First." in reply else ""), f"{name}: {got}"
        seen.add(name)
    assert len(seen) >= len(KINDS) - 5, f"of {len(KINDS)} templates only {len(seen)} are there"


main()
