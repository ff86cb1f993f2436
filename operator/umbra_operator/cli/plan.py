"""``umbra plan``: whether a deployment fits its node, before anything is started."""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from umbra_operator.cli.objects import Unusable, read_objects
from umbra_operator.errors import SpecInvalid
from umbra_operator.render.memory import Budget, gpu_budget, host_budget
from umbra_operator.render.resolve import resolve

DESCRIPTION = """Adds up GPU and host memory of a K3Deployment. Exit status 1: something does not fit;
2: a file cannot be used, or the deployment and its profile do not go together."""
_FACTS = {"gpuMemoryBytes", "memoryBytes"}
EXAMPLE = "umbra plan -f k3.yaml -f profile.yaml --node node.json"


def add_command(commands: Any) -> None:
    """Adds the command to the parser of ``umbra``."""
    parser = commands.add_parser("plan", help="does a deployment fit its node", description=DESCRIPTION)
    parser.epilog = f"Example: {EXAMPLE}"
    add = parser.add_argument
    add("-f", "--filename", type=Path, required=True, action="append", help="YAML; once more for the K3Profile's file")
    add("--node", type=Path, help='JSON: {"gpuMemoryBytes": ..., "memoryBytes": ...}; the profile\'s GPUs otherwise')
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the figures, then what does not fit and what is less than was asked for."""
    try:
        spec, profile = read_objects(arguments.filename)
        if profile.gpu_memory is None:
            raise Unusable(
                "the K3Profile has no gpuMemory, so nothing is known of its GPUs: "
                "write it as in examples/mi355x-tp8-v1.yaml"
            )
        node = _node(arguments.node)
        resolved = resolve(spec, profile)
    except (SpecInvalid, Unusable) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    budgets = gpu_budget(resolved, node.gpu_bytes), host_budget(resolved, node.memory_bytes)
    _print(budgets, host_known=node.memory_bytes is not None)
    return 1 if any(budget.refusals for budget in budgets) else 0


def _print(budgets: tuple[Budget, ...], *, host_known: bool) -> None:
    figures = [line for budget in budgets for line in budget.lines]
    lines = [("", "value", "formula", "source"), *((x.name, x.value, x.formula, x.source) for x in figures)]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    print()
    for budget in budgets:
        for note in budget.notes:
            print(f"note: {note}")
    refusals = [refusal for budget in budgets for refusal in budget.refusals]
    for refusal in refusals:
        print(f"does not fit: {refusal}")
    if not refusals:
        print("It fits." if host_known else "It fits the GPUs. Of the node's memory nothing is known: give --node.")


@dataclass(frozen=True, slots=True)
class _Node:
    """What the node has; None where nobody said it."""

    gpu_bytes: int | None = None
    memory_bytes: int | None = None


def _node(path: Path | None) -> _Node:
    if path is None:
        return _Node()
    try:
        facts = json.loads(path.read_text())
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise Unusable(f"{path}: not JSON: {error}") from error
    if not isinstance(facts, dict) or not set(facts) <= _FACTS:
        raise Unusable(f"{path}: not a JSON object of {' and '.join(sorted(_FACTS))} alone")
    gpu, memory = facts.get("gpuMemoryBytes"), facts.get("memoryBytes")
    for name, value in (("gpuMemoryBytes", gpu), ("memoryBytes", memory)):
        if value is not None and (type(value) is not int or value <= 0):
            raise Unusable(f"{path}: {name} is {value!r}: it must be a whole number of bytes")
    return _Node(gpu, memory)
