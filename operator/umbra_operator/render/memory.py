"""What a deployment takes of GPU and host memory: each figure with its formula and its source. Pure.

``umbra plan`` prints the figures, ``ConfigValid`` refuses what cannot start, and the preflight compares the node with
the same sum. The GPU's part follows SGLang 0.5.23 (mem_cache/kv_cache_configurator.py); a profile without
``gpuMemory``, such as one of another model on a CPU, has none.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from umbra_linker.shape import DRAFT_TOKEN_BYTES, KDA_HEADS, KDA_LAYERS, MLA_LAYERS, MLA_WIDTH, Shape
from umbra_operator.api.base import quantity_bytes
from umbra_operator.conditions import Reason
from umbra_operator.errors import SpecInvalid
from umbra_operator.render import engine, store
from umbra_operator.render.flags import DECODE_CONTEXT_BACKENDS, can_share_context, decode_backend
from umbra_operator.render.resolve import Resolved

GB, GIB = 10**9, 1024**3
POOL_RATIO = 0.9
"""SGLang's default of --mamba-full-memory-ratio: bytes of checkpoints over bytes of KV."""
REQUEST_SLOTS = 5
"""Checkpoint slots of a running request with SGLang's extra_buffer, the strategy that keeps checkpoints."""
DRAFT_REQUESTS = 48
"""SGLang's --max-running-requests when a DSPARK draft runs and nobody sets it."""
CONTEXT = 1_048_576
"""Tokens, the model's."""
SMALL_KV_BYTES, SMALL_STATE_BYTES = 1, 2
"""Of an element in the smallest types: fp8 KV, and bfloat16 states."""
_SOURCE = "SGLang 0.5.23, kv_cache_configurator"


@dataclass(frozen=True, slots=True)
class Line:
    """One figure."""

    name: str
    value: str
    formula: str
    source: str


@dataclass(frozen=True, slots=True)
class Pools:
    """What an engine's device holds."""

    shape: Shape
    slots: int
    """Checkpoints on each rank, those of running requests included."""
    running: int
    """Requests at once."""
    states: int
    """Checkpoints' worth of memory: the slots, one that is never used, and what a draft's requests need besides."""
    kv: int
    """Bytes of KV on each rank."""
    tokens: int
    """Tokens of KV, of all ranks together where they share them; whole pages."""


@dataclass(frozen=True, slots=True)
class Budget:
    """All figures of one kind of memory."""

    lines: tuple[Line, ...]
    refusals: tuple[str, ...] = ()
    """What cannot start, each with what to change."""
    notes: tuple[str, ...] = ()
    """What starts and is less than was asked for."""
    pools: Pools | None = None
    """Of the GPU's memory."""


def check_gpu_memory(resolved: Resolved) -> None:
    """Raises SpecInvalid when weights and pools do not fit the profile's GPUs."""
    if resolved.profile.gpu_memory and (refusals := gpu_budget(resolved).refusals):
        raise SpecInvalid(Reason.GPU_MEMORY_SHORT, "; ".join(refusals))


def node_bytes(resolved: Resolved) -> int:
    """What a node must have of ordinary memory: the profile's headroom, and the store unless huge pages hold it."""
    headroom = quantity_bytes(resolved.profile.requirements.memory_headroom)
    # Huge pages are counted by the scheduler, and are no part of the memory that it can give out otherwise.
    return headroom + (0 if store.hugepage_bytes(resolved) else resolved.store_bytes)


def host_budget(resolved: Resolved, memory: int | None = None) -> Budget:
    """Add up what a replica takes of its node, which has ``memory`` bytes; None when that is not known."""
    headroom = quantity_bytes(resolved.profile.requirements.memory_headroom)
    needed, huge = node_bytes(resolved), store.hugepage_bytes(resolved)
    seconds = store.REGISTRATION_SECONDS_PER_GIB * resolved.store_bytes / GIB
    lines = [
        Line("store", _gib(resolved.store_bytes), "spec.cache.dram.size", "the deployment"),
        Line("huge pages", _gib(huge), "the store in whole huge pages", "spec.cache.dram.hugepages"),
        Line(
            "host memory",
            _gib(needed),
            f"{'' if huge else 'store + '}headroom of {_gib(headroom)}",
            "the profile's requirements.memoryHeadroom",
        ),
        Line(
            "registration",
            f"{seconds:.0f} s",
            f"{store.REGISTRATION_SECONDS_PER_GIB} s x GiB of the store",
            "a public report: 1160 GiB in 599.6 s",
        ),
        Line(
            "start-up budget of the store",
            f"{store.startup_seconds(resolved)} s",
            "120 s + 3 x registration, or spec.health",
            "the pod's startup probe",
        ),
    ]
    checkpoint, notes = engine_shape(resolved).checkpoint_bytes, []
    if resolved.store_bytes * resolved.low_percent // 100 < checkpoint:
        notes.append(
            f"the store holds not one checkpoint of {checkpoint:,} B below its low watermark, so it restores nothing: "
            "raise spec.cache.dram.size"
        )
    if memory is None or needed <= memory:
        return Budget(tuple(lines), notes=tuple(notes))
    room = 0 if huge else (memory - headroom) // GIB
    remedy = f"lower spec.cache.dram.size to at most {room}Gi" if room > 0 else "use nodes with more memory"
    return Budget(tuple(lines), (f"a node has {_gib(memory)} where {_gib(needed)} are needed: {remedy}",), tuple(notes))


