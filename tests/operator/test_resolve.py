"""Sizes, flags, and how a deployment and its profile become one set of values."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import deployment_spec, profile_spec
from umbra_linker.settings import (
    MOST_CALLS,
    MOST_LOAD_SECONDS,
    MOST_LOOKUP_MILLISECONDS,
    MOST_PAGES,
    MOST_STORE_BYTES,
    MOST_TOUCH_SECONDS,
    Checkpoints,
    Settings,
    Switch,
    Touch,
)
from umbra_operator.api.base import quantity_bytes
from umbra_operator.api.v1alpha1.cache import MOST_STORE_SIZE, CachePolicy
from umbra_operator.codegen.crd import structural
from umbra_operator.conditions import Reason
from umbra_operator.errors import SpecInvalid
from umbra_operator.render import flags, store
from umbra_operator.render.engine import argv, chosen_environment, chosen_flags, environment
from umbra_operator.render.resolve import resolve


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("5k", 5000),
        ("3M", 3 * 10**6),
        ("2Ki", 2048),
        ("1160Gi", 1160 * 2**30),
        ("1Ti", 2**40),
        ("7T", 7 * 10**12),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert quantity_bytes(text) == size


@pytest.mark.parametrize("text", ["", "Gi", "1.5Gi", "1GiB", "1kk", "-1Gi", "1 Gi", "1m"])
def test_what_is_not_a_size_is_refused_with_the_units(text: str) -> None:
    with pytest.raises(ValueError, match="k, M, G, T, Ki, Mi, Gi, Ti"):
        quantity_bytes(text)


NAMES = st.from_regex(r"--[a-z][a-z-]{0,12}", fullmatch=True)
VALUES = st.text(max_size=12).filter(lambda text: not text.startswith("-")) | st.integers().map(str)
FLAGS = st.dictionaries(NAMES, st.lists(VALUES, max_size=3).map(tuple))


@given(FLAGS)
def test_flags_survive_a_round_trip(chosen: dict[str, tuple[str, ...]]) -> None:
    assert flags.parse(flags.join(chosen)) == chosen


@given(st.lists(st.text(alphabet="-=a1 ", max_size=6), max_size=6))
def test_parsed_flags_are_exactly_those_that_the_engine_sees(args: list[str]) -> None:
    try:
        parsed = flags.parse(args)
    except ValueError:
        return
    seen = [part for part in flags.join(parsed) if part.startswith("-") and not re.fullmatch(r"-[0-9]+", part)]
    assert seen == list(parsed)


def test_equals_separates_a_value_and_the_last_of_two_wins() -> None:
    assert flags.parse(["--a=1", "2", "--b", "--c=", "--a", "-3"]) == {"--a": ("-3",), "--b": (), "--c": ("",)}


def test_the_deployment_stands_over_the_profile_over_what_is_built_in() -> None:
    assert resolve(deployment_spec(), profile_spec(tensor=None)).tensor == 8
    assert resolve(deployment_spec(), profile_spec(tensor=4)).tensor == 4
    assert resolve(deployment_spec(parallelism__tensor=16), profile_spec(tensor=4)).tensor == 16


def test_what_umbra_sets_is_owned() -> None:
    """A flag or variable that it sets and does not own could be set twice."""
    spec = deployment_spec(
        cache__dram__hugepages="2Mi",
        cache__dram__numaNodes=[0],
        toolchain__treeCore="Rust",
        parallelism={"decodeContext": 1},
        engine={"kvCacheDtype": "auto", "mambaStateDtype": "float32", "contextLength": 64, "chunkedPrefillSize": 64},
        speculation={"type": "DSPARK", "dspark": {"draft": "d"}},
    )
    profile = profile_spec(engine__args=[], rocm={"legacyIpc": True}, store__prefaultThreads=1)
    resolved = resolve(spec, profile)
    assert set(flags.parse(argv(resolved)[3:])) - set(flags.OWNED) == {"--log-level-http"}
    assert set(environment(resolved)) <= set(flags.OWNED_ENV)
    assert set(store.environment(resolved)) <= set(flags.OWNED_STORE_ENV)


def test_built_in_values() -> None:
    resolved = resolve(deployment_spec(), profile_spec())
    assert (resolved.high_percent, resolved.low_percent, resolved.drain_seconds) == (90, 85, 600)
    assert (resolved.decode_context, resolved.key_layout, resolved.draft) == (1, "Auto", None)


@pytest.mark.parametrize(
    ("field", "most", "default"),
    [
        ("rpcParallelism", MOST_CALLS, Settings().rpc_parallelism),
        ("chunkPages", MOST_PAGES, Settings().chunk_pages),
        ("offloadBackpressurePercent", 100, Settings().offload_backpressure_percent),
        ("loadDeadlineSeconds", MOST_LOAD_SECONDS, Settings().load_deadline_seconds),
        ("lookupDeadlineMilliseconds", MOST_LOOKUP_MILLISECONDS, Settings().lookup_deadline_milliseconds),
    ],
)
def test_the_api_says_what_the_linker_accepts_and_does_when_unset(field: str, most: int, default: int) -> None:
    schema = CachePolicy.model_json_schema(by_alias=True)["properties"][field]
    assert (schema["anyOf"][0]["minimum"], schema["anyOf"][0]["maximum"]) == (1, most)
    assert schema["description"].endswith(f"Unset: {default}.")


def test_the_api_has_the_largest_store_of_the_linker() -> None:
    assert quantity_bytes(MOST_STORE_SIZE) == MOST_STORE_BYTES


def test_the_backend_that_decodes_decides_whether_decode_context_parallelism_runs() -> None:
    args = ["--attention-backend", "triton", "--decode-attention-backend", "aiter"]
    spec = deployment_spec(parallelism={"decodeContext": 8})
    assert resolve(spec, profile_spec(tensor=8, engine__args=args)).decode_context == 8


def test_a_chunk_of_a_page_or_more_runs_with_decode_context_parallelism() -> None:
    aiter = ["--attention-backend", "aiter"]
    profile = profile_spec(tensor=8, engine__args=["--chunked-prefill-size", "256", *aiter])
    spec = deployment_spec(parallelism={"decodeContext": 8}, engine={"chunkedPrefillSize": 512})
    assert resolve(spec, profile).decode_context == 8
    unbounded = profile_spec(tensor=8, engine__args=aiter)
    assert resolve(deployment_spec(parallelism={"decodeContext": 8}), unbounded).decode_context == 8


def test_the_api_has_the_words_and_defaults_of_the_linker() -> None:
    policy = structural(CachePolicy)["properties"]
    touch = policy["touch"]["properties"]
    for schema, words, default in (
        (policy["checkpoints"], Checkpoints, Settings().checkpoints),
        (policy["rewriteMissing"], Switch, Settings().rewrite_missing),
        (touch["mode"], Touch, Settings().touch),
    ):
        assert schema["enum"] == list(words)
        assert schema["description"].endswith(f"Unset: {default}.")
    interval = touch["intervalSeconds"]
    assert (interval["minimum"], interval["maximum"]) == (1, MOST_TOUCH_SECONDS)
    assert interval["description"].endswith(f"Unset: {Settings().touch_interval_seconds}.")


def test_arguments_the_deployment_stands_over_the_profile() -> None:
    profile = profile_spec(engine__args=["--dtype", "bfloat16", "--max-running-requests", "4"])
    spec = deployment_spec(engine={"extraArgs": ["--dtype=float16"], "maxRunningRequests": 9})
    command = argv(resolve(spec, profile))
    assert command.count("--dtype") == command.count("--max-running-requests") == 1
    assert command[command.index("--dtype") + 1] == "float16"
    assert command[command.index("--max-running-requests") + 1] == "9"


def test_environment_the_deployment_stands_over_the_profile_over_its_typed_fields() -> None:
    profile = profile_spec(
        engine__env=[{"name": "A", "value": "profile"}, {"name": "GPU_MAX_HW_QUEUES", "value": "3"}],
        engine__allowedEnv=["A"],
        rocm={"hardwareQueues": 2, "noScratchReclaim": False},
    )
    found = environment(resolve(deployment_spec(engine={"env": [{"name": "A", "value": "own"}]}), profile))
    assert {name: found[name] for name in ("A", "GPU_MAX_HW_QUEUES", "HSA_NO_SCRATCH_RECLAIM")} == {
        "A": "own",
        "GPU_MAX_HW_QUEUES": "3",
        "HSA_NO_SCRATCH_RECLAIM": "0",
    }
    assert found["SGLANG_PLUGINS"] == "umbra"


def test_every_value_knows_who_set_it() -> None:
    profile = profile_spec(
        engine__args=["--dtype", "bfloat16", "--max-running-requests", "4", "--context-length", "1024"],
        engine__env=[{"name": "A", "value": "1"}, {"name": "B", "value": "1"}],
        engine__allowedEnv=["B"],
        rocm={"hardwareQueues": 2},
    )
    own = {"contextLength": 2048, "extraArgs": ["--dtype=float16"], "env": [{"name": "B", "value": "2"}]}
    resolved = resolve(deployment_spec(engine=own, toolchain__treeCore="Rust"), profile)
    flags_ = {flag: choice.setter for flag, choice in chosen_flags(resolved).items()}
    assert flags_ == {
        "--model-path": "spec.model.source",
        "--served-model-name": "spec.model.servedName",
        "--tp-size": "profile.tensor",
        "--dtype": "spec.engine.extraArgs",
        "--max-running-requests": "profile.engine.args",
        "--context-length": "spec.engine.contextLength",
        **dict.fromkeys(
            ["--host", "--port", "--page-size", "--enable-metrics", "--enable-cache-report", "--log-level-http"],
            "Umbra",
        ),
        "--enable-unified-cache-external-linker": "Umbra",
        "--unified-cache-external-linker-backend": "Umbra",
        "--unified-cache-external-linker-config": "Umbra",
    }
    assert {name: choice.setter for name, choice in chosen_environment(resolved).items()} == {
        "A": "profile.engine.env",
        "B": "spec.engine.env",
        "GPU_MAX_HW_QUEUES": "profile.rocm",
        "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "spec.toolchain.treeCore",
        **dict.fromkeys(["UMBP_STANDALONE_ADDRESS", "SGLANG_PLUGINS", "SGLANG_RUST_BUILD_MODE"], "Umbra"),
    }
    wider = chosen_flags(resolve(deployment_spec(parallelism__tensor=4), profile))
    assert wider["--tp-size"].setter == "spec.parallelism.tensor"


def test_no_rank_builds_a_tree_core_and_auto_leaves_the_choice_to_sglang() -> None:
    found = environment(resolve(deployment_spec(), profile_spec()))
    assert found["SGLANG_RUST_BUILD_MODE"] == "never"
    assert "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND" not in found


REFUSED: list[tuple[dict[str, Any], dict[str, Any], Reason, str]] = [
    *(
        ({"engine": {"extraArgs": [flag, "x"]}}, {"engine__allowedArgs": [flag]}, Reason.ARGUMENT_OWNED, "extraArgs")
        for flag in sorted(flags.OWNED)
    ),
    (
        {"engine": {"extraArgs": ["--api-k", "x"]}},
        {"engine__allowedArgs": ["--api-k"]},
        Reason.ARGUMENT_OWNED,
        "--api-k;",
    ),
    ({}, {"engine__args": ["--context-len", "9"]}, Reason.ARGUMENT_OWNED, "engine.contextLength"),
    ({}, {"engine__args": ["--decode-context-parallel-size=2"]}, Reason.ARGUMENT_OWNED, "parallelism.decodeContext"),
    ({"engine": {"extraArgs": ["--trust-remote-code"]}}, {}, Reason.ARGUMENT_NOT_ALLOWED, "allowedArgs"),
    ({"engine": {"extraArgs": ["--dtype=--api-key"]}}, {}, Reason.ARGUMENT_NOT_ALLOWED, "extraArgs"),
    ({"engine": {"extraArgs": ["--dtype", "-tp", "4"]}}, {}, Reason.ARGUMENT_NOT_ALLOWED, "extraArgs"),
    ({"engine": {"extraArgs": ["value"]}}, {}, Reason.ARGUMENT_NOT_ALLOWED, "extraArgs"),
    ({}, {"engine__args": ["value"]}, Reason.PROFILE_UNREADABLE, "engine.args"),
    ({}, {"engine__args": ["--api-key", "x"]}, Reason.ARGUMENT_OWNED, "the profile's engine.args"),
    ({"engine": {"env": [{"name": "LD_PRELOAD", "value": "x"}]}}, {}, Reason.ENV_NOT_ALLOWED, "allowedEnv"),
    *(
        ({"engine": {"env": [{"name": name, "value": "x"}]}}, {"engine__allowedEnv": [name]}, Reason.ENV_OWNED, name)
        for name in sorted(flags.OWNED_ENV)
    ),
    *(
        ({}, {"engine__env": [{"name": name, "value": "x"}]}, Reason.ENV_OWNED, "the profile's engine.env")
        for name in sorted(flags.OWNED_ENV)
    ),
    *(
        ({}, {"store__env": [{"name": name, "value": "x"}]}, Reason.ENV_OWNED, "the profile's store.env")
        for name in sorted(flags.OWNED_STORE_ENV)
    ),
    ({"podMetadata": {"labels": {"umbra.dev/ordinal": "7"}}}, {}, Reason.METADATA_RESERVED, "podMetadata.labels"),
    ({"podMetadata": {"annotations": {"umbra.dev/launch": ""}}}, {}, Reason.METADATA_RESERVED, "annotations"),
    ({"parallelism": {"decodeContext": 3}}, {"tensor": 8}, Reason.PARALLELISM_INVALID, "decodeContext"),
    (
        {"parallelism": {"decodeContext": 2}, "speculation": {"type": "DSPARK", "dspark": {"draft": "d"}}},
        {"tensor": 8},
        Reason.DECODE_CONTEXT_UNSUPPORTED,
        "spec.speculation.type: DSPARK does not run with decodeContext 2",
    ),
    (
        {"parallelism": {"decodeContext": 8}, "engine": {"chunkedPrefillSize": 511}},
        {"tensor": 8},
        Reason.DECODE_CONTEXT_UNSUPPORTED,
        "spec.engine.chunkedPrefillSize: 511 is less than the 512 tokens",
    ),
    (
        {"parallelism": {"decodeContext": 8}},
        {"tensor": 8, "engine__args": ["--chunked-prefill-size", "256"]},
        Reason.DECODE_CONTEXT_UNSUPPORTED,
        "256 is less than the 512 tokens",
    ),
    (
        {"parallelism": {"decodeContext": 8}},
        {"tensor": 8, "engine__args": ["--attention-backend", "triton"]},
        Reason.DECODE_CONTEXT_UNSUPPORTED,
        "--attention-backend triton: SGLang runs Kimi K3 with decodeContext 8 only where --decode-attention-backend is",
    ),
    (
        {"parallelism": {"decodeContext": 8}},
        {"tensor": 8},
        Reason.DECODE_CONTEXT_UNSUPPORTED,
        "no --decode-attention-backend: SGLang runs Kimi K3 with decodeContext 8 only where",
    ),
    (
        {"parallelism": {"decodeContext": 8}, "engine": {"extraArgs": ["--decode-attention-backend=fa3"]}},
        {
            "tensor": 8,
            "engine__args": ["--attention-backend", "aiter"],
            "engine__allowedArgs": ["--decode-attention-backend"],
        },
        Reason.DECODE_CONTEXT_UNSUPPORTED,
        "--decode-attention-backend fa3: ",
    ),
    ({"devices": {"mode": "DRA"}}, {}, Reason.DEVICES_NOT_OFFERED, "devices.mode"),
    ({"devices": {"mode": "DRA"}}, {"devices": {"resourceName": "a"}}, Reason.DEVICES_NOT_OFFERED, "DevicePlugin, not"),
    ({"devices": {"mode": "DevicePlugin"}}, {"devices": {"deviceClassName": "a"}}, Reason.DEVICES_NOT_OFFERED, "DRA"),
    ({"model__source__nodePath__root": "other"}, {}, Reason.MODEL_ROOT_NOT_FOUND, "nodePath.root"),
]


@pytest.mark.parametrize(("spec", "profile", "reason", "field"), REFUSED)
def test_what_does_not_fit_together_is_refused_by_name(
    spec: dict[str, Any], profile: dict[str, Any], reason: Reason, field: str
) -> None:
    with pytest.raises(SpecInvalid) as caught:
        resolve(deployment_spec(**spec), profile_spec(**profile))
    assert caught.value.reason == reason
    assert field in str(caught.value)
