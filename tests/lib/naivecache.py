"""The cache model once more, as plainly as it can be said: lists that are searched from end to end.

Slow, and shares with the product only the linker's policy, so that two readings of the same rules can be compared.
"""

from dataclasses import dataclass, field

from umbra_linker import policy as linker
from umbra_linker.settings import Checkpoints

PAGE, CHUNK_PAGES = 64, 128
Key = tuple[str, int]


@dataclass(eq=False)
class NaiveNode:
    number: int
    path: tuple[int, ...]
    begin: int
    used: int
    checkpoint: bool = False
    stored: bool = False


@dataclass
class NaiveCache:
    kv: int
    checkpoint: int
    capacity: int
    high: int
    low: int
    device_pages: int
    slots: int
    touch: bool
    leaf_first: bool
    rewrite: bool
    reads: bool
    checkpoints: Checkpoints
    store: list[Key] = field(default_factory=list)
    nodes: list[NaiveNode] = field(default_factory=list)
    order: list[NaiveNode] = field(default_factory=list)
    clock: int = 0
    numbers: int = 1
    written: int = 0

    def __post_init__(self) -> None:
        self.policy = linker.CheckpointPolicy(self.capacity, CHUNK_PAGES * PAGE)
        self.touches = linker.TouchTimes(1000)

    def size(self, key: Key) -> int:
        return self.kv if key[0] == "kv" else self.checkpoint

    def used(self) -> int:
        return sum(self.size(key) for key in self.store)

    def keys(self, pages: list[int], checkpoint: bool) -> list[Key]:
        last: list[Key] = [("checkpoint", pages[-1])] if checkpoint and pages else []
        kv: list[Key] = [("kv", page) for page in pages]
        return last + kv[::-1] if self.leaf_first else kv + last

    def put(self, keys: list[Key]) -> None:
        for key in keys:
            if key not in self.store:
                self.store.append(key)
                self.written += self.size(key)
        if self.used() * 100 > self.capacity * self.high:
            while self.used() > self.capacity * self.low // 100:
                self.store.pop(0)

    def refresh(self, keys: list[Key]) -> None:
        for key in keys:
            if key in self.store:
                self.store.remove(key)
                self.store.append(key)

    def match(self, pages: list[int], limit: int) -> int:
        """Length of the device's KV; the path and the deepest checkpoint on it are refreshed."""
        best = self.walk(pages, limit)
        deepest = self.anchor(pages, best)
        if deepest:
            self.order.remove(deepest)
            self.order.append(deepest)
        return best

    def walk(self, pages: list[int], limit: int) -> int:
        """The same, and no checkpoint is refreshed."""
        self.clock += 1
        best = 0
        for node in self.nodes:
            same = 0
            while same < min(limit, len(node.path)) and node.path[same] == pages[same]:
                same += 1
            best = max(best, same)
        self.split(tuple(pages[:best]))
        for node in self.on_path(pages, best):
            node.used = self.clock
        return best

    def on_path(self, pages: list[int], depth: int) -> list[NaiveNode]:
        return [n for n in self.nodes if len(n.path) <= depth and n.path == tuple(pages[: len(n.path)])]

    def anchor(self, pages: list[int], depth: int) -> NaiveNode | None:
        found = [n for n in self.on_path(pages, depth) if n.checkpoint]
        return max(found, key=lambda n: len(n.path)) if found else None

    def split(self, path: tuple[int, ...]) -> None:
        """Make a node end here, if there is KV beyond and none does."""
        if not path or any(n.path == path for n in self.nodes):
            return
        for node in self.nodes:
            if node.begin < len(path) < len(node.path) and node.path[: len(path)] == path:
                self.nodes.append(NaiveNode(self.numbers, path, node.begin, node.used))
                self.numbers += 1
                node.begin = len(path)
                return

    def leaf(self, node: NaiveNode) -> bool:
        return not any(n.begin == len(node.path) and n.path[: n.begin] == node.path for n in self.nodes)

    def prune(self, node: NaiveNode) -> None:
        if self.leaf(node) and node.used != self.clock:
            self.nodes.remove(node)

    def give(self, node: NaiveNode) -> None:
        if node in self.order:
            self.order.remove(node)
        self.order.append(node)
        node.checkpoint = True
        while len(self.order) > self.slots:
            oldest = self.order.pop(0)
            oldest.checkpoint = False
            self.prune(oldest)

    def insert(self, pages: list[int], begin: int, end: int) -> NaiveNode:
        node = NaiveNode(self.numbers, tuple(pages[:end]), begin, self.clock)
        self.numbers += 1
        self.nodes.append(node)
        self.give(node)
        while sum(len(n.path) - n.begin for n in self.nodes) > self.device_pages:
            leaves = [n for n in self.nodes if self.leaf(n) and n.used != self.clock]
            if not leaves:
                break
            worst = min(leaves, key=lambda n: (n.used, n.number))
            worst.checkpoint = False
            if worst in self.order:
                self.order.remove(worst)
            self.prune(worst)
        return node

    def node(self, pages: list[int], end: int) -> NaiveNode:
        self.split(tuple(pages[:end]))
        return next(n for n in self.nodes if n.path == tuple(pages[:end]))

    def offer(self, node: NaiveNode, restored: int, prompt: int, now: float) -> None:
        end = len(node.path)
        new = [page for page in range(node.begin, end) if page >= restored]
        node.stored = self.policy.takes(
            int(now * 1000),
            self.checkpoints,
            linker.boundary(end * PAGE, prompt, PAGE),
            node.begin * PAGE,
            end * PAGE,
            kv_bytes=len(new) * self.kv,
            checkpoint_bytes=self.checkpoint if new else 0,
        )
        self.put(self.keys(list(node.path[node.begin :]), node.stored))

    def prefill(self, pages: list[int], prompt: int, now: float) -> tuple[int, int, int]:
        asked = min((prompt - 1) // PAGE, len(pages))
        kv = self.match(pages, asked)
        anchor = self.anchor(pages, kv)
        start = len(anchor.path) if anchor else 0
        if anchor and self.touch and self.touches.due(anchor.number, int(now * 1000), 30_000):
            self.touched(anchor, pages[:start])
        run = start
        while run < asked and ("kv", pages[run]) in self.store:
            run += 1
        hit = max([start, *(b for b in range(start + 1, run + 1) if ("checkpoint", pages[b - 1]) in self.store)])
        if hit > start and self.reads:
            self.refresh(self.keys(pages[start:hit], True))
        known = self.walk(pages, len(pages)) if kv == len(pages) - 1 else kv
        ends, begin = [], hit
        while begin < len(pages):
            end = min(begin + CHUNK_PAGES, len(pages))
            ends.append(kv if begin < kv < end else end)
            begin = end
        if hit == len(pages) and pages:
            ends = [hit]
        for at in ends:
            if at > known:
                self.offer(self.insert(pages, known, at), hit, len(pages) * PAGE, now)
                known = at
            else:
                self.give(self.node(pages, at))
        return asked, start, hit

    def touched(self, anchor: NaiveNode, pages: list[int]) -> None:
        self.refresh(self.keys(pages, True))
        if not self.rewrite:
            return
        there = [("kv", page) in self.store for page in pages]
        checkpoint = ("checkpoint", pages[-1]) in self.store if anchor.stored else None
        if not all(there) or checkpoint is False:
            again = linker.rewrite(there, checkpoint)
            keys: list[Key] = [("checkpoint", pages[-1])] if again.checkpoint else []
            self.put(keys + [("kv", pages[page]) for page in again.pages])

    def finish(self, pages: list[int], prompt_pages: int, prompt: int, now: float) -> None:
        kv = self.walk(pages, prompt_pages)
        if len(pages) > kv:
            self.offer(self.insert(pages, kv, len(pages)), 0, prompt, now)
