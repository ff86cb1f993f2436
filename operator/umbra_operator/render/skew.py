"""Which kits this operator works with, and which engines and stores each of them was tested with: data, and one check.

What a kit tests at the engine's start (the linker's guard) costs a pull and a pod; here a sentence comes before both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from umbra_operator.api.v1alpha1 import K3ProfileSpec
from umbra_operator.conditions import Reason
from umbra_operator.errors import SpecInvalid


@dataclass(frozen=True, slots=True)
class Tested:
    """What the kits of one series were tested with."""

    sglang: tuple[str, ...]
    mori: tuple[str, ...]


KITS: Mapping[str, Tested] = {"0.1": Tested(sglang=("0.5.23",), mori=("1.2.4",))}
"""By series, the first two numbers of a kit's version: kits of one series read the same launch documents."""


def check_skew(profile: K3ProfileSpec) -> None:
    """Raises SpecInvalid when the profile's versions do not go together, or not with this operator."""
    kit = profile.kit.version
    tested = KITS.get(".".join(kit.split(".")[:2]))
    if tested is None:
        raise SpecInvalid(
            Reason.VERSIONS_UNSUPPORTED,
            f"the profile's kit.version: this operator works with kits of {_listed([*KITS])}, not {kit}; "
            "use a profile with such a kit, or the operator of that kit's release",
        )
    for field, said, known in (
        ("sglang", profile.versions.sglang, tested.sglang),
        ("mori", profile.versions.mori, tested.mori),
    ):
        if strange := [version for version in said if _release(version) not in known]:
            raise SpecInvalid(
                Reason.VERSIONS_UNSUPPORTED,
                f"the profile's versions.{field}: kit {kit} was tested with {_listed(known)}, not {_listed(strange)}; "
                "use a profile whose images were tested together",
            )


def _release(version: str) -> str:
    """The version without post-release and local label, which count as their release."""
    return version.partition("+")[0].partition(".post")[0]


def _listed(versions: Sequence[str]) -> str:
    return ", ".join(versions)
