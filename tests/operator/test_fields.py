"""Every field of both kinds: change it, and see the change in the pod, the launch document or another object."""

import json
from typing import Any

import pytest

from builders import DEPLOYMENT_SPEC, NAME, NAMESPACE, PROFILE_SPEC, edited
from guards import guards
from umbra_operator.api.base import EditClass
from umbra_operator.api.edits import leaves
from umbra_operator.api.v1alpha1 import K3DeploymentSpec, K3ProfileSpec
from umbra_operator.render import names
from umbra_operator.render.children import Facts, children
from umbra_operator.render.pods import pod
from umbra_operator.render.resolve import resolve
from umbra_operator.render.revision import Revision, revision

CLAIM = {"model.source": {"type": "PersistentVolumeClaim", "persistentVolumeClaim": {"claimName": "a", "path": "k3"}}}
DSPARK = {"speculation": {"type": "DSPARK", "dspark": {"draft": "draft"}}}
ROOTS = {"modelRoots": [{"name": "weights", "path": "/srv/weights"}, {"name": "other", "path": "/srv/other"}]}
PEER = {"podSelector": {"matchLabels": {"app": "gateway"}}, "namespaceSelector": {}}
KEYED = {"auth": {"apiKeySecretRef": {"name": "users", "key": "token"}}}
TAINT = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
BOTH = {"devices": {"resourceName": "amd.com/gpu", "deviceClassName": "gpu.amd.com"}}
DRA = {"devices": {"deviceClassName": "gpu.amd.com"}}
DEVICES = {"devices": {"resourceName": "amd.com/gpu"}}
SHARES = {"engine.args": ["--attention-backend", "aiter"]}
LIVE = '"live":{'
"""How the launch document's settings begin that a running engine follows."""
MOUNT = {"name": "tools", "hostPath": "/opt/tools", "mountPath": "/tools", "readOnly": True}

Case = tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[str]]
"""Edits of the deployment before, edits of the profile before, the edit itself, and texts that only the result has."""

