"""Entry point of ``umbra``."""

import argparse
import sys

from umbra_operator.cli import plan, size


def main(argv: list[str] | None = None) -> int:
    """Runs a command and returns its exit status: 2 when the user gave something that cannot be used."""
    parser = argparse.ArgumentParser(prog="umbra", description="Plans deployments of Kimi K3 with Umbra.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    size.add_command(commands)
    plan.add_command(commands)
    arguments = parser.parse_args(argv)
    status: int = arguments.run(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())
