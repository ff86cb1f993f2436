"""`python3 -m localcluster up|down|status|build`."""

import argparse
import sys

from . import cluster, toolchain, webproxy
from .problems import sentence
from .progress import Progress


def main() -> int:
    """Run one command; problems are one sentence on stderr and exit code 1."""
    parser = argparse.ArgumentParser(prog="localcluster", description=__doc__)
    parser.add_argument("command", choices=["up", "down", "status", "build"])
    parser.add_argument("--api-only", action="store_true", help="up: a control plane without a node; needs no root")
    arguments = parser.parse_args()
    command = arguments.command
    progress = Progress(sys.stderr)
    webproxy.bypass()
    try:
        if command == "build":
            print(toolchain.kubernetes(progress).kube_apiserver.parent)
        elif command == "up":
            running = cluster.up(progress, api_only=arguments.api_only)
            if arguments.api_only:
                progress.note(
                    "control plane only: API, admission, controllers and scheduling are real; there is no node, "
                    "so pods stay Pending, no container runs, and Services lead nowhere"
                )
            print(f"export KUBECONFIG={running.kubeconfig}")
        elif command == "down":
            cluster.down(progress)
        else:
            print("\n".join(cluster.status()) or "no cluster")
    except Exception as problem:
        if (text := sentence(problem)) is None:
            raise
        print(f"error: {text}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
