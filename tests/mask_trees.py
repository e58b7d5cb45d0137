"""Random mask expressions beside a slow evaluator that knows nothing of heedful's simplifications.

Every node carries two things: the mask that heedful makes, and a plain Python function of (b, h, i, j).
The function follows the expression as it was written, one pair at a time.
"""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from heedful.mask import Mask, band, causal, everything, inf, key, nothing, query, same, window


class Node(NamedTuple):
    mask: Mask
    says: Callable[[int, int, int, int], bool]
    text: str


Entry = Callable[[int, int, int], Any]


class World:
    """Sizes, positions and tables of one case."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.rows, self.heads = rng.randint(1, 3), rng.randint(1, 3)
        self.keys = rng.choice([0, 1, 2, 3, 3, 4, 4, 5, 5, 6])
        self.queries = self.keys if rng.random() < 0.4 else rng.choice([0, 1, 1, 2, 2, 3, 3, 4, 4, 5])
        self.q_at, self.q_position = self.positions(self.queries)
        self.k_at, self.k_position = self.positions(self.keys)
        self.tables: dict[str, Any] = {}
        self.entries: dict[str, tuple[Entry, Entry]] = {}
        for name, labels in (("valid", False), ("open", False), ("document", True), ("bucket", True)):
            q_table, q_entry = self.table(self.queries, labels)
            k_table, k_entry = self.table(self.keys, labels)
            if self.queries == self.keys and rng.random() < 0.5:
                self.tables[name], self.entries[name] = k_table, (k_entry, k_entry)
            else:
                self.tables[name], self.entries[name] = (q_table, k_table), (q_entry, k_entry)

    def positions(self, length: int) -> tuple[torch.Tensor | int, Callable[[int, int], int]]:
        """As `dense` takes them, and as a function of row and slot."""
        kind = self.rng.choice(["length", "one row", "every row"])
        if kind == "length":
            return length, lambda b, slot: slot
        rows = [[self.rng.randint(-3, 8) for _ in range(length)] for _ in range(self.rows)]
        dtype = self.rng.choice([torch.int64, torch.int32])
        if kind == "one row":
            return torch.tensor(rows[0], dtype=dtype), lambda b, slot: rows[0][slot]
        return torch.tensor(rows, dtype=dtype), lambda b, slot: rows[b][slot]

    def table(self, length: int, labels: bool) -> tuple[torch.Tensor, Entry]:
        """A table of a random shape, and its entry for a row, a head and a slot."""

        def line() -> list[Any]:
            return [self.rng.randint(0, 2) if labels else self.rng.random() < 0.6 for _ in range(length)]

        dtype = torch.int64 if labels else torch.bool
        dims = self.rng.choice([1, 2, 3, 3])
        if dims == 1:
            flat = line()
            return torch.tensor(flat, dtype=dtype), lambda b, h, slot: flat[slot]
        rows = self.rng.choice([1, self.rows])
        if dims == 2:
            grid = [line() for _ in range(rows)]
            return torch.tensor(grid, dtype=dtype), lambda b, h, slot: grid[b if rows > 1 else 0][slot]
        heads = self.rng.choice([1, self.heads])
        cube = [[line() for _ in range(heads)] for _ in range(rows)]
        return (
            torch.tensor(cube, dtype=dtype),
            lambda b, h, slot: cube[b if rows > 1 else 0][h if heads > 1 else 0][slot],
        )

    def distance(self, b: int, i: int, j: int) -> int:
        return self.q_position(b, i) - self.k_position(b, j)

    # The atoms, one method each.

    def everything(self) -> Node:
        return Node(everything, lambda b, h, i, j: True, "everything")

    def nothing(self) -> Node:
        return Node(nothing, lambda b, h, i, j: False, "nothing")

    def causal(self) -> Node:
        return Node(causal, lambda b, h, i, j: self.distance(b, i, j) >= 0, "causal")

    def window(self) -> Node:
        reach = self.rng.randint(0, 4)
        return Node(window(reach), lambda b, h, i, j: abs(self.distance(b, i, j)) <= reach, f"window({reach})")

    def band(self) -> Node:
        lo = self.rng.choice([-inf, *range(-5, 5), inf])
        hi = self.rng.choice([-inf, *range(-4, 6), inf, inf])
        return Node(band(lo, hi), lambda b, h, i, j: lo <= self.distance(b, i, j) <= hi, f"band({lo}, {hi})")

    def key(self) -> Node:
        if self.rng.random() < 0.5:
            name = self.rng.choice(["valid", "open"])
            _, entry = self.entries[name]
            return Node(key(name), lambda b, h, i, j: entry(b, h, j), f"key({name})")
        table, given = self.table(self.keys, labels=False)
        return Node(key(table), lambda b, h, i, j: given(b, h, j), f"key({table.tolist()})")

    def lengths(self) -> Node:
        counts = [self.rng.randint(0, self.keys) for _ in range(self.rows)]
        given = torch.tensor(counts) if self.rng.random() < 0.5 else counts
        return Node(key(lengths=given), lambda b, h, i, j: j < counts[b], f"key(lengths={counts})")

    def query(self) -> Node:
        if self.rng.random() < 0.5:
            name = self.rng.choice(["valid", "open"])
            entry, _ = self.entries[name]
            return Node(query(name), lambda b, h, i, j: entry(b, h, i), f"query({name})")
        table, given = self.table(self.queries, labels=False)
        return Node(query(table), lambda b, h, i, j: given(b, h, i), f"query({table.tolist()})")

    def same(self) -> Node:
        kind = self.rng.choice(["one name", "two names", "tensors"])
        if kind == "tensors":
            q_table, q_entry = self.table(self.queries, labels=True)
            k_table, k_entry = self.table(self.keys, labels=True)
            text = f"same({q_table.tolist()}, {k_table.tolist()})"
            return Node(same(q_table, k_table), lambda b, h, i, j: q_entry(b, h, i) == k_entry(b, h, j), text)
        q_name = self.rng.choice(["document", "bucket"])
        k_name = q_name if kind == "one name" else self.rng.choice(["document", "bucket"])
        mask = same(q_name) if kind == "one name" else same(q_name, k_name)
        q_named, k_named = self.entries[q_name][0], self.entries[k_name][1]
        return Node(mask, lambda b, h, i, j: q_named(b, h, i) == k_named(b, h, j), f"same({q_name}, {k_name})")


TABLES = ["key", "key", "key", "lengths", "query", "query", "query", "same", "same", "same"]
ATOMS = ["everything", "nothing", "causal", "causal", "window", "band", "band", *TABLES]


def tree(world: World, depth: int, pool: list[Node]) -> Node:
    """A random expression; parts come again now and then, so that they can cancel and absorb."""
    rng = world.rng
    if pool and rng.random() < 0.2:
        return rng.choice(pool)
    if depth == 0 or rng.random() < 0.1:
        node = getattr(world, rng.choice(ATOMS))()
    else:
        left = tree(world, depth - 1, pool)
        kind = rng.choice(["and", "or", "not"])
        if kind == "not":
            node = Node(~left.mask, lambda b, h, i, j: not left.says(b, h, i, j), f"~({left.text})")
        else:
            right = tree(world, depth - 1, pool)
            if kind == "and":
                mask = left.mask & right.mask
                node = Node(
                    mask,
                    lambda b, h, i, j: left.says(b, h, i, j) and right.says(b, h, i, j),
                    f"({left.text}) & ({right.text})",
                )
            else:
                mask = left.mask | right.mask
                node = Node(
                    mask,
                    lambda b, h, i, j: left.says(b, h, i, j) or right.says(b, h, i, j),
                    f"({left.text}) | ({right.text})",
                )
    pool.append(node)
    return node


def slowly(world: World, node: Node) -> list[list[list[list[bool]]]]:
    """Ask about one pair after another."""
    return [
        [
            [[bool(node.says(b, h, i, j)) for j in range(world.keys)] for i in range(world.queries)]
            for h in range(world.heads)
        ]
        for b in range(world.rows)
    ]


def check_trees(count: int, seed: int) -> Counter[str]:
    """Compare `count` random trees with the slow evaluator; say how often each kind of answer came up."""
    seen: Counter[str] = Counter()
    for number in range(count):
        world = World(random.Random(f"{seed} {number}"))
        node = tree(world, world.rng.randint(1, 4), [])
        shape = (world.rows, world.heads, world.queries, world.keys)
        about = f"seed {seed}, tree {number}, {shape}: {node.text} became {node.mask!r}"
        try:
            dense = node.mask.dense(world.q_at, world.k_at, world.tables).broadcast_to(shape)
        except Exception as error:
            raise AssertionError(about) from error
        truth = torch.tensor(slowly(world, node), dtype=torch.bool).reshape(shape)
        assert dense.dtype == torch.bool, about
        assert torch.equal(dense, truth), about
        if not node.mask.looks_ahead:
            for b, _, i, j in truth.nonzero().tolist():
                assert world.distance(b, i, j) >= 0, f"looks ahead after all: {about}"
            seen["never looks ahead"] += 1
        seen["mixed" if truth.any() and not truth.all() else "all" if truth.numel() and truth.all() else "none"] += 1
        seen["empty"] += not truth.numel()
        seen["rows differ"] += bool((truth != truth[:1]).any())
        seen["heads differ"] += bool((truth != truth[:, :1]).any())
        for atom in node.mask.atoms:
            seen[type(atom).__name__] += 1
    return seen
