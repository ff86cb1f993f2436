"""Preflight: judging is a table; observing is tried on this machine and on files; the message always fits."""

import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest
from agent_process import AgentProcess
from hypothesis import given
from hypothesis import strategies as st

from umbra_agent.host import Host, Memlock, cgroup_limit, installed, memory_total, observe_memlock, selected, try_mlock
from umbra_agent.preflight import (
    Check,
    Needs,
    NeedsError,
    Verdict,
    judge,
    judge_hugepages,
    judge_memlock,
    judge_memory,
    judge_numa_balancing,
    judge_version,
    message,
    parse_needs,
    table,
)

GIB = 1 << 30


@pytest.mark.parametrize(
    ("memlock", "ok"),
    [
        (None, "unknown"),
        (Memlock(None), True),
        (Memlock(2 * GIB), True),
        (Memlock(GIB), True),
        (Memlock(GIB - 1, GIB, None), "unknown"),
        (Memlock(8 << 20, 72 << 20, None), "unknown"),
        (Memlock(8 << 20, 72 << 20, True), True),
        (Memlock(8 << 20, 72 << 20, False), False),
        (Memlock(0, 64 << 20, False), False),
    ],
)
def test_memlock(memlock: Memlock | None, ok: Verdict) -> None:
    check = judge_memlock(GIB, memlock, "Require")
    assert check.ok is ok or check.ok == ok
    assert bool(check.remedy) == (ok is not True)


@pytest.mark.parametrize(
    ("total", "limit", "ok", "remedy"),
    [
        (None, None, "unknown", "/proc/meminfo"),
        (None, 2 * GIB, "unknown", "/proc/meminfo"),
        (GIB, None, True, ""),
        (GIB, GIB, True, ""),
        (GIB - 1, None, False, "spec.cache.dram.size"),
        (GIB - 1, 2 * GIB, False, "spec.cache.dram.size"),
        (2 * GIB, GIB - 1, True, ""),  # its own limit is not the store's
    ],
)
def test_memory(total: int | None, limit: int | None, ok: Verdict, remedy: str) -> None:
    check = judge_memory(GIB, Host(memory_total=total, cgroup_limit=limit), "Require")
    assert check.ok == ok
    assert remedy in check.remedy


@pytest.mark.parametrize(
    ("versions", "ok"),
    [
        ({}, "unknown"),
        ({"sglang": None}, False),
        ({"sglang": "0.5.23"}, True),
        ({"sglang": "0.5.23+rocm700"}, True),
        ({"sglang": "0.5.23.post1"}, False),
        ({"sglang": "0.5.24"}, False),
    ],
)
def test_versions(versions: dict[str, str | None], ok: Verdict) -> None:
    assert judge_version("sglang", ["0.5.22", "0.5.23"], versions, "Require").ok == ok


@pytest.mark.parametrize(("value", "ok"), [(None, "unknown"), ("always", False), ("madvise", True), ("never", True)])
def test_hugepages_only_warn(value: str | None, ok: Verdict) -> None:
    check = judge_hugepages(value)
    assert check.ok == ok
    assert not check.fails


@pytest.mark.parametrize(("value", "ok"), [(None, "unknown"), ("1", False), ("2", False), ("0", True)])
def test_numa_balancing_only_warns(value: str | None, ok: Verdict) -> None:
    check = judge_numa_balancing(value)
    assert check.ok == ok
    assert not check.fails


@pytest.mark.parametrize(("ok", "mode", "fails"), [(False, "Require", True), (False, "Warn", False)])
def test_only_a_failed_requirement_stops(ok: Verdict, mode: Any, fails: bool) -> None:
    assert Check("x", ok, mode, "", "").fails is fails
    assert not Check("x", "unknown", "Require", "", "").fails
    assert not Check("x", True, "Require", "", "").fails


def test_nothing_asked_leaves_only_the_informational_checks() -> None:
    assert [check.name for check in judge(Needs(), Host())] == ["transparent-hugepages", "numa-balancing"]


def test_mode_of_the_input_is_used() -> None:
    needs = parse_needs(
        '{"memlockBytes": 5, "memoryBytes": 5, "versions": {"a": ["1"]}, "modes": {"versions": "Warn"}}'
    )
    modes = {check.name: check.mode for check in judge(needs, Host())}
    assert (modes["memlock"], modes["memory"], modes["a"]) == ("Require", "Require", "Warn")


@pytest.mark.parametrize(
    "text",
    [
        *["", "{", "[]", '{"memoryBytes": "1Gi"}', '{"memoryBytes": -1}', '{"memlockBytes": true}'],
        *['{"versions": []}', '{"versions": {"a": "1"}}', '{"versions": {"a": [1]}}', '{"modes": {"memory": "No"}}'],
    ],
)
def test_unusable_input(text: str) -> None:
    with pytest.raises(NeedsError, match="UMBRA_PREFLIGHT"):
        parse_needs(text)


TEXTS = st.text(max_size=3000)
CHECKS = st.lists(
    st.builds(
        Check,
        name=TEXTS,
        ok=st.sampled_from([True, False, "unknown"]),
        mode=st.sampled_from(["Require", "Warn"]),
        found=TEXTS,
        needed=TEXTS,
        remedy=TEXTS,
    ),
    max_size=30,
)


@given(CHECKS)
def test_message_always_fits_and_is_json(checks: list[Check]) -> None:
    text = message(checks)
    assert len(text.encode()) <= 1536
    document = json.loads(text)
    assert document["passed"] is not any(check.fails for check in checks)
    shown, wrong = document["checks"], [check for check in checks if check.ok is not True]
    assert len(shown) + document.get("dropped", 0) == len(wrong)
    assert bool(shown) == bool(wrong), "the most important one is never dropped"
    if any(check.fails for check in checks):
        assert (shown[0]["ok"], shown[0]["mode"]) == (False, "Require")


