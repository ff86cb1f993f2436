"""``umbra size`` as a user runs it: figures in four forms, and a sentence for what cannot be used."""

import csv
import io
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from simtraces import growing, write_lines, write_tar
from umbra_linker.settings import Checkpoints
from umbra_operator.cli.__main__ import main
from umbra_operator.cli.deployed import Engine, deployed
from umbra_sim.advice import advice, fragment
from umbra_sim.policies import POLICIES as KNOWN
from umbra_sim.simulate import Setup
from umbra_sim.sweep import Row, Sweep

SMALL = ["--min-requests", "10", "--seeds", "2", "--lanes", "3", "--device-checkpoints", "8"]
POLICIES = ["--policy", "kv-once,adaptive,infinite"]


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    sessions = [growing(str(n), 20 + n, first=200 + 40 * n, step=9 + n % 4) for n in range(5)]
    return write_tar(tmp_path / "agents.tar.xz", sessions)


def test_json_and_csv_have_a_row_for_each_policy_and_size(agents: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["size", "--trace", str(agents), "--dram", "20Gi,40Gi", *POLICIES, *SMALL]
    assert main([*argv, "--output", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["policy"], row["dram_bytes"] >> 30) for row in rows] == [
        ("kv-once", 20),
        ("kv-once", 40),
        ("adaptive", 20),
        ("adaptive", 40),
        ("infinite", 20),
    ]
    for row in rows:
        assert row["seeds"] == 2
        assert 0 < row["hit_ratio"] < 1
        assert row["bytes_per_prompt_token"] > 0
        assert {"hit_ratio_last_half", "seconds_to_full"} <= set(row)
    assert rows[-1]["seconds_to_full"] is None
    assert main([*argv, "--output", "csv"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["hit_ratio"] for row in table] == [str(row["hit_ratio"]) for row in rows], "the same, run again"


def test_the_page_is_well_formed_and_needs_nothing_else(agents: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["size", "--trace", str(agents), "--dram", "20Gi,40Gi", *POLICIES, *SMALL]
    assert main([*argv, "--output", "html"]) == 0
    page = capsys.readouterr().out
    assert not re.search(r"https?://|<script|src=|@import", page)
    for picture in re.findall(r"<svg.*?</svg>", page):
        ElementTree.fromstring(picture)
    assert page.count("<svg") == 6
    assert "spec:\n  cache:\n    dram: {size: " in page
    assert "polyline" in page and "nan" not in page
    assert main(argv) == 0
    assert "kv-once" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--dram", "64GB"], "64G, or 64Gi"),
        (["--dram", "100Mi", "--min-requests", "10"], "holds not one checkpoint"),
        (["--policy", "best"], "'best' is not one of stock, "),
        (["--watermarks", "70,90"], "HIGH,LOW"),
        (["--min-requests", "500"], "the longest has 24; lower --min-requests"),
        (["--dcp", "3"], "--dcp 3 does not divide --tensor 8"),
        (["--dcp", "2", "--dspark"], "a DSPARK draft runs with --dcp 1 only"),
        (["--tensor", "7"], "does not divide the model's 96 heads"),
        (["--lanes", "99999999", "--min-requests", "10"], "one engine has at most"),
        (["--decode-rate", "1e-9", "--min-requests", "10", "--dram", "9Gi"], "no lane came to its request number 11"),
        (["--lanes", "0"], "not a whole number above 0"),
        (["--decode-rate", "nan"], "not a number above 0"),
    ],
)
def test_what_cannot_be_used_is_a_sentence_and_status_2(
    agents: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    try:
        status = main(["size", "--trace", str(agents), *arguments])
    except SystemExit as end:
        status = int(end.code or 0)
    said = capsys.readouterr()
    assert (status, said.out) == (2, "")
    assert says in said.err


def test_an_empty_or_broken_trace_is_status_2_and_one_request_is_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [5]}
    for name, lines, status in (("empty", [], 2), ("bad", [line, "x\n"], 2), ("one", [line], 0)):
        path = write_lines(tmp_path / name, lines)
        assert main(["size", "--trace", str(path), "--dram", "8Gi", "--output", "json"]) == status
    said = capsys.readouterr()
    assert json.loads(said.out)[0]["hit_ratio"] == 0
    os.mkfifo(tmp_path / "pipe")
    assert main(["size", "--trace", str(tmp_path / "pipe")]) == 2
    assert "neither a file nor a folder" in capsys.readouterr().err
    assert "bad line 2: not JSON" in said.err


def row(policy: str, gib: int, ratio: float, written: float = 1.0) -> Row:
    return Row(policy, gib << 30, 1, ratio, 0.0, ratio, written, None, 0.5, 0.0)


def test_advice_takes_the_smallest_size_that_is_enough_and_names_cliffs() -> None:
    rows = [
        row("kv-once", 36, 0.1),
        row("kv-once", 72, 0.9),
        row("kv-once", 145, 0.968),
        row("adaptive", 145, 0.966, 0.5),
        row("adaptive", 72, 0.95),
    ]
    references = [row("clairvoyant", 36, 0.969), row("infinite", 36, 0.969)]
    first, *cliffs = advice([*rows, *references]).lines
    assert first.startswith("adaptive with 145 GiB restores 96.6%"), "as many hits for fewer bytes"
    assert cliffs == ["kv-once collapses between 72 GiB (90.0%) and 36 GiB (10.0%)."]
    short = advice([row("kv-once", 36, 0.1), row("infinite", 36, 0.9)])
    assert short.lines[0].startswith("No size here is enough")
    assert short.chosen is None
    default = [row("adaptive", 145, 0.966, 0.5), row("adaptive+rewrite", 145, 0.966, 0.51)]
    chosen = advice(default).chosen
    assert chosen and chosen.policy == "adaptive+rewrite", "what nobody has to set, for hardly more bytes"
    assert "is the smallest size here" in advice(default).lines[1]
    slope = [row("kv-once", gib, ratio) for gib, ratio in ((36, 0.2), (72, 0.35), (145, 0.5), (290, 0.6))]
    assert advice([*slope, row("infinite", 36, 0.9)]).cliffs == (), "each size is worth its bytes; nothing collapses"
    assert advice([row("kv-once", 36, 0.0), row("infinite", 36, 0.0)]).chosen is None


@pytest.mark.parametrize("name", [name for name, policy in KNOWN.items() if not policy.reference])
def test_the_advised_fields_make_a_deployment_of_the_advised_policy(tmp_path: Path, name: str) -> None:
    setup = Setup(high_percent=80, low_percent=60)
    chosen = row(name, 145, 0.9)
    text = fragment(Sweep((), (KNOWN[name],), setup, 1, True, 3600.0), chosen)
    fields = yaml.safe_load(text)
    path = example(tmp_path, ("cache:\n    dram:\n      size: 1160Gi", f"cache: {json.dumps(fields['spec']['cache'])}"))
    given = deployed(path, None, lanes=8)
    assert given
    # The linker always writes leaf first, also where it does not thin checkpoints, and that is said.
    assert given.policy == replace(KNOWN[name], name="deployment", leaf_first=True)
    assert (f"from its end on, which {name} does not" in text) == (not KNOWN[name].leaf_first)
    assert (given.setup.high_percent, given.setup.low_percent) == (80, 60)
    assert given.sizes and 145 << 30 in given.sizes


EXAMPLES = Path(__file__).parents[2] / "examples"


def example(tmp_path: Path, *edits: tuple[str, str]) -> Path:
    """The example deployment and its profile in one file."""
    text = (EXAMPLES / "k3-mi355x.yaml").read_text() + "---\n" + (EXAMPLES / "mi355x-tp8-v1.yaml").read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "k3.yaml"
    path.write_text(text)
    return path


def test_a_deployment_is_replayed_with_its_own_engine_store_and_policy(tmp_path: Path) -> None:
    policy = "size: 1160Gi\n    policy: {keyLayout: PerRank, checkpoints: PromptEnd, rewriteMissing: Disabled}"
    engine = "\n  engine: {kvCacheDtype: fp8_e4m3, mambaStateDtype: bfloat16, chunkedPrefillSize: 4096}"
    given = deployed(example(tmp_path, ("size: 1160Gi", policy + engine)), None, lanes=8)
    assert given
    setup = given.setup
    assert (setup.shape.kv_bytes, setup.shape.state_bytes, setup.chunk_tokens) == (1, 2, 4096)
    assert (setup.high_percent, setup.low_percent) == (90, 85)
    plain = deployed(example(tmp_path), None, lanes=8)
    assert plain
    assert (plain.setup.device_tokens, plain.setup.device_checkpoints) == (674_944, 297 - 8 * 5), "as umbra plan says"
    assert plain.policy == replace(KNOWN["adaptive+rewrite"], name="deployment"), "the linker's defaults"
    assert (given.policy.once, given.policy.checkpoints, given.policy.rewrite) == (False, Checkpoints.PROMPT_END, False)
    alone = deployed(None, EXAMPLES / "mi355x-tp8-v1.yaml", lanes=8)
    assert alone
    assert (alone.setup, alone.policy) == (plain.setup, None)


def test_the_same_device_holds_more_tokens_where_ranks_share_contexts(
    agents: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ratios = []
    for given in ([], ["--device-tokens", str(8 * 1_140_000)], ["--device-tokens", "20000"]):
        argv = ["size", "--trace", str(agents), "--dram", "4Gi", "--policy", "kv-once", "--dcp", "8", *SMALL, *given]
        assert main([*argv, "--seeds", "1", "--output", "json"]) == 0
        ratios.append(json.loads(capsys.readouterr().out)[0]["hit_ratio"])
    assert ratios[0] == ratios[1] > ratios[2]


@pytest.mark.parametrize(
    ("said", "fields"),
    [
        (Engine(tensor=16), "parallelism: {tensor: 16}"),
        (Engine(decode_context=4), "parallelism: {decodeContext: 4}"),
        (Engine(16, 2), "parallelism: {tensor: 16, decodeContext: 2}"),
        (Engine(draft=True), "speculation: {type: DSPARK, dspark: {draft: Kimi-K3-draft}}"),
    ],
    ids=str,
)
def test_an_engine_said_on_the_command_line_is_the_one_that_a_deployment_would_have(
    tmp_path: Path, said: Engine, fields: str
) -> None:
    """What its GPUs hold is asked anew: more ranks leave each of them more room, and a draft takes some."""
    shares = ("--attention-backend\n      - triton", "--attention-backend\n      - aiter")
    path = example(tmp_path, shares)
    plain, setup = deployed(path, None, lanes=8), deployed(path, None, lanes=8, engine_said=said)
    written = deployed(example(tmp_path, shares, ("  cache:\n", f"  {fields}\n  cache:\n")), None, lanes=8)
    assert plain and setup and written
    assert setup.setup == written.setup
    assert setup.setup.device_tokens != plain.setup.device_tokens


def test_an_engine_that_a_deployment_could_not_have_is_refused_on_the_command_line(
    agents: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(example(tmp_path))
    argv = ["size", "--trace", str(agents), "--deployment", path, *SMALL]
    for given, says in (
        (["--tensor", "4"], "with --tensor 4: weights take"),
        (["--dcp", "2"], "with --dcp 2: --attention-backend triton: "),
        (["--dcp", "3"], "with --dcp 3: "),
        (["--dcp", "2", "--dspark"], "with --dcp 2 --dspark: spec.speculation.type: DSPARK"),
    ):
        assert main([*argv, *given]) == 2
        assert says in capsys.readouterr().err
    text = Path(path).read_text().replace("  cache:\n", "  parallelism: {tensor: 4}\n  cache:\n", 1)
    Path(path).write_text(text)
    assert main(argv) == 2
    assert "error: weights take" in capsys.readouterr().err, "and in the file as well"


def test_sizes_and_policies_follow_the_deployment(
    agents: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = example(tmp_path, ("size: 1160Gi", "size: 40Gi"))
    assert main(["size", "--trace", str(agents), "--deployment", str(path), "--output", "json", *SMALL]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["dram_bytes"] >> 30 for row in rows if row["policy"] == "deployment"] == [10, 20, 40, 80]
    assert {row["policy"] for row in rows} == {"stock", "deployment", "infinite"}


def test_a_profile_without_the_sizes_of_its_gpus_is_refused(
    agents: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = example(tmp_path, ("  gpuMemory:", "  ignored:"))
    assert main(["size", "--trace", str(agents), "--deployment", str(path)]) == 2
    assert "has no gpuMemory" in capsys.readouterr().err
    assert main(["size", "--trace", str(agents), "--profile", str(EXAMPLES / "k3-mi355x.yaml")]) == 2
    assert "0 K3Profiles in" in capsys.readouterr().err
