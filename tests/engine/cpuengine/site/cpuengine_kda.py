"""The KDA layer's recurrence, prefill convolution and gated norm in plain torch, in place of SGLang's Triton kernels.

NOT genuine: the reference mathematics, token by token, float32 state of shape (value heads, V, K). It takes the same
arguments and fills the same tracked states, so the cache above it runs unchanged. Speed means nothing here, but in
Triton's interpreter the convolution and the norm would take half a minute for 1,200 tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional

_TRACK_CHUNK = 64
"""Tokens between two places where a state may be tracked: the kernel's chunk."""


def _gate(a: Any, a_log: Any, dt_bias: Any, heads: int, width: int, lower_bound: float | None) -> Any:
    x = a.reshape(-1, heads, width).float() + dt_bias.reshape(heads, width).float()
    rate = a_log.reshape(heads, 1).float().exp()
    return lower_bound * torch.sigmoid(rate * x) if lower_bound is not None else -rate * functional.softplus(x)


def _recurrence(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    states: Any,
    slots: Any,
    starts: Any,
    track: tuple[Any, Any] | None = None,
) -> Any:
    """Run every sequence of a batch; ``states[slots[i]]`` is read and written, ``track`` = (output, chunk index)."""
    heads, value_width, key_width = states.shape[-3:]
    out = torch.empty(q.shape[0], heads, value_width, 1)
    decay, strength = g.exp()[:, :, None, :], beta[:, :, None, None]
    query, row, column, value = q[..., None] * float(key_width) ** -0.5, k[:, :, None, :], k[..., None], v[..., None]
    for i in range(len(starts) - 1):
        slot, first = int(slots[i]), int(starts[i])
        state = states[slot].float() if slot >= 0 else torch.zeros(heads, value_width, key_width)
        tracked_at = first + int(track[1][i]) * _TRACK_CHUNK if track and int(track[1][i]) >= 0 else -1
        for t in range(first, int(starts[i + 1])):
            if track and t == tracked_at:
                track[0][i] = state
            state = state * decay[t]
            error = (value[t] - torch.bmm(state, column[t])) * strength[t]
            state = torch.baddbmm(state, error, row[t])
            out[t] = torch.bmm(state, query[t])
        if slot >= 0:
            states[slot] = state.to(states.dtype)
    return out.squeeze(-1)


def _prepare(q: Any, k: Any, v: Any, heads: int) -> tuple[Any, Any, Any]:
    q, k, v = (t.reshape(-1, t.shape[-2], t.shape[-1]).float() for t in (q, k, v))
    q, k = functional.normalize(q, dim=-1, eps=1e-6), functional.normalize(k, dim=-1, eps=1e-6)
    repeat = heads // q.shape[1]
    return q.repeat_interleave(repeat, 1), k.repeat_interleave(repeat, 1), v


def causal_conv1d(
    x: Any, weight: Any, bias: Any, conv_states: Any, query_start_loc: Any, seq_lens_cpu: Any,
    cache_indices: Any = None, has_initial_state: Any = None, activation: str | None = "silu", pad_slot_id: int = -1,
    **unused: Any,
) -> Any:  # fmt: skip
    """Depthwise causal convolution of a packed batch ``x`` (channels, tokens); updates ``conv_states`` in place."""
    out = torch.empty_like(x)
    width = weight.shape[1]
    for i in range(len(query_start_loc) - 1):
        slot, first, last = int(cache_indices[i]), int(query_start_loc[i]), int(query_start_loc[i + 1])
        if slot == pad_slot_id or first == last:
            continue
        resumes = has_initial_state is not None and bool(has_initial_state[i])
        before = conv_states[slot] if resumes else torch.zeros_like(conv_states[slot])
        window = torch.cat([before[:, -(width - 1) :], x[:, first:last]], dim=1)
        y = sum(window[:, j : j + last - first].float() * weight[:, j, None].float() for j in range(width))
        y = y if bias is None else y + bias[:, None].float()
        out[:, first:last] = (functional.silu(y) if activation else y).to(x.dtype)
        conv_states[slot] = window[:, -conv_states.shape[2] :]
    return out


