"""A package named sglang whose server is engine_child.py and whose parser knows a few flags, for argv to be judged."""

from pathlib import Path

from agent_process import CHILD

PARSER = """
import argparse, json, os, time

def prepare_server_args(argv):
    facts = {"argv": argv, "nice": os.nice(0), "oom": open("/proc/self/oom_score_adj").read()}
    with open(os.environ["PARSER_LOG"], "a") as log:
        log.write(json.dumps(facts) + "\\n")
    time.sleep(float(os.environ.get("PARSER_SECONDS", "0")))
    if os.environ.get("PARSER_DIES"):
        os.kill(os.getpid(), 9)
    parser = argparse.ArgumentParser(prog="sglang serve")
    for flag in ("--port", "--tp-size"):
        parser.add_argument(flag, type=int)
    for flag in ("--descendants", "--drain", "--model-path"):
        parser.add_argument(flag)
    options = parser.parse_args(argv)
    if options.tp_size == 3:
        raise ValueError("tp_size must be a power of two;\\nit is " + str(options.tp_size))
"""


def make(folder: Path) -> Path:
    """Write the package into `folder` and return that, for PYTHONPATH."""
    (folder / "sglang" / "srt").mkdir(parents=True)
    (folder / "sglang" / "__init__.py").touch()
    (folder / "sglang" / "srt" / "__init__.py").touch()
    (folder / "sglang" / "srt" / "server_args.py").write_text(PARSER)
    (folder / "sglang" / "launch_server.py").write_text(f"import runpy\nrunpy.run_path({str(CHILD)!r})\n")
    return folder
