"""The Secret with the key to the engine's routes that are not for users: the operator makes it and cannot read it."""

from typing import Any

from umbra_operator.render import names


def admin_key(deployment: str, namespace: str, uid: str) -> dict[str, Any]:
    """The Secret without the key itself, which is random and so no part of what is decided here."""
    metadata = names.child_metadata(deployment, namespace, uid)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {**metadata, "name": names.admin_key_secret(deployment, uid)},
        "type": "Opaque",
    }
