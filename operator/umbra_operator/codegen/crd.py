"""CustomResourceDefinitions from the API models."""

from typing import Any

import yaml

from umbra_operator.api.base import EDIT_CLASS, GROUP, VERSION, Model
from umbra_operator.api.v1alpha1 import Kind

_DROPPED = {"title", "$defs", EDIT_CLASS}


def structural(model: type[Model]) -> dict[str, Any]:
    """Structural OpenAPI schema of a model.

    Raises TypeError for a union other than "or None", which no structural schema can express.
    """
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return _walk(schema, schema.get("$defs", {}))


def _walk(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[1]]
        node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
    if "anyOf" in node:
        members = [member for member in node["anyOf"] if member != {"type": "null"}]
        if len(members) != 1:
            raise TypeError(f"only 'X or None' can be a union, not {node['anyOf']}")
        rest = {key: value for key, value in node.items() if key != "anyOf"}
        return _walk({**members[0], **rest}, definitions)
    out: dict[str, Any] = {}
    for key, value in node.items():
        # A stored empty default says nothing and would hide what a profile says.
        if key in _DROPPED or (key == "default" and value in (None, [], {}, "")):
            continue
        if key == "default":
            out[key] = _without_nulls(value)
        elif key == "properties":
            out[key] = {name: _walk(child, definitions) for name, child in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            out[key] = _walk(value, definitions)
        else:
            out[key] = value
    # "true" would keep the first level and prune what lies below it.
    if out.get("type") == "object" and ("properties" in out or out.get("additionalProperties") is True):
        out.pop("additionalProperties", None)
    return out


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(child) for key, child in value.items() if child is not None}
    return value


def crd(kind: Kind) -> dict[str, Any]:
    """The CustomResourceDefinition of a kind."""
    properties: dict[str, Any] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": structural(kind.spec),
    }
    subresources: dict[str, Any] = {}
    if kind.status is not None:
        properties["status"] = structural(kind.status)
        subresources["status"] = {}
    if kind.scale:
        subresources["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [
            {"name": name, "type": column_type, "jsonPath": path} for name, column_type, path in kind.columns
        ],
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "description": kind.description,
                "required": ["spec"],
                "properties": properties,
                "x-kubernetes-validations": list(kind.rules),
            }
        },
    }
    if subresources:
        version["subresources"] = subresources
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.kind.lower(),
                "shortNames": [kind.short],
                "categories": ["umbra"],
            },
            "versions": [version],
        },
    }


class _Plain(yaml.SafeDumper):
    """YAML without aliases, which readers and some tools trip over."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def to_yaml(document: dict[str, Any]) -> str:
    """YAML text with a note that it is generated."""
    body = yaml.dump(document, Dumper=_Plain, sort_keys=False, width=120, allow_unicode=True)
    return f"# Generated from operator/umbra_operator/api by `make generate`; do not edit.\n{body}"
