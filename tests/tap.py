"""Test Anything Protocol for Python tests: decorate functions with @case, end with main().

A case passes when it returns, fails when it raises, and is skipped when it raises Skip with the reason.
PLUMB_TEST_ONLY=NAME runs that case alone.
"""
import os
import signal
import sys
import traceback

# A shell starts what runs in its background with Ctrl-C ignored, nohup with hangups, and programs inherit that: here they get
# both as in a terminal.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

_cases = []


class Skip(Exception):
    pass


def case(function):
    _cases.append(function)
    return function


def main():
    failed, only = 0, os.environ.get("PLUMB_TEST_ONLY")
    chosen = [f for f in _cases if only in (None, f.__name__)]
    print(f"1..{len(chosen)}")
    for number, function in enumerate(chosen, 1):
        name = function.__name__
        try:
            function()
            print(f"ok {number} - {name}")
        except Skip as why:
            print(f"ok {number} - {name} # SKIP {why}")
        except BaseException:  # also SystemExit: a case must not end the program
            failed += 1
            print(f"not ok {number} - {name}")
            print("".join("# " + line + "\n" for line in traceback.format_exc().splitlines()), end="")
        sys.stdout.flush()
    sys.exit(1 if failed else 0)
