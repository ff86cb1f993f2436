"""A plugin for SGLang: decode context parallelism of MLA layers on the CPU.

NOT genuine: SGLang refuses the CPU here, and has no attention kernel for it without a GPU. So attention is plain torch,
over what SGLang's own code gathers (prompts) or leaves with each rank (answers); who owns which token, what is written
where, and the exchange between ranks are SGLang's.
"""

from __future__ import annotations

import math
from typing import Any

import torch


def register() -> None:
    """Let SGLang's Triton backend compute MLA attention over KV that ranks share."""
    from sglang.srt.distributed import parallel_state
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
    from sglang.srt.models.deepseek_common import attention_backend_handler, utils
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod

    parallel_state.is_cuda = lambda: True  # asked for by the gate alone
    # Without the registered operators, which exist for GPUs.
    group = parallel_state.GroupCoordinator
    group.all_gather_into_tensor, group.reduce_scatter_tensor = (
        group._all_gather_into_tensor,
        group._reduce_scatter_tensor,
    )
    utils.FORWARD_ABSORB_CORE_ATTENTION_BACKENDS.append("triton")
    attention_backend_handler.AttentionBackendRegistry.register("triton", lambda *unused: AttnForwardMethod.MLA)
    TritonAttnBackend.forward_extend, TritonAttnBackend.forward_decode = _extend, _decode


def _extend(
    self: Any, q: Any, k: Any, v: Any, layer: Any, batch: Any, save_kv_cache: bool = True, *, q_rope: Any, k_rope: Any
) -> Any:
    """Each new token attends to what came before it; all of that lies gathered in the batch's buffer."""
    if save_kv_cache:
        self.token_to_kv_pool.set_mla_kv_buffer(layer, batch.out_cache_loc, k, k_rope)
    queries = torch.cat([q.view(-1, layer.tp_q_head_num, q.shape[-1]), q_rope], dim=-1)
    gathered, ends = batch.attn_dcp_metadata, batch.attn_dcp_metadata.dcp_kv_indptr.tolist()
    outputs, begin = [], 0
    for number, new in enumerate(batch.extend_seq_lens_cpu):
        keys = gathered.dcp_kv_buffer[gathered.dcp_kv_indices[ends[number] : ends[number + 1]].long()]
        ahead = torch.ones(new, len(keys), dtype=torch.bool).triu(len(keys) - new + 1)
        values = keys[..., : layer.v_head_dim]
        outputs.append(_attend(queries[begin : begin + new], keys, values, layer.scaling, ahead)[0])
        begin += new
    return torch.cat(outputs).to(q.dtype).reshape(begin, -1)


def _decode(
    self: Any, q: Any, k: Any, v: Any, layer: Any, batch: Any, save_kv_cache: bool = True, *, q_rope: Any, k_rope: Any
) -> Any:
    """Return the part of this rank's tokens, and the logarithms (to base 2) by which the parts of all are weighed."""
    if save_kv_cache:
        self.token_to_kv_pool.set_mla_kv_buffer(layer, batch.out_cache_loc, k, k_rope)
    queries = torch.cat([q.view(-1, layer.tp_q_head_num, q.shape[-1]), q_rope], dim=-1)
    rows = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
    parts = []
    for number, length in enumerate(batch.seq_lens.tolist()):
        tokens = self.req_to_token_pool.req_to_token[batch.req_pool_indices[number], :length].long()
        keys = rows[tokens[tokens % self.dcp_size == self.dcp_rank] // self.dcp_size]
        parts.append(_attend(queries[number : number + 1], keys, keys[..., : layer.v_head_dim], layer.scaling, None))
    outputs, weights = (torch.cat(part) for part in zip(*parts, strict=True))
    return outputs.to(q.dtype), weights / math.log(2)


def _attend(queries: Any, keys: Any, values: Any, scale: float, ahead: Any) -> tuple[Any, Any]:
    """Attention of [tokens, heads, width] in float32; ``ahead`` marks what a query must not see."""
    heads = queries.shape[1]
    keys, values = (each.float().expand(-1, heads, -1) for each in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", queries.float(), keys) * scale
    if ahead is not None:
        scores = scores.masked_fill(ahead, -math.inf)
    weights = torch.logsumexp(scores, dim=-1)
    outputs = torch.einsum("hqk,khd->qhd", torch.exp(scores - weights[..., None]), values)
    return outputs, weights.T
