"""A child that behaves like an engine at the edges the agent sees: /ready, SIGTERM, descendants, exit codes.

Run as a script, isolated, with few imports: its start-up time would be added to what the tests measure.
"""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path


def option(name: str, default: str = "") -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def start_descendant(separate_session: bool) -> int:
    """Fork a process that ignores SIGTERM; with `separate_session` it also leaves the engine's session."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if separate_session:
            os.setsid()
        # A grandchild of the agent's child, orphaned at once: only a subreaper gets to see it again.
        if os.fork() != 0:
            time.sleep(0.05)
        while True:
            time.sleep(1)
    return pid


def main() -> None:
    draining = False
    drain_seconds = float(option("--drain", "0"))

    def on_term(_number: int, _frame: object) -> None:
        nonlocal draining
        draining = True

    if "--ignore-term" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, on_term)
    started = time.monotonic()
    descendants = [start_descendant(index % 2 == 1) for index in range(int(option("--descendants", "0")))]
    report = option("--report")
    if report:
        facts = {"pid": os.getpid(), "sid": os.getsid(0), "environment": dict(os.environ), "descendants": descendants}
        staging = Path(report + ".tmp")
        staging.write_text(json.dumps(facts))
        staging.replace(report)
    for index, argument in enumerate(sys.argv):
        if argument == "--say":
            os.write(1 + index % 2, sys.argv[index + 1].encode("latin-1"))
    exit_if = option("--exit-if")
    if exit_if and Path(exit_if).exists():
        os._exit(8)
    listener = socket.create_server(("127.0.0.1", int(option("--port"))))
    listener.settimeout(0.02)
    exit_after = float(option("--exit-after", "inf"))
    ready_after = float(option("--ready-after", "0"))
    drain_until = None
    metrics = option("--metrics")
    said, count = 0, int(option("--count", "0"))
    while True:
        if said < count:
            # In pieces that do not end with a line: an exec of the agent must find one unfinished at times.
            text = "".join(f"line {number}\n" for number in range(said, min(said + 7, count)))
            os.write(1, text[: len(text) // 2].encode())
            os.write(2, text[len(text) // 2 :].encode())
            said = min(said + 7, count)
        now = time.monotonic() - started
        if now >= exit_after:
            code = int(option("--code", "0"))
            if code < 0:
                os.kill(os.getpid(), -code)
            os._exit(code)
        if draining and drain_until is None:
            drain_until = now + drain_seconds
        if drain_until is not None and now >= drain_until:
            os._exit(0)
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection:
            connection.settimeout(1)
            asked = connection.recv(4096)
            if metrics and asked.startswith(b"GET /metrics "):
                text = Path(metrics).read_bytes()
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
                continue
            ok = now >= ready_after and not draining
            line = "200 OK" if ok else "503 Service Unavailable"
            connection.sendall(f"HTTP/1.1 {line}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())


main()
