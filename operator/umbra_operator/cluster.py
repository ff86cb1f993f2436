"""The only door to the Kubernetes API, and the only importer of its client.

Every call is bounded in time, and every failure becomes one of the operator's own errors.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
from kubernetes.aio import client, config

from umbra_operator import errors, logs, metrics
from umbra_operator.api.base import GROUP, VERSION

REQUEST_SECONDS = 10.0
"""Bound on one request."""
CHUNK = 500
"""Objects per page of a list."""


@dataclass(frozen=True, slots=True)
class Resource:
    """Where a kind lives in the API."""

    prefix: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of a collection, an object or a subresource."""
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return "".join(
            [
                self.prefix,
                scope,
                f"/{self.plural}" if self.plural else "",
                f"/{name}" if name else "",
                f"/{subresource}" if subresource else "",
            ]
        )


DEPLOYMENTS = Resource(f"/apis/{GROUP}/{VERSION}", "k3deployments")
PROFILES = Resource(f"/apis/{GROUP}/{VERSION}", "k3profiles", namespaced=False)
PODS = Resource("/api/v1", "pods")
SERVICES = Resource("/api/v1", "services")
SECRETS = Resource("/api/v1", "secrets")
"""Only ever created: the operator has no right to read one."""
EVENTS = Resource("/apis/events.k8s.io/v1", "events")
LEASES = Resource("/apis/coordination.k8s.io/v1", "leases")
POD_MONITORS = Resource("/apis/monitoring.coreos.com/v1", "podmonitors")
CHILDREN: Mapping[str, Resource] = {
    "ServiceAccount": Resource("/api/v1", "serviceaccounts"),
    "ResourceClaimTemplate": Resource("/apis/resource.k8s.io/v1", "resourceclaimtemplates"),
    "Service": SERVICES,
    "NetworkPolicy": Resource("/apis/networking.k8s.io/v1", "networkpolicies"),
    "PodDisruptionBudget": Resource("/apis/policy/v1", "poddisruptionbudgets"),
    "PodMonitor": POD_MONITORS,
}
"""Kinds that a K3Deployment has one object of. Only PodMonitor is optional: not every cluster has it."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the API server is and how to prove who we are."""

    server: str
    ca_path: str | None
    ca_data: str | None
    token: str | None
    certificate_path: str | None
    key_path: str | None


class Cluster(Protocol):
    """What the operator asks of a cluster."""

    def list(self, resource: Resource, namespace: str | None = None, labels: str = "") -> AsyncIterator[dict[str, Any]]:
        """Every object, in pages."""

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        """One object. Raises Missing."""

    async def create(self, resource: Resource, body: Mapping[str, Any], manager: str = "") -> dict[str, Any]:
        """Creates an object whose fields ``manager`` owns. Raises Conflict when the name is taken."""

    async def apply(
        self, resource: Resource, body: Mapping[str, Any], manager: str, subresource: str | None = None
    ) -> dict[str, Any]:
        """Server-side apply of the fields that ``manager`` owns."""

    async def patch(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any], subresource: str | None = None
    ) -> dict[str, Any]:
        """Strategic-merge patch. Raises Conflict when uid or resourceVersion in ``body`` do not match."""

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str, resource_version: str) -> None:
        """Deletes exactly that object in that version. Raises Conflict when it is another one by now."""

    async def serves(self, resource: Resource) -> bool:
        """Whether the cluster has that kind."""

    async def schemas(self) -> dict[str, dict[str, Any]]:
        """The schemas that the cluster serves of the operator's own kinds, by kind."""


