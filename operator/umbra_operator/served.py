"""Whether the schemas that the API server serves know every field of this operator: pure.

A field that a CRD does not know is dropped by the API server from every object that is written, without an error. That
happens when the operator was upgraded and the CRDs were not.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from umbra_operator.api.edits import leaves
from umbra_operator.api.v1alpha1 import KINDS

REMEDY = "apply the CRDs of this release: what is set there is dropped"


def lacking(schemas: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Fields of this operator's kinds that the served schemas, by kind, do not have, as `K3Profile spec.rocm`.

    A kind that is not served at all lacks nothing: there is no object that could lose a field.
    """
    return tuple(
        f"{kind.kind} {path}"
        for kind in KINDS
        if kind.kind in schemas
        for section, model in (("spec", kind.spec), ("status", kind.status))
        if model
        for path in _absent(schemas[kind.kind], [f"{section}.{leaf}" for leaf, _ in leaves(model)])
    )


def _absent(schema: Mapping[str, Any], paths: list[str]) -> Iterator[str]:
    """The outermost field that is not there, once, for every path."""
    seen = set()
    for path in paths:
        node: Mapping[str, Any] = schema
        parts = path.split(".")
        for depth, part in enumerate(parts, 1):
            found = node.get("properties", {}).get(part)
            if found is None:
                absent = ".".join(parts[:depth])
                if absent not in seen:
                    seen.add(absent)
                    yield absent
                break
            node = found


def sentence(fields: tuple[str, ...]) -> str:
    """What is lacking and what to do, for log and condition."""
    shown = ", ".join(fields[:5]) + (f" and {len(fields) - 5} more" if len(fields) > 5 else "")
    return f"the CRDs of this cluster are older than the operator and lack {shown}; {REMEDY}"
