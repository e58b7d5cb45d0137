"""A run that was stopped and goes on is the run that never stopped, bit for bit."""

import dataclasses
import itertools
import signal
import threading

import numpy as np
import pytest

from heedful.data.batch import Packed, Padded, Shape, Special, Windows
from heedful.data.ragged import Ragged
from heedful.train import train
from heedful.train.checkpoint import State
from heedful.train.loop import batches
from heedful.train.signals import Stopped
from tests.train.tiny import Quiet, config, left, metrics

# Steps of a run of 12, 4 to an epoch: the first, in the middle of an epoch, at its end, in the second, the last; and
# several stops of one run.
STOPS = [[1], [2], [4], [6], [8], [12], [1, 2], [3, 7], [4, 8, 11]]


class PulledError(Exception):
    """Somebody pulled the plug."""


def pull():
    raise PulledError


def ask(number=signal.SIGTERM):
    return lambda: signal.raise_signal(number)


def stopped(settings, stops, ending=Stopped, action=None):
    """Train, end at each of these steps, and go on."""
    for stop in stops:
        with pytest.raises(ending):
            train(settings, Quiet({stop: action or ask()}))
        settings = dataclasses.replace(settings, resume="auto")
    train(settings, Quiet())


@pytest.fixture(scope="module")
def never(tmp_path_factory):
    """What runs leave that were not stopped, by their settings."""
    known = {}

    def made(**settings):
        key = repr(settings)
        if key not in known:
            run = tmp_path_factory.mktemp("never") / "run"
            train(config(run, **settings), Quiet())
            known[key] = left(run), left(run, "best")
        return known[key]

    return made


def test_the_run_below_has_three_epochs_and_a_best_checkpoint_that_is_not_its_last(tmp_path):
    report = Quiet()
    train(config(tmp_path / "run", patience=100, rate=0.3), report)
    assert [epoch for epoch, _ in report.places] == [0] * 4 + [1] * 4 + [2] * 4
    _, state, _, links = left(tmp_path / "run")
    assert 0 < state["best_step"] < 12
    assert links["best"] != links["latest"]


@pytest.mark.parametrize("stops", STOPS, ids=str)
def test_stopped_by_a_signal_and_gone_on_is_never_stopped(stops, never, tmp_path):
    stopped(config(tmp_path / "run", rate=0.3), stops)
    assert left(tmp_path / "run") == never(rate=0.3)[0]
    assert left(tmp_path / "run", "best") == never(rate=0.3)[1]


@pytest.mark.parametrize("stops", [[2], [5], [7, 11]], ids=str)
def test_ended_by_an_exception_and_gone_on_from_an_earlier_checkpoint_is_never_stopped(stops, never, tmp_path):
    stopped(config(tmp_path / "run"), stops, PulledError, pull)
    assert left(tmp_path / "run") == never()[0]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_with_other_optimizers(optimizer, never, tmp_path):
    stopped(config(tmp_path / "run", optimizer=optimizer), [5])
    assert left(tmp_path / "run") == never(optimizer=optimizer)[0]


@pytest.mark.parametrize("stops", [[2], [6, 9]], ids=str)
def test_with_accumulation_and_packed_batches(stops, never, tmp_path):
    stopped(config(tmp_path / "run", accumulate=2, pack=None), stops)
    assert left(tmp_path / "run") == never(accumulate=2, pack=None)[0]


def test_a_language_model_on_one_text_and_one_of_documents(never, tmp_path):
    text, documents = tmp_path / "a.txt", tmp_path / "a.jsonl"
    lines = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog sat"] * 6
    text.write_text("\n".join(lines) + "\n")
    documents.write_text("".join(f'{{"text": "{line} {n}"}}\n' for n, line in enumerate(lines)))
    for name, settings in {
        "windows": {"text": str(text), "longest": 16},
        "padded": {"text": str(documents), "longest": 32},
        "packed": {"text": str(documents), "pack": 40},
    }.items():
        stopped(config(tmp_path / name, **settings), [3, 7])
        assert left(tmp_path / name) == never(**settings)[0], name


@pytest.mark.parametrize("workers", [(0, 1), (4, 0)], ids=str)
def test_with_workers_beside_it_however_many_they_are(workers, never, tmp_path, capfd):
    before, after = workers
    with pytest.raises(Stopped):
        train(config(tmp_path / "run", workers=before), Quiet({6: ask()}))
    train(config(tmp_path / "run", workers=after, resume="auto"), Quiet())
    assert left(tmp_path / "run") == never()[0]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_within_the_step_and_says_how_to_go_on(number, tmp_path):
    run = tmp_path / "a run"
    with pytest.raises(Stopped, match=f"heedful train --out '{run}' --resume auto") as ended:
        train(config(run), Quiet({1: ask(number)}))
    assert ended.value.signal == number
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000001"]
    assert len(metrics(run)) == 1


def test_a_second_interrupt_ends_at_once(tmp_path):
    def twice():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(config(tmp_path / "run"), Quiet({2: twice}))
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


def test_the_signals_mean_afterwards_what_they_meant_before(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    train(config(tmp_path / "run", steps=2), Quiet())
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_in_a_thread_that_hears_no_signals_it_trains_as_well(never, tmp_path):
    thread = threading.Thread(target=lambda: train(config(tmp_path / "run"), Quiet()))
    thread.start()
    thread.join()
    assert left(tmp_path / "run") == never()[0]


# The order of the batches.

TEXTS = Ragged([list(range(n % 7 + 1)) for n in range(40)])
CORPORA = {
    "padded": Padded(None, TEXTS, Special(0, 1, 2), Shape(24)),
    "packed": Packed(None, TEXTS, Special(0, 1, 2), Shape(24), 12),
    "windows": Windows(np.arange(200, dtype=np.int32), 9, Shape(24)),
}


def listed(batch):
    return {name: t.tolist() for name, t in batch.inputs.items()}, batch.labels.tolist()


@pytest.mark.parametrize("name", CORPORA)
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_from_the_middle_are_the_rest_of_those_from_the_beginning(name, workers):
    corpus, settings = CORPORA[name], config("run", seed=3, workers=workers)
    whole = list(itertools.islice(batches(corpus, config("run", seed=3), State()), 30))
    assert {epoch for epoch, _, _ in whole} >= {0, 1}
    for begin in (0, 7, 13):
        at = State()
        if begin:
            epoch, position, _ = whole[begin - 1]
            at.go_on(begin, epoch, position, 0, 0.0)
        rest = list(itertools.islice(batches(corpus, settings, at), 30 - begin))
        for one, other in zip(whole[begin:], rest, strict=True):
            assert one[:2] == tuple(other[:2])
            assert listed(one[2]) == listed(other[2])
