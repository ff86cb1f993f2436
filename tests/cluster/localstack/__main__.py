"""``python3 -m localstack up|prometheus|down|status|clean-cache``: what the make targets of the local cluster do."""

import argparse
import sys
import time

import cpuengine
from figures import Figure, report
from localcluster import clean, cluster, problems, webproxy
from localcluster.errors import ClusterError
from localcluster.layout import layout
from localcluster.progress import Progress
from umbra_images.cachefolder import CacheError, locked

from . import apionly, demo, product, profile, summary
from .prepare import prepare

OTHER_SECONDS = 3600.0
"""For another `make up` of the same cluster, which may be building everything."""


def up(progress: Progress) -> None:
    """From nothing to a token restored from the store."""
    began = time.monotonic()
    built = prepare(progress)
    running = cluster.up(progress)
    stack = product.install(running, built, progress)
    applied = time.monotonic()
    product.apply(running, profile.deployment(product.NAME, stack.profile_name, built))
    product.wait_ready(stack, progress)
    ready = time.monotonic()
    product.remove_old_profiles(stack)
    engine = product.engine(stack)
    shown = demo.demonstrate(engine, product.store(stack, engine), progress)
    report(
        "up",
        [
            Figure("up_s", round(time.monotonic() - began, 1), "s"),
            Figure("cr_to_ready_s", round(ready - applied, 1), "s"),
            Figure("engine_boot_s", round(product.engine_boot_seconds(stack), 1), "s"),
            Figure("restore_request_s", round(shown.restored.seconds, 1), "s"),
        ],
    )
    print(summary.after_up(stack, engine, shown), flush=True)


def main() -> int:
    """Runs one command; problems are one sentence on stderr and exit code 1."""
    parser = argparse.ArgumentParser(prog="localstack", description=__doc__)
    parser.add_argument("command", choices=["up", "prometheus", "down", "status", "clean-cache"])
    parser.add_argument("--api-only", action="store_true", help="up: a control plane without a node; needs no root")
    arguments = parser.parse_args()
    webproxy.bypass()
    try:
        _run(arguments.command, arguments.api_only)
    except KeyboardInterrupt:
        print(f"interrupted{_left('; ')}", file=sys.stderr)
        return 130
    except Exception as problem:
        text = problems.sentence(problem)
        if isinstance(problem, cpuengine.EngineEnvironmentError):
            text = problems.about(str(problem))
        if text is None:
            raise
        print(f"error: {text}", file=sys.stderr)
        if arguments.command == "up" and (left := _left("")):
            print(left, file=sys.stderr)
        return 1
    return 0


def _run(command: str, api_only: bool) -> None:
    progress = Progress(sys.stderr)
    if command == "up":
        # Two at once would install the chart over each other.
        with locked(layout().whole_lock, "this cluster", OTHER_SECONDS):
            apionly.up(progress) if api_only else up(progress)
    elif command == "prometheus":
        # It needs packages of the development tools, which the other commands do without.
        from . import monitoring

        print(monitoring.watch(progress))
    elif command == "down":
        cluster.down(progress)
    elif command == "status":
        print(summary.status())
    else:
        clean.clean(progress)


def _left(before: str) -> str:
    """What is left of a cluster and how to go on, after ``before``; nothing when none runs."""
    try:
        where = layout()
        if not cluster.status():
            return ""
    except (ClusterError, CacheError):
        return ""
    again, end = cluster.starter(), where.command("down")
    return f"{before}a cluster runs: `{again}` goes on from there, `{end}` removes it (logs: {where.logs})"


if __name__ == "__main__":
    sys.exit(main())
