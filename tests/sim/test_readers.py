"""Every format becomes the same kind of trace; what cannot be read is named by file and line."""

import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from simtraces import growing, session, write_lines, write_tar
from umbra_sim.errors import InputError
from umbra_sim.readers import Format, read
from umbra_sim.trace import PageNumbers, Trace

Pack = Callable[[bytes], bytes]


@pytest.fixture(params=[gzip.compress, lzma.compress, zstandard.compress], ids=["gz", "xz", "zst"])
def pack(request: pytest.FixtureRequest) -> Pack:
    made: Pack = request.param
    return made


def prompts(trace: Trace) -> list[tuple[int, list[int]]]:
    return [(r.prompt, r.pages.tolist()) for s in trace.sessions for r in s.requests]


def test_a_tar_a_folder_and_one_file_of_agent_sessions_are_the_same(tmp_path: Path) -> None:
    sessions = [growing("a", 3), growing("b", 2)]
    folder = tmp_path / "set"
    folder.mkdir()
    for data in sessions:
        (folder / f"{data['id']}.json").write_text(json.dumps(data, indent=1))
    tar = read(write_tar(tmp_path / "set.tar.xz", sessions))
    assert prompts(tar) == prompts(read(folder))
    assert prompts(read(folder / "a.json")) == prompts(tar)[:3]
    assert tar.closed
    assert [s.name for s in tar.sessions] == ["a", "b"]
    assert tar.sessions[0].requests[1].think == 5.0


def test_requests_of_a_subagent_stand_where_it_was_called(tmp_path: Path) -> None:
    data = session("a", [(64, [1]), (128, [1, 2])])
    data["requests"].insert(1, {"t": 0.5, "type": "subagent", "requests": [{"in": 70, "out": 1, "hash_ids": [9]}]})
    (tmp_path / "a.json").write_text(json.dumps(data))
    assert prompts(read(tmp_path / "a.json")) == [(64, [0]), (70, [1]), (128, [0, 2])]


def test_a_mooncake_block_is_eight_pages_and_its_last_part_is_left_out(tmp_path: Path) -> None:
    line = {"timestamp": 2500, "input_length": 1100, "output_length": 6, "hash_ids": [5, 6, 7]}
    trace = read(write_lines(tmp_path / "m.jsonl", [{**line, "timestamp": 3000}, line]))
    assert not trace.closed
    assert [r.at for r in trace.sessions[0].requests] == [2.5, 3.0], "in the order of time"
    assert prompts(trace)[0] == (1100, list(range(16)))


def test_the_neutral_format_opens_and_closes_the_loop(tmp_path: Path) -> None:
    request = {"timestamp": 1.5, "input_length": 130, "output_length": 6, "hash_ids": [5, 6]}
    opened = read(write_lines(tmp_path / "o.jsonl", [{"umbra_trace": 1, "block_tokens": 64}, request]))
    assert (opened.closed, opened.sessions[0].requests[0].at, prompts(opened)) == (False, 1.5, [(130, [0, 1])])
    header = {"umbra_trace": 1, "block_tokens": 64, "closed_loop": True}
    lines = [header, {**request, "session": "a", "think_seconds": 3}, {**request, "session": "b"}]
    closed = read(write_lines(tmp_path / "c.jsonl", lines))
    assert [(s.name, s.requests[0].think) for s in closed.sessions] == [("a", 3.0), ("b", 0.0)]


