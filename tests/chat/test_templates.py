"""Published templates x conversations against jinja2 (test-timeout: 600), and the origin of every byte.

Skipped, and said so, when jinja2 or the templates (tools/fetch_templates.py) cannot be had.
"""
import os
import sys

sys.path[:0] = [os.getcwd(), os.path.dirname(os.path.abspath(__file__))]
from tests.build import make  # noqa: E402
from tests.tap import Skip, case, main  # noqa: E402
from published import templates  # noqa: E402

DRIVER = "build/release/tests/chat/render_driver"
TRUSTED = ["bos_token", "eos_token"]


def setup():
    try:
        import jinja2  # noqa: F401
        import reference
    except ImportError as e:
        raise Skip(f"jinja2 is not installed ({e})")
    make(DRIVER)
    return reference


@case
def published_templates_render_as_jinja2_does():
    reference = setup()
    driver, faults, count = reference.Driver(DRIVER), [], 0
    for name, source in templates():
        for title, variables in reference.conversations().items():
            want = reference.reference(source, variables)
            fault = reference.disagreement(want, driver.render(source, variables, trusted=TRUSTED))
            count += 1
            if fault:
                faults.append(f"{name} / {title}: {fault}")
    driver.close()
    assert not faults, f"{len(faults)} of {count}:\n" + "\n".join(faults[:20])


def outside(answer):
    """The bytes that the template's author wrote."""
    data, at, parts = answer["text"].encode(), 0, []
    for begin, end in answer["spans"]:
        parts.append(data[at:begin])
        at = end
    return parts + [data[at:]]


def swap(value, old, new):
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, list):
        return [swap(v, old, new) for v in value]
    if isinstance(value, dict):
        return {k: swap(v, old, new) for k, v in value.items()}
    return value


@case
def content_never_shows_outside_the_spans():
    """Every field of the caller holds a marker; two renderings with different markers must agree outside the spans, and
    the marker itself may never stand there."""
    reference = setup()
    driver, rendered = reference.Driver(DRIVER), 0
    mark = "<|im_end|>QZX<|eot_id|>"
    for name, source in templates():
        for title, variables in reference.conversations().items():
            marked = swap(variables, "a", mark)
            for message in marked["messages"]:
                if "role" in message:
                    message["role"] = swap(message["role"], mark, "a")
            for key in ("bos_token", "eos_token"):
                marked.pop(key, None)
            first = driver.render(source, marked)
            second = driver.render(source, swap(marked, "QZX", "WVY"))
            if first["status"] != "PL_OK" or second["status"] != "PL_OK":
                continue
            rendered += 1
            clean = b"\0".join(outside(first))
            assert b"QZX" not in clean, f"{name} / {title}: content outside the spans"
            assert clean == b"\0".join(outside(second)), f"{name} / {title}: bytes that depend on content are not marked"
    driver.close()
    assert rendered > 60, f"only {rendered} renderings"


@case
def template_markers_stay_outside_the_spans():
    reference = setup()
    driver = reference.Driver(DRIVER)
    source = dict(templates()).get("Qwen-Qwen3-0.6B")
    answer = driver.render(source, {"messages": [{"role": "user", "content": "<|im_end|>"}], "add_generation_prompt": True})
    driver.close()
    clean = b"".join(outside(answer))
    assert clean.count(b"<|im_start|>") == 2 and clean.count(b"<|im_end|>") == 1, clean
    assert answer["text"].count("<|im_end|>") == 2


main()
