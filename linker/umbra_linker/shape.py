"""What one page and one checkpoint of Kimi K3 weigh, from the model's shape and the engine's. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

PAGE_TOKENS = 64
"""Tokens a page of a rank's pool, as the engine is started (``--page-size 64``)."""
MLA_LAYERS, MLA_WIDTH = 24, 512 + 64
"""Layers with KV, and elements a token in each: kv_lora_rank and qk_rope_head_dim (SGLang, models/kimi_k3.py)."""
KDA_LAYERS, KDA_HEADS, KDA_HEAD = 69, 96, 128
"""Layers with a state, their heads and the width of a head."""
CONVOLUTION = 3 * 3
"""Elements of the convolutions' state a channel: three of them, each with its last three inputs."""
CONVOLUTION_BYTES = 2
"""bfloat16, whatever the state's type is."""
DRAFT_TOKEN_BYTES = 1400
"""KV of the DSPARK draft, a token and rank: about 1.4 KB, as reported for the published draft."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How an engine cuts the model."""

    tensor: int = 8
    decode_context: int = 1
    kv_bytes: int = 1
    """Of an element of KV: 1 for fp8, 2 for bfloat16."""
    state_bytes: int = 4
    """Of an element of the KDA state: 4 for float32, 2 for bfloat16."""
    draft: bool = False
    """Whether a DSPARK draft stores its KV, too."""

    @property
    def token_bytes(self) -> int:
        """KV of a token on one rank that holds it, without the draft's."""
        return MLA_LAYERS * MLA_WIDTH * self.kv_bytes

    @property
    def rank_checkpoint_bytes(self) -> int:
        """A checkpoint on one rank."""
        heads = KDA_HEADS // self.tensor
        state = heads * KDA_HEAD * KDA_HEAD * self.state_bytes
        return KDA_LAYERS * (state + CONVOLUTION * heads * KDA_HEAD * CONVOLUTION_BYTES)

    @property
    def checkpoint_bytes(self) -> int:
        """A checkpoint in the store, all ranks."""
        return self.tensor * self.rank_checkpoint_bytes

    @property
    def page_tokens(self) -> int:
        """Tokens of a page of the tree, of which each rank of a group holds an equal share."""
        return PAGE_TOKENS * self.decode_context

    def page_bytes(self, *, once: bool) -> int:
        """A page of the tree in the store, all copies; ``once``: one for all ranks, where the linker can do that."""
        # With decode context parallelism each token is on one rank of a group, so nothing is stored twice in a group.
        copies = 1 if once and self.decode_context == 1 else self.tensor // self.decode_context
        draft = self.tensor * DRAFT_TOKEN_BYTES if self.draft else 0
        return self.page_tokens * (copies * self.token_bytes + draft)
