"""The checks behind test_house.py, as functions of texts, so that each can be shown to find a planted fault."""
import re

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
LONGEST_FUNCTION, LONGEST_FILE = 100, 1000

# Hosts that an address in a tracked file may point to. 127.0.0.1 and example.* are for tests.
HOSTS = {"huggingface.co", "www.w3.org", "127.0.0.1", "localhost", "example.org", "example.com", "www.apache.org", "json-schema.org", "ai.google.dev"}
ADDRESS = re.compile(r"\b[a-z][a-z0-9+]{1,10}://(?:[^\s/@\"']*@)?(\[[0-9a-f:]+\]|[A-Za-z0-9.-]*[A-Za-z0-9])")
BARE_HOST = re.compile(r"\b(?:[a-z0-9-]+\.)*(?:py[p]i|pythonho[s]ted|debi[a]n|ubun[t]u|npm[j]s)\.(?:org|com)\b")
# Places that exist on one person's machine only.
PRIVATE = re.compile(r"(?<![\w.])/(?:home|root|w[o]rk|Users|mnt)/[\w.]")


def read_levels(text):
    """Folders in the order of the list: each may use itself and what stands above it."""
    rows = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    numbers = [int(r[0]) for r in rows]
    assert numbers == sorted(numbers), "levels must not go down"
    return [r[1] for r in rows]


def folder_of(path, folders):
    """The listed folder a file belongs to: src/device/cuda/x.c -> device, kernels/args/x.h -> kernels/args."""
    path = path[4:] if path.startswith("src/") else path
    fits = [f for f in folders if path.startswith(f + "/")]
    return max(fits, key=len) if fits else None


def include_faults(path, text, folders, exists):
    """exists(path): is this a file of the repository?"""
    mine = folder_of(path, folders)
    if mine is None:
        return [f"{path}: its folder is not in src/deps.txt"]
    faults = []
    for name in INCLUDE.findall(text):
        here = path.rsplit("/", 1)[0] + "/" + name
        if exists(here) or name in ("plumb.h", "build_info.h"):
            continue
        theirs = folder_of(name, folders)
        if theirs is None:
            faults.append(f"{path}: includes {name}, whose folder is not in src/deps.txt")
        elif folders.index(theirs) > folders.index(mine):
            faults.append(f"{path}: {mine} includes {name}, but {theirs} stands below it in src/deps.txt")
        if name.endswith(".c"):
            faults.append(f"{path}: includes a source file, {name}")
    return faults


def functions(text):
    """(name, first line, lines) of every function: formatted code begins and ends one in the first column."""
    lines, start, found = text.splitlines(), None, []
    for i, line in enumerate(lines):
        if start is None and line.endswith("{") and line[:1] not in (" ", "\t", "#", "/", "*", "}", ""):
            j = i
            while j > 0 and lines[j][:1] in (" ", "\t"):
                j -= 1
            head = " ".join(lines[j:i + 1])
            if "(" in head and "=" not in head.split("(")[0]:
                start = i
        elif start is None and line.endswith("{") and line.startswith(" ") and ") {" in line and i > 0:
            j = i
            while j > 0 and lines[j][:1] in (" ", "\t"):
                j -= 1
            if re.match(r"^[a-zA-Z_].*\([^;{}]*$", lines[j]) and not any(
                    l.rstrip().endswith(("{", "}", ";")) for l in lines[j:i]):
                start = j
        elif start is not None and line == "}":
            head = re.search(r"(\w+)\s*\(", " ".join(lines[start:start + 3]))
            found.append((head.group(1) if head else "?", start, i - start + 1))
            start = None
    return found


def length_faults(path, text):
    lines, faults = text.splitlines(), []
    for name, start, count in functions(text):
        near = "\n".join(lines[max(0, start - 8):start + count])
        if count > LONGEST_FUNCTION and not re.search(r"long function: \S", near):
            faults.append(f"{path}:{start + 1}: {name} has {count} lines (over {LONGEST_FUNCTION}) and no 'long function: why'")
    if len(lines) > LONGEST_FILE and not re.search(r"long file: \S", text):
        faults.append(f"{path}: {len(lines)} lines (over {LONGEST_FILE}) and no 'long file: why'")
    return faults


def word_faults(path, text):
    faults = []
    for number, line in enumerate(text.splitlines(), 1):
        for host in ADDRESS.findall(line):
            if "." in host and host.lower() not in HOSTS and not host.lower().endswith(".example.org"):
                faults.append(f"{path}:{number}: the address of {host}, which is not on the list of hosts")
        for found in BARE_HOST.findall(line):
            faults.append(f"{path}:{number}: names the host of a package registry")
        if PRIVATE.search(line):
            faults.append(f"{path}:{number}: a path of one machine: {PRIVATE.search(line).group(0)}...")
    return faults