def test_least_important_checks_give_way() -> None:
    def check(name: str, ok: Verdict, mode: Any) -> Check:
        return Check(name, ok, mode, "x" * 500, "y" * 500, "z" * 500)

    checks = [
        check("4", "unknown", "Warn"),
        check("3", False, "Warn"),
        check("2", "unknown", "Require"),
        check("1", False, "Require"),
    ]
    document = json.loads(message(checks))
    assert [entry["name"] for entry in document["checks"]] == ["1", "2"]
    assert document["dropped"] == 2
    assert document["passed"] is False


def test_table_shows_every_check() -> None:
    checks = [
        Check("memory", True, "Require", "2 GiB", "1 GiB"),
        Check("memlock", False, "Warn", "0 B", "1 GiB", "Do it."),
    ]
    assert table(checks).splitlines() == [
        "CHECK    RESULT  MODE     FOUND  NEEDED  REMEDY",
        "memory   ok      Require  2 GiB  1 GiB   -",
        "memlock  FAILED  Warn     0 B    1 GiB   Do it.",
    ]


@pytest.mark.parametrize("needed", [4 * GIB, 3072 * GIB])
def test_mlock_is_really_tried(needed: int) -> None:
    """In a child that gives up its limit, and where it can, its right to exceed it: without touching the memory."""
    outcomes = [_memlock_of_child(1 << 20, needed, drop_capabilities=drop) for drop in (False, True)]
    for memlock, grown in outcomes:
        assert memlock["limit"] == 1 << 20
        assert memlock["attempted"] == needed
        assert grown < 64 << 20, "no page was taken"
    assert outcomes[1][0]["succeeded"] is False
    assert outcomes[0][0]["succeeded"] is (os.geteuid() == 0)


def test_a_limit_that_suffices_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (GIB, GIB))
    assert observe_memlock(GIB) == Memlock(GIB)


def test_what_cannot_be_mapped_cannot_be_tried() -> None:
    assert try_mlock(1 << 62) is None


def test_memory_total_of_this_machine() -> None:
    total = memory_total(Path("/proc/meminfo"))
    assert total == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_total(Path("/nowhere")) is None


@pytest.mark.parametrize(
    ("membership", "files", "limit"),
    [
        ("0::/\n", {"memory.max": "1024"}, 1024),
        ("0::/\n", {"memory.max": "max"}, None),
        ("0::/pod/c\n", {"pod/c/memory.max": "2048", "memory.max": "4096"}, 2048),
        ("0::/../other\n", {"memory.max": "512"}, 512),
        ("5:memory:/kubepods/c\n", {"memory/memory.limit_in_bytes": "1024"}, 1024),
        (
            "5:memory:/k\n",
            {"memory/k/memory.limit_in_bytes": "7", "memory/memory.limit_in_bytes": str(2**63 - 4096)},
            7,
        ),
        ("5:memory:/\n0::/\n", {"memory/memory.limit_in_bytes": str(2**63 - 4096)}, None),
        ("4:cpu,cpuacct:/\n5:memory:/\n", {"memory/memory.limit_in_bytes": "99"}, 99),
        ("", {}, None),
        ("garbage", {}, None),
    ],
)
def test_cgroup_limit(tmp_path: Path, membership: str, files: dict[str, str], limit: int | None) -> None:
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (tmp_path / "membership").write_text(membership)
    assert cgroup_limit(tmp_path / "fs", tmp_path / "membership") == limit


def test_installed_versions() -> None:
    assert installed(["pytest", "surely-not-there"]) == {"pytest": pytest.__version__, "surely-not-there": None}


@pytest.mark.parametrize(
    ("text", "word"), [("always [madvise] never", "madvise"), ("always", None), ("", None), (None, None)]
)
def test_selected(text: str | None, word: str | None) -> None:
    assert selected(text) == word


def test_process_passes_and_fails(tmp_path: Path) -> None:
    def run(name: str, needs: str) -> tuple[int, dict[str, Any], str]:
        folder = tmp_path / name
        arguments = ["preflight", "--termination-log", str(folder / "termination-log")]
        agent = AgentProcess(folder, arguments, {"UMBRA_PREFLIGHT": needs})
        agent.start()
        code = agent.wait()
        return code, json.loads(agent.termination_log.read_text()), agent.stdout.read_text()

    code, document, shown = run(
        "pass", '{"memoryBytes": 1048576, "versions": {"surely-not-there": ["1"]}, "modes": {"versions": "Warn"}}'
    )
    assert (code, document["passed"]) == (0, True)
    assert document["checks"][0]["name"] == "surely-not-there"
    assert shown.startswith("CHECK")

    code, document, _ = run("fail", json.dumps({"memoryBytes": 1 << 60}))
    assert (code, document["passed"]) == (1, False)
    assert document["checks"][0]["name"] == "memory"

    code, document, _ = run("unusable", "{")
    assert (code, document["passed"]) == (2, False)


def _memlock_of_child(limit: int, needed: int, drop_capabilities: bool) -> tuple[dict[str, Any], int]:
    """What a child with this limit observes, and by how many bytes its memory grew at most."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
        if drop_capabilities and os.geteuid() == 0:
            os.setuid(65534)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        observed = vars(observe_memlock(needed))
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        os.write(write, json.dumps([observed, grown]).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        observed, grown = json.load(pipe)
    os.waitpid(pid, 0)
    return observed, grown
