"""``python3 -m cpuengine build | lock``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from umbra_images.cachefolder import CacheError

from . import EngineEnvironmentError, environment
from .lock import write_locks


def main() -> int:
    """Build the environment (and print it as JSON), or regenerate the lock files."""
    parser = argparse.ArgumentParser(prog="cpuengine", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build the environment if it is missing, and print it as JSON")
    commands.add_parser("lock", help="regenerate requirements/engine.txt and requirements/mori.txt")
    arguments = parser.parse_args()
    try:
        if arguments.command == "lock":
            write_locks()
        else:
            print(json.dumps(dataclasses.asdict(environment()), default=str, indent=2))
    except (EngineEnvironmentError, CacheError) as error:
        print(f"cpuengine: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
