"""SGLang's own Kimi-Linear model (KDA and MLA layers), the small sibling of Kimi K3's text model."""

from sglang.srt.models.kimi_linear import KimiLinearForCausalLM as EntryClass

__all__ = ["EntryClass"]
