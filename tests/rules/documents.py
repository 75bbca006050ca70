"""The checks behind test_documents.py, as functions of texts, so that each can be shown to find a planted fault."""
import glob
import os
import re
import shlex

OPTION = re.compile(r"(?<![\w-])--([a-z][\w-]*\w)")
# Options of other programs that the documents name: llama-server and vLLM (docs/server.md), docker, git, tools/.
FOREIGN = set("""cache-reuse cap-drop chunks enable-prefix-caching gguf gpu-memory-utilization grammar jinja kv-cache-dtype llama max-model-len
max-num-batched-tokens max-num-seqs name-only no-context-shift order plumb props python read-only reasoning-format reasoning-parser rm
scheduling-policy served-model-name shuffle slots text tool-call-parser variant""".split())
PLACE = re.compile(r"(?<![\w/.$~-])((?:src|tests|tools|kernels|docs|fuzz|examples|bench|include)/[\w./*{},-]*[\w*}])")
ENDINGS = ("", ".c", ".py", ".md", ".h", ".k.c")


def options_of(help_text):
    """{long name: short name or None} of a command's help."""
    return {long: short or None for short, long in re.findall(r"^\s+(?:-(\w), )?\s*--([\w-]+)", help_text, re.M)}


def unknown_options(path, text, known):
    return [f"{path}:{n}: no command has --{o}" for n, line in enumerate(text.splitlines(), 1) for o in OPTION.findall(line)
            if o not in known and o not in FOREIGN and o not in ("help", "version")]


def misplaced_options(path, text, of_command):
    """Options behind `plumb COMMAND` that this command does not have."""
    faults = []
    for n, line in enumerate(text.splitlines(), 1):
        for name, rest in re.findall(rf"\bplumb ({'|'.join(of_command)})\b([^`|;#]*)", line):
            outside = re.sub(r"'[^']*'|\"[^\"]*\"", "", rest)  # flags for another command stand in quotes
            faults += [f"{path}:{n}: plumb {name} has no --{o}" for o in OPTION.findall(outside)
                       if o not in of_command[name] and o != "help"]
    return faults


def unmentioned(options, text):
    """Options, {long: short}, of which no document speaks."""
    return [o for o, short in options.items() if not re.search(rf"(?<![\w-])--{re.escape(o)}(?![\w-])", text)
            and not (short and re.search(rf"(?<![\w-])-{short}(?![\w-])", text))]


def missing_places(path, text, exists=glob.glob):
    faults = []
    for n, line in enumerate(text.splitlines(), 1):
        for place in PLACE.findall(line):
            braces = re.search(r"\{([^}]*)\}", place)
            for one in [place.replace(braces[0], x) for x in braces[1].split(",")] if braces else [place]:
                if not any(exists(os.path.join(top, one) + end) for top in ("", os.path.dirname(path)) for end in ENDINGS):
                    faults.append(f"{path}:{n}: {one} is not there")
    return faults


def anchors(text):
    """What a heading is called behind '#', as GitHub makes it."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", h).lower()).replace(" ", "-") for h in heads}


def missing_anchors(path, text, read):
    """read(path): the text of another document."""
    faults = []
    for target, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", text):
        there = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
        if anchor not in anchors(text if not target else read(there)):
            faults.append(f"{path}: {there} has no heading #{anchor}")
    return faults


def missing_tests(path, text, known):
    """`test_name` in backticks: a program of the suite or something in one."""
    return [f"{path}:{n}: no test is called {name}" for n, line in enumerate(text.splitlines(), 1)
            for name in re.findall(r"`(test_\w+)`", line) if name not in known]


def shell_lines(text):
    """Lines of code blocks (indented by four, or fenced) that call plumb: lists of words, without what a pipe or ';' follows."""
    fenced, joined = False, re.sub(r"\\\n\s*", "", text)
    for line in joined.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        if not (fenced or line.startswith("    ")):
            continue
        lexer = shlex.shlex(line.strip(), posix=True, punctuation_chars="|;&<>")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # prose with an apostrophe
            continue
        while "plumb" in words:
            words = words[words.index("plumb") + 1:]
            end = next((i for i, w in enumerate(words) if set(w) <= set("|;&<>")), len(words))
            yield words[:end]
            words = words[end:]
