"""One token after another: the likeliest, or drawn by chance.

    for tokens in sample(stepper, end=[2]):                                       # greedy
    for tokens in sample(stepper, rules=[top_p(0.9)], choose=drawn(seed=3)):      # by chance

Each step gives a list: the token of each row, None where the row has ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from heedful.decode.logits import Rule
from heedful.decode.step import Stepper

# (logits, the number of each row) -> a token for each row
Choose = Callable[[Tensor, Sequence[int]], Tensor]


def greedy(logits: Tensor, rows: Sequence[int]) -> Tensor:
    """The likeliest; of two that are level, the one with the smaller id."""
    return logits.argmax(-1)


def drawn(seed: int = 0, numbers: Sequence[int] | None = None) -> Choose:
    """token ~ softmax(logits). Each row has a chance of its own, so what is beside it changes nothing.

    numbers   of each row, for its chance: its place in the batch if not given
    """
    chances: dict[int, torch.Generator] = {}

    def choose(logits: Tensor, rows: Sequence[int]) -> Tensor:
        for row in rows:
            if row not in chances:
                chances[row] = torch.Generator("cpu").manual_seed(
                    _mixed(seed, row if numbers is None else numbers[row])
                )
        points = [torch.rand((), dtype=torch.float64, device="cpu", generator=chances[row]) for row in rows]
        upto = logits.softmax(-1).cumsum(-1, dtype=torch.float64)
        # One point below the total: where it falls is the token. A token of no probability has no room for it.
        point = torch.stack(points).to(logits.device)[:, None] * upto[:, -1:]
        return torch.searchsorted(upto, point, right=True)[:, 0]

    return choose


def _mixed(seed: int, number: int) -> int:
    """Seeds of neighbours must not be neighbours: generators that begin alike go on alike for a while."""
    digest = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def sample(
    stepper: Stepper,
    *,
    end: Collection[int] = (),
    rules: Sequence[Rule] = (),
    choose: Choose = greedy,
    until: Callable[[int, int], bool] | None = None,
) -> Iterator[list[int | None]]:
    """Write until each row has said one of `end`, or filled its room; the end token is said, too.

    until   (row, token) -> bool, asked once for each token: whether that row ends with it, whatever the token is
    """
    room = stepper.room
    rows = list(range(stepper.rows))  # those that are still stepped
    ended = [False] * stepper.rows
    said = 0
    while True:
        logits = stepper.logits
        for rule in rules:
            logits = rule(logits)
        tokens = choose(logits, rows)
        said += 1
        step: list[int | None] = [None] * len(room)
        for row, token in zip(rows, tokens.tolist(), strict=True):
            if not ended[row]:
                step[row] = token
                enough = until is not None and until(row, token)
                ended[row] = enough or token in end or said == room[row]
        yield step
        if all(ended):
            return
        alive = [place for place, row in enumerate(rows) if not ended[row]]
        # Moving rows costs, stepping rows that have ended costs: a quarter of them pays.
        # Where a row's room ends its positions may end as well, so it goes at once.
        spent = any(said >= room[row] for row in rows)
        if spent or 4 * len(alive) <= 3 * len(rows):
            kept = torch.tensor(alive, device=tokens.device)
            stepper.select(kept)
            tokens, rows = tokens[kept], [rows[place] for place in alive]
        stepper.step(tokens)


def collected(steps: Iterable[list[int | None]]) -> list[list[int]]:
    """All that each row has said."""
    texts: list[list[int]] = []
    for step in steps:
        texts = texts or [[] for _ in step]
        for text, token in zip(texts, step, strict=True):
            if token is not None:
                text.append(token)
    return texts
