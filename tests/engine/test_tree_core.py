"""Every rank gets the same tree core, whichever it could have had alone. Real choice, real cores, gloo processes."""

from __future__ import annotations

import pytest

from ranklab import RankLab

pytestmark = pytest.mark.engine

PYTHON = {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"}
NO_TOOLCHAIN = {"SGLANG_RUST_BUILD_MODE": "force"}
"""A source build is demanded where there are no sources: SGLang falls back to Python on this rank, with a reason."""


@pytest.mark.parametrize(
    ("ranks", "core"),
    [
        ([PYTHON] * 7 + [{}], "UnifiedTreeCore"),
        ([{}] * 7 + [NO_TOOLCHAIN], "UnifiedTreeCore"),
        ([{}] * 8, "RustUnifiedTreeCore"),
        ([PYTHON] * 2, "UnifiedTreeCore"),
        ([{}], "RustUnifiedTreeCore"),
    ],
    ids=["7 Python and 1 Rust", "1 rank without toolchain", "all Rust", "all Python", "1 rank"],
)
def test_all_ranks_build_the_same_core(rank_lab: RankLab, ranks: list[dict[str, str]], core: str) -> None:
    built = rank_lab.run("treecores.built", ranks=len(ranks), env=ranks)
    assert [one["core"] for one in built] == [core] * len(ranks)


def test_each_rank_logs_its_core_and_the_reason(rank_lab: RankLab) -> None:
    lines = [one["log"] for one in rank_lab.run("treecores.built", ranks=4, env=[{}, {}, PYTHON, NO_TOOLCHAIN])]
    assert lines == [
        ["Umbra linker tree core: python on rank 0 of 4: this rank chose rust, but another rank has no rust core"],
        ["Umbra linker tree core: python on rank 1 of 4: this rank chose rust, but another rank has no rust core"],
        ["Umbra linker tree core: python on rank 2 of 4: configured; other ranks chose rust and follow"],
        [
            "Umbra linker tree core: python on rank 3 of 4: the requested Rust TreeCore source build has no sources; "
            "other ranks chose rust and follow"
        ],
    ]


def test_a_toolchain_that_fails_after_the_choice_changes_nothing(rank_lab: RankLab) -> None:
    assert rank_lab.run("treecores.asked_again", ranks=2) == ["rust", "rust"]
