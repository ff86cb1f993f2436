"""Which fields the served schemas lack."""

import copy

from umbra_operator.api.v1alpha1 import KINDS
from umbra_operator.codegen.crd import crd
from umbra_operator.served import lacking, sentence

SCHEMAS = {kind.kind: crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for kind in KINDS}


def test_this_release_s_own_crds_lack_nothing_and_neither_does_a_kind_that_is_not_served() -> None:
    assert lacking(SCHEMAS) == ()
    assert lacking({}) == ()


def test_an_absent_field_is_named_once_at_its_outermost_and_newer_crds_are_fine() -> None:
    older = copy.deepcopy(SCHEMAS)
    spec = older["K3Deployment"]["properties"]["spec"]["properties"]
    del spec["cache"]["properties"]["dram"], spec["podMetadata"]
    del older["K3Profile"]["properties"]["spec"]["properties"]["podPatch"]
    spec["ofANewerRelease"] = {"type": "string"}
    found = lacking(older)
    assert set(found) == {
        "K3Deployment spec.cache.dram",
        "K3Deployment spec.podMetadata",
        "K3Profile spec.podPatch",
    }
    assert "K3Profile spec.podPatch; apply the CRDs" in sentence(found)


def test_a_sentence_stays_short() -> None:
    assert "and 95 more; apply" in sentence(tuple(f"K3Deployment spec.field{number}" for number in range(100)))
