"""What a test needs beyond what `make all tests` has built, one build at a time: two at once would read each other's half
written lists of headers."""
import fcntl
import os
import subprocess


def make(*targets, options=()):
    """Builds the targets, or raises CalledProcessError; returns what make printed. Programs of the suite run side by side."""
    os.makedirs("build", exist_ok=True)
    with open("build/make.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return subprocess.run(["make", "-s", *options, *targets], check=True, stdout=subprocess.PIPE).stdout.decode()
