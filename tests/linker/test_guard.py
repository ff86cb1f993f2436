"""The linker starts on the tested versions and on no other."""

import pytest

from umbra_linker.guard import TESTED, LinkerRefusedError, parse_version, require_hooks, require_tested

GOOD: dict[str, str | None] = {"sglang": "0.5.23", "amd-mori": "1.2.4"}


@pytest.mark.parametrize("sglang", ["0.5.23", "0.5.23.post1", "0.5.23+rocm7.2"])
@pytest.mark.parametrize("mori", ["1.2.4", "1.2.4+rocm7.2"])
def test_tested_versions_pass(sglang: str, mori: str) -> None:
    require_tested({"sglang": sglang, "amd-mori": mori})


@pytest.mark.parametrize(
    ("distribution", "found", "sentence"),
    [
        ("sglang", "0.5.22", "found sglang 0.5.22, tested is sglang>=0.5.23,<0.5.24"),
        ("sglang", "0.5.24", "found sglang 0.5.24, tested is sglang>=0.5.23,<0.5.24"),
        ("sglang", "0.5.23rc1", "found sglang 0.5.23rc1, tested is"),
        ("sglang", "0.5.24.dev12+g0a1b2c3", "found sglang 0.5.24.dev12"),
        ("sglang", None, "found no sglang"),
        ("amd-mori", "1.2.5", "found amd-mori 1.2.5, tested is amd-mori>=1.2.4,<1.2.5"),
        ("amd-mori", "unknown", "found amd-mori unknown"),
        ("amd-mori", None, "found no amd-mori"),
    ],
)
def test_other_versions_are_refused_with_found_tested_and_remedy(
    distribution: str, found: str | None, sentence: str
) -> None:
    with pytest.raises(LinkerRefusedError) as caught:
        require_tested(GOOD | {distribution: found})
    remedy = next(entry.remedy for entry in TESTED if entry.distribution == distribution)
    assert sentence in str(caught.value)
    assert remedy in str(caught.value)


def test_every_problem_is_named_at_once() -> None:
    with pytest.raises(LinkerRefusedError, match=r"found sglang 1\.0\.0.*found no amd-mori"):
        require_tested({"sglang": "1.0.0"})


@pytest.mark.parametrize(
    ("text", "version"),
    [("0.5.23", (0, 5, 23)), ("v0.5.23", (0, 5, 23)), ("0.5", None), ("1.2.4b1", None), ("", None)],
)
def test_parsing(text: str, version: tuple[int, int, int] | None) -> None:
    assert parse_version(text) == version


def test_live_hooks_pass() -> None:
    require_hooks([])


def test_dead_hooks_are_named_with_what_to_check() -> None:
    with pytest.raises(LinkerRefusedError, match=r"not live \(a\.B, c\.d\).*PYTHONPATH.*SGLANG_PLUGINS"):
        require_hooks(["c.d", "a.B"])
