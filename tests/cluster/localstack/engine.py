"""Talks to a served engine: requests by token ids, the cache's flush, and its metrics."""

import json
import secrets
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from localcluster.errors import ClusterError

from . import exposition


@dataclass(frozen=True)
class Answer:
    """What the engine said to a prompt."""

    logprobs: tuple[float, ...]
    """Of the generated tokens, natural logarithm."""
    tokens: tuple[int, ...]
    device_tokens: int
    """Prompt tokens that the device's cache had."""
    store_tokens: int
    """Prompt tokens that were restored from the store."""
    seconds: float


@dataclass(frozen=True)
class Engine:
    """An engine's address, such as ``http://127.0.0.1:30000``."""

    url: str
    admin_key: str | None = None
    """What opens the routes that are not for users, where the engine asks for it."""

    def generate(self, prompt: list[int], tokens: int = 4) -> Answer:
        """Answers a prompt of token ids, greedily, with exactly so many tokens."""
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        began = time.monotonic()
        body = self._post("/generate", {"input_ids": prompt, "return_logprob": True, "sampling_params": sampling})
        meta = json.loads(body)["meta_info"]
        details = meta.get("cached_tokens_details") or {}
        return Answer(
            logprobs=tuple(entry[0] for entry in meta["output_token_logprobs"]),
            tokens=tuple(entry[1] for entry in meta["output_token_logprobs"]),
            device_tokens=details.get("device", 0),
            store_tokens=details.get("host", 0),
            seconds=time.monotonic() - began,
        )

    def flush(self, seconds: float = 30.0) -> None:
        """Empties the device's cache. Raises ClusterError when the engine stays busy."""
        end = time.monotonic() + seconds
        while True:
            try:
                self._post("/flush_cache", {})
            except urllib.error.HTTPError as problem:
                if time.monotonic() > end:
                    raise ClusterError(f"The engine's cache could not be flushed: {problem}.") from problem
                time.sleep(0.2)
            else:
                return

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples that carry these labels; 0 when there are none."""
        return exposition.metric(self.url, name, **labels)

    def _post(self, path: str, body: dict[str, Any]) -> bytes:
        data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if self.admin_key:
            headers["Authorization"] = f"Bearer {self.admin_key}"
        request = urllib.request.Request(self.url + path, data, headers)
        with urllib.request.urlopen(request, timeout=120) as response:
            answer: bytes = response.read()
        return answer


def prompt(length: int) -> list[int]:
    """Random token ids of the tiny model's vocabulary: no cache can know them."""
    return [5 + secrets.randbelow(500) for _ in range(length)]
