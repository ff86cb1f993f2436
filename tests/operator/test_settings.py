"""The process's own settings, and kopf's."""

from itertools import islice

import pytest

from umbra_operator.handlers import kopf_settings
from umbra_operator.settings import Settings


def test_nothing_set_is_what_works_in_a_cluster() -> None:
    assert Settings.from_env({}) == Settings() == Settings.from_env({"UMBRA_NAMESPACES": "", "UMBRA_WORKERS": ""})


def test_namespaces_are_separated_by_commas() -> None:
    assert Settings.from_env({"UMBRA_NAMESPACES": "a, b,"}).namespaces == ("a", "b")


@pytest.mark.parametrize(
    ("name", "value"), [("UMBRA_WORKERS", "0"), ("UMBRA_RESYNC_SECONDS", "soon"), ("UMBRA_METRICS_PORT", "65536")]
)
def test_what_cannot_be_read_is_named(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{name}='{value}' is not a whole number from .*; correct or unset it"):
        Settings.from_env({name: value})


def test_kopf_never_gives_up() -> None:
    """Its own lists of delays end, and with them the process: see docs/decisions/0004."""
    settings = kopf_settings()
    for delays in (settings.networking.error_backoffs, settings.queueing.error_delays):
        assert not isinstance(delays, int | float)
        for _ in range(2):
            many = list(islice(delays, 1000))
            assert len(many) == 1000
            assert max(many) <= 10
