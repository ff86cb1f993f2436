"""Replays request traces through a model of the cache, to choose the size and the policy of a store."""
