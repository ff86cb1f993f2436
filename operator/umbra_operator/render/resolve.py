"""A deployment's spec and its profile become one set of values: deployment over profile over built-in."""

from dataclasses import dataclass

from umbra_operator.api.base import quantity_bytes
from umbra_operator.api.v1alpha1 import K3DeploymentSpec, K3ProfileSpec
from umbra_operator.api.v1alpha1.cache import KeyLayout
from umbra_operator.api.v1alpha1.engine import DSpark, SourceType, SpeculationType
from umbra_operator.api.v1alpha1.scheduling import DeviceMode
from umbra_operator.conditions import Reason
from umbra_operator.errors import SpecInvalid
from umbra_operator.render import flags, names, podpatch
from umbra_operator.render.skew import check_skew

HIGH_PERCENT, LOW_PERCENT = 90, 85
"""Watermarks. UMBP 1.2.4 itself evicts down to 70 %: a fifth of the store is then empty for nothing."""
DRAIN_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Resolved:
    """A spec and a profile that fit together, with every default filled in."""

    spec: K3DeploymentSpec
    profile: K3ProfileSpec
    tensor: int
    decode_context: int
    model_path: str
    """Folder of the weights inside the containers."""
    draft: DSpark | None
    draft_path: str | None
    store_bytes: int
    high_percent: int
    low_percent: int
    key_layout: KeyLayout
    drain_seconds: int
    device_mode: DeviceMode | None
    """How the pod asks for GPUs; None where the profile has none."""


def resolve(spec: K3DeploymentSpec, profile: K3ProfileSpec) -> Resolved:
    """Fills in every default.

    Raises SpecInvalid when spec and profile do not fit together; the message names the field and the remedy.
    """
    check_skew(profile)
    _check_args(spec, profile)
    _check_env(spec, profile)
    _check_metadata(spec)
    _check_patch(profile)
    tensor = (spec.parallelism and spec.parallelism.tensor) or profile.tensor
    decode_context = (spec.parallelism and spec.parallelism.decode_context) or 1
    _check_parallelism(tensor, decode_context)
    _check_decode_context(spec, profile, decode_context)
    marks, policy = spec.cache.watermarks, spec.cache.policy
    speculation = spec.speculation
    draft = speculation.dspark if speculation and speculation.type is SpeculationType.DSPARK else None
    drain = spec.health.drain_timeout_seconds if spec.health else None
    return Resolved(
        spec=spec,
        profile=profile,
        tensor=tensor,
        decode_context=decode_context,
        model_path=_model_path(spec, profile),
        draft=draft,
        draft_path=f"{names.MODEL_DIR}/{draft.draft}" if draft else None,
        store_bytes=quantity_bytes(spec.cache.dram.size),
        high_percent=marks.high_percent if marks else HIGH_PERCENT,
        low_percent=marks.low_percent if marks else LOW_PERCENT,
        key_layout=(policy and policy.key_layout) or KeyLayout.AUTO,
        drain_seconds=DRAIN_SECONDS if drain is None else drain,
        device_mode=_device_mode(spec, profile),
    )


def _check_args(spec: K3DeploymentSpec, profile: K3ProfileSpec) -> None:
    try:
        extra = flags.parse(spec.engine.extra_args if spec.engine else ())
    except ValueError as error:
        raise SpecInvalid(Reason.ARGUMENT_NOT_ALLOWED, f"spec.engine.extraArgs: {error}") from error
    for flag in extra:
        if owner := flags.owner(flag):
            raise SpecInvalid(Reason.ARGUMENT_OWNED, f"spec.engine.extraArgs: remove {flag}; set by {owner} instead")
        if flag not in profile.engine.allowed_args:
            raise SpecInvalid(
                Reason.ARGUMENT_NOT_ALLOWED,
                f"spec.engine.extraArgs: {flag} is not in the profile's engine.allowedArgs; "
                "remove it or use a profile that allows it",
            )
    try:
        default = flags.parse(profile.engine.args)
    except ValueError as error:
        raise SpecInvalid(Reason.PROFILE_UNREADABLE, f"the profile's engine.args: {error}") from error
    for flag in default:
        if flag not in flags.PROFILE_MAY_SET and (owner := flags.owner(flag)):
            raise SpecInvalid(
                Reason.ARGUMENT_OWNED, f"the profile's engine.args: remove {flag}; set by {owner} instead"
            )


