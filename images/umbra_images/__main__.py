"""`PYTHONPATH=images python3 -m umbra_images operator kit --output dist`: write images as OCI archives.

Push one without compressing it anew, which would change the digest, for example with
`skopeo copy --preserve-digests oci-archive:dist/operator.tar docker://registry/umbra/operator`.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from .cachefolder import CacheError, writable
from .definitions import REGISTRY, Builder
from .errors import ImageError


def main() -> int:
    """Build the named images and print their digests."""
    parser = argparse.ArgumentParser(prog="umbra_images", description=__doc__)
    parser.add_argument("images", nargs="+", choices=["operator", "kit"])
    parser.add_argument("--output", type=Path, default=Path("dist"), help="folder for <image>.tar")
    parser.add_argument("--registry", default=REGISTRY, help="registry and path in front of the image name")
    arguments = parser.parse_args()
    try:
        builder = Builder(writable() / "layers", arguments.registry)
        arguments.output.mkdir(parents=True, exist_ok=True)
        for name in arguments.images:
            image = builder.operator() if name == "operator" else builder.kit()
            # An archive that is not whole must not be pushed.
            target, part = arguments.output / f"{name}.tar", arguments.output / f".{name}.tar.part"
            with part.open("wb") as out:
                image.write(out)
            part.rename(target)
            print(image.pinned)
    except (ImageError, CacheError, OSError, subprocess.TimeoutExpired) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
