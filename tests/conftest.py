"""Fixtures that several folders of tests share, each from its own module in tests/lib."""

from localcluster import webproxy

pytest_plugins = ["product", "apiserver", "group_times", "interrupts", "kubelet", "parts", "worker_groups"]

# A machine that needs a proxy for its registries reaches the servers of the tests without it.
webproxy.bypass()
