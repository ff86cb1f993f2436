"""Kits, engines and stores that were not tested together are refused before a pod is made, with the remedy."""

import pytest

from builders import deployment_spec, profile_spec
from umbra_linker import __version__ as kit
from umbra_linker.guard import TESTED, parse_version
from umbra_operator.api.v1alpha1 import K3ProfileSpec
from umbra_operator.conditions import Reason
from umbra_operator.errors import SpecInvalid
from umbra_operator.render.resolve import resolve
from umbra_operator.render.skew import KITS


@pytest.mark.parametrize(
    "profile",
    [
        profile_spec(),
        profile_spec(kit__version="0.1.7+local"),
        profile_spec(versions={"sglang": ["0.5.23", "0.5.23.post1"], "mori": ["1.2.4+rocm7.2"]}),
    ],
)
def test_versions_that_go_together(profile: K3ProfileSpec) -> None:
    resolve(deployment_spec(), profile)


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        (profile_spec(kit__version="0.2.0"), "kit.version: this operator works with kits of 0.1, not 0.2.0"),
        (profile_spec(kit__version="dev"), "kit.version: .*, not dev"),
        (
            profile_spec(versions={"sglang": ["0.5.23", "0.5.24"], "mori": ["1.2.4"]}),
            "versions.sglang: kit 0.1.0 was tested with 0.5.23, not 0.5.24",
        ),
        (profile_spec(versions={"sglang": ["0.5.23"], "mori": ["1.3.0"]}), "versions.mori: .* 1.2.4, not 1.3.0"),
    ],
)
def test_versions_that_do_not(profile: K3ProfileSpec, said: str) -> None:
    with pytest.raises(SpecInvalid, match=said) as caught:
        resolve(deployment_spec(), profile)
    assert caught.value.reason == Reason.VERSIONS_UNSUPPORTED
    assert "use a profile" in str(caught.value)


def test_the_kit_of_this_release_is_known_with_what_its_own_guard_accepts() -> None:
    known = KITS[".".join(kit.split(".")[:2])]
    for tested, versions in zip(TESTED, (known.sglang, known.mori), strict=True):
        for version in versions:
            parsed = parse_version(version)
            assert parsed and tested.first <= parsed < tested.beyond
