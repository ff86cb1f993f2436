"""What one engine runs: the model, how it is spread over GPUs, and SGLang's own settings."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from umbra_operator.api.base import ATOMIC, ENGINE, POD, Cel, EditClass, Model, Name, RelativePath, edit, list_map


class SourceType(StrEnum):
    """Where the weights are."""

    PVC = "PersistentVolumeClaim"
    NODE_PATH = "NodePath"


class SpeculationType(StrEnum):
    """Speculative decoding algorithm."""

    NONE = "None"
    DSPARK = "DSPARK"


class KvCacheDtype(StrEnum):
    """Types of the engine's MLA KV, in SGLang's words."""

    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"


class MambaStateDtype(StrEnum):
    """Types of the engine's KDA state, in SGLang's words."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class TreeCore(StrEnum):
    """Implementations of SGLang's radix tree."""

    AUTO = "Auto"
    RUST = "Rust"
    PYTHON = "Python"


class ClaimSource(Model):
    """Weights on a PersistentVolumeClaim of the same namespace."""

    claim_name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the PersistentVolumeClaim; it is mounted read-only."""
    path: RelativePath = ""
    """Folder of the weights inside the volume; empty means its root."""


class NodePathSource(Model):
    """Weights on the node, below a root that the profile's administrator allowed."""

    root: Name
    """Name of an entry in the profile's modelRoots."""
    path: RelativePath
    """Folder of the weights below that root."""


class ModelSource(Model):
    """Where the weights are: exactly the member that type names."""

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "self.type == 'PersistentVolumeClaim' ? has(self.persistentVolumeClaim) && !has(self.nodePath) "
            ": has(self.nodePath) && !has(self.persistentVolumeClaim)",
            "set exactly the member that type names: persistentVolumeClaim or nodePath",
        ),
    )
    type: SourceType
    """Which member is set."""
    persistent_volume_claim: ClaimSource | None = None
    """Weights on a PersistentVolumeClaim."""
    node_path: NodePathSource | None = None
    """Weights on the node."""


class ModelSpec(Model):
    """The model to serve."""

    served_name: Annotated[str, Field(min_length=1, max_length=128, json_schema_extra=ENGINE)]
    """Name that clients put into "model"."""
    source: Annotated[ModelSource, Field(json_schema_extra=POD)]
    """Where the weights are."""


class Parallelism(Model):
    """How one engine is spread over GPUs."""

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "!has(self.tensor) || !has(self.decodeContext) || self.tensor % self.decodeContext == 0",
            "decodeContext must divide tensor",
        ),
    )
    tensor: Annotated[int | None, Field(ge=1, le=64)] = None
    """Tensor parallel size, one rank per GPU. Unset: the profile's."""
    decode_context: Annotated[int | None, Field(ge=1, le=64)] = None
    """Decode context parallel size: so many ranks share the KV of each context; must divide tensor. Unset: 1."""


class DSpark(Model):
    """Settings of the DSPARK draft model."""

    draft: RelativePath
    """Folder of the draft model, below the same root or volume as the model."""
    block_size: Annotated[int, Field(ge=1, le=16)] = 7
    """Tokens proposed per step."""


class Speculation(Model):
    """Speculative decoding."""

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel("(self.type == 'DSPARK') == has(self.dspark)", "set dspark when type is DSPARK, and only then"),
    )
    type: SpeculationType = SpeculationType.NONE
    """Algorithm."""
    dspark: DSpark | None = None
    """Settings of DSPARK."""


class EnvVar(Model):
    """One environment variable of the engine."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """Name; the profile's allowedEnv must hold it."""
    value: Annotated[str, Field(max_length=1024)]
    """Value, passed as it is."""


class Engine(Model):
    """The engine's own settings. An unset field leaves the profile's value."""

    memory_fraction_percent: Annotated[int | None, Field(ge=10, le=98)] = None
    """Share of GPU memory for weights and cache pools, in percent (SGLang's mem-fraction-static)."""
    max_running_requests: Annotated[int | None, Field(ge=1, le=4096)] = None
    """Most requests that run at once."""
    chunked_prefill_size: Annotated[int | None, Field(ge=64, le=131072)] = None
    """Most prompt tokens per prefill step."""
    context_length: Annotated[int | None, Field(ge=64, le=1048576)] = None
    """Longest context in tokens."""
    kv_cache_dtype: KvCacheDtype | None = None
    """Type of the MLA KV in GPU and store; fp8 halves its bytes (SGLang's kv-cache-dtype)."""
    mamba_state_dtype: MambaStateDtype | None = None
    """Type of the KDA state; bfloat16 halves the checkpoints, check the accuracy (SGLang's mamba-ssm-dtype)."""
    extra_args: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=512)]],
        Field(max_length=64, json_schema_extra=edit(EditClass.ENGINE, **ATOMIC)),
    ] = []
    """More engine flags. Each flag must be in the profile's allowedArgs; flags that Umbra sets are refused by name."""
    env: Annotated[
        list[EnvVar], Field(max_length=64, json_schema_extra=edit(EditClass.ENGINE, **list_map("name")))
    ] = []
    """More environment variables; each name must be in the profile's allowedEnv."""


class Toolchain(Model):
    """Which of SGLang's implementations run, alike on every rank."""

    tree_core: TreeCore = TreeCore.AUTO
    """The radix tree's core. Auto: Rust where every rank has it. No rank ever builds one: a build may fail alone."""
