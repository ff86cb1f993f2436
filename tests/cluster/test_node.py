"""A real node: pods of the shape that the operator makes, Services, and repair after daemons died."""

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator

import pytest

from kubelet import container, pod
from localcluster import cluster as local
from localcluster import images, network, process
from localcluster.cluster import Cluster
from localcluster.errors import ClusterError
from localcluster.progress import Progress
from localcluster.state import State

pytestmark = pytest.mark.kubelet


@pytest.fixture(scope="module")
def server(cluster: Cluster) -> Iterator[str]:
    """A pod with init container, native sidecar and a ready web server, behind a Service of the same name."""
    name = "server"
    main = container(
        "main", "/usr/bin/python3", "-m", "http.server", "8080",
        readinessProbe={"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1},
        volumeMounts=[{"name": "shm", "mountPath": "/dev/shm"}],
    )  # fmt: skip
    sidecar = container(
        "sidecar", "/bin/sleep", "infinity",
        restartPolicy="Always", startupProbe={"exec": {"command": ["/bin/true"]}, "periodSeconds": 1},
    )  # fmt: skip
    body = pod(
        name, main,
        initContainers=[container("init", "/bin/true"), sidecar],
        shareProcessNamespace=True, volumes=[{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    )  # fmt: skip
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    cluster.kubectl(
        "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": [body, service]})
    )
    cluster.kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=60s")
    yield name
    cluster.kubectl("delete", "pod,service", name)


def _service_address(cluster: Cluster, name: str) -> str:
    return cluster.kubectl("get", "service", name, "-o", "jsonpath={.spec.clusterIP}") + ":80"


def _started(cluster: Cluster, name: str) -> dict[str, tuple[int, str]]:
    """Restart count and start time of each container."""
    status = json.loads(cluster.kubectl("get", "pod", name, "-o", "json"))["status"]
    every = status["containerStatuses"] + [
        each for each in status["initContainerStatuses"] if each["name"] == "sidecar"
    ]
    return {each["name"]: (each["restartCount"], each["state"]["running"]["startedAt"]) for each in every}


def test_exec_logs_and_shared_processes(cluster: Cluster, server: str) -> None:
    assert "pause" in cluster.kubectl("exec", server, "-c", "sidecar", "--", "/bin/cat", "/proc/1/cmdline")
    assert "GET /" in cluster.kubectl("logs", server, "-c", "main")
    assert "tmpfs" in cluster.kubectl("exec", server, "-c", "main", "--", "/bin/df", "/dev/shm")


def test_helm_reaches_this_cluster_whatever_the_users_settings_say(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HELM_KUBEAPISERVER", "HELM_NAMESPACE", "HELM_KUBECONTEXT", "HELM_DRIVER"):
        monkeypatch.setenv(name, "https://127.0.0.1:9")
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    assert cluster.helm("list", "--namespace", "default", "--output", "json").startswith("[")


def test_a_service_is_reached_from_this_machine(cluster: Cluster, server: str) -> None:
    port = cluster.forward("server", _service_address(cluster, server))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
        assert answer.status == 200
    assert cluster.forward("server", _service_address(cluster, server)) == port


def test_a_used_port_is_refused(cluster: Cluster, server: str) -> None:
    port = cluster.forward("server", _service_address(cluster, server))
    with pytest.raises(ClusterError, match="in use"):
        cluster.forward("other", _service_address(cluster, server), port)


def test_a_pod_reaches_the_api_server_by_its_service(cluster: Cluster, server: str) -> None:
    script = (
        "import os, ssl, urllib.request; folder = '/var/run/secrets/kubernetes.io/serviceaccount/';"
        "token = open(folder + 'token').read();"
        "url = f\"https://{os.environ['KUBERNETES_SERVICE_HOST']}/api/v1/namespaces/default\";"
        "context = ssl.create_default_context(cafile=folder + 'ca.crt');"
        "request = urllib.request.Request(url, headers={'Authorization': f'Bearer {token}'})\n"
        "try: print(urllib.request.urlopen(request, context=context).status)\n"
        "except urllib.error.HTTPError as refused: print(refused.code)"
    )
    # 403: known, and without rights.
    assert cluster.kubectl("exec", server, "-c", "main", "--", "/usr/bin/python3", "-c", script).strip() == "403"


def test_a_pod_reaches_itself_through_its_service(cluster: Cluster, server: str) -> None:
    address = _service_address(cluster, server)
    script = f"import urllib.request; print(urllib.request.urlopen('http://{address}/', timeout=5).status)"
    assert cluster.kubectl("exec", server, "-c", "main", "--", "/usr/bin/python3", "-c", script).strip() == "200"


def test_an_image_is_imported_once(cluster: Cluster) -> None:
    assert not cluster.load(images.base())


def test_product_images_start_as_an_unprivileged_user(cluster: Cluster) -> None:
    operator, kit = images.operator(), images.kit()
    for image in (operator, kit):
        cluster.load(image)
        assert not cluster.load(image)
    code = "import os, {}; print(os.getuid(), os.getgid())"
    modules = {"operator": "umbra_operator.handlers", "kit": "umbra_agent, umbra_linker.settings"}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "product"},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": True},
            "containers": [
                {
                    "name": name,
                    "image": image.pinned,
                    "imagePullPolicy": "Never",
                    "command": ["/usr/bin/python3", "-c", code.format(modules[name])],
                    "securityContext": {"readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
                }
                for name, image in (("operator", operator), ("kit", kit))
            ],
        },
    }
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(body))
    cluster.kubectl("wait", "pod/product", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
    for name in modules:
        assert cluster.kubectl("logs", "product", "-c", name).strip() == "65532 65532"
    cluster.kubectl("delete", "pod", "product")


def test_up_repairs_dead_daemons_and_pods_stay(cluster: Cluster, cluster_name: str, server: str) -> None:
    before = _started(cluster, server)
    port = cluster.forward("server", _service_address(cluster, server))
    state = State.load(cluster.layout.state)
    process.kill(state.processes[name] for name in ("containerd", "kubelet", "apiserver", "forward-server"))
    repaired = local.up(Progress(), cluster_name)
    repaired.kubectl("wait", f"pod/{server}", "--for=condition=Ready", "--timeout=60s")
    assert _started(repaired, server) == before
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
        assert answer.status == 200


def test_up_is_quick_when_all_is_well(cluster: Cluster, cluster_name: str) -> None:
    pids = dict(State.load(cluster.layout.state).processes)
    start = time.monotonic()
    local.up(Progress(), cluster_name)
    assert time.monotonic() - start < 5
    assert State.load(cluster.layout.state).processes == pids


def test_the_machine_s_own_network_is_untouched(cluster: Cluster, server: str) -> None:
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    assert network.BRIDGE not in links
    rules = subprocess.run(["iptables-save"], capture_output=True, text=True, check=False).stdout
    assert "KUBE-" not in rules
