"""Reading one figure out of what a server says under ``/metrics``."""

import urllib.request
from collections.abc import Iterator


def metric(server: str, name: str, **labels: str) -> float:
    """Sum of the samples of that name that carry these labels; 0 when there are none. ``server`` is ``http://host:port``.

    Raises OSError when nobody answers.
    """
    return sum(value for found, value in _samples(server, name) if labels.items() <= found.items())


def labels(server: str, name: str) -> dict[str, str]:
    """Labels of the first sample of that name. Raises LookupError when there is none, OSError when nobody answers."""
    for found, _ in _samples(server, name):
        return found
    raise LookupError(f"{server}/metrics has no {name}")


def _samples(server: str, name: str) -> Iterator[tuple[dict[str, str], float]]:
    with urllib.request.urlopen(f"{server}/metrics", timeout=10) as response:
        text = response.read().decode()
    for line in text.splitlines():
        head, _, value = line.rpartition(" ")
        found, _, rest = head.partition("{")
        if found == name:
            pairs = (pair.split("=", 1) for pair in rest.rstrip("}").split(",") if "=" in pair)
            yield {key: text.strip('"') for key, text in pairs}, float(value)
