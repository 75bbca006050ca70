#!/usr/bin/env python3
"""Random templates against jinja2: a grammar makes them, both engines render them, every difference is printed.

Usage: tools/fuzz_templates.py [COUNT] [SEED]   (needs jinja2 and build/release/tests/chat/render_driver)
Cases that end in PL_LIMIT or PL_UNSUPPORTED here (64-bit integers, refused filters) are counted apart. Memory addresses and
messages of Python's own type errors are not compared.
"""
import os
import random
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "chat"))
import reference  # noqa: E402

STRINGS = ["", "a", "Hello World", " x \n y ", "a,b,,c", "ÄÖß straße", "日本🚀", "<b>&\"'</b>", "12", "-3.5", "1e3", "x'y", 'd"q',
           "back\\slash", "tab\tq", "UPPER lower", "a-b c_d", "%s %d", "{0} {a}", "ΣΑΣ", "ǆ ﬁ", "\u00a0n\u2028m", "k"]
VARS = {
    "s": "Hello, Wörld", "t": "", "u": " pad ", "n": 7, "z": 0, "neg": -5, "f": 2.5, "g": 1e20, "b": True, "no": False, "nil": None,
    "l": [3, 1, 2], "m": ["b", "A", "c"], "e": [], "d": {"a": 1, "b": "x", "items": [1]}, "ed": {}, "mix": [1, "a", None, 2.5, [1], {"k": 1}],
    "msgs": [{"role": "user", "content": "hi", "n": 2}, {"role": "assistant", "content": None, "n": 1}, {"role": "User", "content": " z "}],
    "nest": {"x": {"y": [{"z": 5}, "w"]}},
}
NAMES = list(VARS) + ["undef1", "i", "j", "loop", "q"]
FILTERS = ["upper", "lower", "title", "capitalize", "trim", "length", "list", "first", "last", "join", "join(', ')", "sort", "reverse",
           "unique|list", "tojson", "tojson(indent=2)", "int", "float", "string", "abs", "round", "round(1)", "default('D')",
           "default('D', true)", "d", "sum", "min", "max", "escape", "safe", "e", "wordcount", "indent", "indent(2, true)", "items|list",
           "dictsort", "map('upper')|list", "map(attribute='role')|list", "map(attribute='n', default=0)|list", "select|list",
           "reject('none')|list", "selectattr('content')|list", "selectattr('role', 'equalto', 'user')|list", "batch(2)|list",
           "batch(2, 0)|list", "slice(2)|list", "groupby('role')|list", "replace('a', 'X')", "replace('', '-')", "truncate(5)",
           "truncate(5, true, '~', 0)", "center(11)", "striptags", "urlencode", "filesizeformat", "xmlattr", "attr('items')",
           "format(1, 2)", "pprint", "sort(reverse=true)", "sort(attribute='role')|list", "count", "forceescape", "wordwrap(6)",
           "tojson(sort_keys=true)", "tojson(separators=(',', ':'))", "tojson(ensure_ascii=true)", "round(0, 'ceil')", "int(5)",
           "map('int')|sum", "reverse|list", "sum(start=1)", "max(attribute='n')", "random_unknown", "trim('aH')", "string|list"]
TESTS = ["defined", "undefined", "none", "string", "number", "mapping", "iterable", "sequence", "boolean", "true", "false", "integer",
         "float", "odd", "even", "divisibleby(2)", "divisibleby 3", "eq(7)", "equalto('a')", "ne 3", "lt(3)", "gt 2", "in([1, 7])",
         "sameas(none)", "callable", "upper", "lower", "escaped", "filter", "test", "unknown_test", "ge(1)"]
