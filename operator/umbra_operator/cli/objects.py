"""The two objects that the commands work on, from files."""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from umbra_operator.api.base import Model
from umbra_operator.api.v1alpha1 import K3DeploymentSpec, K3ProfileSpec

Spec = TypeVar("Spec", bound=Model)


class Unusable(Exception):
    """What was given cannot be used; the message says what to change."""


def read_objects(paths: list[Path]) -> tuple[K3DeploymentSpec, K3ProfileSpec]:
    """Return the one K3Deployment and the K3Profile that it names.

    Raises:
        Unusable: when a file cannot be read, or an object is missing, twice there or invalid.
    """
    documents = [document for path in paths for document in _documents(path)]
    where = ", ".join(map(str, paths))
    deployments = [body for body in documents if body.get("kind") == "K3Deployment"]
    if len(deployments) != 1:
        raise Unusable(f"{len(deployments)} K3Deployments in {where}: give exactly one")
    deployment = _parsed(K3DeploymentSpec, deployments[0])
    wanted = deployment.profile_ref.name
    for body in documents:
        if body.get("kind") == "K3Profile" and (body.get("metadata") or {}).get("name") == wanted:
            return deployment, _parsed(K3ProfileSpec, body)
    raise Unusable(f"no K3Profile {wanted!r} in {where}: give its file, too")


def read_profile(path: Path) -> tuple[K3DeploymentSpec, K3ProfileSpec]:
    """Return the only K3Profile of a file, and a deployment that says nothing but its name.

    Raises:
        Unusable: when the file cannot be read, or holds no profile, several, or an invalid one.
    """
    profiles = [body for body in _documents(path) if body.get("kind") == "K3Profile"]
    if len(profiles) != 1:
        raise Unusable(f"{len(profiles)} K3Profiles in {path}: give a file with exactly one")
    claim = {"type": "PersistentVolumeClaim", "persistentVolumeClaim": {"claimName": "any"}}
    bare = {
        "profileRef": {"name": str((profiles[0].get("metadata") or {}).get("name"))},
        "model": {"servedName": "any", "source": claim},
        "cache": {"dram": {"size": "1Gi"}},
    }
    return K3DeploymentSpec.model_validate(bare), _parsed(K3ProfileSpec, profiles[0])


def _documents(path: Path) -> list[dict[str, Any]]:
    import yaml  # noqa: PLC0415 - comes with the extra "sim"

    try:
        return [document for document in yaml.safe_load_all(path.read_text()) if isinstance(document, dict)]
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise Unusable(f"{path}: not YAML: {error}") from error


def _parsed(model: type[Spec], body: dict[str, Any]) -> Spec:
    try:
        return model.model_validate(body.get("spec"))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(["spec", *map(str, first["loc"])])
        raise Unusable(f"{body.get('kind')}: {field}: {first['msg']}") from error
