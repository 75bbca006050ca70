"""The cache's tests lean on nothing that an earlier one left: shuffled, and each alone, they end the same.

test-timeout: 600"""
import os
import re
import subprocess

from tests.tap import Skip, case, main

PROGRAM = os.path.join(os.path.dirname(os.path.realpath(os.environ.get("PLUMB", "build/plumb"))), "tests/jit/test_jit")


def run(**env):
    if not os.path.exists(PROGRAM):
        raise Skip("tests/jit/test_jit is not built")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PLUMB_TEST") and k != "CMOCKA_MESSAGE_OUTPUT"}
    out = subprocess.run([PROGRAM], capture_output=True, text=True, timeout=500,
                         env={**clean, "CMOCKA_MESSAGE_OUTPUT": "TAP", **env})
    verdicts = {name: "passed" for name in re.findall(r"^ok \d+ - (\w+)$", out.stdout, re.M)}
    verdicts |= {name: "skipped" for name in re.findall(r"^not ok \d+ # SKIP (\w+)$", out.stdout, re.M)}  # cmocka's form
    failed = re.findall(r"^not ok \d+ - (\w+)", out.stdout, re.M)
    assert out.returncode == 0 and not failed, (env, failed, out.stdout[-3000:])
    return verdicts


@case
def shuffled():
    want = run(PLUMB_TEST_SHUFFLE="1")
    assert len(want) >= 13 and run(PLUMB_TEST_SHUFFLE="2") == want


@case
def each_alone():
    names = list(run(PLUMB_TEST_ONLY="every_*")) + ["concurrent_processes", "dtypes_in_one_process", "a_weak_key_is_caught", "verify_compares",
                                                    "prepared_together", "the_folder_is_listed_and_emptied"]
    for name in names:
        assert list(run(PLUMB_TEST_ONLY=name)) == [name]


if __name__ == "__main__":
    main()