def _check_env(spec: K3DeploymentSpec, profile: K3ProfileSpec) -> None:
    own = spec.engine.env if spec.engine else []
    for field, variables, owned in (
        ("spec.engine.env", own, flags.OWNED_ENV),
        ("the profile's engine.env", profile.engine.env, flags.OWNED_ENV),
        ("the profile's store.env", profile.store.env, flags.OWNED_STORE_ENV),
    ):
        for variable in variables:
            if variable.name in owned:
                raise SpecInvalid(
                    Reason.ENV_OWNED, f"{field}: remove {variable.name}; set by {owned[variable.name]} instead"
                )
    for variable in own:
        if variable.name not in profile.engine.allowed_env:
            raise SpecInvalid(
                Reason.ENV_NOT_ALLOWED,
                f"spec.engine.env: {variable.name} is not in the profile's engine.allowedEnv; "
                "remove it or use a profile that allows it",
            )


def _check_metadata(spec: K3DeploymentSpec) -> None:
    if spec.pod_metadata is None:
        return
    for field, keys in (("labels", spec.pod_metadata.labels), ("annotations", spec.pod_metadata.annotations)):
        for key in keys:
            if key.startswith(podpatch.RESERVED):
                raise SpecInvalid(
                    Reason.METADATA_RESERVED, f"spec.podMetadata.{field}: remove {key}; such keys are Umbra's"
                )


def _check_patch(profile: K3ProfileSpec) -> None:
    if path := podpatch.refused(profile.pod_patch):
        raise SpecInvalid(
            Reason.POD_PATCH_REFUSED,
            f"the profile's podPatch: remove {path}; Umbra or another field of the profile sets it",
        )


def _check_parallelism(tensor: int, decode_context: int) -> None:
    if tensor % decode_context:
        raise SpecInvalid(
            Reason.PARALLELISM_INVALID,
            f"spec.parallelism.decodeContext: {decode_context} does not divide the tensor size {tensor}",
        )


def _check_decode_context(spec: K3DeploymentSpec, profile: K3ProfileSpec, ways: int) -> None:
    """What the engine would refuse; the API server sees neither the profile nor what was stored before its rules."""
    if ways == 1:
        return
    if spec.speculation and spec.speculation.type is SpeculationType.DSPARK:
        raise SpecInvalid(
            Reason.DECODE_CONTEXT_UNSUPPORTED,
            f"spec.speculation.type: DSPARK does not run with decodeContext {ways}; "
            "set it to None, or decodeContext to 1",
        )
    flag, page = "--chunked-prefill-size", flags.PAGE_TOKENS * ways
    own = spec.engine.chunked_prefill_size if spec.engine else None
    default = "".join(flags.parse(profile.engine.args).get(flag, ()))
    chunk = own or (int(default) if default.isdecimal() else None)
    if chunk and chunk < page:
        raise SpecInvalid(
            Reason.DECODE_CONTEXT_UNSUPPORTED,
            f"spec.engine.chunkedPrefillSize: {chunk} is less than the {page} tokens of a page with decodeContext "
            f"{ways}; set it to at least {page}",
        )
    given = flags.parse(profile.engine.args) | flags.parse(spec.engine.extra_args if spec.engine else ())
    backend = flags.decode_backend(given)
    if not flags.can_share_context(backend):
        chosen = " ".join(backend) if backend else f"no {flags.DECODE_BACKEND[0]}"
        raise SpecInvalid(
            Reason.DECODE_CONTEXT_UNSUPPORTED,
            f"{chosen}: SGLang runs Kimi K3 with decodeContext {ways} only where "
            f"--decode-attention-backend is {' or '.join(flags.DECODE_CONTEXT_BACKENDS)}; use a profile with that",
        )


def _device_mode(spec: K3DeploymentSpec, profile: K3ProfileSpec) -> DeviceMode | None:
    asked = spec.devices.mode if spec.devices else None
    offered = {
        DeviceMode.DEVICE_PLUGIN: profile.devices and profile.devices.resource_name,
        DeviceMode.DRA: profile.devices and profile.devices.device_class_name,
    }
    if asked and not offered[asked]:
        known = " or ".join(mode for mode, name in offered.items() if name) or "none"
        raise SpecInvalid(
            Reason.DEVICES_NOT_OFFERED,
            f"spec.devices.mode: the profile's devices offer {known}, not {asked}; unset it or use another profile",
        )
    return asked or next((mode for mode, name in offered.items() if name), None)


def _model_path(spec: K3DeploymentSpec, profile: K3ProfileSpec) -> str:
    source = spec.model.source
    if source.type is SourceType.PVC and source.persistent_volume_claim:
        path = source.persistent_volume_claim.path
    elif source.node_path:
        root = source.node_path.root
        known = [entry.name for entry in profile.model_roots]
        if root not in known:
            raise SpecInvalid(
                Reason.MODEL_ROOT_NOT_FOUND,
                f"spec.model.source.nodePath.root: {root!r} is not in the profile's modelRoots "
                f"({', '.join(known) or 'none'})",
            )
        path = source.node_path.path
    else:
        raise SpecInvalid(Reason.SPEC_UNREADABLE, "spec.model.source: set the member that type names")
    return f"{names.MODEL_DIR}/{path}".rstrip("/")
