"""Which ranks share an object, and which must never read each other's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbra_linker.keys import (
    KeyScheme,
    RankPosition,
    draft_digest,
    geometry_digest,
    key_scheme,
    object_keys,
    object_names,
)
from umbra_linker.settings import KeyLayout

POOLS = ("kv", "mamba", "draft")
GEOMETRY = "0123abcd"


def scheme(
    layout: KeyLayout = KeyLayout.AUTO,
    position: RankPosition | None = None,
    *,
    kv_replicated: bool = True,
    store_shared: bool = True,
    draft: str | None = None,
    parent_tag: str | None = None,
) -> KeyScheme:
    """A scheme with the ordinary circumstances of a node: plain MLA KV, one store for all ranks."""
    return key_scheme(
        layout,
        position or RankPosition(tensor=3, tensor_size=8, context=1, pipeline=2),
        kv_replicated=kv_replicated,
        store_shared=store_shared,
        geometry=GEOMETRY,
        draft=draft,
        parent_tag=parent_tag,
    )


def test_auto_shares_kv_and_nothing_else() -> None:
    names = scheme()
    assert names.shared_kv
    assert {pool: names.suffix(pool) for pool in POOLS} == {
        "kv": "cp1_pp2",
        "mamba": "tp3_cp1_pp2",
        "draft": "tp3_cp1_pp2",
    }


@pytest.mark.parametrize(
    "names",
    [
        scheme(KeyLayout.PER_RANK),
        scheme(kv_replicated=False),
        scheme(store_shared=False),
        scheme(position=RankPosition(tensor=3, tensor_size=8, context=1, pipeline=2, decode_context_size=8)),
    ],
    ids=["chosen", "kv is sharded", "store private to a rank", "sharded by DCP"],
)
def test_per_rank_names_are_sglangs_own(names: KeyScheme) -> None:
    assert not names.shared_kv
    assert {names.suffix(pool) for pool in POOLS} == {"tp3_cp1_pp2"}


def test_one_rank_uses_the_shared_names_too() -> None:
    assert scheme(position=RankPosition(tensor=0, tensor_size=1)).suffix("kv") == "cp0_pp0"


@given(
    layout=st.sampled_from(KeyLayout),
    size=st.integers(1, 16),
    context=st.integers(0, 3),
    pipeline=st.integers(0, 3),
    pool=st.sampled_from(POOLS),
)
def test_ranks_share_kv_or_nothing(layout: KeyLayout, size: int, context: int, pipeline: int, pool: str) -> None:
    ranks = [scheme(layout, RankPosition(rank, size, context, pipeline)) for rank in range(size)]
    names = {f"{names.tag}/{names.suffix(pool)}" for names in ranks}
    assert len(names) == (1 if pool == "kv" and layout is KeyLayout.AUTO else size)


def test_layouts_never_read_each_others_objects() -> None:
    tags = {scheme(layout).tag for layout in KeyLayout}
    assert tags == {f"umbra1-once-{GEOMETRY}", f"umbra1-rank-{GEOMETRY}"}
    assert scheme(parent_tag="team").tag == f"team-umbra1-once-{GEOMETRY}"


def test_a_draft_model_is_named_in_its_own_pages_and_nowhere_else() -> None:
    one, other = (scheme(draft=draft_digest(path, [4096], "bfloat16")) for path in ("/models/d1", "/models/d2"))
    assert one.suffix("draft") != other.suffix("draft") != scheme().suffix("draft")
    assert one.suffix("draft").startswith("tp3_cp1_pp2_")
    for pool in ("kv", "mamba"):
        assert one.suffix(pool) == other.suffix(pool) == scheme().suffix(pool)
    assert one.tag == other.tag == scheme().tag


def test_another_shape_or_type_of_draft_is_another_draft() -> None:
    digests = {draft_digest("d", *shape) for shape in (([4096], "bfloat16"), ([2048], "bfloat16"), ([4096], "float16"))}
    assert len(digests) == 3


SHAPE = {"kv": [36864], "mamba": [112128]}
TYPES = {"kv": "bfloat16", "mamba": "bfloat16,float32"}


@pytest.mark.parametrize(
    ("shape", "types", "page", "ranks"),
    [
        (SHAPE | {"kv": [18432]}, TYPES, 64, 8),
        (SHAPE, TYPES | {"kv": "float16"}, 64, 8),
        (SHAPE, TYPES, 128, 8),
        (SHAPE, TYPES, 64, 4),
        ({"kv": [36864]}, TYPES, 64, 8),
    ],
    ids=["object size", "data type of equal size", "page size", "tensor ranks", "a pool less"],
)
def test_another_geometry_gets_another_tag(
    shape: dict[str, list[int]], types: dict[str, str], page: int, ranks: int
) -> None:
    base = geometry_digest(SHAPE, TYPES, page_size=64, tensor_size=8)
    assert geometry_digest(shape, types, page_size=page, tensor_size=ranks) != base


def test_the_order_of_pools_does_not_matter() -> None:
    turned = dict(reversed(SHAPE.items()))
    assert geometry_digest(turned, TYPES, page_size=64, tensor_size=8) == geometry_digest(
        SHAPE, TYPES, page_size=64, tensor_size=8
    )


@pytest.mark.parametrize("rank", [-1, 8])
def test_a_rank_outside_its_group_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match="outside a group of 8"):
        RankPosition(tensor=rank, tensor_size=8)


def test_the_start_up_line() -> None:
    position = RankPosition(tensor=3, tensor_size=8)
    assert scheme(position=position).describe(position) == (
        "key layout: kv cp0_pp0 (one copy for all tensor ranks), other pools tp3_cp0_pp0, "
        f"tag umbra1-once-{GEOMETRY}, rank 3 of 8"
    )


@pytest.mark.parametrize(
    ("pool", "components", "packed", "names"),
    [
        ("kv", 1, True, ("kv",)),
        ("draft", 2, True, ("draft",)),
        ("kv", 2, False, ("kv_k", "kv_v")),
        ("mamba", 2, True, ("temporal",)),
    ],
)
def test_names_are_spelt_as_sglang_does(pool: str, components: int, packed: bool, names: tuple[str, ...]) -> None:
    assert object_names(pool, components, packed=packed) == names


@pytest.mark.parametrize(("pool", "components"), [("kv", 3), ("mamba", 2)])
def test_a_layout_without_names_is_refused(pool: str, components: int) -> None:
    with pytest.raises(ValueError, match=f"pool {pool} has {components} objects a page"):
        object_names(pool, components, packed=False)


def test_keys_come_page_by_page() -> None:
    assert object_keys("tag_model", ["p", "q"], "cp0_pp0", ("kv_k", "kv_v")) == [
        "tag_model_p_cp0_pp0_kv_k",
        "tag_model_p_cp0_pp0_kv_v",
        "tag_model_q_cp0_pp0_kv_k",
        "tag_model_q_cp0_pp0_kv_v",
    ]
