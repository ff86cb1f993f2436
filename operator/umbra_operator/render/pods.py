"""The pod of one replica: kit, preflight, store and engine, each a container so that what need not die does not.

GPU IPC between store and engine works only inside one pod, so they share one.
"""

import json
from collections.abc import Mapping
from typing import Any

from umbra_operator.api.base import quantity_bytes
from umbra_operator.api.v1alpha1.auth import SecretKeyRef
from umbra_operator.api.v1alpha1.engine import SourceType
from umbra_operator.api.v1alpha1.scheduling import ContainerResources, DeviceMode
from umbra_operator.render import engine, names, podpatch, store
from umbra_operator.render.memory import node_bytes
from umbra_operator.render.resolve import Resolved
from umbra_operator.render.revision import Revision

ENGINE_RANK_CPU, STORE_CPU = 4, 8
"""CPUs where nobody says otherwise. A rank's scheduler keeps one busy, its launches and transfers others. Our choice,
not a measured one."""
ENGINE_RANK_BYTES = 64 * 1024**3
"""A rank's host memory where nobody says otherwise, page cache of the load included; our choice, not a measured one."""
KIT_SECURITY: Mapping[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""Whatever runs from the kit's image needs nothing of the node."""
GRACE_SECONDS = 3600
"""Immutable once the pod exists; the bound on draining is a value of the launch document, at most 3000 s."""


def pod(
    resolved: Resolved, revision: Revision, deployment: str, namespace: str, uid: str, ordinal: int, attempt: int
) -> dict[str, Any]:
    """The pod that serves replica ``ordinal``; the administrator's patch comes last."""
    metadata = resolved.spec.pod_metadata
    rendered = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": names.pod_name(deployment, ordinal, attempt),
            "namespace": namespace,
            "labels": {
                **(metadata.labels if metadata else {}),
                **names.pod_labels(deployment, ordinal, attempt),
            },
            "annotations": {**(metadata.annotations if metadata else {}), **annotations(resolved, revision)},
            "ownerReferences": [names.owner(deployment, uid)],
        },
        "spec": _spec(resolved, deployment, uid),
    }
    return podpatch.merge(rendered, resolved.profile.pod_patch)


def annotations(resolved: Resolved, revision: Revision) -> dict[str, str]:
    """Umbra's own annotations of a pod: the launch document, and what the operator reads of it again."""
    return {
        names.ANNOTATION_LAUNCH: engine.launch_document(resolved, revision.launch),
        names.ANNOTATION_REVISION: revision.launch,
        names.ANNOTATION_LIVE: revision.live,
        names.ANNOTATION_POD_REVISION: revision.pod,
        names.ANNOTATION_STORE_SIZE: resolved.spec.cache.dram.size,
    }


def _spec(resolved: Resolved, deployment: str, uid: str) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "initContainers": [_kit(resolved), _preflight(resolved), _store(resolved)],
        "containers": [_engine(resolved)],
        "volumes": _volumes(resolved, names.admin_key_secret(deployment, uid)),
        "shareProcessNamespace": True,
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "serviceAccountName": resolved.spec.service_account_name or deployment,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **_placement(resolved),
    }
    if resolved.device_mode is DeviceMode.DRA:
        spec["resourceClaims"] = [{"name": names.GPUS, "resourceClaimTemplateName": deployment}]
    if resolved.spec.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in resolved.spec.image_pull_secrets]
    return spec


def _kit(resolved: Resolved) -> dict[str, Any]:
    agent = ["python3", "-m", "umbra_agent", "kit"]
    return {
        "name": names.KIT,
        "image": resolved.profile.kit.image,
        "imagePullPolicy": resolved.profile.pull_policy.value,
        "restartPolicy": "Always",
        "command": agent,
        "startupProbe": {
            "exec": {"command": [*agent, "--check"]},
            "periodSeconds": 1,
            "failureThreshold": 60,
            "timeoutSeconds": 5,
        },
        "resources": _kit_resources(resolved),
        "securityContext": KIT_SECURITY,
        "volumeMounts": [{"name": "kit", "mountPath": names.KIT_DIR}],
    }


def _preflight(resolved: Resolved) -> dict[str, Any]:
    requirements, versions = resolved.profile.requirements, resolved.profile.versions
    wanted = {
        "memlockBytes": quantity_bytes(requirements.memlock) if requirements.memlock else None,
        "memoryBytes": node_bytes(resolved),
        "versions": {"sglang": versions.sglang, "amd-mori": versions.mori},
        "modes": requirements.modes.dump(),
    }
    container = _agent(
        resolved, names.PREFLIGHT, resolved.profile.engine.image, resolved.profile.engine.python, ["preflight"]
    )
    container["env"].append({"name": "UMBRA_PREFLIGHT", "value": json.dumps(wanted, separators=(",", ":"))})
    # The scheduler takes the larger of an init container and the main ones, so the engine's share costs nothing.
    container["resources"] = _engine_resources(resolved)
    return container