DEPLOYMENT: dict[str, Case] = {
    "model.servedName": ({}, {}, {"model.servedName": "other-name"}, ['"--served-model-name","other-name"']),
    "model.source.type": ({}, {}, CLAIM, ['"persistentVolumeClaim":{"claimName":"a","readOnly":true}']),
    "model.source.persistentVolumeClaim.claimName": (
        CLAIM,
        {},
        {"model.source.persistentVolumeClaim.claimName": "b"},
        ['"claimName":"b"'],
    ),
    "model.source.persistentVolumeClaim.path": (
        CLAIM,
        {},
        {"model.source.persistentVolumeClaim.path": "k4"},
        ['"/models/k4"'],
    ),
    "model.source.nodePath.root": ({}, ROOTS, {"model.source.nodePath.root": "other"}, ['"path":"/srv/other"']),
    "model.source.nodePath.path": ({}, {}, {"model.source.nodePath.path": "k4"}, ['"--model-path","/models/k4"']),
    "parallelism.tensor": ({}, DEVICES, {"parallelism.tensor": 4}, ['"--tp-size","4"', '"amd.com/gpu":"4"']),
    "parallelism.decodeContext": ({}, SHARES, {"parallelism.decodeContext": 2}, ['"--dcp-size","2"']),
    "speculation.type": ({}, {}, DSPARK, ['"--speculative-algorithm","DSPARK"']),
    "speculation.dspark.draft": (DSPARK, {}, {"speculation.dspark.draft": "d2"}, ['draft-model-path","/models/d2"']),
    "speculation.dspark.blockSize": (
        DSPARK,
        {},
        {"speculation.dspark.blockSize": 3},
        ['"--speculative-dspark-block-size","3"'],
    ),
    "cache.dram.size": (
        {},
        {},
        {"cache.dram.size": "2Gi"},
        ['"name":"UMBP_DRAM_CAPACITY","value":"2147483648"', '"memory":"19327352832"', '\\"memoryBytes\\":19327352832'],
    ),
    "cache.dram.hugepages": (
        {"cache.dram.size": "3Gi"},
        {},
        {"cache.dram.hugepages": "1Gi"},
        [
            '"name":"UMBP_DRAM_USE_HUGEPAGES","value":"1"},{"name":"UMBP_DRAM_HUGEPAGE_SIZE","value":"1073741824"',
            '"memory":"17179869184","hugepages-1Gi":"3221225472"',
        ],
    ),
    "cache.dram.numaNodes": (
        {},
        {},
        {"cache.dram.numaNodes": [1, 0]},
        ['"name":"UMBP_DRAM_NUMA_NODE","value":"1,0"'],
    ),
    "cache.watermarks.highPercent": (
        {"cache.watermarks": {"highPercent": 80, "lowPercent": 60}},
        {},
        {"cache.watermarks.highPercent": 85},
        ['"name":"UMBP_DRAM_HIGH_WM","value":"0.85"'],
    ),
    "cache.watermarks.lowPercent": (
        {"cache.watermarks": {"highPercent": 80, "lowPercent": 60}},
        {},
        {"cache.watermarks.lowPercent": 5},
        ['"name":"UMBP_DRAM_LOW_WM","value":"0.05"'],
    ),
    "cache.policy.keyLayout": ({}, {}, {"cache.policy.keyLayout": "PerRank"}, ['\\"keyLayout\\":\\"PerRank\\"']),
    "cache.policy.touch.mode": ({}, {}, {"cache.policy.touch.mode": "Off"}, [f'{LIVE}"touch":"Off"']),
    "cache.policy.touch.intervalSeconds": (
        {},
        {},
        {"cache.policy.touch.intervalSeconds": 60},
        [f'{LIVE}"touchIntervalSeconds":60'],
    ),
    "recovery.maxRestarts": (
        {"recovery": {"maxRestarts": 3}},
        {},
        {"recovery.maxRestarts": 5},
        ['"recovery":{"maxRestarts":5,"windowSeconds":3600}'],
    ),
    "recovery.windowSeconds": (
        {"recovery": {"maxRestarts": 3}},
        {},
        {"recovery.windowSeconds": 600},
        ['"recovery":{"maxRestarts":3,"windowSeconds":600}'],
    ),
    "cache.policy.checkpoints": (
        {},
        {},
        {"cache.policy.checkpoints": "PromptEnd"},
        [f'{LIVE}"checkpoints":"PromptEnd"'],
    ),
    "cache.policy.rewriteMissing": (
        {},
        {},
        {"cache.policy.rewriteMissing": "Disabled"},
        [f'{LIVE}"rewriteMissing":"Disabled"'],
    ),
    "cache.policy.rpcParallelism": ({}, {}, {"cache.policy.rpcParallelism": 8}, [f'{LIVE}"rpcParallelism":8']),
    "cache.policy.chunkPages": ({}, {}, {"cache.policy.chunkPages": 256}, [f'{LIVE}"chunkPages":256']),
    "cache.policy.offloadBackpressurePercent": (
        {},
        {},
        {"cache.policy.offloadBackpressurePercent": 50},
        [f'{LIVE}"offloadBackpressurePercent":50'],
    ),
    "cache.policy.loadDeadlineSeconds": (
        {},
        {},
        {"cache.policy.loadDeadlineSeconds": 7},
        [f'{LIVE}"loadDeadlineSeconds":7'],
    ),
    "cache.policy.lookupDeadlineMilliseconds": (
        {},
        {},
        {"cache.policy.lookupDeadlineMilliseconds": 80},
        [f'{LIVE}"lookupDeadlineMilliseconds":80'],
    ),
    "engine.memoryFractionPercent": ({}, {}, {"engine.memoryFractionPercent": 85}, ['"--mem-fraction-static","0.85"']),
    "engine.maxRunningRequests": ({}, {}, {"engine.maxRunningRequests": 9}, ['"--max-running-requests","9"']),
    "engine.chunkedPrefillSize": ({}, {}, {"engine.chunkedPrefillSize": 4096}, ['"--chunked-prefill-size","4096"']),
    "engine.contextLength": ({}, {}, {"engine.contextLength": 8192}, ['"--context-length","8192"']),
    "engine.kvCacheDtype": ({}, {}, {"engine.kvCacheDtype": "fp8_e4m3"}, ['"--kv-cache-dtype","fp8_e4m3"']),
    "engine.mambaStateDtype": ({}, {}, {"engine.mambaStateDtype": "bfloat16"}, ['"--mamba-ssm-dtype","bfloat16"']),
    "toolchain.treeCore": (
        {},
        {},
        {"toolchain.treeCore": "Python"},
        ['"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND":"python"'],
    ),
    "engine.extraArgs": (
        {},
        {},
        {"engine.extraArgs": ["--attention-backend", "triton"]},
        ['"--attention-backend","triton"'],
    ),
    "engine.env": (
        {},
        {},
        {"engine.env": [{"name": "HSA_NO_SCRATCH_RECLAIM", "value": "1"}]},
        ['"HSA_NO_SCRATCH_RECLAIM":"1"'],
    ),
    "devices.mode": (
        {},
        BOTH,
        {"devices.mode": "DRA"},
        [
            '"resourceClaims":[{"name":"gpus","resourceClaimTemplateName":"k3"}]',
            '"claims":[{"name":"gpus"}]',
            '"exactly":{"deviceClassName":"gpu.amd.com","allocationMode":"ExactCount","count":2}',
        ],
    ),
    "resources.engine.cpu": ({}, {}, {"resources.engine.cpu": "16"}, ['"cpu":"16"']),
    "resources.engine.memory": ({}, {}, {"resources.engine.memory": "64Gi"}, ['"memory":"68719476736"']),
    "resources.store.cpu": ({}, {}, {"resources.store.cpu": "4"}, ['"cpu":"4"']),
    "resources.store.memory": ({}, {}, {"resources.store.memory": "1Gi"}, ['"memory":"2147483648"']),
    "placement.nodeSelector": (
        {},
        {},
        {"placement.nodeSelector": {"gpu": "mi355x"}},
        ['"nodeSelector":{"gpu":"mi355x"}'],
    ),
    "placement.tolerations": ({}, {}, {"placement.tolerations": [TAINT]}, ['"effect":"NoSchedule"']),
    "placement.affinity": (
        {},
        {},
        {"placement.affinity": {"nodeAffinity": {}}},
        ['"affinity":{"nodeAffinity":{}}'],
    ),
    "placement.priorityClassName": ({}, {}, {"placement.priorityClassName": "high"}, ['"priorityClassName":"high"']),
    "placement.schedulerName": ({}, {}, {"placement.schedulerName": "mine"}, ['"schedulerName":"mine"']),
    "placement.runtimeClassName": ({}, {}, {"placement.runtimeClassName": "kata"}, ['"runtimeClassName":"kata"']),
    "podMetadata.labels": ({}, {}, {"podMetadata.labels": {"team": "a"}}, ['"team":"a"']),
    "podMetadata.annotations": ({}, {}, {"podMetadata.annotations": {"note": "b"}}, ['"note":"b"']),
    "imagePullSecrets": ({}, {}, {"imagePullSecrets": ["pull"]}, ['"imagePullSecrets":[{"name":"pull"}]']),
    "serviceAccountName": ({}, {}, {"serviceAccountName": "mine"}, ['"serviceAccountName":"mine"']),
    "auth.apiKeySecretRef.name": (
        KEYED,
        {},
        {"auth.apiKeySecretRef.name": "other"},
        ['{"name":"api-key","secret":{"secretName":"other","items":[{"key":"token","path":"key"}],"defaultMode":256}}'],
    ),
    "auth.apiKeySecretRef.key": (
        KEYED,
        {},
        {"auth.apiKeySecretRef.key": "other"},
        ['"items":[{"key":"other","path":"key"}]'],
    ),
    "network.from": ({}, {}, {"network.from": [PEER]}, ['"port":30000,"protocol":"TCP"}],"from":[{"podSelector":']),
    "network.metricsFrom": (
        {},
        {},
        {"network.metricsFrom": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]},
        ['"operator"}}},{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]}}'],
    ),
    "rollout.maxUnavailable": (
        {"replicas": 5},
        {},
        {"rollout.maxUnavailable": 2},
        ['"minAvailable":3'],
    ),
    "restart.id": ({}, {}, {"restart.id": "monday"}, []),
    "health.startupTimeoutSeconds": ({}, {}, {"health.startupTimeoutSeconds": 300}, ['"failureThreshold":150']),
    "health.drainTimeoutSeconds": ({}, {}, {"health.drainTimeoutSeconds": 0}, ['"drainTimeoutSeconds":0']),
}
DEPLOYMENT_ELSEWHERE = {
    "profileRef.name": "tests/operator/test_flow.py::test_one_namespace_with_rights_there_and_nowhere_else",
    "role": "tests/contract/test_rules.py::test_the_role_is_immutable",
    "replicas": "tests/operator/test_plan.py::test_scaling_down_deletes_the_highest_ordinals",
    "rollout.strategy": "tests/operator/test_plan.py::test_the_first_step_of_a_rollout",
    "rollout.paused": "tests/operator/test_plan.py::test_the_first_step_of_a_rollout",
    "rollout.cacheLoss": "tests/operator/test_plan.py::test_the_first_step_of_a_rollout",
    "rollout.acknowledgedChange": "tests/operator/test_flow.py::"
    "test_a_warm_cache_is_kept_until_its_loss_is_acknowledged",
    "autonomy": "tests/operator/test_overrides.py::test_only_act_acts",
}
"""Fields that show elsewhere than in what is rendered, and the test of what they do."""
PROFILE: dict[str, Case] = {
    "engine.image": ({}, {}, {"engine.image": "example.test/e2"}, ['"image":"example.test/e2"']),
    "engine.python": (
        {},
        {},
        {"engine.python": "/opt/python"},
        ['"/opt/python","-m","umbra_agent","engine"', '"/opt/python","-m","sglang.launch_server"'],
    ),
    "engine.args": ({}, {}, {"engine.args": ["--dtype", "float16"]}, ['"--dtype","float16"']),
    "engine.env": ({}, {}, {"engine.env": [{"name": "SGLANG_USE_AITER", "value": "1"}]}, ['"SGLANG_USE_AITER":"1"']),
    "engine.resources.cpu": ({}, {}, {"engine.resources.cpu": "12"}, ['"cpu":"12"']),
    "engine.resources.memory": ({}, {}, {"engine.resources.memory": "32Gi"}, ['"memory":"34359738368"']),
    "engine.shmSize": ({}, {}, {"engine.shmSize": "64Gi"}, ['"sizeLimit":"64Gi"']),
    "store.image": ({}, {}, {"store.image": "example.test/s2"}, ['"image":"example.test/s2"']),
    "store.python": ({}, {}, {"store.python": "/opt/py"}, ['"/opt/py","-m","umbra_agent","store"']),
    "store.command": (
        {},
        {},
        {"store.command": ["serve", "-v"]},
        ['"--","serve","-v","unix:///run/umbp/umbp.grpc.sock"'],
    ),
    "store.env": ({}, {}, {"store.env": [{"name": "A", "value": "b"}]}, ['{"name":"A","value":"b"}']),
    "store.resources.cpu": ({}, {}, {"store.resources.cpu": "3"}, ['"cpu":"3"']),
    "store.resources.memory": ({}, {}, {"store.resources.memory": "3Gi"}, ['"memory":"4294967296"']),
    "kit.image": ({}, {}, {"kit.image": "example.test/k2"}, ['"image":"example.test/k2"']),
    "kit.version": ({}, {}, {"kit.version": "0.1.1"}, ['"kit":"0.1.1"']),
    "pullPolicy": ({}, {}, {"pullPolicy": "Always"}, ['"imagePullPolicy":"Always"']),
    "tensor": ({}, DEVICES, {"tensor": 8}, ['"--tp-size","8"', '"amd.com/gpu":"8"']),
    "devices.resourceName": ({}, DEVICES, {"devices.resourceName": "amd.com/mi355x"}, ['"amd.com/mi355x":"2"']),
    "rocm.legacyIpc": (
        {},
        {},
        {"rocm.legacyIpc": False},
        ['"HSA_ENABLE_IPC_MODE_LEGACY":"0"', '{"name":"HSA_ENABLE_IPC_MODE_LEGACY","value":"0"}'],
    ),
    "rocm.noScratchReclaim": ({}, {}, {"rocm.noScratchReclaim": True}, ['"HSA_NO_SCRATCH_RECLAIM":"1"']),
    "rocm.kernargInDeviceMemory": (
        {},
        {},
        {"rocm.kernargInDeviceMemory": True},
        ['"HIP_FORCE_DEV_KERNARG":"1"'],
    ),
    "rocm.hardwareQueues": ({}, {}, {"rocm.hardwareQueues": 4}, ['"GPU_MAX_HW_QUEUES":"4"']),
    "store.prefaultThreads": (
        {},
        {},
        {"store.prefaultThreads": 4},
        ['"name":"UMBP_DRAM_PREFAULT","value":"1"},{"name":"UMBP_DRAM_PREFAULT_THREADS","value":"4"'],
    ),
    "devices.deviceClassName": ({}, DRA, {"devices.deviceClassName": "other"}, ['"deviceClassName":"other"']),
    "podPatch": (
        {},
        {},
        {"podPatch": {"spec": {"containers": [{"name": "engine", "securityContext": {"privileged": True}}]}}},
        ['"privileged":true'],
    ),
    "hostMounts": ({}, {}, {"hostMounts": [MOUNT]}, ['"mountPath":"/tools","readOnly":true', '"path":"/opt/tools"']),
    "modelRoots": ({}, {}, {"modelRoots": [{"name": "weights", "path": "/data"}]}, ['"path":"/data"']),
    "versions.sglang": ({}, {}, {"versions.sglang": ["0.5.23.post1"]}, ['\\"sglang\\":[\\"0.5.23.post1\\"]']),
    "versions.mori": ({}, {}, {"versions.mori": ["1.2.4+local"]}, ['\\"amd-mori\\":[\\"1.2.4+local\\"]']),
    "requirements.memlock": ({}, {}, {"requirements.memlock": "1Gi"}, ['\\"memlockBytes\\":1073741824']),
    "requirements.memoryHeadroom": ({}, {}, {"requirements.memoryHeadroom": "1Gi"}, ['\\"memoryBytes\\":2147483648']),
    "requirements.modes.memlock": ({}, {}, {"requirements.modes.memlock": "Warn"}, ['\\"memlock\\":\\"Warn\\"']),
    "requirements.modes.memory": ({}, {}, {"requirements.modes.memory": "Warn"}, ['\\"memory\\":\\"Warn\\"']),
    "requirements.modes.versions": ({}, {}, {"requirements.modes.versions": "Warn"}, ['\\"versions\\":\\"Warn\\"']),
}
PROFILE_ELSEWHERE = {
    **dict.fromkeys(
        ("gpuMemory.size", "gpuMemory.weights", "gpuMemory.draft", "gpuMemory.working"),
        "tests/operator/test_plan_command.py::test_each_figure_of_the_gpu_s_memory_counts",
    ),
    **dict.fromkeys(
        ("engine.allowedArgs", "engine.allowedEnv"),
        "tests/operator/test_resolve.py::test_what_does_not_fit_together_is_refused_by_name",
    ),
}


