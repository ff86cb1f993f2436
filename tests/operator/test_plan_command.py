"""``umbra plan``: the figures of the examples, what to change where something does not fit, and ConfigValid alike."""

import json
from pathlib import Path
from typing import Any

import pytest

from builders import DEPLOYMENT_SPEC, PROFILE_SPEC, edited
from umbra_operator.api.v1alpha1 import K3DeploymentSpec, K3ProfileSpec
from umbra_operator.cli.__main__ import main
from umbra_operator.conditions import Reason
from umbra_operator.errors import SpecInvalid
from umbra_operator.render.memory import check_gpu_memory
from umbra_operator.render.resolve import resolve

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PROFILE = (EXAMPLES / "mi355x-tp8-v1.yaml").read_text()
MEMORY = {"gpuMemory": {"size": "288G", "weights": "1560G"}}


def plan(tmp_path: Path, *edits: tuple[str, str], name: str = "k3-mi355x.yaml", **node: object) -> int:
    deployment, profile = (EXAMPLES / name).read_text(), PROFILE
    for old, new in edits:
        assert old in deployment + profile
        deployment, profile = deployment.replace(old, new), profile.replace(old, new)
    (tmp_path / "cr.yaml").write_text(deployment + "---\n" + profile)
    argv = ["plan", "-f", str(tmp_path / "cr.yaml")]
    if node:
        (tmp_path / "node.json").write_text(json.dumps(node))
        argv += ["--node", str(tmp_path / "node.json")]
    return main(argv)


@pytest.mark.parametrize("name", ["k3-mi355x.yaml", "k3-dspark-pvc.yaml"])
def test_the_examples_fit_and_every_figure_has_formula_and_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert plan(tmp_path, name=name, memoryBytes=3 * 10**12) == 0
    figures, _, words = capsys.readouterr().out.partition("\n\n")
    assert all(len([cell for cell in line.split("  ") if cell]) == 4 for line in figures.splitlines()[1:])
    for text in ("weights per rank", "195.0 GB", "56,171,520 B", "603 s", "1930 s"):
        assert text in figures
    assert words.endswith("It fits.\n")