def gated_norm(
    self: Any, x: Any, g: Any, residual: Any = None, prenorm: bool = False, residual_in_fp32: bool = False
) -> Any:
    """FusedRMSNormGated.forward: RMS norm over the last dimension times an activation of the gate."""
    assert residual is None and not prenorm
    y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)
    if self.weight is not None:
        y = y * self.weight.float()
    gate = g.float().reshape(x.shape)
    return (y * (torch.sigmoid(gate) if self.activation == "sigmoid" else functional.silu(gate))).to(x.dtype)


def install(kernel: Any) -> None:
    """Replace the three methods of SGLang's TritonKDAKernel."""

    def extend(
        self: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, *, ssm_states: Any, cache_indices: Any,
        query_start_loc: Any, A_log: Any = None, dt_bias: Any = None, lower_bound: Any = None,  # noqa: N803
        beta_is_raw: bool = False, return_intermediate_states: bool = False, track_state: Any = None,
        track_chunk_idx: Any = None, **unused: Any,
    ) -> Any:  # fmt: skip
        heads, _, width = ssm_states.shape[-3:]
        dtype = v.dtype
        gates = _gate(g, A_log, dt_bias, heads, width, lower_bound)
        strength = beta.reshape(-1, heads).float()
        strength = strength.sigmoid() if beta_is_raw else strength
        track = (track_state, track_chunk_idx) if track_state is not None else None
        q, k, v = _prepare(q, k, v, heads)
        out = _recurrence(q, k, v, gates, strength, ssm_states, cache_indices, query_start_loc, track)
        out = out.to(dtype).unsqueeze(0)
        return (out, None) if return_intermediate_states else out

    def decode(
        self: Any, q: Any, k: Any, v: Any, a: Any, b: Any, *, A_log: Any, dt_bias: Any, ssm_states: Any,  # noqa: N803
        cache_indices: Any, query_start_loc: Any, lower_bound: Any = None, **unused: Any,
    ) -> Any:  # fmt: skip
        heads, _, width = ssm_states.shape[-3:]
        dtype = v.dtype
        gates = _gate(a, A_log, dt_bias, heads, width, lower_bound)
        q, k, v = _prepare(q, k, v, heads)
        strength = b.reshape(-1, heads).float().sigmoid()
        out = _recurrence(q, k, v, gates, strength, ssm_states, cache_indices, query_start_loc)
        return out.to(dtype).unsqueeze(0)

    def packed_decode(
        self: Any, mixed_qkv: Any, a: Any, b: Any, *, A_log: Any, dt_bias: Any, scale: Any, ssm_states: Any,  # noqa: N803
        cache_indices: Any, num_v_heads: int, head_v_dim: int, lower_bound: Any = None, **unused: Any,
    ) -> Any:  # fmt: skip
        width = ssm_states.shape[-1]
        values = num_v_heads * head_v_dim
        keys = (mixed_qkv.shape[-1] - values) // 2
        q, k, v = mixed_qkv.split([keys, keys, values], -1)
        q, k, v = q.unflatten(-1, (-1, width)), k.unflatten(-1, (-1, width)), v.unflatten(-1, (-1, head_v_dim))
        starts = torch.arange(mixed_qkv.shape[0] + 1)
        return decode(
            self, q, k, v, a, b, A_log=A_log, dt_bias=dt_bias, ssm_states=ssm_states, cache_indices=cache_indices,
            query_start_loc=starts, lower_bound=lower_bound,
        )  # fmt: skip

    kernel.extend, kernel.decode, kernel.packed_decode = extend, decode, packed_decode
    kernel.supports_track_state_snapshot = True
