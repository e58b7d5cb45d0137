"""What holds of every task: distinct, even, repeatable, and what is held out is never trained on."""

import dataclasses
import os
import random
import subprocess
import sys
from collections import Counter

import pytest

from heedful.tasks import TASKS, Pair, Task, task

every_task = pytest.mark.parametrize("name", TASKS)
every_family = pytest.mark.parametrize("name", ["numbers-de-fr", "dates-zh", "copy", "reverse", "sort", "recall"])


def figures(*kinds):
    """A task with these examples, which says their numbers."""
    return Task("figures", "say a number again", kinds, lambda number: Pair(str(number), str(number)))


def most(one):
    """How many held-out examples a small task has, as its error says."""
    with pytest.raises(ValueError, match=f"50000 held-out examples of {one.name} are asked for.*there are") as error:
        one.held_out(50_000, seed=0)
    return int(str(error.value).split()[-1])


@every_task
def test_what_a_task_says_of_itself(name):
    one = task(name)
    assert one.name == name
    assert 0 < len(one.says) < 80
    assert one.says.isprintable()


@every_task
def test_pairs_are_one_line_of_text_each(name):
    for pair in (*task(name).training(100, seed=0), *task(name).held_out(100, seed=0)):
        assert isinstance(pair, Pair)
        assert all(text and text == text.strip() and text.isprintable() for text in pair)


@every_task
def test_what_is_held_out_is_never_trained_on(name):
    one = task(name)
    held_out = {pair.source for seed in range(2) for pair in one.held_out(1000, seed)}
    trained = {pair.source for seed in range(3) for pair in one.training(4000, seed)}
    assert not held_out & trained


@every_family
def test_every_example_is_trained_on_or_held_out(name):
    """Of the first 3,000 of two kinds: where all is drawn that can be, a wrong split shows."""
    one = task(name)
    kinds = tuple(kind[:3000] for kind in one.kinds if len(kind) >= 1000)[:2]
    few = dataclasses.replace(one, kinds=kinds)
    every = {few.pair(number).source for kind in kinds for number in kind}
    held_out = {pair.source for pair in few.held_out(most(few), seed=0)}
    trained = {pair.source for pair in few.training(30_000, seed=0)}
    assert not held_out & trained
    assert held_out | trained <= every
    # Of 2,700 to draw in a kind, 15,000 draws miss 0.4 %; an even share of held-out ones leaves a few of them out.
    assert len(held_out | trained) > 0.96 * len(every)
    # One in ten of at least 3,000, one standard deviation 16.
    assert abs(len(held_out) - 0.1 * len(every)) < 0.03 * len(every)


@every_family
def test_the_same_count_and_seed_give_the_same_pairs(name):
    one = task(name)
    assert one.training(300, seed=7) == one.training(300, seed=7)
    assert one.training(300, seed=7)[:100] == one.training(100, seed=7)
    assert one.training(300, seed=7) != one.training(300, seed=8)
    assert one.held_out(300, seed=7) == one.held_out(300, seed=7)
    assert one.held_out(300, seed=7) != one.held_out(300, seed=8)


def test_another_process_draws_the_same():
    code = "from heedful.tasks import TASKS; print([(t.training(9, 1), t.held_out(9, 1)) for t in TASKS.values()])"
    here = str([(one.training(9, 1), one.held_out(9, 1)) for one in TASKS.values()])
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, check=True)
        assert done.stdout.decode("utf-8").strip() == here


@every_task
def test_held_out_pairs_are_distinct(name):
    assert len({pair.source for pair in task(name).held_out(2000, seed=0)}) == 2000


def test_held_out_kinds_come_evenly():
    one = figures(range(500), range(1000, 5000), range(10_000, 90_000), range(100_000, 900_000))
    for count in (0, 1, 2, 3, 100, 500):
        numbers = [int(pair.source) for pair in one.held_out(count, seed=0)]
        of_length = Counter(len(str(number)) for number in numbers)
        assert sum(of_length.values()) == len(set(numbers)) == count
        shares = [of_length[length] for length in (4, 5, 6)]
        assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("small", [1000, 1001, 1500, 4000])
