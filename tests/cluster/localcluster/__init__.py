"""A real Kubernetes on one machine, for `make up` and for the tests: control plane, one node, images, tools.

Only the standard library is used. Everything that is built or runs lives under the cache folder
(`UMBRA_CACHE`), never in the repository.
"""

import sys
from pathlib import Path

# The image builder, which also says where the cache is, is no part of any installed package.
sys.path.append(str(Path(__file__).resolve().parents[3] / "images"))
