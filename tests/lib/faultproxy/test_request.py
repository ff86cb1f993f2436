"""Paths of the Kubernetes API become verbs and objects."""

import pytest

from faultproxy import parse


@pytest.mark.parametrize(
    ("method", "target", "verb", "resource", "namespace", "name"),
    [
        ("GET", "/api/v1/pods?limit=5", "list", "pods", "", ""),
        ("GET", "/api/v1/namespaces/a/pods", "list", "pods", "a", ""),
        ("GET", "/api/v1/namespaces/a/pods?watch=true", "watch", "pods", "a", ""),
        ("GET", "/api/v1/namespaces/a/pods?watch=false", "list", "pods", "a", ""),
        ("GET", "/api/v1/namespaces/a/pods/p", "get", "pods", "a", "p"),
        ("GET", "/api/v1/namespaces/a/pods/p/log", "get", "pods/log", "a", "p"),
        ("PATCH", "/apis/x.dev/v1/namespaces/a/things/t/status?force=true", "patch", "things/status", "a", "t"),
        ("PUT", "/apis/x.dev/v1/things/t", "update", "things", "", "t"),
        ("DELETE", "/apis/x.dev/v1/namespaces/a/things/t", "delete", "things", "a", "t"),
        ("DELETE", "/apis/x.dev/v1/namespaces/a/things", "deletecollection", "things", "a", ""),
        ("GET", "/api/v1/namespaces", "list", "namespaces", "", ""),
        ("DELETE", "/api/v1/namespaces/a", "delete", "namespaces", "", "a"),
        ("PUT", "/api/v1/namespaces/a/finalize", "update", "namespaces/finalize", "", "a"),
        ("GET", "/version", "get", "", "", ""),
        ("GET", "/apis/x.dev/v1", "get", "", "", ""),
    ],
)
def test_verb_and_object(method: str, target: str, verb: str, resource: str, namespace: str, name: str) -> None:
    found = parse(method, target)
    assert (found.verb, found.resource, found.namespace, found.name) == (verb, resource, namespace, name)


def test_a_created_object_is_named_by_its_body() -> None:
    path = "/api/v1/namespaces/a/pods"
    assert parse("POST", path, b'{"metadata": {"name": "p"}}').object == ("pods", "a", "p")
    assert parse("POST", path, b'{"metadata": {"generateName": "p-"}}').name == ""
    assert parse("POST", path, b"\x00protobuf").name == ""
    assert parse("POST", path + "/p/eviction", b'{"metadata": {"name": "q"}}').name == "p"
