"""Revisions: hashes of what the user and the administrator said, never of what this operator renders.

So an operator upgrade changes no pod, and A -> B -> A ends at the revision it began with.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from umbra_operator.api.base import EditClass
from umbra_operator.api.edits import covered
from umbra_operator.api.v1alpha1 import K3DeploymentSpec, K3ProfileSpec

_POD = frozenset({EditClass.POD})
_ALL = frozenset({EditClass.POD, EditClass.ENGINE})
_LIVE = frozenset({EditClass.LIVE})


@dataclass(frozen=True, slots=True)
class Revision:
    """What a spec with its profile asks for."""

    launch: str
    """Changes with anything that the engine or its pod is made from; 12 hexadecimal digits."""
    pod: str
    """Changes only with what needs a new pod; 12 hexadecimal digits."""
    live: str
    """Changes only with what a running engine follows; 12 hexadecimal digits."""


def revision(spec: K3DeploymentSpec, profile: K3ProfileSpec) -> Revision:
    """The revision that a spec with its profile asks for."""
    return Revision(
        launch=_digest(spec, profile, _ALL), pod=_digest(spec, profile, _POD), live=_digest(spec, profile, _LIVE)
    )


def content(manifest: Any) -> str:
    """Hash of a manifest, to tell whether applying it again would change anything."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:12]


def _digest(spec: K3DeploymentSpec, profile: K3ProfileSpec, classes: frozenset[EditClass]) -> str:
    return content([covered(spec, classes), covered(profile, classes)])