def rendered(deployment: dict[str, Any], profile: dict[str, Any]) -> tuple[str, Revision]:
    """Pod, launch document and every other object as one compact text, without the revisions, and the revision."""
    spec, limits = K3DeploymentSpec.model_validate(deployment), K3ProfileSpec.model_validate(profile)
    body = pod(resolve(spec, limits), Revision("-", "-", "-"), NAME, NAMESPACE, "uid", 0, 0)
    launch = body["metadata"]["annotations"].pop(names.ANNOTATION_LAUNCH)
    others = children(resolve(spec, limits), NAME, NAMESPACE, "uid", Facts("operator", pod_monitors=True))
    text = json.dumps([body, list(others.values())], separators=(",", ":"))
    return text + launch, revision(spec, limits)


@pytest.mark.parametrize(
    ("kind", "path"), [("deployment", path) for path in DEPLOYMENT] + [("profile", path) for path in PROFILE]
)
def test_an_edit_shows_in_the_pod_and_costs_what_its_class_says(kind: str, path: str) -> None:
    own, model = (DEPLOYMENT, K3DeploymentSpec) if kind == "deployment" else (PROFILE, K3ProfileSpec)
    deployment_before, profile_before, edit, texts = own[path]
    deployment, profile = edited(DEPLOYMENT_SPEC, deployment_before), edited(PROFILE_SPEC, profile_before)
    before, old = rendered(deployment, profile)
    if kind == "deployment":
        deployment = edited(deployment, edit)
    else:
        profile = edited(profile, edit)
    after, new = rendered(deployment, profile)
    for text in texts:
        assert text in after
        assert text not in before
    wanted = dict(leaves(model))[path]
    assert (old.launch != new.launch) == (wanted in (EditClass.ENGINE, EditClass.POD))
    assert (old.live != new.live) == (wanted is EditClass.LIVE)
    assert (old.pod != new.pod) == (wanted is EditClass.POD)


def test_every_field_has_a_case() -> None:
    assert set(dict(leaves(K3DeploymentSpec))) == set(DEPLOYMENT) | set(DEPLOYMENT_ELSEWHERE)
    assert set(dict(leaves(K3ProfileSpec))) == set(PROFILE) | set(PROFILE_ELSEWHERE)


def test_a_field_that_shows_elsewhere_has_its_test_there() -> None:
    named = {**DEPLOYMENT_ELSEWHERE, **PROFILE_ELSEWHERE}
    assert {path: test for path, test in named.items() if not guards(test)} == {}


def test_every_field_has_an_edit_class() -> None:
    for model in (K3DeploymentSpec, K3ProfileSpec):
        assert [path for path, edit_class in leaves(model) if edit_class is None] == []