def test_the_figures_are_those_of_sglang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: 230.4 GB less 195; of 35.4 GB nine nineteenths are 298 checkpoints, one of which is never used."""
    assert plan(tmp_path) == 0
    said = capsys.readouterr().out
    assert slot(said, "checkpoint slots") == "297"
    assert slot(said, "requests at once") == "59"
    assert slot(said, "tokens of KV") == "674,944"
    assert "a request of more than 674,944 tokens is refused" in said
    assert plan(tmp_path, ("  cache:", "  engine: {kvCacheDtype: fp8_e4m3, mambaStateDtype: bfloat16}\n  cache:")) == 0
    said = capsys.readouterr().out
    assert int(slot(said, "checkpoint slots")) > 570
    assert slot(said, "longest request") == "1,048,576"
    assert "note" not in said


def slot(said: str, name: str) -> str:
    return next(line for line in said.splitlines() if line.startswith(name))[len(name) :].split()[0]


@pytest.mark.parametrize(
    ("edits", "node", "says"),
    [
        ([('"0.80"', '"0.95"')], {}, "lower spec.engine.memoryFractionPercent to at most 91"),
        ([('"0.80"', '"0.67"')], {}, "no room for one request"),
        ([("weights: 1560G", "weights: 1992G"), ("tensor: 8", "tensor: 4")], {}, "SGLANG_AITER_K3_OPT"),
        ([("tensor: 8", "tensor: 4")], {}, "raise spec.parallelism.tensor"),
        ([], {"memoryBytes": 10**12}, "lower spec.cache.dram.size to at most 216Gi"),
        ([], {"memoryBytes": 10**11}, "use nodes with more memory"),
        ([], {"gpuMemoryBytes": 192 * 10**9}, "weights take 195.0 GB of 192.0 GB"),
    ],
)
def test_what_does_not_fit_says_what_to_change(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    edits: list[tuple[str, str]],
    node: dict[str, object],
    says: str,
) -> None:
    assert plan(tmp_path, *edits, **node) == 1
    assert says in capsys.readouterr().out


def test_more_requests_than_run_at_once_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(tmp_path, name="k3-dspark-pvc.yaml") == 0
    assert "requests run at once where 64 are asked for" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("engine", "parallelism", "says"),
    [
        ("{}", "", "kvCacheDtype fp8_e4m3 halves KV"),
        (
            "{kvCacheDtype: fp8_e4m3, memoryFractionPercent: 75, extraArgs: [--attention-backend, aiter]}",
            "",
            "the context is 1,048,576: spec.parallelism.decodeContext divides KV",
        ),
        (
            "{kvCacheDtype: fp8_e4m3, memoryFractionPercent: 75}",
            "",
            "lower spec.engine.contextLength, or give KV more of the pools (--mamba-full-memory-ratio); "
            "with --decode-attention-backend aiter or cutedsl_mla instead of --attention-backend triton, "
            "spec.parallelism.decodeContext divides KV",
        ),
        (
            "{kvCacheDtype: fp8_e4m3, memoryFractionPercent: 68, extraArgs: [--attention-backend, aiter]}",
            "\n  parallelism: {decodeContext: 8}",
            "lower spec.engine.contextLength",
        ),
    ],
)
def test_advice_for_longer_requests_is_nothing_that_is_set_already(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str, parallelism: str, says: str
) -> None:
    assert plan(tmp_path, ("  cache:", f"  engine: {engine}{parallelism}\n  cache:")) == 0
    note = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("note: a request of more"))
    assert says in note


def test_advice_for_longer_requests_names_no_backend_where_none_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = ("  cache:", "  engine: {kvCacheDtype: fp8_e4m3, memoryFractionPercent: 75}\n  cache:")
    assert plan(tmp_path, engine, ("      - --attention-backend\n      - triton\n", "")) == 0
    said = capsys.readouterr().out
    assert "with --decode-attention-backend aiter or cutedsl_mla, spec.parallelism.decodeContext divides KV" in said


FP8 = ("  cache:", "  engine: {kvCacheDtype: fp8_e4m3}\n  cache:")
SHARED = (
    "  cache:",
    "  parallelism: {decodeContext: 8}\n"
    "  engine: {kvCacheDtype: fp8_e4m3, extraArgs: [--attention-backend, aiter]}\n  cache:",
)
DRAFTED = ("  engine:", "  engine:\n    kvCacheDtype: fp8_e4m3")


@pytest.mark.parametrize(
    ("page", "columns"),
    [
        ("dcp.md", [("k3-mi355x.yaml", FP8), ("k3-mi355x.yaml", SHARED)]),
        ("dspark.md", [("k3-mi355x.yaml", FP8), ("k3-dspark-pvc.yaml", DRAFTED)]),
    ],
)
def test_the_tables_of_the_how_to_pages_hold_what_the_plan_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], page: str, columns: list[tuple[str, tuple[str, str]]]
) -> None:
    rows = [
        line.strip("| ").split(" | ")
        for line in (ROOT / "docs" / "howto" / page).read_text().splitlines()
        if line.startswith("| ")
    ]
    told = {row[0]: row[1:] for row in rows if row[0] in ("tokens of KV", "checkpoint slots", "requests at once")}
    assert len(told) >= 2
    for column, (name, edit) in enumerate(columns):
        assert plan(tmp_path, edit, name=name) == 0
        said = capsys.readouterr().out
        assert {figure: cells[column] for figure, cells in told.items()} == {f: slot(said, f) for f in told}


def test_tokens_of_kv_are_whole_pages_of_the_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for fraction in ("0.81", "0.82", "0.83"):
        assert plan(tmp_path, SHARED, ('"0.80"', f'"{fraction}"')) == 0
        assert int(slot(capsys.readouterr().out, "tokens of KV").replace(",", "")) % (8 * 64) == 0


def test_advice_for_more_requests_is_nothing_that_is_set_already(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for state, says in (("float32", "bfloat16 halves checkpoints"), ("bfloat16", "maxRunningRequests to ")):
        engine = f"  engine: {{mambaStateDtype: {state}, maxRunningRequests: 4000}}\n  cache:"
        assert plan(tmp_path, ("  cache:", engine)) == 0
        note = next(line for line in capsys.readouterr().out.splitlines() if "requests run at once" in line)
        assert says in note
        assert (state == "float32") == ("halves" in note)


def test_no_figure_is_made_of_what_is_no_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for value in ("nan", "inf", "much"):
        assert plan(tmp_path, ('"0.80"', f'"{value}"')) == 0
        assert slot(capsys.readouterr().out, "tokens of KV").replace(",", "").isdigit()


def test_a_store_without_room_for_a_checkpoint_is_told_and_an_unknown_node_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(tmp_path, ("size: 1160Gi", "size: 500Mi")) == 0
    said = capsys.readouterr().out
    assert "holds not one checkpoint of 449,372,160 B" in said
    assert said.endswith("Of the node's memory nothing is known: give --node.\n")


def test_the_command_refuses_what_it_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-f", str(EXAMPLES / "k3-mi355x.yaml")]) == 2
    assert plan(tmp_path, ("size: 1160Gi", "size: 64GB")) == 2
    assert plan(tmp_path, ("  gpuMemory:", "  ignored:")) == 2
    assert plan(tmp_path, memoryBytes="much") == 2
    assert plan(tmp_path, memory=5) == 2
    assert main(["plan", "-f", str(tmp_path / "missing")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    for sentence in (
        "no K3Profile 'mi355x-tp8-v1'",
        "spec.cache.dram.size",
        "has no gpuMemory",
        "memoryBytes is 'much'",
        "not a JSON object of gpuMemoryBytes and memoryBytes alone",
    ):
        assert sentence in said.err
    assert "missing: No such file" in said.err


@pytest.mark.parametrize(
    ("figure", "says"),
    [
        ({"size": "200G"}, "weights take 203.0 GB of 200.0 GB"),
        ({"weights": "2400G"}, "weights take 308.0 GB of 288.0 GB"),
        ({"draft": "80G"}, "weights take 275.0 GB of 288.0 GB"),
        ({"working": "90G"}, "weights take 203.0 GB of 288.0 GB on each GPU and the prefill 90.0 GB"),
    ],
)
def test_each_figure_of_the_gpu_s_memory_counts(figure: dict[str, str], says: str) -> None:
    dspark = {"parallelism.tensor": 8, "speculation": {"type": "DSPARK", "dspark": {"draft": "draft"}}}
    spec = K3DeploymentSpec.model_validate(edited(DEPLOYMENT_SPEC, dspark))
    whole = {"size": "288G", "weights": "1560G", "draft": "8G", "working": "24G"}
    check_gpu_memory(resolve(spec, K3ProfileSpec.model_validate(edited(PROFILE_SPEC, {"gpuMemory": whole}))))
    with pytest.raises(SpecInvalid, match=says):
        check_gpu_memory(
            resolve(spec, K3ProfileSpec.model_validate(edited(PROFILE_SPEC, {"gpuMemory": {**whole, **figure}})))
        )


def test_config_valid_refuses_what_the_plan_refuses() -> None:
    def check(deployment: dict[str, Any], **profile: Any) -> None:
        spec = K3DeploymentSpec.model_validate(edited(DEPLOYMENT_SPEC, deployment))
        check_gpu_memory(resolve(spec, K3ProfileSpec.model_validate(edited(PROFILE_SPEC, profile))))

    check({"parallelism.tensor": 8}, **MEMORY)
    check({"parallelism.tensor": 2})
    for wrong in ({"parallelism.tensor": 2}, {"parallelism.tensor": 8, "engine.memoryFractionPercent": 95}):
        with pytest.raises(SpecInvalid, match=r"parallelism\.tensor|at most 91") as error:
            check(wrong, **MEMORY)
        assert error.value.reason == Reason.GPU_MEMORY_SHORT
