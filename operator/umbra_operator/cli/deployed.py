"""What ``umbra size`` replays when it is given a deployment: its engine, its store and its policy."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from umbra_linker.settings import Checkpoints
from umbra_operator.api.v1alpha1 import K3DeploymentSpec, K3ProfileSpec
from umbra_operator.api.v1alpha1.cache import CachePolicy, KeyLayout, Switch, TouchMode
from umbra_operator.api.v1alpha1.engine import DSpark, Parallelism, Speculation, SpeculationType
from umbra_operator.cli.objects import Unusable, read_objects, read_profile
from umbra_operator.errors import SpecInvalid
from umbra_operator.render import engine
from umbra_operator.render.memory import REQUEST_SLOTS, engine_shape, gpu_budget
from umbra_operator.render.resolve import Resolved, resolve

NAME = "deployment"
"""Of its policy, among those that can be compared."""


@dataclass(frozen=True, slots=True)
class Deployed:
    """Defaults from a deployment and its profile, or from a profile alone."""

    setup: Any
    """An ``umbra_sim.simulate.Setup``; that package comes with the extra "sim"."""
    policy: Any = None
    """An ``umbra_sim.policies.Policy``; None of a profile alone."""
    policies: str | None = None
    """What to compare it with, by name."""
    sizes: list[int] | None = None
    """The deployment's size, and smaller and larger ones."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What the command line says of the engine instead of the files; what is None or False is as in the files."""

    tensor: int | None = None
    decode_context: int | None = None
    draft: bool = False

    def __str__(self) -> str:
        """As it was written."""
        numbers = (("--tensor", self.tensor), ("--dcp", self.decode_context))
        return " ".join([f"{flag} {value}" for flag, value in numbers if value] + ["--dspark"] * self.draft)

    def put_into(self, spec: K3DeploymentSpec) -> K3DeploymentSpec:
        """Return a deployment that says the same, so that what its memory holds and may not do is asked once."""
        parallelism = (spec.parallelism or Parallelism()).model_copy(
            update={
                name: value
                for name, value in (("tensor", self.tensor), ("decode_context", self.decode_context))
                if value is not None
            }
        )
        speculation = spec.speculation
        if self.draft and not (speculation and speculation.type is SpeculationType.DSPARK):
            speculation = Speculation(type=SpeculationType.DSPARK, dspark=DSpark(draft="any"))
        return spec.model_copy(update={"parallelism": parallelism, "speculation": speculation})


def deployed(
    deployment: Path | None, profile: Path | None, lanes: int, engine_said: Engine = Engine()
) -> Deployed | None:
    """Read the files; None when there are none.

    Args:
        deployment: file with a K3Deployment, and perhaps its K3Profile.
        profile: file with the K3Profile.
        lanes: requests at once, whose checkpoints the device does not keep for others.
        engine_said: what is otherwise than in the files.

    Raises:
        Unusable: when a file cannot be used, the two do not go together or with what was said of the engine, or the
            engine does not fit the profile's GPUs.
    """
    if deployment is not None:
        resolved = _resolved(*read_objects([path for path in (deployment, profile) if path]), engine_said)
        size = resolved.store_bytes
        policy = _policy(resolved.spec.cache.policy, resolved.key_layout)
        sizes = [size // 4, size // 2, size, size * 2]
        return Deployed(_setup(resolved, lanes, engine_said), policy, f"stock,{NAME},infinite", sizes)
    if profile is not None:
        return Deployed(_setup(_resolved(*read_profile(profile), engine_said), lanes, engine_said))
    return None


def _resolved(spec: K3DeploymentSpec, profile: K3ProfileSpec, said: Engine) -> Resolved:
    try:
        return resolve(said.put_into(spec), profile)
    except SpecInvalid as error:
        raise Unusable(_with(said, str(error))) from error


def _with(said: Engine, refusal: str) -> str:
    return f"with {said}: {refusal}" if str(said) else refusal


def _setup(resolved: Resolved, lanes: int, said: Engine) -> Any:
    from umbra_sim.simulate import Setup  # noqa: PLC0415

    if resolved.profile.gpu_memory is None:
        raise Unusable("the K3Profile has no gpuMemory: write it as in examples/mi355x-tp8-v1.yaml")
    budget = gpu_budget(resolved)
    if budget.refusals or budget.pools is None:
        raise Unusable(_with(said, "; ".join(budget.refusals)))
    chunk = engine.chosen_flags(resolved).get("--chunked-prefill-size")
    setup = Setup(
        shape=engine_shape(resolved),
        high_percent=resolved.high_percent,
        low_percent=resolved.low_percent,
        device_tokens=budget.pools.tokens,
        device_checkpoints=max(1, budget.pools.slots - REQUEST_SLOTS * lanes),
    )
    if chunk is None or not chunk.values[0].isdigit():
        return setup
    return replace(setup, chunk_tokens=int(chunk.values[0]))


def _policy(policy: CachePolicy | None, layout: KeyLayout) -> Any:
    from umbra_sim.policies import Policy  # noqa: PLC0415

    touch = policy.touch.mode if policy and policy.touch else None
    rewrite = policy.rewrite_missing if policy else None
    chosen = policy.checkpoints if policy else None
    touches = touch is not TouchMode.OFF
    return Policy(
        NAME,
        once=layout is KeyLayout.AUTO,
        touch=touches,
        checkpoints=Checkpoints(chosen.value) if chosen else Checkpoints.ADAPTIVE,
        leaf_first=True,
        rewrite=touches and rewrite is not Switch.DISABLED,
    )
