"""The K3Profile of this machine: the real SGLang and UMBP on CPU, which the containers see as mounts of the node."""

import hashlib
import json
from typing import Any

from cpuengine import Environment
from localcluster.images import Image
from umbra_operator.render import flags

LABEL = "umbra.dev/local"
"""Label of the profiles that this module makes, so that older ones can be found and removed."""


def profile(environment: Environment, base: Image, kit: Image, kit_version: str) -> dict[str, Any]:
    """The profile as an object; its name changes whenever its content does, because profiles are immutable."""
    spec = _spec(environment, base, kit, kit_version)
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:8]
    return {
        "apiVersion": "umbra.dev/v1alpha1",
        "kind": "K3Profile",
        "metadata": {"name": f"local-{digest}-v1", "labels": {LABEL: "true"}},
        "spec": spec,
    }


def _spec(environment: Environment, base: Image, kit: Image, kit_version: str) -> dict[str, Any]:
    return {
        "engine": {
            "image": base.tag,
            "python": str(environment.python),
            "args": _args(environment),
            "env": [{"name": name, "value": value} for name, value in sorted(environment.engine_env.items())],
            "allowedArgs": ["--log-level", "--random-seed", "--schedule-policy"],
            "allowedEnv": ["UMBP_LAYER_GROUP"],
            "resources": {"cpu": "0", "memory": "4Gi"},
            "shmSize": "1Gi",
        },
        "store": {
            "command": [str(environment.store_server)],
            "env": [{"name": "LD_LIBRARY_PATH", "value": environment.library_path}],
            "resources": {"cpu": "0", "memory": "512Mi"},
        },
        "kit": {"image": kit.tag, "version": kit_version},
        "pullPolicy": "Never",
        "tensor": 1,
        "hostMounts": [
            {"name": f"mount-{number}", "hostPath": str(path), "mountPath": str(path)}
            for number, path in enumerate(environment.mounts)
        ],
        "modelRoots": [{"name": "local", "path": str(environment.model_dir.parent)}],
        "versions": {"sglang": ["0.5.23"], "mori": ["1.2.4"]},
        "requirements": {"memlock": "64Mi", "memoryHeadroom": "2Gi"},
    }


def _args(environment: Environment) -> list[str]:
    """What the CPU needs, less the flags that the operator sets itself."""
    given = flags.parse(environment.engine_args)
    owned = flags.OWNED.keys() - flags.PROFILE_MAY_SET
    # Without it an idle scheduler takes half a core of a machine that has two.
    wanted = {"--sleep-on-idle": (), **given}
    return flags.join({flag: values for flag, values in wanted.items() if flag not in owned})


def deployment(name: str, profile_name: str, environment: Environment) -> dict[str, Any]:
    """The smallest K3Deployment for this machine."""
    return {
        "apiVersion": "umbra.dev/v1alpha1",
        "kind": "K3Deployment",
        "metadata": {"name": name},
        "spec": {
            "profileRef": {"name": profile_name},
            "model": {
                "servedName": "kimi-tiny",
                "source": {"type": "NodePath", "nodePath": {"root": "local", "path": environment.model_dir.name}},
            },
            # Engine, store and cluster share two cores: a late answer says nothing about the store here.
            "cache": {"dram": {"size": "256Mi"}, "policy": {"lookupDeadlineMilliseconds": 5000}},
        },
    }
