"""Runs inside the engine's Python: imports SGLang once, then forks a server for each line of its stdin.

NOT genuine: SGLang starts its processes by spawn; here multiprocessing forks, which saves 20 s of imports a server.
The server that runs is SGLang's own ``run_server``. Protocol, one JSON object a line:
{"start": {"argv", "env", "path", "log"}} -> {"pid"}; {"status": pid} -> {"exit": code or null}.
"""

import gc
import json
import multiprocessing
import os
import sys
import traceback

multiprocessing.set_start_method("fork")
multiprocessing.set_start_method = lambda *args, **options: None  # type: ignore[assignment]

import cpuengine_preload  # noqa: E402, F401
from sglang.launch_server import run_server  # noqa: E402
from sglang.srt.server_args import prepare_server_args  # noqa: E402


def _serve(request: dict) -> None:
    """Become a server; never returns."""
    status = 1
    try:
        os.setsid()
        __import__("ctypes").CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
        os.environ.update(request["env"])
        sys.path[:0] = request["path"]
        log = os.open(request["log"], os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_APPEND)
        null = os.open(os.devnull, os.O_RDONLY)
        for descriptor, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(descriptor, target)
        run_server(prepare_server_args(request["argv"]))
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _exit_code(pid: int) -> int | None:
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def main() -> None:
    """Answer requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library that prints must not break the protocol
    gc.collect()
    gc.freeze()  # forked servers then share these pages
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            pid = os.fork()
            if pid == 0:
                _serve(request["start"])
            answer = {"pid": pid}
        else:
            answer = {"exit": _exit_code(request["status"])}
        print(json.dumps(answer), file=answers, flush=True)


main()
