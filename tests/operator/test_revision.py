"""Revisions: what was said counts, not how it was written and not what this operator makes of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from builders import deployment_spec, profile_spec
from umbra_operator.api.base import Model
from umbra_operator.api.v1alpha1 import K3DeploymentSpec, K3ProfileSpec
from umbra_operator.render.revision import Revision, revision


def of(**edits: Any) -> Revision:
    return revision(deployment_spec(**edits), profile_spec())


def test_the_order_of_maps_is_irrelevant() -> None:
    one, other = {"a": "1", "b": "2"}, {"b": "2", "a": "1"}
    assert of(podMetadata__labels=one) == of(podMetadata__labels=other)


@pytest.mark.parametrize(
    "edits",
    [
        {"role": "Unified"},
        {"speculation": {}},
        {"speculation": {"type": "None"}},
        {"engine": {}},
        {"engine": {"extraArgs": []}},
        {"placement": {"nodeSelector": {}}},
        {"health": {}},
        {"rollout": {"strategy": "InPlace", "maxUnavailable": 1, "paused": False, "cacheLoss": "Allow"}},
        {"toolchain": {"treeCore": "Auto"}},
        {"cache__dram": {"size": "1Gi", "hugepages": "None", "numaNodes": []}},
        {"devices": {}},
        {"network": {"metricsFrom": []}},
    ],
)
def test_a_default_that_is_written_out_changes_nothing(edits: dict[str, Any]) -> None:
    assert of(**edits) == of()


@pytest.mark.parametrize(
    "edits",
    [
        {"replicas": 5},
        {"profileRef__name": "other-v2"},
        {"rollout": {"strategy": "OnDelete", "maxUnavailable": 3, "paused": True, "acknowledgedChange": "0" * 12}},
        {"network": {"from": [], "metricsFrom": [{"podSelector": {}}]}},
    ],
)
def test_what_only_the_operator_reads_changes_nothing(edits: dict[str, Any]) -> None:
    assert of(**edits) == of()


@pytest.mark.parametrize("edits", [{"cache__policy": {"checkpoints": "All"}}, {"health": {"drainTimeoutSeconds": 1}}])
def test_what_a_running_engine_follows_restarts_nothing(edits: dict[str, Any]) -> None:
    changed = of(**edits)
    assert (changed.launch, changed.pod) == (of().launch, of().pod)
    assert changed.live != of().live


def test_a_field_that_a_newer_operator_knows_changes_nothing() -> None:
    assert of(telemetry={"strategy": "InPlace"}) == of()


def test_there_and_back_ends_where_it_began() -> None:
    assert of(engine={"contextLength": 8192}) != of()
    assert revision(deployment_spec(), profile_spec()) == of()


def test_a_profile_with_another_name_and_the_same_content_changes_nothing_and_another_content_does() -> None:
    assert revision(deployment_spec(), profile_spec(engine__allowedArgs=[])) == of()
    changed = revision(deployment_spec(), profile_spec(engine__args=[]))
    assert (changed.launch != of().launch, changed.pod) == (True, of().pod)


def test_the_hash_itself_is_a_contract() -> None:
    """Another value here means that this version of the operator replaces every pod of its users."""
    assert of() == Revision(launch="a8edd5160e9f", pod="c09d066e3003", live="dee36ace772e")


DEFAULTS = Path(__file__).parent / "golden" / "defaults.yaml"


def _defaults(model: type[Model], prefix: str) -> Iterator[tuple[str, Any]]:
    """Every default that says something, by dotted path on the wire; those inside of lists and options too."""
    for name, field in model.model_fields.items():
        path = f"{prefix}.{field.alias or name}"
        nested = [each for each in _within(field.annotation) if isinstance(each, type) and issubclass(each, Model)]
        for each in nested:
            yield from _defaults(each, path)
        if not nested and not field.is_required() and field.default not in (None, [], {}, ""):
            yield path, field.default


def _within(annotation: Any) -> Iterator[Any]:
    yield annotation
    for argument in get_args(annotation):
        yield from _within(argument)


def test_a_default_is_never_another_one() -> None:
    """Hashes leave defaults out, so a new one would give another revision to every pod whose object stores the old one.

    A new field adds its default to the file. Where a default must change, bring a new field in place of the old one.
    """
    found = {**dict(_defaults(K3DeploymentSpec, "K3Deployment")), **dict(_defaults(K3ProfileSpec, "K3Profile"))}
    assert yaml.safe_load(DEFAULTS.read_text()) == found
