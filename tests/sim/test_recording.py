"""UMBP's recordings: the file as umbp_workload.proto and its writer define it, grouped into prompts."""

import io
import struct
from pathlib import Path

import pytest

from umbra_sim.errors import InputError
from umbra_sim.policies import POLICIES
from umbra_sim.readers import read
from umbra_sim.recording import MAGIC, accesses, events
from umbra_sim.simulate import Setup, simulate

PUT, GET = 1, 2
SECOND = 10**9


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def message(**fields: int | str) -> bytes:
    out = b""
    for name, value in fields.items():
        number = int(name[1:])
        if isinstance(value, str):
            out += varint(number << 3 | 2) + varint(len(value)) + value.encode()
        else:
            out += varint(number << 3) + varint(value)
    return struct.pack("<I", len(out)) + out


def recording(*recorded: tuple[int, int, str], schema: int = 1) -> bytes:
    """Time in ns, operation and key of each event."""
    records = [message(f1=at, f2=3, f4=operation, f5=key, f6=884_736, f8=1) for at, operation, key in recorded]
    return MAGIC + struct.pack("<I", 1) + message(f1=schema, f2=1, f3=7) + b"".join(records)


def page(name: str, rank: str = "") -> str:
    return f"tag_model_{name}_{rank}cp0_pp0_kv"


def test_pages_that_come_together_are_one_access_whichever_rank_has_them() -> None:
    recorded = recording(
        (5, PUT, page("a", "tp0_")),
        (6, PUT, page("a", "tp1_")),
        (7, PUT, "tag_model_b_tp0_cp0_pp0_temporal"),
        (8, PUT, page("b", "tp0_")),
        (9, GET, page("a")),
        (SECOND, GET, page("c")),
    )
    found = list(accesses(events(io.BytesIO(recorded))))
    assert [(access.at, access.pages) for access in found] == [
        (5e-9, ("tag_model_a", "tag_model_b")),
        (9e-9, ("tag_model_a",)),
        (1.0, ("tag_model_c",)),
    ]


def test_a_recording_is_known_by_its_first_bytes_and_replayed_without_a_device(tmp_path: Path) -> None:
    names = [f"{number:03d}" for number in range(200)]
    recorded = [(0, PUT, page(name)) for name in names] + [(60 * SECOND, GET, page(name)) for name in names]
    path = tmp_path / "umbp.trace"
    path.write_bytes(recording(*recorded))
    trace = read(path)
    assert (trace.closed, trace.below_device, trace.requests) == (False, True, 2)
    large = simulate(trace, POLICIES["kv-once"], 4 << 30, Setup(), 0).counts
    assert (large.device_pages, large.store_pages) == (0, 200)
    small = simulate(trace, POLICIES["kv-once"], 1 << 29, Setup(), 0).counts
    assert small.store_pages == 0


def test_a_last_record_that_was_cut_off_is_left_out_and_other_damage_is_named(tmp_path: Path) -> None:
    whole = recording((1, PUT, page("a")), (2, PUT, page("b")))
    assert [event.key for event in events(io.BytesIO(whole[:-3]))] == [page("a")]
    path = tmp_path / "umbp.trace"
    for content, says in (
        (whole[:12] + b"\xff\xff\xff\x7f" + whole[16:], "record 0 claims"),
        (whole[:8] + struct.pack("<I", 9) + whole[12:], "version 9"),
        (recording(schema=2), "another schema"),
        (recording((1, PUT, page("a"))) + struct.pack("<I", 2) + b"\x2a\x7f", "record 2 is damaged"),
        (recording((1, PUT, "")), "record 1 is no event"),
        (recording(), "holds no request"),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=says):
            read(path)
