"""A child that behaves like the store server at the edges the agent sees. `--serve` answers the HTTP/2 preface."""

import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path


def option(name: str, default: str = "") -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def main() -> None:
    boot_id = Path(option("--boot-id"))
    print(f"epoch at start: {boot_id.read_text().strip() if boot_id.exists() else 'none'}", flush=True)
    os.write(2, b"on stderr \xff not UTF-8\n")
    path = option("--socket")
    Path(path).unlink(missing_ok=True)
    time.sleep(float(option("--allocate", "0")))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    listener.settimeout(0.02)
    began = time.monotonic()
    said = False
    # Like the real server: it waits for the signal instead of handling it, so the signal must be blocked.
    while "--ignore-term" in sys.argv or signal.sigtimedwait([signal.SIGTERM], 0) is None:
        now = time.monotonic() - began
        if not said and now >= float(option("--register-after", "inf")):
            said = True
            devices = option("--gatherable", "8/8")
            registered = "[DRAMTier] host memory registered for GPU access: 4096 MiB in 0.5 s"
            print(f"{registered} ({devices} devices gatherable)", flush=True)
            print("[PageBackend] local eviction freed 10 key(s) (2048 bytes) tier=2", flush=True)
            print("[PageBackend] local eviction found no reclaimable key (all leased or pinned)", flush=True)
        if "--fail-registration" in sys.argv and not said:
            said = True
            print(
                "[DRAMTier] hipHostRegister of 4096 MiB failed: out of memory; the GPU gather path stays off",
                flush=True,
            )
        if now >= float(option("--exit-after", "inf")):
            code = int(option("--code", "0"))
            print("last words", flush=True)
            if code < 0:
                os.kill(os.getpid(), -code)
            os._exit(code)
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        # A client that gave up while we were stopped has closed its end.
        with connection, contextlib.suppress(OSError):
            connection.settimeout(1)
            if connection.recv(64).startswith(b"PRI * HTTP/2.0"):
                connection.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    os._exit(int(option("--stop-code", "0")))


main()
