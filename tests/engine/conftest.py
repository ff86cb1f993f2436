"""Fixtures of the tests with the real engine."""

from engine_fixtures import engine_env, fork_launcher, kit_path, rank_lab, store

__all__ = ["engine_env", "fork_launcher", "kit_path", "rank_lab", "store"]
