"""Configuration and command lines of the node: containerd, kubelet and kube-proxy."""

import json
from pathlib import Path

from . import cache
from .components import ControlPlaneSettings
from .layout import NODE_IP, POD_RANGE, Layout
from .machine import CNI_FOLDERS, cni_plugins
from .network import BRIDGE

# Command line and configuration file of a daemon.
Daemon = tuple[list[str], Path]

_UNUSED_PLUGINS = (
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.internal.v1.opt",
    "io.containerd.internal.v1.tracing",
)


def write_containerd(layout: Layout, pause_image: str) -> Daemon:
    """Write containerd's configuration and the pod network's, which containerd reads by itself when it changes."""
    folder = layout.directory
    network = {
        "cniVersion": "0.4.0",
        "name": layout.name,
        "plugins": [
            {
                "type": "bridge",
                "bridge": BRIDGE,
                "isGateway": True,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(folder / "addresses"),
                    "ranges": [[{"subnet": POD_RANGE}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "loopback"},
        ],
    }
    cache.write(folder / "cni" / "10-pods.conflist", json.dumps(network, indent=1))
    configuration = f"""\
version = 2
root = "{folder / "containerd"}"
state = "{folder / "run"}"
disabled_plugins = {json.dumps(_UNUSED_PLUGINS)}
[grpc]
address = "{layout.containerd_socket}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause_image}"
# Without CAP_SYS_RESOURCE a lower OOM score than our own is refused, and the container with it.
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "runc"
Root = "{folder / "runc"}"
SystemdCgroup = false
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{cni_plugins() or CNI_FOLDERS[0]}"
conf_dir = "{folder / "cni"}"
"""
    path = folder / "containerd.toml"
    cache.write(path, configuration)
    return ["containerd", f"--config={path}"], path


def write_kubelet(binary: Path, layout: Layout, settings: ControlPlaneSettings) -> Daemon:
    """Issue the node's certificate and write kubelet's configuration."""
    folder = layout.directory
    kubeconfig = settings.kubeconfig("kubelet")
    if not kubeconfig.exists():
        settings.authority.issue("kubelet", f"/O=system:nodes/CN=system:node:{layout.node}")
        settings.authority.kubeconfig(kubeconfig, settings.url, "kubelet")
    configuration = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_IP,
        "readOnlyPort": 0,
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(settings.authority.ca)},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.name}",
        "enforceNodeAllocatable": [],
        # kubelet 1.35 and later refuse cgroup v1 unless told otherwise.
        "failCgroupV1": False,
        "failSwapOn": False,
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "podLogsDir": str(folder / "pods"),
        "volumePluginDir": str(folder / "volume-plugins"),
        "clusterDomain": "cluster.local",
        "clusterDNS": [NODE_IP],
        "resolvConf": "",
        "makeIPTablesUtilChains": False,
        # Images cannot be pulled again, and the disk is the developer's: neither is kubelet's to judge.
        "imageMinimumGCAge": "24h",
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "0%",
            "imagefs.available": "0%",
            "nodefs.inodesFree": "0%",
        },
        "serializeImagePulls": False,
    }
    path = folder / "kubelet.json"
    cache.write(path, json.dumps(configuration, indent=1))
    return [
        str(binary),
        f"--kubeconfig={kubeconfig}",
        f"--config={path}",
        f"--hostname-override={layout.node}",
        f"--node-ip={NODE_IP}",
        f"--root-dir={layout.kubelet_root}",
        f"--cert-dir={folder / 'kubelet-certs'}",
    ], path


def write_proxy(binary: Path, layout: Layout, settings: ControlPlaneSettings) -> Daemon:
    """Write kube-proxy's configuration."""
    kubeconfig = settings.kubeconfig("kube-proxy")
    if not kubeconfig.exists():
        settings.authority.issue("kube-proxy", "/CN=system:kube-proxy")
        settings.authority.kubeconfig(kubeconfig, settings.url, "kube-proxy")
    configuration = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "bindAddress": NODE_IP,
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "clusterCIDR": POD_RANGE,
        "mode": "iptables",
        # Zeros leave the machine-wide connection tracking alone.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "hostnameOverride": layout.node,
    }
    path = layout.directory / "kube-proxy.json"
    cache.write(path, json.dumps(configuration, indent=1))
    return [str(binary), f"--config={path}"], path
