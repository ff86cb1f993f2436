"""An image is brought onto the node of a running pod before a container of that pod changes to it.

The kubelet kills a container whose image changes before it looks for the new image, and a kit that is down makes a pod
that serves not ready. So an ephemeral container asks for the image first; it ends at once, costs no restart, and stays
in the pod's record. Where the node cannot get the image, the pod goes on as it is.
"""

from typing import Any

from umbra_operator.render.pods import KIT_SECURITY
from umbra_operator.render.resolve import Resolved
from umbra_operator.render.revision import content

PREFIX = "pull-"
"""Names of the containers that only ask for an image begin with it."""


def pull_name(image: str) -> str:
    """Name of the container that asks for ``image``: one for each image that a pod ever changes to."""
    return f"{PREFIX}{content(image)}"


def kit_pull(resolved: Resolved) -> dict[str, Any]:
    """The ephemeral container that asks for the profile's kit."""
    image = resolved.profile.kit.image
    return {
        "name": pull_name(image),
        "image": image,
        "imagePullPolicy": resolved.profile.pull_policy.value,
        "command": ["python3", "-c", ""],
        "securityContext": KIT_SECURITY,
    }
