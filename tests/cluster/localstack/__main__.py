"""``python3 -m localstack up|down|status|request``: what ``make up`` and ``make down`` do."""

import argparse
import json
import sys
import time

import cpuengine
from figures import Figure, report
from localcluster import cluster
from localcluster.errors import ClusterError
from localcluster.progress import Progress

from . import apionly, product, profile
from .engine import Answer, Engine, prompt
from .prepare import prepare

PROMPT_TOKENS = 320


def up(progress: Progress) -> None:
    """From nothing to a token restored from the store."""
    began = time.monotonic()
    built = prepare(progress)
    running = cluster.up(progress)
    stack = product.install(running, built, progress)
    applied = time.monotonic()
    product.apply(running, profile.deployment(product.NAME, stack.profile_name, built))
    product.wait_ready(stack, progress)
    ready = time.monotonic()
    product.remove_old_profiles(stack)
    engine = product.engine(stack)
    restored = demonstrate(engine, progress)
    summary(stack, engine)
    report(
        "up",
        [
            Figure("up_s", round(time.monotonic() - began, 1), "s"),
            Figure("cr_to_ready_s", round(ready - applied, 1), "s"),
            Figure("engine_boot_s", round(product.engine_boot_seconds(stack), 1), "s"),
            Figure("restore_request_s", round(restored.seconds, 1), "s"),
        ],
    )


def demonstrate(engine: Engine, progress: Progress) -> Answer:
    """The same prompt three times: computed, from the device's cache, and after a flush from the store.

    Raises ClusterError when the restored answer differs.
    """
    # A prompt that no earlier run used: its pages cannot be in the store already.
    asked = prompt(PROMPT_TOKENS, seed=time.time_ns() % 491)
    longer = [*asked, 11, 12, 13]
    with progress.step("first-request", "asking the engine"):
        first = engine.generate(asked)
    device = engine.generate(longer)
    progress.note(
        f"  first answer after {first.seconds:.1f} s; again with {device.device_tokens} tokens from the device"
    )
    engine.flush()
    restored = engine.generate(longer)
    progress.note(f"  flushed; again in {restored.seconds:.1f} s with {restored.store_tokens} tokens from the store")
    if restored.store_tokens < PROMPT_TOKENS:
        raise ClusterError(f"Only {restored.store_tokens} of {PROMPT_TOKENS} tokens came from the store: see the logs.")
    if restored.logprobs != device.logprobs:
        raise ClusterError(f"The restored answer differs: {restored.logprobs} instead of {device.logprobs}.")
    progress.note("  the log probabilities of the restored answer equal those of the device's, bit for bit")
    return restored


def summary(stack: product.Stack, engine: Engine) -> None:
    """Where everything is, and what to try next."""
    running = stack.cluster
    conditions = stack.conditions()
    print(f"\n  endpoint      {engine.url}  (POST /generate with input_ids)")
    for source in ("device", "host"):
        tokens = engine.metric("sglang:cached_tokens_total", cache_source=source)
        print(f"  cached tokens {tokens:,.0f} from {'the store' if source == 'host' else 'the device'}")
    for label, name in (("written", "umbra_linker_stored_bytes_total"), ("read", "umbra_linker_read_bytes_total")):
        print(f"  store bytes   {engine.metric(name):,.0f} {label}")
    print(f"  metrics       {engine.url}/metrics")
    print("  conditions    " + "\n                ".join(f"{kind:16} {c['status']}" for kind, c in conditions.items()))
    print(f"\n  export KUBECONFIG={running.kubeconfig}")
    print(f"  alias kubectl={running.kubectl_path}")
    print(f"  kubectl -n {product.NAMESPACE} get k3,pods")
    print(f"  kubectl -n {product.NAMESPACE} describe k3 {product.NAME}")
    patch = json.dumps({"spec": {"engine": {"maxRunningRequests": 2}}})
    print(f"  kubectl -n {product.NAMESPACE} patch k3 {product.NAME} --type merge -p '{patch}'")
    print("     # restarts the engine in its pod; the cache stays")
    print("  make down\n", flush=True)


def main() -> int:
    """Runs one command; problems are one sentence on stderr and exit code 1."""
    parser = argparse.ArgumentParser(prog="localstack", description=__doc__)
    parser.add_argument("command", choices=["up", "down", "status"])
    parser.add_argument("--api-only", action="store_true", help="up: a control plane without a node; needs no root")
    arguments = parser.parse_args()
    command = arguments.command
    progress = Progress(sys.stderr)
    try:
        if command == "up" and arguments.api_only:
            apionly.up(progress)
        elif command == "up":
            up(progress)
        elif command == "down":
            cluster.down(progress)
        else:
            print("\n".join(cluster.status()) or "no cluster")
    except (ClusterError, cpuengine.EngineEnvironmentError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; `make down` removes what is left", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