def _store(resolved: Resolved) -> dict[str, Any]:
    profile = resolved.profile.store
    command = ["store", "--port", str(names.STORE_AGENT_PORT), "--", *profile.command, names.STORE_ADDRESS]
    image, python = profile.image or resolved.profile.engine.image, profile.python or resolved.profile.engine.python
    container = _agent(resolved, names.STORE, image, python, command)
    container["env"] += [{"name": name, "value": value} for name, value in store.environment(resolved).items()]
    container["resources"] = _store_resources(resolved)
    # With a device plugin the GPUs go to the engine's container alone; the store reaches them as a privileged one.
    if resolved.device_mode is DeviceMode.DEVICE_PLUGIN:
        container["securityContext"] = {"runAsUser": 0, "privileged": True}
    period = 2
    container |= {
        "restartPolicy": "Always",
        "ports": [{"name": "store-agent", "containerPort": names.STORE_AGENT_PORT}],
        "startupProbe": {
            "httpGet": {"path": "/ready", "port": names.STORE_AGENT_PORT},
            "periodSeconds": period,
            "timeoutSeconds": 5,
            "failureThreshold": -(-store.startup_seconds(resolved) // period),
        },
    }
    return container


def _engine(resolved: Resolved) -> dict[str, Any]:
    profile = resolved.profile.engine
    command = ["engine", "--port", str(names.ENGINE_AGENT_PORT)]
    container = _agent(resolved, names.ENGINE, profile.image, profile.python, command)
    container["resources"] = _engine_resources(resolved)
    keys = [("admin-key", "UMBRA_ADMIN_KEY_FILE", names.ADMIN_KEY_DIR)]
    if _api_key(resolved):
        keys.append(("api-key", "UMBRA_API_KEY_FILE", names.API_KEY_DIR))
    container |= {
        "ports": [
            {"name": "http", "containerPort": names.ENGINE_PORT},
            {"name": "agent", "containerPort": names.ENGINE_AGENT_PORT},
        ],
        # Beside the mount and not in the launch document: a pod without the mount may be given a newer document.
        "env": [
            *container["env"],
            *({"name": variable, "value": f"{folder}/{names.ADMIN_KEY}"} for _, variable, folder in keys),
        ],
        "volumeMounts": [
            *container["volumeMounts"],
            *({"name": volume, "mountPath": folder, "readOnly": True} for volume, _, folder in keys),
        ],
        # The agent answers for the engine. /health of the engine fails during a long prefill, so nothing probes it.
        "readinessProbe": {
            "httpGet": {"path": "/ready", "port": names.ENGINE_AGENT_PORT},
            "periodSeconds": 2,
            "timeoutSeconds": 5,
            "failureThreshold": 2,
        },
    }
    return container


def _agent(resolved: Resolved, name: str, image: str, python: str, command: list[str]) -> dict[str, Any]:
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": resolved.profile.pull_policy.value,
        "command": [python, "-m", "umbra_agent", *command],
        "env": [{"name": "PYTHONPATH", "value": f"{names.KIT_DIR}/current"}],
        # Root with IPC_LOCK lifts the limit on locked memory, which Kubernetes has no field for; a non-root user with
        # IPC_LOCK does not. The store's sockets also demand one UID on both sides.
        "securityContext": {"runAsUser": 0, "capabilities": {"add": ["IPC_LOCK", "SYS_PTRACE"]}},
        "terminationMessagePolicy": "File",
        "volumeMounts": [
            {"name": "kit", "mountPath": names.KIT_DIR, "readOnly": True},
            {"name": "run", "mountPath": names.RUN_DIR},
            {"name": "sockets", "mountPath": names.STORE_DIR},
            {"name": "launch", "mountPath": names.LAUNCH_DIR, "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - a volume of this pod alone
            {"name": "model", "mountPath": names.MODEL_DIR, "readOnly": True},
            *(
                {"name": f"host-{mount.name}", "mountPath": mount.mount_path, "readOnly": mount.read_only}
                for mount in resolved.profile.host_mounts
            ),
        ],
    }


def _volumes(resolved: Resolved, admin_key: str) -> list[dict[str, Any]]:
    launch = {
        "items": [
            {
                "path": names.LAUNCH_FILE,
                "fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{names.ANNOTATION_LAUNCH}']"},
            }
        ]
    }
    return [
        {"name": "kit", "emptyDir": {}},
        {"name": "run", "emptyDir": {}},
        {"name": "sockets", "emptyDir": {}},
        {"name": "launch", "downwardAPI": launch},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": resolved.profile.engine.shm_size}},
        {"name": "model", **_model_volume(resolved)},
        {"name": "admin-key", "secret": {"secretName": admin_key, "defaultMode": 0o400}},
        *([{"name": "api-key", "secret": _api_key_source(api_key)}] if (api_key := _api_key(resolved)) else []),
        *(
            {"name": f"host-{mount.name}", "hostPath": {"path": mount.host_path}}
            for mount in resolved.profile.host_mounts
        ),
    ]


