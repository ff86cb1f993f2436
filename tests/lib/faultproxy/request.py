"""What a request to a Kubernetes API server is about: verb and object instead of method and path."""

import json
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


@dataclass(slots=True)
class Request:
    """One request; the proxy fills in `status` and `fault` when it has served it."""

    method: str
    target: str
    """Path and query as sent."""
    verb: str
    """As RBAC calls it (`list`, `watch`, `create`, ...); the method in small letters for a path that is no resource."""
    group: str = ""
    resource: str = ""
    """Plural, with the subresource if there is one: `pods`, `pods/status`."""
    namespace: str = ""
    name: str = ""
    """Also of an object that is being created, where the body names it."""
    body: bytes = b""
    status: int | None = None
    """HTTP status of the API server; None while it has not answered, and when it never saw the request."""
    fault: str | None = None
    """Class name of the fault that was applied."""

    @property
    def write(self) -> bool:
        """Whether the request asks for a change."""
        return self.verb in WRITES

    @property
    def object(self) -> tuple[str, str, str]:
        """(resource without its subresource, namespace, name)."""
        return (self.resource.partition("/")[0], self.namespace, self.name)

    def __str__(self) -> str:
        where = "/".join(part for part in (self.namespace, self.name) if part)
        said = self.status or "no answer"
        return f"{self.verb} {self.resource or self.target} {where} -> {said}{f' ({self.fault})' if self.fault else ''}"


def parse(method: str, target: str, body: bytes = b"") -> Request:
    """The request that a method, a path with query and a body mean."""
    parts = urlsplit(target)
    pieces = [piece for piece in parts.path.split("/") if piece]
    if pieces[:1] == ["api"] and len(pieces) > 2:
        group, rest = "", pieces[2:]
    elif pieces[:1] == ["apis"] and len(pieces) > 3:
        group, rest = pieces[1], pieces[3:]
    else:
        return Request(method, target, method.lower(), body=body)
    namespace = ""
    # /namespaces/a is an object itself, and so are its subresources.
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    resource, name, *sub = [*rest, ""] if len(rest) == 1 else rest
    verb = _verb(method, name, parse_qs(parts.query))
    if verb == "create" and not name:
        name = _named(body)
    return Request(method, target, verb, group, "/".join([resource, *sub[:1]]), namespace, name, body)


def _verb(method: str, name: str, query: dict[str, list[str]]) -> str:
    if method in ("GET", "HEAD"):
        watches = query.get("watch", ["false"])[0] in ("true", "1", "")
        return "watch" if watches else "get" if name else "list"
    if method == "DELETE":
        return "delete" if name else "deletecollection"
    return _VERBS.get(method, method.lower())


def _named(body: bytes) -> str:
    """Name in the body of a create; empty when it cannot be read there, as with protobuf or `generateName`."""
    try:
        return str(json.loads(body)["metadata"]["name"])
    except (ValueError, KeyError, TypeError):
        return ""
