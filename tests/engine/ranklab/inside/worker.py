"""Runs inside the engine's Python: imports SGLang once, then forks ranks for each request on stdin.

One JSON object a line: {"scenario", "env", "seconds", "arguments"} -> one {"value"} or {"error"} a rank.
"""

import gc
import importlib
import json
import logging
import os
import selectors
import signal
import sys
import tempfile
import time
import traceback

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # a library that prints must not break the protocol

import cpuengine_preload  # noqa: E402, F401
import torch  # noqa: E402
from rank import Rank  # noqa: E402

torch.set_num_threads(1)


def _run_rank(request: dict, rank: int, size: int, store: str, pipe: int) -> None:
    """Run one rank and write its result; never returns."""
    answer: dict
    try:
        os.environ.update(request["env"][rank])
        logging.basicConfig(level=logging.INFO, format=f"rank {rank}: %(message)s", force=True)
        module, _, function = request["scenario"].rpartition(".")
        with Rank.join(rank, size, store) as joined:
            value = getattr(importlib.import_module(module), function)(joined, **request["arguments"])
        answer = {"value": value}
    except BaseException:
        answer = {"error": traceback.format_exc()}
    with os.fdopen(pipe, "w") as output:
        json.dump(answer, output)
    sys.stderr.flush()
    os._exit(0)


def _run(request: dict) -> list[dict]:
    size = len(request["env"])
    with tempfile.TemporaryDirectory() as folder:
        children: dict[int, tuple[int, int]] = {}
        for rank in range(size):
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                __import__("ctypes").CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
                _run_rank(request, rank, size, f"{folder}/gloo", writer)
            os.close(writer)
            children[reader] = (rank, pid)
        return _collect(children, request["seconds"])


def _collect(children: dict[int, tuple[int, int]], seconds: float) -> list[dict]:
    texts = dict.fromkeys(children, b"")
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for reader in children:
            selector.register(reader, selectors.EVENT_READ)
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(1.0):
                data = os.read(key.fd, 1 << 16)
                texts[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
    results: list[dict] = [{}] * len(children)
    for reader, (rank, pid) in children.items():
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        fallback = {"error": f"no result within {seconds:.0f} s, or the process ended (wait status {status})"}
        results[rank] = json.loads(texts[reader]) if texts[reader] else fallback
    return results


def main() -> None:
    """Answer requests until stdin ends."""
    gc.collect()
    gc.freeze()
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