@pytest.mark.parametrize("beside", [[], [range(10_000, 60_000)], [range(10_000, 11_000), range(20_000, 21_003)]])
def test_as_many_are_held_out_as_there_are_and_no_more(small, beside):
    one = figures(range(2000, 2000 + small), *beside)
    there = most(one)
    held_out = {int(pair.source) for pair in one.held_out(there, seed=0)}
    assert len(held_out) == there
    assert one.held_out(there, seed=0) != one.held_out(there, seed=1)
    with pytest.raises(ValueError, match=f"{there + 1} held-out examples of figures .* there are {there}$"):
        one.held_out(there + 1, seed=0)
    for asked in (there + 2, 10**12):
        with pytest.raises(ValueError, match=f"there are {there}$"):
            one.held_out(asked, seed=9)


def test_all_that_is_held_out_can_be_had():
    one = figures(range(2000, 4000))
    held_out = {int(pair.source) for pair in one.held_out(most(one), seed=0)}
    trained = {int(pair.source) for pair in one.training(60_000, seed=0)}
    assert not held_out & trained
    assert held_out | trained == set(range(2000, 4000))


def test_kinds_of_few_examples_are_for_training():
    one = figures(range(10), range(100, 1099))
    assert {int(pair.source) for pair in one.training(30_000, seed=0)} == {*range(10), *range(100, 1099)}
    assert one.held_out(0, seed=0) == []
    with pytest.raises(ValueError, match=r"1 held-out examples of figures .* as many of each kind: there are 0$"):
        one.held_out(1, seed=0)


def test_kinds_are_drawn_evenly_whatever_their_size():
    """30,000 draws, 10,000 of each kind expected, one standard deviation 82; five of them are allowed.

    Were the kind drawn anew where an example is held out, the small one would come 10,700 times.
    """
    one = figures(range(10), range(1000, 3000), range(10_000, 90_000))
    rng = random.Random(0)
    drawn = Counter(len(str(one.draw(rng))) for _ in range(30_000))
    trained = Counter(len(pair.source) for pair in one.training(30_000, seed=0))
    for kinds in (drawn, trained):
        assert set(kinds) == {1, 4, 5}
        assert all(abs(count - 10_000) <= 410 for count in kinds.values()), kinds


def test_draw_is_not_restricted():
    one = figures(range(1000, 3000))
    rng = random.Random(0)
    drawn = {one.draw(rng) for _ in range(20_000)}
    assert {int(pair.source) for pair in one.held_out(100, seed=0)} <= drawn


@pytest.mark.parametrize("ask", [Task.training, Task.held_out])
def test_fewer_than_none_are_refused(ask):
    with pytest.raises(ValueError, match="-1 examples are asked for: give 0 or more"):
        ask(task("copy"), -1, seed=0)


def test_none_are_none():
    assert task("copy").training(0, seed=0) == task("copy").held_out(0, seed=0) == []


def test_a_name_that_is_no_task():
    with pytest.raises(ValueError, match='there is no task "number-en-de"; did you mean numbers-en-de or'):
        task("number-en-de")
    with pytest.raises(ValueError, match='there is no task "revers"; did you mean reverse'):
        task("revers")
    with pytest.raises(
        ValueError, match='there is no task "???"; these are: numbers-en-de, .*recall'.replace("?", r"\?")
    ):
        task("???")


def test_all_tasks():
    numbers = {name for name in TASKS if name.startswith("numbers-")}
    dates = {"dates-en", "dates-de", "dates-zh", "dates-fr"}
    assert set(TASKS) == numbers | dates | {"copy", "reverse", "sort", "recall"}
    assert len(numbers) == 12