def _api_key(resolved: Resolved) -> SecretKeyRef | None:
    return resolved.spec.auth.api_key_secret_ref if resolved.spec.auth else None


def _api_key_source(reference: SecretKeyRef) -> dict[str, Any]:
    items = [{"key": reference.key, "path": names.ADMIN_KEY}]
    return {"secretName": reference.name, "items": items, "defaultMode": 0o400}


def _model_volume(resolved: Resolved) -> dict[str, Any]:
    source = resolved.spec.model.source
    if source.type is SourceType.PVC and source.persistent_volume_claim:
        return {"persistentVolumeClaim": {"claimName": source.persistent_volume_claim.claim_name, "readOnly": True}}
    wanted = source.node_path.root if source.node_path else ""
    root = next(entry.path for entry in resolved.profile.model_roots if entry.name == wanted)
    return {"hostPath": {"path": root, "type": "Directory"}}


def _placement(resolved: Resolved) -> dict[str, Any]:
    placement = resolved.spec.placement
    if placement is None:
        return {}
    wire = placement.dump()
    return {key: value for key, value in wire.items() if value}


def _devices(resolved: Resolved, resources: dict[str, Any]) -> dict[str, Any]:
    """The resources with the GPUs that the device plugin hands out; a claim is handed out by ``_claim``."""
    if resolved.device_mode is DeviceMode.DEVICE_PLUGIN and resolved.profile.devices:
        resources["limits"][resolved.profile.devices.resource_name] = str(resolved.tensor)
    return _claim(resolved, resources)


def _claim(resolved: Resolved, resources: dict[str, Any]) -> dict[str, Any]:
    """The resources with the pod's claim, which several containers may share."""
    return {**resources, "claims": [{"name": names.GPUS}]} if resolved.device_mode is DeviceMode.DRA else resources


def _engine_resources(resolved: Resolved) -> dict[str, Any]:
    asked = resolved.spec.resources.engine if resolved.spec.resources else None
    default = resolved.tensor * ENGINE_RANK_BYTES + quantity_bytes(resolved.profile.engine.shm_size)
    amounts = _amounts(asked, resolved.profile.engine.resources, resolved.tensor * ENGINE_RANK_CPU, default)
    return _devices(resolved, _equal(amounts))


def _store_resources(resolved: Resolved) -> dict[str, Any]:
    """The tier comes on top of what was asked for, as ordinary memory or as huge pages."""
    asked = resolved.spec.resources.store if resolved.spec.resources else None
    amounts = _amounts(asked, resolved.profile.store.resources, STORE_CPU, store.HEADROOM_BYTES)
    huge = store.hugepage_bytes(resolved)
    amounts["memory"] = str(int(amounts["memory"]) + (0 if huge else resolved.store_bytes))
    if huge:
        amounts[f"hugepages-{resolved.spec.cache.dram.hugepages}"] = str(huge)
    return _claim(resolved, _equal(amounts))


def _kit_resources(resolved: Resolved) -> dict[str, Any]:
    """Bounded where the others are, since one container without a CPU limit makes the whole pod Burstable."""
    others = (_engine_resources(resolved), _store_resources(resolved))
    bounded = all("cpu" in resources["limits"] for resources in others)
    if bounded:
        return _equal({"cpu": "250m", "memory": "64Mi"})
    return {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "64Mi"}}


def _amounts(
    asked: ContainerResources | None, default: ContainerResources | None, cpu: int, memory: int
) -> dict[str, str]:
    """CPU and memory in bytes: the deployment's, else the profile's, else the given ones; CPU "0" is left out."""
    given = [source for source in (asked, default) if source]
    chosen = next((source.cpu for source in given if source.cpu), str(cpu))
    size = next((source.memory for source in given if source.memory), None)
    amounts = {"memory": str(quantity_bytes(size) if size else memory)}
    return amounts if chosen == "0" else {"cpu": chosen, **amounts}


def _equal(amounts: Mapping[str, str]) -> dict[str, Any]:
    return {"requests": dict(amounts), "limits": dict(amounts)}
