"""Ranks without an engine: SGLang's real radix tree on CPU tensors, with the real linker and store."""

from .lab import RankFailed, RankLab

__all__ = ["RankFailed", "RankLab"]