def gpu_budget(resolved: Resolved, size: int | None = None) -> Budget:
    """Add up what each rank takes of its GPU.

    Args:
        resolved: of a profile with ``gpuMemory``.
        size: bytes of one GPU; None takes the profile's.
    """
    constants = resolved.profile.gpu_memory
    assert constants is not None  # noqa: S101 - said above
    flags = {name: choice.values for name, choice in engine.chosen_flags(resolved).items()}
    size = size or quantity_bytes(constants.size)
    weights = quantity_bytes(constants.weights) // resolved.tensor
    draft = quantity_bytes(constants.draft) if resolved.draft else 0
    least = quantity_bytes(constants.working)
    # Where nobody says how much, SGLang leaves what it thinks that it needs; the least that is known to be enough.
    fraction = _number(flags, "--mem-fraction-static", int((1 - least / size) * 100) / 100)
    static = round(fraction * size)
    working, room = size - static, static - weights - draft
    ratio, drafted = _number(flags, "--mamba-full-memory-ratio", POOL_RATIO), _drafted(resolved)
    pools = _pools(resolved, flags, room)
    shape = pools.shape
    context = int(_number(flags, "--context-length", CONTEXT))
    lines = [
        Line(
            "weights per rank",
            _gb(weights),
            f"{_gb(quantity_bytes(constants.weights))} / {resolved.tensor} ranks",
            "the profile's gpuMemory.weights",
        ),
        Line("draft per rank", _gb(draft), "with DSPARK", "the profile's gpuMemory.draft"),
        Line(
            "left for the prefill",
            _gb(working),
            f"(1 - {fraction:g}) x {_gb(size)}",
            f"mem-fraction-static; {_gb(least)} are needed (gpuMemory.working)",
        ),
        Line("pools per rank", _gb(max(0, room)), f"{_gb(static)} - weights - draft", "mem-fraction-static"),
        Line(
            "checkpoint per rank",
            f"{shape.rank_checkpoint_bytes:,} B",
            f"{KDA_LAYERS} layers x {KDA_HEADS // resolved.tensor} heads, {shape.state_bytes} B an element",
            "SGLang's models/kimi_k3.py",
        ),
        Line(
            "checkpoint slots",
            f"{pools.slots}",
            f"(pools x {ratio:g} / {1 + ratio:g} / checkpoint - {1 + drafted}) / {1 + drafted / REQUEST_SLOTS:g}",
            _SOURCE,
        ),
        Line("requests at once", f"{pools.running}", f"slots / {REQUEST_SLOTS}", f"{_SOURCE}, extra_buffer"),
        Line("KV pool per rank", _gb(pools.kv), f"pools - {pools.states} checkpoints", _SOURCE),
        Line(
            "tokens of KV",
            f"{pools.tokens:,}",
            f"KV pool / {_token_bytes(resolved, shape):,.0f} B",
            f"{MLA_LAYERS} layers x {MLA_WIDTH} elements x {shape.kv_bytes} B",
        ),
        Line(
            "longest request", f"{min(pools.tokens, context):,}", "tokens of KV, or the context", "SGLang's tp_worker"
        ),
    ]
    return Budget(
        tuple(lines),
        tuple(_gpu_refusals(size, static, weights + draft, working, least, pools.running)),
        tuple(_gpu_notes(resolved, flags, pools, context)),
        pools,
    )


def _pools(resolved: Resolved, flags: Mapping[str, tuple[str, ...]], room: int) -> Pools:
    """Divide ``room`` bytes of a GPU as SGLang does."""
    shape, drafted = engine_shape(resolved), _drafted(resolved)
    state, ratio = shape.rank_checkpoint_bytes, _number(flags, "--mamba-full-memory-ratio", POOL_RATIO)
    # A slot is never used, and a running request's draft needs a state for each token that it proposes.
    share = room * ratio / (1 + ratio)
    slots = max(0, int((share / state - 1 - drafted) / (1 + drafted / REQUEST_SLOTS)))
    running = slots // REQUEST_SLOTS
    states = slots + 1 + ((min(_asked(resolved, flags), running) + 1) * drafted if drafted else 0)
    kv = max(0, room - states * state)
    tokens = int(kv / _token_bytes(resolved, shape)) // shape.page_tokens * shape.page_tokens
    return Pools(shape, slots, running, states, kv, tokens)


