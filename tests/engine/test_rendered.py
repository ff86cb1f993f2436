"""What the operator renders, as the real store and the real engine understand it.

UMBP turns a value that it cannot read into its default without a word, and SGLang's flags change between releases.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from builders import deployment_spec, profile_spec
from cpuengine import Environment
from umbra_operator.render import flags, store
from umbra_operator.render.engine import argv
from umbra_operator.render.resolve import resolve

pytestmark = pytest.mark.engine


def first_words(environment: Environment, variables: dict[str, str]) -> str:
    """What a store with these variables says until it listens."""
    folder = Path(tempfile.mkdtemp(prefix="umbp-"))  # a socket's path holds at most 107 characters
    log = folder / "log"
    own = {"LD_LIBRARY_PATH": environment.library_path}
    with log.open("wb") as output:
        child = subprocess.Popen(
            [environment.store_server, f"unix://{folder}/s.grpc.sock"],
            env={**os.environ, **own, **variables},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            end = time.monotonic() + 20
            while "running on" not in log.read_text() and child.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
            return log.read_text()
        finally:
            child.kill()
            child.wait()
            shutil.rmtree(folder)


def test_the_store_understands_every_variable(engine_env: Environment) -> None:
    spec = deployment_spec(
        cache__dram={"size": "67M", "numaNodes": [0], "hugepages": "2Mi"},
        cache__watermarks={"highPercent": 85, "lowPercent": 5},
    )
    profile = profile_spec(store__prefaultThreads=4, rocm={"legacyIpc": True})
    said = first_words(engine_env, store.environment(resolve(spec, profile)))
    assert "pool=63MB hugepages=true hugepage_size=2MB numa_nodes=0]" in said
    assert "local eviction ON tier=2 high=0.85 low=0.05" in said
    plain = deployment_spec(cache__dram={"size": "64Mi", "numaNodes": [0]})
    said = first_words(engine_env, store.environment(resolve(plain, profile_spec(store__prefaultThreads=4))))
    assert "bytes=67108864 policy=bind prefault_threads=4" in said
    assert "pool=64MB hugepages=false hugepage_size=2MB numa_nodes=0]" in said


PARSE = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(exit_on_error=False)
ServerArgs.add_cli_args(parser)
names = {option: action.dest for action in parser._actions for option in action.option_strings}
found = vars(parser.parse_args(json.loads(sys.stdin.read())))
values = {name: value for name, value in found.items() if isinstance(value, (str, int, float, bool))}
print(json.dumps({"names": names, "values": values}))
"""


def parsed(environment: Environment, arguments: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Values of SGLang's own parser, and for each flag that it knows the name of its value."""
    result = subprocess.run(
        [environment.python, "-W", "ignore", "-c", PARSE],
        input=json.dumps(arguments),
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment.engine_env},
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    found = json.loads(result.stdout.splitlines()[-1])
    return found["values"], found["names"]


def test_the_engine_understands_every_flag_and_each_name_of_an_owned_one(engine_env: Environment) -> None:
    spec = deployment_spec(
        speculation={"type": "DSPARK", "dspark": {"draft": "draft", "blockSize": 3}},
        engine={
            "memoryFractionPercent": 85,
            "maxRunningRequests": 9,
            "chunkedPrefillSize": 4096,
            "contextLength": 8192,
            "kvCacheDtype": "fp8_e4m3",
            "mambaStateDtype": "bfloat16",
        },
    )
    found, known = parsed(engine_env, argv(resolve(spec, profile_spec()))[3:])
    wanted = {
        "model_path": "/models/k3",
        "served_model_name": "kimi-k3",
        "tp_size": 2,
        "page_size": 64,
        "mem_fraction_static": 0.85,
        "max_running_requests": 9,
        "chunked_prefill_size": 4096,
        "context_length": 8192,
        "kv_cache_dtype": "fp8_e4m3",
        "mamba_ssm_dtype": "bfloat16",
        "speculative_algorithm": "DSPARK",
        "speculative_draft_model_path": "/models/draft",
        "speculative_dspark_block_size": 3,
        "enable_metrics": True,
        "enable_unified_cache_external_linker": True,
    }
    assert {name: found.get(name) for name in wanted} == wanted
    assert set(flags.parse(argv(resolve(spec, profile_spec()))[3:])) <= {*flags.OWNED, "--log-level-http", "--dtype"}
    owned = {known[flag] for flag in flags.OWNED if flag in known}
    assert {flag for flag, value in known.items() if value in owned} <= set(flags.OWNED)
    # What is no name of an owned flag must not be taken for an abbreviation of one.
    assert {flag for flag in known if flag.startswith("--") and flags.owner(flag)} <= set(flags.OWNED)