class KubeCluster:
    """``Cluster`` over the official client.

    ``patience`` says how many seconds a request may take that begins now; none begins when it is not positive.
    """

    def __init__(self, configuration: client.Configuration, patience: Callable[[], float]) -> None:
        self._api = client.ApiClient(configuration)
        self._patience = patience
        self._later: dict[tuple[str, str], float] = {}
        """When, by the monotonic clock, a request may be sent again that the server asked to repeat later."""

    @classmethod
    async def connect(cls, patience: Callable[[], float] = lambda: REQUEST_SECONDS) -> "KubeCluster":
        """The cluster that this process runs in, or else the one of the user's kubeconfig.

        Raises ClusterUnavailable when neither can be read.
        """
        return cls(await load_configuration(), patience)

    async def close(self) -> None:
        """Closes all connections."""
        await self._api.close()

    async def list(
        self, resource: Resource, namespace: str | None = None, labels: str = ""
    ) -> AsyncIterator[dict[str, Any]]:
        """Every object, in pages of 500."""
        token = ""
        while True:
            query = {"limit": str(CHUNK), "labelSelector": labels, "continue": token}
            page = await self._request("GET", resource, namespace, query={k: v for k, v in query.items() if v})
            for item in page.get("items") or ():
                yield item
            token = page.get("metadata", {}).get("continue") or ""
            if not token:
                return

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        """One object. Raises Missing."""
        return await self._request("GET", resource, namespace, name)

    async def create(self, resource: Resource, body: Mapping[str, Any], manager: str = "") -> dict[str, Any]:
        """Creates an object whose fields ``manager`` owns. Raises Conflict when the name is taken."""
        # A field that the API server does not know, such as a misspelt one in an affinity, must not vanish silently.
        query = {"fieldValidation": "Strict", **({"fieldManager": manager} if manager else {})}
        return await self._request("POST", resource, body["metadata"]["namespace"], query=query, body=body)

    async def apply(
        self, resource: Resource, body: Mapping[str, Any], manager: str, subresource: str | None = None
    ) -> dict[str, Any]:
        """Server-side apply of the fields that ``manager`` owns; takes fields over from other managers."""
        meta = body["metadata"]
        return await self._request(
            "PATCH",
            resource,
            meta["namespace"],
            meta["name"],
            subresource,
            query={"fieldManager": manager, "force": "true"},
            body=body,
            content_type="application/apply-patch+yaml",
        )

    async def patch(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any], subresource: str | None = None
    ) -> dict[str, Any]:
        """Strategic-merge patch. Raises Conflict when uid or resourceVersion in ``body`` do not match."""
        kind = "application/strategic-merge-patch+json"
        return await self._request("PATCH", resource, namespace, name, subresource, body=body, content_type=kind)

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str, resource_version: str) -> None:
        """Deletes exactly that object in that version. Raises Conflict when it is another one by now."""
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        await self._request("DELETE", resource, namespace, name, body=body)

    async def serves(self, resource: Resource) -> bool:
        """Whether the cluster has that kind."""
        try:
            found = await self._request("GET", Resource(resource.prefix, "", namespaced=False))
        except errors.Missing:
            return False
        return any(each["name"] == resource.plural for each in found.get("resources") or ())

    async def schemas(self) -> dict[str, dict[str, Any]]:
        """The schemas that the cluster serves of the operator's own kinds, by kind; none where it serves no kind."""
        try:
            found = await self._request("GET", Resource(f"/openapi/v3{DEPLOYMENTS.prefix}", "", namespaced=False))
        except errors.Missing:
            return {}
        return {
            meant["kind"]: schema
            for schema in found.get("components", {}).get("schemas", {}).values()
            for meant in schema.get("x-kubernetes-group-version-kind", ())
            if meant.get("group") == GROUP
        }

    async def _request(
        self,
        method: str,
        resource: Resource,
        namespace: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        path = resource.path(namespace, name, subresource)
        headers = {"Accept": "application/json", "Content-Type": content_type}
        began, code = time.monotonic(), "error"
        if (wait := self._later.get((method, path), began) - began) > 0:
            raise errors.ClusterUnavailable(f"{method} {path}: not sent, the API server asked to wait", wait)
        try:
            _, url, headers, sent, _ = await self._api.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            if (seconds := self._patience()) <= 0:
                raise errors.LeaseLost(f"{method} {path}: not sent, because this process does not lead any more")
            response = await self._api.call_api(method, url, headers, sent, _request_timeout=seconds)
            code = str(response.status)
            text = await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise errors.ClusterUnavailable(f"{method} {path}: {error or type(error).__name__}") from error
        except asyncio.CancelledError:
            code = "cancelled"
            raise
        finally:
            metrics.REQUESTS.labels(code, method, resource.plural).inc()
            if method != "GET" and (key := logs.reconciled()):
                metrics.WRITES.labels(*key).inc()
            metrics.REQUEST_SECONDS.labels(method).observe(time.monotonic() - began)
        if response.status >= 300:
            # What the server asks for is kept within what any request may take, however overloaded it thinks it is.
            wait = min(_retry_after(response.headers), seconds)
            if wait:
                now = time.monotonic()
                self._later = {key: due for key, due in self._later.items() if due > now}
                self._later[method, path] = now + wait
            said = _status(text)
            message = str(said.get("message") or text[:256].decode(errors="replace"))
            raise _error(response.status, said.get("reason"), f"{method} {path}: {message}", wait)
        parsed: dict[str, Any] = json.loads(text)
        return parsed


async def load_configuration() -> client.Configuration:
    """Configuration of the cluster that this process runs in, or else of the user's kubeconfig.

    Raises ClusterUnavailable when neither can be read.
    """
    configuration = client.Configuration()
    # The operator retries by its own queue; a retry below it would hide delays and double the writes.
    configuration.retries = None
    # Else the client reads ~/.netrc for each request, in a thread. kopf does not look at the environment either.
    configuration.client_session_kwargs = {"trust_env": False}
    try:
        config.load_incluster_config(configuration)
    except config.ConfigException:
        try:
            # The client reads the variable once, when it is imported.
            await config.load_kube_config(os.environ.get("KUBECONFIG"), client_configuration=configuration)
        except (config.ConfigException, OSError) as error:
            raise errors.ClusterUnavailable(
                f"no cluster: neither a service account nor a kubeconfig can be read ({error}); set KUBECONFIG"
            ) from error
    return configuration


async def load_connection() -> Connection:
    """The same cluster for kopf, with credentials read anew at each call."""
    configuration = await load_configuration()
    scheme_and_token = configuration.api_key.get("BearerToken") or ""
    return Connection(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        ca_data=configuration.ca_cert_data,
        token=scheme_and_token.removeprefix("bearer ").removeprefix("Bearer ") or None,
        certificate_path=configuration.cert_file,
        key_path=configuration.key_file,
    )


def _retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that the server asks to wait; 0 when it does not. It never sends the form with a date."""
    value = headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdecimal() else 0.0


def _error(status: int, reason: str | None, message: str, wait: float) -> errors.UmbraError:
    if status == 404:
        return errors.Missing(message)
    if status == 409:
        return errors.Conflict(message)
    # The API server's word for what it cannot do with this request: an admission webhook is down, no address is free.
    if status in (400, 403, 405, 413, 415, 422) or (status == 500 and reason == "InternalError"):
        return errors.Refused(message)
    return errors.ClusterUnavailable(message, wait)


def _status(text: bytes) -> Mapping[str, Any]:
    """The Status that an answer holds; empty when somebody else than the API server answered."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
