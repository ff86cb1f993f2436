"""Entry point of the group ``sglang.srt.plugins``: SGLang calls ``register`` early in every engine process.

Nothing heavy may be imported here: prometheus_client fixes its mode at import, before SGLang has set it.
"""

from __future__ import annotations


def register() -> None:
    """Register the hooks. SGLang logs and swallows an error; the linker's constructor then refuses to start."""
    from .hooks import register_hooks

    register_hooks()
