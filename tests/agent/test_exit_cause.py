"""Why an engine ended is told in /status and in the termination message."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agent_process import EngineAgent, StoreReadiness, wait_for

from parts import leave_out
from umbra_agent.child import Exit
from umbra_agent.exit_cause import explain, oom_kills

CRASH = "torch.AcceleratorError: HIP error: an illegal memory access was encountered"
SIGQUIT = "[2026-12-02 07:00:00] Received sigquit from a child process. It usually means the child failed."


def ended(code: int | None = None, number: int | None = None) -> Exit:
    return Exit(code, number, 1.0)


@pytest.mark.parametrize(
    ("exit", "lines", "oom", "cause", "part"),
    [
        (ended(number=9), [CRASH, SIGQUIT], 0, "GPUError", "HIP error: an illegal memory access"),
        (ended(1), ["RuntimeError: hipErrorNoBinaryForGpu"], 0, "GPUError", "hipErrorNoBinaryForGpu"),
        (ended(number=6), ["Memory access fault by GPU node-2 on address 0x7f"], 0, "GPUError", "node-2"),
        (ended(number=9), [CRASH], 1, "OutOfMemory", "raise the engine's memory limit"),
        (ended(number=9), ["TokenizerManager watchdog timeout (self.soft=False)", SIGQUIT], 0, "Watchdog", "timeout"),
        (
            ended(1),
            ["RuntimeError: Failed to register a GPU KV buffer with UMBP: ptr=0x1, size=2.", SIGQUIT],
            0,
            "Registration",
            "Failed to register",
        ),
        (ended(1), ["External KV cache load failed"], 0, "CacheLoad", "External KV"),
        (ended(number=9), ["ValueError: weights are missing", SIGQUIT], 0, "ChildFailed", "weights are missing"),
        (ended(number=9), [SIGQUIT], 0, "ChildFailed", "usually means"),
        (ended(2), ["usage: x", "sglang serve: error: bad flag", ""], 0, "ExitCode", "bad flag"),
        (ended(number=11), ["Fatal Python error: Segmentation fault"], 0, "Signal", "signal SIGSEGV ended it"),
        (ended(number=63), [], 0, "Signal", "signal 63"),
        (ended(0), [], 0, "ExitCode", "exit code 0"),
    ],
)
def test_causes(exit: Exit, lines: list[str], oom: int, cause: str, part: str) -> None:
    found = explain(exit, lines, oom, asked=False)
    assert found.cause == cause
    assert part in found.detail
    assert len(found.detail.encode()) <= 200


def test_an_asked_end_is_not_explained_by_what_a_shutdown_prints() -> None:
    assert explain(ended(0), [SIGQUIT, CRASH], 0, asked=True).detail == "it ended with exit code 0"
    assert explain(ended(0), [], 2, asked=True).cause == "OutOfMemory"


def test_a_long_line_is_cut() -> None:
    assert len(explain(ended(1), ["RuntimeError: HIP error: " + "ü" * 5000], 0, asked=False).detail.encode()) <= 200


def test_the_cause_is_shown_without_values_of_the_document(engine_agent: EngineAgent) -> None:
    agent = engine_agent
    line = "Scheduler hit an exception: RuntimeError: HIP error: out of luck with hunter2 and s3cret\n"
    agent.add_kit()
    arguments = ("--token", "hunter2", "--exit-after", "0", "--code", "1", "--say", "before\r", "--say", line)
    agent.write(agent.launch("a", *arguments, env={"KEY": "s3cret"}))
    last = agent.status_when(lambda status: status["lastExit"], "the exit is seen")["lastExit"]
    assert (last["code"], last["cause"]) == (1, "GPUError")
    assert last["detail"] == (
        "the GPU runtime reported an error: Scheduler hit an exception: RuntimeError: HIP error: out of luck with ... "
        "and ..."
    )
    agent.terminate()
    agent.wait()
    message = json.loads(agent.termination_log.read_text())
    assert message["lastExit"]["detail"] == last["detail"]
    assert len(agent.termination_log.read_bytes()) <= 1536


def test_output_of_the_engine_is_passed_on_unchanged(engine_agent: EngineAgent) -> None:
    text = "\xff not UTF-8\r 1%\r 2%\n\n  blanks  \nno end"
    engine_agent.serve("a", "--say", text)
    wait_for(lambda: engine_agent.stdout.read_bytes() == text.encode("latin-1"), "it is passed on", 3)


@pytest.mark.parametrize(
    ("membership", "file", "content"),
    [
        ("0::/pod/engine\n", "pod/engine/memory.events", "low 0\noom 4\noom_kill 3\noom_group_kill 0\n"),
        ("0::/\n", "memory.events", "oom_kill 3\n"),
        ("4:memory:/pod\n", "memory/pod/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
        ("4:cpu,memory:/elsewhere\n0::/\n", "memory/memory.oom_control", "oom_kill 3\n"),
    ],
)
def test_the_kernels_counter_is_found(tmp_path: Path, membership: str, file: str, content: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(content)
    (tmp_path / "membership").write_text(membership)
    assert oom_kills(tmp_path, tmp_path / "membership") == 3


def test_no_counter_is_unknown(tmp_path: Path) -> None:
    assert oom_kills(tmp_path, tmp_path / "membership") is None


def test_a_real_kill_by_the_kernel_for_memory_is_told(tmp_path: Path, store_readiness: StoreReadiness) -> None:
    """The whole agent in a cgroup of its own with 256 MiB; its engine takes more and is killed."""
    group = Path("/sys/fs/cgroup/memory") / f"umbra-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(256 << 20))
    except OSError as error:
        leave_out("cgroup", f"no memory cgroup (v1) can be made here: {error.strerror}")
    agent = EngineAgent(tmp_path, store_readiness.port)
    try:
        agent.start()
        (group / "cgroup.procs").write_text(str(agent.process.pid))
        agent.add_kit()
        argv = [sys.executable, "-c", "import time\nheld = bytearray(512 << 20)\ntime.sleep(60)"]
        agent.write(agent.launch("a", argv=argv))
        last = agent.status_when(lambda status: status["lastExit"], "the exit is seen", 30)["lastExit"]
        assert (last["signal"], last["cause"]) == (signal.SIGKILL, "OutOfMemory")
    finally:
        agent.close()
        for _ in range(50):
            if subprocess.run(["rmdir", str(group)], capture_output=True, check=False).returncode == 0:
                break
            time.sleep(0.1)