METHODS = ["upper()", "lower()", "strip()", "split()", "split(',')", "split('a', 1)", "rsplit(None, 1)", "splitlines()", "title()",
           "capitalize()", "swapcase()", "startswith('a')", "startswith(('H', 'a'))", "endswith('d')", "find('l')", "rfind('l')",
           "index('l')", "count('l')", "count('')", "replace('l', 'L')", "replace('l', 'L', 1)", "isdigit()", "isalpha()", "isspace()", "isupper()",
           "islower()", "istitle()", "isalnum()", "zfill(8)", "ljust(9)", "rjust(9, '*')", "center(9, '*')", "partition('l')",
           "rpartition('l')", "removeprefix('H')", "removesuffix('d')", "join(['x', 'y'])", "join(l)", "format(1, a=2)", "items()|list",
           "keys()|list", "values()|list", "get('a')", "get('zz', 4)", "pop('a')", "append(1)", "copy()", "index(1)", "count(1)",
           "strip('Hd')", "lstrip()", "rstrip('d,')", "casefold()", "expandtabs(4)", "nothere", "nothere()", "a", "b.c", "x.y[0].z", "real",
           "items", "__class__", "_p", "isidentifier()", "encode"]


class Gen:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def pick(self, *options):
        return self.r.choice(options)

    def literal(self):
        k = self.r.randrange(9)
        if k < 3:
            return repr(self.r.choice(STRINGS)) if self.r.random() < 0.7 else '"' + self.r.choice(STRINGS).replace("\\", "\\\\").replace('"', '\\"') + '"'
        if k < 5:
            return str(self.r.choice([0, 1, 2, 3, 7, 10, 255, 1000000, 12345678901]))
        if k == 5:
            return self.r.choice(["0.5", "1.0", "3.14159", "1e16", "1e-7", "123456789.125", "2.675", "1_000", "0x1F", "100.0"])
        return self.r.choice(["true", "false", "none", "True", "None"])

    def expr(self, depth=3):
        if depth <= 0 or self.r.random() < 0.18:
            return self.r.choice(NAMES) if self.r.random() < 0.6 else self.literal()
        e = lambda: self.expr(depth - 1)  # noqa: E731
        k = self.r.randrange(22)
        if k < 5:
            return f"{self.atom(depth)}|{self.r.choice(FILTERS)}"
        if k < 7:
            return f"({self.atom(depth)} is {self.pick('', 'not ')}{self.r.choice(TESTS)})"
        if k < 10:
            return f"{self.atom(depth)}.{self.r.choice(METHODS)}"
        if k < 13:
            return f"({e()} {self.pick('+', '-', '*', '/', '//', '%', '~', '~', '+')} {e()})"
        if k == 13:
            return f"({e()} {self.pick('==', '!=', '<', '<=', '>', '>=', 'in', 'not in')} {e()})"
        if k == 14:
            return f"({e()} {self.pick('and', 'or')} {e()})"
        if k == 15:
            return f"({e()} if {e()}{self.pick('', ' else ' + e())})"
        if k == 16:
            return "[" + ", ".join(e() for _ in range(self.r.randrange(4))) + "]"
        if k == 17:
            return "{" + ", ".join(f"{self.literal()}: {e()}" for _ in range(self.r.randrange(3))) + "}"
        if k == 18:
            idx = self.pick("0", "-1", "1:", ":2", "::-1", "::2", "-2:", "1:9:2", "'a'", "'role'", "99", e(), "2:0:-1")
            return f"{self.atom(depth)}[{idx}]"
        if k == 19:
            return self.pick("not " + e(), "-" + self.atom(depth), "(" + e() + ",)", "(" + e() + ", " + e() + ")")
        if k == 20:
            return self.pick("range(3)", "range(5, 0, -2)|list", "dict(a=1)", "namespace(a=2).a", "range(n)", "dict(d, c=3)", "cycler(1, 2).next()")
        return f"({self.literal()} {self.pick('%')} {self.pick(e(), '(' + e() + ',)', '(' + e() + ', ' + e() + ')')})"

    def atom(self, depth):
        return self.r.choice(NAMES) if self.r.random() < 0.6 else "(" + self.expr(depth - 1) + ")"

    def text(self):
        return self.pick("", " ", "\n", "x", "  \n", "\n  ", "a b\n", "é", "{", "}", "%}"[:1], "\t")

    def tag(self, inner):
        return "{%" + self.pick("", "", "", "-", "+") + " " + inner + " " + self.pick("", "", "", "-") + "%}"

    def block(self, depth):
        b = lambda: self.body(depth - 1)  # noqa: E731
        k = self.r.randrange(14)
        if depth <= 0 or k < 5:
            return "{{" + self.pick("", "", "-") + " " + self.expr() + " " + self.pick("", "", "-") + "}}"
        if k < 7:
            target, it = self.pick(("i", "l"), ("i", "msgs"), ("i", "range(3)"), ("i", self.expr(1)), ("i, j", "d.items()"), ("i", "m"), ("i", "s"))
            cond = self.pick("", "", "", " if i", " if i != 1", " if loop is defined")
            inside = self.pick("", "{{ loop.index }}", "{{ loop.last }}{{ loop.first }}", "{{ loop.revindex }}/{{ loop.length }}",
                               "{{ loop.previtem }}{{ loop.nextitem }}", "{{ loop.cycle('a', 'b') }}", "{{ loop.changed(i) }}",
                               self.tag("if loop.index > 1") + self.tag(self.pick("break", "continue")) + self.tag("endif"))
            other = self.pick("", "", self.tag("else") + b())
            return self.tag(f"for {target} in {it}{cond}") + inside + b() + other + self.tag("endfor")
        if k == 7:
            return self.tag("if " + self.expr(2)) + b() + self.pick("", self.tag("else") + b(), self.tag("elif " + self.expr(2)) + b()) + self.tag("endif")
        if k == 8:
            return self.tag(f"set {self.pick('q', 'i', 'n', 'j')} = " + self.expr(2))
        if k == 9:
            return self.tag("set q" + self.pick("", " | upper", " | trim")) + b() + self.tag("endset")
        if k == 10:
            args = self.pick("", "a", "a, b=2", "a=n, b=a")
            call = self.pick("", "1", "1, 2", "b=3", "1, 2, 3", "a=4, b=5", "c=1")
            inside = self.pick("{{ a }}", "{{ b }}{{ a }}", "{{ varargs }}", "{{ kwargs }}", "{{ caller() }}", "{{ q }}", "")
            use = self.pick("{{ mac(" + call + ") }}", self.tag("call mac(" + call + ")") + b() + self.tag("endcall"))
            return self.tag(f"macro mac({args})") + inside + b() + self.tag("endmacro") + use
        if k == 11:
            return self.tag("filter " + self.pick("upper", "trim", "replace('a', 'o')", "indent(2)")) + b() + self.tag("endfilter")
        if k == 12:
            return self.tag("with " + self.pick("i = 1", "q = n, j = q", "")) + b() + self.tag("endwith")
        return self.tag("set ns = namespace(v=0)") + self.tag("for i in l") + self.tag("set ns.v = ns.v + i") + b() + self.tag("endfor") + "{{ ns.v }}"

    def body(self, depth):
        return "".join(self.text() + self.block(depth) for _ in range(self.r.randrange(1, 4))) + self.text()


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    driver, faults, limits, raised = reference.Driver(), 0, 0, 0
    for k in range(count):
        g = Gen(f"{seed}/{k}")
        source = g.body(2) if k % 2 else "{{ " + g.expr(3) + " }}"
        want, got = reference.reference(source, VARS), driver.render(source, VARS)
        if got["status"] in ("PL_LIMIT", "PL_UNSUPPORTED") or want[0] in ("recursion", "memory"):
            limits += 1
            continue
        raised += want[0] == "error"
        if want[0] == "ok" and re.search(r"(?i)0x[0-9a-f]{8}|<(function|class|built-in|bound|generator)", want[1]):
            continue
        fault = reference.disagreement(want, got)
        if fault and not (fault.startswith("message") and want[1] in ("TypeError", "ValueError")):
            faults += 1
            print(f"{k}: {source!r}\n    {fault[:400]}", flush=True)
    print(f"{count} cases, seed {seed}: {faults} differences, {raised} raise in both, {limits} not comparable")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
