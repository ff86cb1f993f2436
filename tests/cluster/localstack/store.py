"""What the store itself says, to a second client beside the engine's: without a master a store counts nothing."""

import hashlib
import json
import os
import subprocess
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cpuengine import Environment
from localcluster.errors import ClusterError
from umbra_linker import keys

from . import exposition

PAGE_TOKENS = 64
CLIENT_SECONDS = 60.0
_CLIENT = Path(__file__).with_name("inside") / "store_objects.py"


@dataclass(frozen=True)
class Store:
    """A store's socket, and the HTTP address of its only engine, which has one rank."""

    environment: Environment
    socket: Path
    engine: str

    def pages(self, prompt: Sequence[int]) -> int:
        """How many of the prompt's whole pages of KV the store has. Raises ClusterError when it cannot be asked."""
        named = exposition.labels(self.engine, "umbra_linker_info")
        # SGLang's store client names the model by its path, as the engine sees it.
        prefix = f"{named['tag']}_{self._model_path().replace('/', '-')}"
        wanted = keys.object_keys(prefix, page_hashes(prompt), named["kv_suffix"], (keys.KV_POOL,))
        # The path of a socket is limited to 107 bytes, and those of a pod's volumes are longer.
        with tempfile.TemporaryDirectory(prefix="umbra-") as folder:
            link = Path(folder) / "pod"
            link.symlink_to(self.socket.parent)
            argv = [str(self.environment.python), str(_CLIENT), f"unix://{link / self.socket.name}"]
            result = subprocess.run(
                argv,
                input=json.dumps(wanted),
                env=os.environ | self.environment.engine_env,
                capture_output=True,
                text=True,
                check=False,
                timeout=CLIENT_SECONDS,
            )
        if result.returncode != 0:
            reason = (result.stderr.strip().splitlines() or ["no message"])[-1]
            raise ClusterError(f"The store cannot be asked at {self.socket}: {reason}.")
        return sum(json.loads(result.stdout.splitlines()[-1]))

    def _model_path(self) -> str:
        with urllib.request.urlopen(f"{self.engine}/model_info", timeout=10) as response:
            return str(json.load(response)["model_path"])


def page_hashes(prompt: Sequence[int]) -> list[str]:
    """SGLang's hash of each whole page and all before it: SHA-256 of the digest before and the ids, 4 bytes each."""
    digest, hashes = b"", []
    for start in range(0, len(prompt) - PAGE_TOKENS + 1, PAGE_TOKENS):
        tokens = b"".join(token.to_bytes(4, "little") for token in prompt[start : start + PAGE_TOKENS])
        digest = hashlib.sha256(digest + tokens).digest()
        hashes.append(digest.hex())
    return hashes
