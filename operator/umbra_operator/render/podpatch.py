"""The administrator's patch of the pod: what it may not touch, and how it is merged.

The merge is Kubernetes' strategic merge without its ``$`` directives: lists of named things merge by their key, every
other list is replaced, null removes a field.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from umbra_operator.render import names
from umbra_operator.render.flags import OWNED_STORE_ENV

_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
}
"""Lists that merge, with the field by which their items are the same."""

_SHAPES: Mapping[str, tuple[str, ...]] = {"metadata": ("labels", "annotations"), "spec": ()}
"""What a patch may hold; of the metadata only these."""
_OWN_CONTAINERS = frozenset({names.KIT, names.PREFLIGHT, names.STORE, names.ENGINE})
_OWN_VOLUMES = frozenset({"kit", "run", "sockets", "launch", "shm", "model", "admin-key", "api-key"})
_OWN_MOUNTS = frozenset(
    {
        names.KIT_DIR,
        names.RUN_DIR,
        names.STORE_DIR,
        names.LAUNCH_DIR,
        names.MODEL_DIR,
        names.ADMIN_KEY_DIR,
        names.API_KEY_DIR,
    }
)
_OWN_ENV = frozenset({"PYTHONPATH", "UMBRA_PREFLIGHT", "UMBRA_ADMIN_KEY_FILE", "UMBRA_API_KEY_FILE", *OWNED_STORE_ENV})
_SPEC = frozenset(
    {
        "activeDeadlineSeconds",
        "automountServiceAccountToken",
        "ephemeralContainers",
        "nodeName",
        "restartPolicy",
        "serviceAccountName",
        "shareProcessNamespace",
        "terminationGracePeriodSeconds",
    }
)
"""Fields of a pod that the life of engine and store rests on, or that a K3Deployment sets."""
_CONTAINER = frozenset(
    {
        "args",
        "command",
        "image",
        "imagePullPolicy",
        "lifecycle",
        "livenessProbe",
        "ports",
        "readinessProbe",
        "restartPolicy",
        "startupProbe",
        "terminationMessagePath",
        "terminationMessagePolicy",
    }
)
"""Fields of Umbra's own containers that other fields set, or that the agents' contract rests on."""
RESERVED = ("umbra.dev/", "app.kubernetes.io/")
"""Prefixes of labels and annotations that are Umbra's."""


def refused(patch: Mapping[str, Any]) -> str | None:
    """The first path of ``patch`` that it may not touch, or None."""
    return next(_refused(patch), None)


def _refused(patch: Mapping[str, Any]) -> Iterator[str]:
    yield from _misshapen(patch, "")
    yield from (key for key in patch if key not in _SHAPES)
    metadata, spec = patch.get("metadata", {}), patch.get("spec", {})
    for key, value in metadata.items():
        if key not in _SHAPES["metadata"]:
            yield f"metadata.{key}"
        else:
            yield from (f"metadata.{key}.{name}" for name in value if name.startswith(RESERVED))
    yield from (f"spec.{key}" for key in spec if key in _SPEC)
    yield from (f"spec.volumes[{each['name']}]" for each in spec.get("volumes", ()) if each["name"] in _OWN_VOLUMES)
    yield from (
        f"spec.resourceClaims[{each['name']}]" for each in spec.get("resourceClaims", ()) if each["name"] == names.GPUS
    )
    for kind in ("initContainers", "containers"):
        for container in spec.get(kind, ()):
            if container["name"] in _OWN_CONTAINERS:
                yield from _refused_container(container, f"spec.{kind}[{container['name']}]")


def _refused_container(container: Mapping[str, Any], path: str) -> Iterator[str]:
    yield from (f"{path}.{key}" for key in container if key in _CONTAINER)
    yield from (f"{path}.env[{each['name']}]" for each in container.get("env", ()) if each["name"] in _OWN_ENV)
    for mount in container.get("volumeMounts", ()):
        if mount["mountPath"] in _OWN_MOUNTS or mount.get("name") in _OWN_VOLUMES:
            yield f"{path}.volumeMounts[{mount['mountPath']}]"


def _misshapen(node: Any, path: str) -> Iterator[str]:
    """What cannot be merged: directives, objects and lists that are none (null would remove one), keyless items."""
    if not isinstance(node, Mapping):
        return
    for key, value in node.items():
        inner = f"{path}.{key}" if path else key
        if key.startswith("$"):
            yield inner
        elif key in _KEYS:
            yield from _misshapen_list(value, inner, _KEYS[key])
        elif inner in ("metadata", "spec", "metadata.labels", "metadata.annotations") and not isinstance(
            value, Mapping
        ):
            yield f"{inner} (it is not an object)"
        else:
            yield from _misshapen(value, inner)


def _misshapen_list(value: Any, path: str, key: str) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{path} (it is not a list)"
        return
    for index, item in enumerate(value):
        if not isinstance(item, Mapping) or not isinstance(item.get(key), str | int):
            yield f"{path}[{index}] (it names no {key})"
        yield from _misshapen(item, f"{path}[{index}]")


def merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``patch`` merged in; neither is changed. The patch must not be ``refused``."""
    merged = dict(base)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            old = merged.get(key)
            merged[key] = merge(old if isinstance(old, Mapping) else {}, value)
        elif isinstance(value, list) and key in _KEYS:
            merged[key] = _merge_list(merged.get(key) or [], value, _KEYS[key])
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def _merge_list(base: list[Any], patch: list[Any], key: str) -> list[Any]:
    items = {item[key]: item for item in base}
    for item in patch:
        items[item[key]] = merge(items.get(item[key], {}), item)
    return list(items.values())
