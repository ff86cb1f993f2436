"""A web proxy leads out of this machine: what the cluster's parts say to each other must not go through it."""

import ipaddress
import os

from .components import SERVICE_RANGE
from .layout import NODE_IP, POD_RANGE

# Go and requests understand ranges; urllib and curl compare names, so the addresses that they ask stand there too.
_OWN = ("localhost", "127.0.0.1", "::1", NODE_IP, str(next(ipaddress.ip_network(SERVICE_RANGE).hosts())))
_RANGES = (POD_RANGE, SERVICE_RANGE, "127.0.0.0/8")


def bypass() -> None:
    """Add our own addresses to those that this process, and all that it starts, reach without a web proxy.

    Without a proxy in the environment this changes nothing that anybody sees.
    """
    known = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    wanted = [*filter(None, known.split(",")), *_OWN, *_RANGES]
    # Both spellings are in use; where both are set, one tool prefers this and another that.
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys(each.strip() for each in wanted))
