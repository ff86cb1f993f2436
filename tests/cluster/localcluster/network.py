"""The network namespace of a cluster: all its addresses, routes and iptables rules live and die in it."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from .components import SERVICE_RANGE
from .errors import ClusterError
from .layout import NODE_IP, POD_RANGE, layout

BRIDGE = "cni0"
# Each command takes milliseconds; the kernel's lock on the network can make it wait.
SECONDS = 60.0
_RUN = Path("/run/netns")


def inside(namespace: str, argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` in the namespace.

    Not `ip netns exec`: that mounts a new /sys, which hides the cgroups.
    """
    return ["nsenter", f"--net={path(namespace)}", "--", *argv]


def path(namespace: str) -> Path:
    """File by which a process enters the namespace."""
    return _RUN / namespace


def exists(namespace: str) -> bool:
    """Whether the namespace is there, usable or not."""
    return path(namespace).exists()


def usable(namespace: str) -> bool:
    """Whether the namespace is there with our bridge and address: a half-made one is not."""
    if not exists(namespace):
        return False
    shown = subprocess.run(
        ["ip", "-n", namespace, "-4", "addr", "show", BRIDGE],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    return shown.returncode == 0 and f" {NODE_IP}/" in shown.stdout


def create(namespace: str) -> None:
    """Make the namespace, a bridge with the node's address, and a route for Service addresses."""
    _ip("netns", "add", namespace)
    within = ("-n", namespace)
    _ip(*within, "link", "set", "lo", "up")
    _ip(*within, "link", "add", BRIDGE, "type", "bridge")
    _ip(*within, "addr", "add", f"{NODE_IP}/{POD_RANGE.partition('/')[2]}", "dev", BRIDGE)
    _ip(*within, "link", "set", BRIDGE, "up")
    # Without a route the kernel refuses a Service address before iptables could rewrite it.
    _ip(*within, "route", "add", SERVICE_RANGE, "dev", BRIDGE)
    _run(inside(namespace, ["sysctl", "-qw", "net.ipv4.ip_forward=1"]))
    _filter_bridged(namespace)


def remove(namespace: str) -> None:
    """Remove the namespace if it is there; it takes its links and rules along."""
    if exists(namespace):
        _ip("netns", "del", namespace)


def _filter_bridged(namespace: str) -> None:
    """Let iptables see what crosses the bridge: a pod reaches itself through its Service only then."""
    setting = "net.bridge.bridge-nf-call-iptables=1"
    command = inside(namespace, ["sysctl", "-qw", setting])
    if subprocess.run(command, capture_output=True, check=False, timeout=SECONDS).returncode != 0:
        subprocess.run(["modprobe", "br_netfilter"], capture_output=True, check=False, timeout=SECONDS)
        _run(command)


def _ip(*arguments: str) -> None:
    _run(["ip", *arguments])


def _run(argv: list[str]) -> None:
    result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=SECONDS)
    if result.returncode != 0:
        raise ClusterError(
            f"`{' '.join(argv)}` failed: {result.stderr.strip()}; a node needs root and network namespaces, "
            f"`{layout().command('up-api')}` does not."
        )
