"""A kit of another version, of which the session's node has the image and a profile the name."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from localcluster import images
from localstack import product, profile
from localstack.product import Stack
from umbra_images import definitions

NEWER = "0.1.999"
"""Of the series that this operator works with."""


@contextmanager
def newer_kit(stack: Stack) -> Iterator[str]:
    """Name of a profile with this repository's kit under another version; it is gone at the end."""
    about = {**definitions.project(), "version": NEWER}
    with mock.patch.object(definitions, "project", lambda: about):
        kit = images.kit()
    stack.cluster.load(kit)
    made = profile.profile(stack.environment, images.base(), kit, NEWER)
    name: str = made["metadata"]["name"]
    product.apply(stack.cluster, made)
    try:
        yield name
    finally:
        stack.cluster.kubectl("delete", "k3profile", name)
