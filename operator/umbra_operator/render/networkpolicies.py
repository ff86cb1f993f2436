"""The NetworkPolicy: who reaches the engines, and who reaches the agents. Everything else that comes in is refused."""

from collections.abc import Sequence
from typing import Any

from umbra_operator.api.v1alpha1.network import NetworkPeer
from umbra_operator.render import names
from umbra_operator.render.resolve import Resolved

_NAMESPACE_LABEL = "kubernetes.io/metadata.name"
"""Label that the API server gives to every namespace."""


def network_policy(
    resolved: Resolved, deployment: str, namespace: str, uid: str, operator_namespace: str | None
) -> dict[str, Any]:
    """The policy of a deployment.

    ``operator_namespace`` is None for an operator that runs outside the cluster: then nothing tells its address, and
    the agents, which only read, answer everyone.
    """
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": names.child_metadata(deployment, namespace, uid),
        "spec": {
            "podSelector": {"matchLabels": names.selector(deployment)},
            "policyTypes": ["Ingress"],
            "ingress": [*_serving(resolved), _agents(resolved, operator_namespace)],
        },
    }


def _serving(resolved: Resolved) -> list[dict[str, Any]]:
    """No rule at all when the list is empty: a rule without ``from`` would let everyone in."""
    network = resolved.spec.network
    peers = network.from_ if network else None
    ports = _ports(names.ENGINE_PORT)
    if peers is None:
        return [{"ports": ports}]
    return [{"ports": ports, "from": _peers(peers)}] if peers else []


def _agents(resolved: Resolved, operator_namespace: str | None) -> dict[str, Any]:
    ports = _ports(names.ENGINE_AGENT_PORT, names.STORE_AGENT_PORT)
    if operator_namespace is None:
        return {"ports": ports}
    network = resolved.spec.network
    operator = {"namespaceSelector": {"matchLabels": {_NAMESPACE_LABEL: operator_namespace}}}
    return {"ports": ports, "from": [operator, *_peers(network.metrics_from if network else ())]}


def _ports(*numbers: int) -> list[dict[str, Any]]:
    return [{"port": number, "protocol": "TCP"} for number in numbers]


def _peers(peers: Sequence[NetworkPeer]) -> list[dict[str, Any]]:
    return [_peer(peer) for peer in peers]


def _peer(peer: NetworkPeer) -> dict[str, Any]:
    """Without empty members: an empty ``except`` is dropped by the API server, an empty selector means all."""
    wire = peer.dump()
    for selector in ("podSelector", "namespaceSelector"):
        if selector in wire:
            wire[selector] = {key: value for key, value in wire[selector].items() if value}
    if "ipBlock" in wire:
        wire["ipBlock"] = {key: value for key, value in wire["ipBlock"].items() if value}
    return wire
