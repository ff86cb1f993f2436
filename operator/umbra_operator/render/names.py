"""Every name, label, annotation, port and path that objects share, each once."""

from typing import Any

from umbra_operator.api.base import API_VERSION, GROUP

LABEL_DEPLOYMENT = f"{GROUP}/deployment"
"""Name of the K3Deployment that a pod belongs to; the operator watches only objects that carry it."""
LABEL_ORDINAL = f"{GROUP}/ordinal"
"""Number of the replica, from 0."""
LABEL_ATTEMPT = f"{GROUP}/attempt"
"""Counts pods of one replica, so that a pod stuck on a lost node does not block its successor's name."""

ANNOTATION_LAUNCH = f"{GROUP}/launch"
"""The launch document, which the agent reads through a downward-API volume."""
ANNOTATION_REVISION = f"{GROUP}/revision"
"""Revision in that launch document."""
ANNOTATION_LIVE = f"{GROUP}/live"
"""Which live settings that launch document carries."""
ANNOTATION_POD_REVISION = f"{GROUP}/pod-revision"
"""Hash of what only a new pod can change."""
ANNOTATION_STORE_SIZE = f"{GROUP}/store-size"
"""Size of the pod's store, so that its loss can be told before it happens."""
ANNOTATION_EARLIER_ENDS = f"{GROUP}/earlier-ends"
"""Which attempts before this one ended when, as in "0@1764662400": how soon it may be replaced depends on them."""
ANNOTATION_CONTENT = f"{GROUP}/content"
"""Hash of what the operator applied, so that an unchanged object is not written again."""

MANAGER = "umbra"
"""Field manager of objects that the operator applies."""
MANAGER_STATUS = "umbra-status"
"""Field manager of the status subresource."""

KIT, PREFLIGHT, STORE, ENGINE = "kit", "preflight", "store", "engine"
"""Containers of the pod, in the order in which they start."""

GPUS = "gpus"
"""The claim of a pod, and the request in it."""

ENGINE_PORT = 30000
"""Where the engine serves; SGLang's default."""
ENGINE_AGENT_PORT = 9600
STORE_AGENT_PORT = 9601

KIT_DIR = "/umbra"
RUN_DIR = "/run/umbra"
STORE_DIR = "/run/umbp"
LAUNCH_DIR = "/etc/umbra/launch"
LAUNCH_FILE = "launch.json"
MODEL_DIR = "/models"
ADMIN_KEY_DIR = "/etc/umbra/admin-key"
API_KEY_DIR = "/etc/umbra/api-key"
ADMIN_KEY = "key"
"""The admin key in its Secret, and the name of the file that this Secret, or the user's API key, becomes in the pod."""
STORE_ADDRESS = f"unix://{STORE_DIR}/umbp.grpc.sock"


def pod_name(deployment: str, ordinal: int, attempt: int) -> str:
    """Name of a pod; derived, never random."""
    return f"{deployment}-{ordinal}-{attempt}"


def pod_numbers(deployment: str, pod: str) -> tuple[int, int] | None:
    """Ordinal and attempt in a name that ``pod_name`` made; None for another name."""
    parts = pod.removeprefix(f"{deployment}-").split("-")
    if len(parts) != 2 or not all(part.isascii() and part.isdecimal() for part in parts):
        return None
    ordinal, attempt = int(parts[0]), int(parts[1])
    return (ordinal, attempt) if pod_name(deployment, ordinal, attempt) == pod else None


def pod_labels(deployment: str, ordinal: int, attempt: int) -> dict[str, str]:
    """Umbra's own labels of a pod."""
    return {**common_labels(deployment), LABEL_ORDINAL: str(ordinal), LABEL_ATTEMPT: str(attempt)}


def admin_key_secret(deployment: str, uid: str) -> str:
    """Name of the Secret with the admin key.

    With the deployment's uid: nobody may look whose Secret it is, and that of an earlier deployment of this name is
    collected after the pods of this one are made.
    """
    return f"{deployment}-admin-key-{uid[:8]}"


def selector(deployment: str) -> dict[str, str]:
    """Labels that select the pods of a deployment."""
    return {LABEL_DEPLOYMENT: deployment}


def owner(deployment: str, uid: str) -> dict[str, Any]:
    """Owner reference that makes the garbage collector remove a child with its deployment."""
    return {
        "apiVersion": API_VERSION,
        "kind": "K3Deployment",
        "name": deployment,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def common_labels(deployment: str) -> dict[str, str]:
    """Labels of every child."""
    return {
        "app.kubernetes.io/name": "umbra",
        "app.kubernetes.io/instance": deployment,
        "app.kubernetes.io/managed-by": "umbra-operator",
        **selector(deployment),
    }


def child_metadata(deployment: str, namespace: str, uid: str) -> dict[str, Any]:
    """Metadata of every child but pods: the deployment's name, its labels and its ownership."""
    return {
        "name": deployment,
        "namespace": namespace,
        "labels": common_labels(deployment),
        "ownerReferences": [owner(deployment, uid)],
    }