def _drafted(resolved: Resolved) -> int:
    """Tokens of which a running request's draft keeps a state each."""
    return resolved.draft.block_size + 1 if resolved.draft else 0


def _asked(resolved: Resolved, flags: Mapping[str, tuple[str, ...]]) -> int:
    """Requests at once that were asked for; 0 when nobody asked."""
    return int(_number(flags, "--max-running-requests", DRAFT_REQUESTS if resolved.draft else 0))


def _token_bytes(resolved: Resolved, shape: Shape) -> float:
    """KV of a token on each rank, spread over the ranks that share it."""
    return shape.token_bytes / resolved.decode_context + (DRAFT_TOKEN_BYTES if resolved.draft else 0)


def _gpu_refusals(size: int, static: int, held: int, working: int, least: int, running: int) -> Sequence[str]:
    refusals = []
    if held >= size - least:
        refusals.append(
            f"weights take {_gb(held)} of {_gb(size)} on each GPU and the prefill {_gb(least)}: raise "
            "spec.parallelism.tensor, or use a profile whose engine.env packs the weights (SGLANG_AITER_K3_OPT)"
        )
    elif working < least:
        refusals.append(
            f"{_gb(working)} of each GPU remain for the prefill, which needs {_gb(least)}: lower "
            f"spec.engine.memoryFractionPercent to at most {int((1 - least / size) * 100)}"
        )
    elif not running:
        refusals.append(
            f"{_gb(static)} of each GPU leave no room for one request beside {_gb(held)} of weights: raise "
            "spec.engine.memoryFractionPercent"
        )
    return refusals


def _gpu_notes(resolved: Resolved, flags: Mapping[str, tuple[str, ...]], pools: Pools, context: int) -> Sequence[str]:
    notes, asked = [], _asked(resolved, flags)
    if 0 < pools.tokens < context:
        notes.append(
            f"a request of more than {pools.tokens:,} tokens is refused, though the context is {context:,}: "
            f"{_more_kv(resolved, flags, pools.shape)}"
        )
    if 0 < pools.running < asked:
        remedy = f"lower spec.engine.maxRunningRequests to {pools.running}"
        if pools.shape.state_bytes > SMALL_STATE_BYTES:
            remedy += ", or spec.engine.mambaStateDtype bfloat16 halves checkpoints"
        notes.append(f"{pools.running} requests run at once where {asked} are asked for: {remedy}")
    return notes


def _more_kv(resolved: Resolved, flags: Mapping[str, tuple[str, ...]], shape: Shape) -> str:
    """What makes room for longer requests, the cheapest first; what is set already or cannot run is no advice."""
    if shape.kv_bytes > SMALL_KV_BYTES:
        return "spec.engine.kvCacheDtype fp8_e4m3 halves KV"
    shares = "spec.parallelism.decodeContext divides KV among the ranks"
    shareable = resolved.draft is None and resolved.decode_context < resolved.tensor
    backend = decode_backend(flags)
    if shareable and can_share_context(backend):
        return shares
    less = "lower spec.engine.contextLength, or give KV more of the pools (--mamba-full-memory-ratio)"
    if shareable:
        instead = f" instead of {' '.join(backend)}" if backend else ""
        other = f"with --decode-attention-backend {' or '.join(DECODE_CONTEXT_BACKENDS)}{instead}"
        return f"{less}; {other}, {shares}"
    return less


def engine_shape(resolved: Resolved) -> Shape:
    """How the engine cuts the model, by its flags."""
    flags = {name: choice.values for name, choice in engine.chosen_flags(resolved).items()}
    return Shape(
        tensor=resolved.tensor,
        decode_context=resolved.decode_context,
        kv_bytes=SMALL_KV_BYTES if "fp8" in "".join(flags.get("--kv-cache-dtype", ())) else 2,
        state_bytes=SMALL_STATE_BYTES if flags.get("--mamba-ssm-dtype") == ("bfloat16",) else 4,
        draft=resolved.draft is not None,
    )


def _number(flags: Mapping[str, tuple[str, ...]], name: str, default: float) -> float:
    """A flag's value; the default where it is not set or is no number, which the engine's parser refuses later."""
    try:
        value = float(flags[name][0])
    except (KeyError, IndexError, ValueError):
        return default
    return value if math.isfinite(value) else default


def _gb(size: int) -> str:
    return f"{size / GB:.1f} GB"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
