"""One test's namespace as its user sees it: K3Deployments, a profile, and what they say."""

import time
from collections.abc import Callable
from typing import Any

from builders import deployment, edited, profile
from localcluster.controlplane import ControlPlane
from nodeagent import Api, Refused
from umbra_operator.cluster import CHILDREN, POD_MONITORS
from umbra_operator.render import names

NATIVE = [kind for kind, resource in CHILDREN.items() if resource is not POD_MONITORS]
"""Kinds of children that every cluster has."""
MERGE = "application/merge-patch+json"


class Stack:
    """One test's namespace, profile and K3Deployments."""

    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        self.control_plane = control_plane
        self.namespace = namespace
        self.profile = f"{namespace}-v1"
        self.api = Api(control_plane)

    def add_profile(self, **edits: Any) -> None:
        self.api("POST", "/apis/umbra.dev/v1alpha1/k3profiles", profile(self.profile, **edits))

    def add(self, name: str = "k3", **edits: Any) -> None:
        body = deployment(name, self.namespace, **{"profileRef__name": self.profile, **edits})
        self.api("POST", self.path(""), body)

    def path(self, name: str, subresource: str = "") -> str:
        base = f"/apis/umbra.dev/v1alpha1/namespaces/{self.namespace}/k3deployments"
        return base + (f"/{name}" if name else "") + subresource

    def edit(self, edits: dict[str, Any], name: str = "k3") -> None:
        self.api("PATCH", self.path(name), {"spec": edited({}, edits)}, MERGE)

    def get(self, name: str = "k3") -> dict[str, Any]:
        return self.api("GET", self.path(name))

    def gone(self, name: str = "k3") -> bool:
        """Whether the K3Deployment is not there any more."""
        try:
            self.get(name)
        except Refused as error:
            return error.status == 404
        return False

    def conditions(self, name: str = "k3") -> dict[str, dict[str, Any]]:
        return {each["type"]: each for each in self.get(name).get("status", {}).get("conditions", ())}

    def ready(self, name: str = "k3") -> bool:
        body = self.get(name)
        fresh = body.get("status", {}).get("observedGeneration") == body["metadata"]["generation"]
        return fresh and self.conditions(name).get("Ready", {}).get("status") == "True"

    def says(self, kind: str, status: str, reason: str, name: str = "k3") -> Callable[[], bool]:
        def check() -> bool:
            found = self.conditions(name).get(kind, {})
            return (found.get("status"), found.get("reason")) == (status, reason)

        return check

    def children(self, plural: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.api("GET", f"/api/v1/namespaces/{self.namespace}/{plural}")["items"]
        return found

    def pods(self) -> dict[str, dict[str, Any]]:
        return {pod["metadata"]["name"]: pod for pod in self.children("pods")}

    def child(self, kind: str) -> dict[str, Any] | None:
        """The object of that kind with the deployment's name."""
        try:
            return self.api("GET", f"{CHILDREN[kind].path(self.namespace)}/k3")
        except Refused as error:
            if error.status != 404:
                raise
            return None

    def everything(self) -> list[dict[str, Any]]:
        """Every pod and child of a deployment here."""
        bodies = self.children("pods")
        for kind in NATIVE:
            path = f"{CHILDREN[kind].path(self.namespace)}?labelSelector={names.LABEL_DEPLOYMENT}"
            bodies += self.api("GET", path)["items"]
        return bodies

    def versions(self) -> dict[str, str]:
        """Uid and resourceVersion of everything here."""
        bodies = [*self.everything(), *self.api("GET", self.path(""))["items"]]
        return {body["metadata"]["uid"]: body["metadata"]["resourceVersion"] for body in bodies}


def eventually(check: Callable[[], bool], what: str, seconds: float = 25) -> None:
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.1)
