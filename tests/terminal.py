"""A program on a pseudo terminal."""
import os
import pty
import subprocess


def on_terminal(argv, stdin=None, stdout=None, stderr=None, **more):
    """Runs argv, its streams on a terminal but for those given; (exit code, all that was shown there)."""
    ours, theirs = pty.openpty()
    streams = [theirs if s is None else s for s in (stdin, stdout, stderr)]
    p = subprocess.Popen(argv, stdin=streams[0], stdout=streams[1], stderr=streams[2], **more)
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 65536):
            seen += chunk
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    return p.wait(), seen