def test_compression_is_found_by_content(tmp_path: Path, pack: Pack) -> None:
    line = json.dumps({"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [5]}).encode()
    path = tmp_path / "trace"
    path.write_bytes(pack(line))
    assert prompts(read(path)) == [(512, list(range(8)))]


def test_what_cannot_be_unpacked_is_damaged(tmp_path: Path, pack: Pack) -> None:
    lines = [{"timestamp": n, "input_length": 512, "output_length": 1, "hash_ids": [n * n * 7919]} for n in range(9999)]
    packed = bytearray(pack("".join(json.dumps(line) + "\n" for line in lines).encode()))
    packed[len(packed) // 2 : len(packed) // 2 + 200] = b"\xff" * 200
    path = tmp_path / "trace"
    path.write_bytes(packed)
    with pytest.raises(InputError, match=r"damaged|not JSON"):
        read(path)


GOOD = {"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [5]}


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("{not json}\n", "not JSON"),
        ("[1]\n", "not a JSON object"),
        ({**GOOD, "input_length": -1}, "input_length is -1"),
        ({**GOOD, "input_length": 5000}, "hash_ids has 1 blocks where the prompt fills 9"),
        ({**GOOD, "hash_ids": ["x"]}, "not a list of whole numbers"),
        ({**GOOD, "timestamp": None}, "timestamp is None"),
        ({"timestamp": 0}, "input_length is missing"),
    ],
)
def test_a_bad_line_is_named_or_counted(tmp_path: Path, bad: Any, says: str) -> None:
    path = write_lines(tmp_path / "m.jsonl", [GOOD, bad, GOOD])
    with pytest.raises(InputError, match=f"m.jsonl line 2: .*{says}.*--skip-bad"):
        read(path)
    trace = read(path, skip_bad=True)
    assert (trace.requests, trace.skipped) == (2, 1)


def test_objects_in_one_another_without_end_are_a_bad_line(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "deep.jsonl", ['{"requests": [' * 100_000 + "\n"])
    with pytest.raises(InputError, match="too deeply"):
        read(path)


def test_an_empty_line_is_nothing(tmp_path: Path) -> None:
    line = {"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [5]}
    trace = read(write_lines(tmp_path / "m.jsonl", [line, "\n", line, "  \n"]))
    assert (trace.requests, trace.skipped) == (2, 0)


def test_a_trace_without_a_request_is_refused(tmp_path: Path) -> None:
    empty = write_lines(tmp_path / "empty", [])
    with pytest.raises(InputError, match="is empty"):
        read(empty)
    with pytest.raises(InputError, match="holds no request"):
        read(empty, Format.MOONCAKE)
    with pytest.raises(InputError, match="No such file"):
        read(tmp_path / "missing")
    with pytest.raises(InputError, match="not a known trace"):
        read(write_lines(tmp_path / "text", ["hello\n"]))


@pytest.mark.parametrize("share", [0.2, 0.9])
def test_an_archive_that_was_cut_off_is_refused(tmp_path: Path, share: float) -> None:
    whole = write_tar(tmp_path / "set.tar.xz", [growing(str(n), 30) for n in range(20)])
    content = whole.read_bytes()
    whole.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(InputError, match="damaged or was cut off"):
        read(whole, Format.AGENTX)


def test_a_packed_file_that_was_cut_off_is_refused_wherever_it_was(tmp_path: Path, pack: Pack) -> None:
    """At the end of a line, too: all that is there can be read, and more was there."""
    packed = pack(b"".join(json.dumps({**GOOD, "hash_ids": [n * n * 7919]}).encode() + b"\n" for n in range(4)))
    path = tmp_path / "trace"
    for length in range(8, len(packed)):
        path.write_bytes(packed[:length])
        with pytest.raises(InputError, match=r"damaged or was cut off: .*; fetch it again"):
            read(path, Format.MOONCAKE)


def test_a_zst_that_was_flushed_at_a_line_and_cut_there_is_refused(tmp_path: Path) -> None:
    line = json.dumps(GOOD).encode() + b"\n"
    packer = zstandard.ZstdCompressor().compressobj()
    path = tmp_path / "trace"
    path.write_bytes(packer.compress(line * 3) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
    with pytest.raises(InputError, match=r"trace is damaged or was cut off: its end is missing; fetch it again"):
        read(path)


def test_streams_that_follow_one_another_are_one_file(tmp_path: Path, pack: Pack) -> None:
    line = json.dumps(GOOD).encode() + b"\n"
    path = tmp_path / "trace"
    path.write_bytes(pack(line) + pack(b"") + pack(line * 5000))
    assert read(path).requests == 5001
    path.write_bytes(pack(line) + pack(line * 5000)[:-3])
    with pytest.raises(InputError, match="cut off"):
        read(path)
    path.write_bytes(pack(line) + b"no stream at all")
    with pytest.raises(InputError, match="damaged"):
        read(path)


def test_zeros_that_fill_a_gz_or_xz_up_are_nothing(tmp_path: Path) -> None:
    line = json.dumps(GOOD).encode() + b"\n"
    path = tmp_path / "trace"
    for pack in (gzip.compress, lzma.compress):
        path.write_bytes(pack(line) + bytes(20_000) + pack(line) + bytes(4))
        assert read(path).requests == 2


def test_a_tar_that_was_cut_off_between_two_members_or_has_a_damaged_one_is_refused(tmp_path: Path) -> None:
    content = lzma.decompress(write_tar(tmp_path / "set.tar.xz", [growing(str(n), 2) for n in range(3)]).read_bytes())
    second = content.index(b"set/1.json")
    path = tmp_path / "set.tar"
    path.write_bytes(content)
    assert len(read(path).sessions) == 3
    for damaged in (
        content[:second],
        content[: second + 300],
        content[:second] + b"set/7" + content[second + 5 :],
    ):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"set.tar is damaged or was cut off: .*; fetch it again"):
            read(path)


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=8), st.integers(1, 3))
def test_equal_numbers_mean_equal_prefixes(rows: list[list[int]], block_pages: int) -> None:
    numbers = PageNumbers(block_pages)
    numbered = [(row, numbers.pages(row).tolist()) for row in rows]
    for left, left_pages in numbered:
        assert len(left_pages) == len(left) * block_pages
        for right, right_pages in numbered:
            for depth in range(min(len(left), len(right)) + 1):
                same = left[:depth] == right[:depth]
                end = depth * block_pages
                assert (left_pages[:end] == right_pages[:end]) == same
                if depth and not same:
                    assert left_pages[end - 1] != right_pages[end - 1]
