"""What the API server of the tests was asked by the operator: its audit log, and the rights that the chart gives."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from operatorprocess import SYSTEM, rights

USER = f"system:serviceaccount:{SYSTEM}:umbra-operator"


class Right(NamedTuple):
    """One verb on one kind of object; a subresource stands behind a slash."""

    verb: str
    group: str
    resource: str


class Audit:
    """An audit log of the operator's requests. `flags` are kube-apiserver's."""

    def __init__(self, folder: Path) -> None:
        self._log, policy = folder / "audit.log", folder / "policy.yaml"
        # A watch is told when it begins; else it would be told only when it ends.
        rules = [{"level": "Metadata", "users": [USER]}, {"level": "None"}]
        body = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules}
        policy.write_text(yaml.safe_dump(body))
        self.flags = (f"--audit-policy-file={policy}", f"--audit-log-path={self._log}", "--audit-log-mode=blocking")

    def mark(self) -> int:
        """Where the log ends now."""
        return self._log.stat().st_size if self._log.exists() else 0

    def since(self, mark: int) -> tuple[set[Right], list[str]]:
        """Rights of the chart that were used since `mark`, and what was denied."""
        used, denied = set(), []
        with self._log.open("rb") as log:
            log.seek(mark)
            for line in log:
                event = json.loads(line)
                decided, about = event.get("annotations", {}), event.get("objectRef", {})
                if decided.get("authorization.k8s.io/decision") == "forbid":
                    denied.append(f"{event['verb']} {event['requestURI']}")
                elif 'Role "umbra-operator' in decided.get("authorization.k8s.io/reason", ""):
                    used.add(_right(event["verb"], about))
        return used, denied


def granted(namespaces: Sequence[str] = ()) -> set[Right]:
    """Every right of the chart's roles."""
    roles = [body for body in rights(namespaces) if body["kind"] in ("ClusterRole", "Role")]
    return {right for role in roles for rule in role["rules"] for right in _expanded(rule)}


def _expanded(rule: Mapping[str, Sequence[str]]) -> Iterable[Right]:
    return (
        Right(verb, group, resource)
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    )


def _right(verb: str, about: Mapping[str, Any]) -> Right:
    sub = about.get("subresource")
    return Right(verb, about.get("apiGroup", ""), about["resource"] + (f"/{sub}" if sub else ""))
