"""Fixtures that several folders of tests share, each from its own module in tests/lib."""

pytest_plugins = ["product", "apiserver", "group_times", "kubelet", "parts"]
