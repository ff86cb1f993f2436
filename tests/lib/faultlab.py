"""Operators behind a fault proxy, each with a namespace of its own, on a real control plane with the tests' node."""

import itertools
import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from apiproxy import detour, proxied
from faultproxy import FaultProxy, Match
from forkedoperator import ForkedOperator, Nursery
from localcluster.controlplane import ControlPlane
from nodeagent import Api, NodeAgent, Refused, Timing
from operatorprocess import SYSTEM, grant, kubeconfig
from stack import MERGE, Stack

QUICK = Timing(start=0.2, restart=0.4, end=0.2)

_NOT_OURS = {"events", "endpoints", "endpointslices", "leases", "localsubjectaccessreviews"}
"""Made by others for our objects, or no objects."""


class Lab:
    """A context manager: proxy, node and nursery that lanes share."""

    def __init__(self, control_plane: ControlPlane, folder: Path) -> None:
        self.control_plane, self.folder = control_plane, folder
        self._numbers = itertools.count(1)
        self._closing = ExitStack()

    def __enter__(self) -> "Lab":
        grant(self.control_plane, [SYSTEM])
        self.node = self._closing.enter_context(NodeAgent(self.control_plane, QUICK, pods=5000))
        self.proxy: FaultProxy = self._closing.enter_context(proxied(self.control_plane))
        self._nursery = self._closing.enter_context(Nursery())
        self._config = detour(kubeconfig(self.control_plane, self.folder / "kubeconfig"), self.proxy)
        self.kinds = _kinds(Api(self.control_plane))
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def operator(self, namespace: str, **variables: str) -> ForkedOperator:
        """Starts an operator for one namespace, behind the proxy."""
        log = self.folder / f"{namespace}-{next(self._numbers)}.log"
        return self._nursery.start(self._config, log, {"UMBRA_NAMESPACES": namespace, **variables})

    @contextmanager
    def lane(self) -> "Iterator[Lane]":
        """A namespace with a profile and a running operator."""
        api = Api(self.control_plane)
        namespace = f"lane-{secrets.token_hex(4)}"
        api("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        grant(self.control_plane, [namespace])
        stack = Stack(self.control_plane, namespace)
        stack.add_profile()
        lane = Lane(self, stack)
        try:
            yield lane
        finally:
            lane.operator.kill()
            api("DELETE", f"/api/v1/namespaces/{namespace}")
            api("DELETE", f"/apis/umbra.dev/v1alpha1/k3profiles/{stack.profile}")


class Lane:
    """One namespace, and the operator that serves it now."""

    def __init__(self, lab: Lab, stack: Stack) -> None:
        self.lab, self.stack = lab, stack
        self.operator = lab.operator(stack.namespace)

    def restart(self, **variables: str) -> None:
        """Kills the operator if it lives, and starts another."""
        self.operator.kill()
        self.operator = self.lab.operator(self.stack.namespace, **variables)

    def of(self, name: str, where: Callable[[Any], bool] | None = None, **more: Any) -> Match:
        """Requests about the deployment `name` and its children."""
        return Match(namespace=self.stack.namespace, name=f"{name}*", where=where, **more)

    def objects(self, name: str) -> list[dict[str, Any]]:
        """The deployment `name` and everything whose name begins with its name, whoever owns it."""
        found = []
        for kind, prefix, plural in self.lab.kinds:
            items = self.stack.api("GET", f"{prefix}/namespaces/{self.stack.namespace}/{plural}")["items"]
            found += [{"kind": kind, **item} for item in items if item["metadata"]["name"].startswith(name)]
        return found

    def remove(self, name: str) -> None:
        """Deletes the deployment `name`, if it is there."""
        try:
            self.stack.api("DELETE", self.stack.path(name))
        except Refused as error:
            if error.status != 404:
                raise

    def touch(self, name: str) -> None:
        """A change that asks for nothing: the operator sees an event."""
        note = {"metadata": {"annotations": {"example.test/touched": secrets.token_hex(4)}}}
        self.stack.api("PATCH", self.stack.path(name), note, MERGE)


def _kinds(api: Api) -> list[tuple[str, str, str]]:
    """(kind, path prefix, plural) of everything that a namespace can hold and that can be listed."""
    groups = api("GET", "/apis")["groups"]
    prefixes = ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]
    return [
        (each["kind"], prefix, each["name"])
        for prefix in prefixes
        for each in api("GET", prefix)["resources"]
        if each["namespaced"] and "list" in each["verbs"] and each["name"] not in _NOT_OURS
    ]


def canonical(value: Any) -> str:
    """JSON with sorted keys, for comparing and for a readable difference."""
    return json.dumps(value, indent=1, sort_keys=True)
