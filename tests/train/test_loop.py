"""The training: what an update is, what stops it, what it learns, and that it is always the same."""

import hashlib
import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

import heedful
from heedful import disk
from heedful.decode import generate, translate
from heedful.tasks import task
from heedful.train import loop, train
from heedful.train.checkpoint import Run
from heedful.train.measure import Measured
from tests.train.tiny import MODEL, WRITER, Quiet, config, left, metrics

GOLDEN = Path(__file__).parents[1] / "golden" / "training.json"
STILL = {**MODEL, "dropout": 0.0}


def losses(run):
    return [line["loss"] for line in metrics(run)]


# An update is the gradient of the mean over all real tokens, however it is computed.


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_batch_in_three_parts_is_the_batch(optimizer, smoothing, tmp_path):
    settings = {"model": STILL, "smoothing": smoothing, "optimizer": optimizer, "steps": 6, "translate": 0}
    one = train(config(tmp_path / "one", **settings), Quiet())
    three = train(config(tmp_path / "three", accumulate=3, **settings), Quiet())
    for a, b in zip(losses(one.folder), losses(three.folder), strict=True):
        assert a == pytest.approx(b, rel=1e-6)
    for a, b in zip(metrics(one.folder), metrics(three.folder), strict=True):
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-5)
    if optimizer == "sgd":
        # Adam divides a gradient by its size, and that of key biases is rounding alone.
        for a, b in zip(one.model.parameters(), three.model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_parts_with_fewer_rows_than_there_are_parts(tmp_path):
    """Rows of padding fill them up, and change nothing."""
    settings = {"model": STILL, "steps": 3, "batch": 30, "translate": 0}
    one = train(config(tmp_path / "one", **settings), Quiet())
    five = train(config(tmp_path / "five", accumulate=5, **settings), Quiet())
    assert losses(one.folder) == pytest.approx(losses(five.folder), rel=1e-6)


def test_the_first_loss_is_what_a_plain_loop_computes(tmp_path):
    """In float64, sentence by sentence without any padding, with the smoothing spelled out."""
    # One batch of all texts, and weights that stay what they were.
    settings = config(tmp_path / "run", model=STILL, steps=1, batch=4096, rate=1e-30)
    outcome = train(settings, Quiet())
    model, tokenizer = outcome.model.double(), outcome.model.tokenizer
    special, total, tokens = outcome.model.generation, 0.0, 0
    for pair in task("copy").training(24, settings.seed):
        source, target = (tokenizer.encode(text).ids for text in pair)
        with torch.no_grad():
            logits = model(torch.tensor([[*source, special["end"]]]), torch.tensor([[special["start"], *target]]))[0]
        for said, label in zip(logits, [*target, special["end"]], strict=True):
            logs = [value - math.log(sum(math.exp(v) for v in said.tolist())) for value in said.tolist()]
            total -= 0.9 * logs[label] + 0.1 * sum(logs) / len(logs)
            tokens += 1
    assert losses(outcome.folder) == pytest.approx([total / tokens], rel=1e-6)
    assert outcome.state.tokens == tokens


# Values that are no numbers.


def broken_at(step, break_it):
    """A report that breaks the model after so many steps; `break_it(model)`. With 0, before the first."""
    report = Quiet()
    report.at[step] = lambda: break_it(report.model)
    return report


def nan_from(path):
    """What the module at `path` says is NaN from now on."""

    def break_it(model):
        model.get_submodule(path).register_forward_hook(lambda module, given, said: said * math.nan)

    return break_it


def nan_where_first(path):
    """What the module at `path` says is NaN for what it is first asked from now on, and right for all else."""

    def break_it(model):
        first = []

        def hooked(module, given, said):
            first.append(given[0])
            return said * math.nan if torch.equal(given[0], first[0]) else said

        model.get_submodule(path).register_forward_hook(hooked)

    return break_it


def inf_in(path):
    def break_it(model):
        model.get_parameter(path).data.view(-1)[3] = math.inf

    return break_it


def nan_gradient_at(path):
    """What the module at `path` says is right, and its gradient NaN."""

    def break_it(model):
        def hooked(module, given, said):
            if said.requires_grad:
                said.register_hook(lambda gradient: gradient * math.nan)

        model.get_submodule(path).register_forward_hook(hooked)

    return break_it


WAYS = {
    "weights": (inf_in("decoder.layers.0.feedforward.branch.up.weight"), ["decoder.layers.0.feedforward.up.weight"]),
    "layer": (nan_from("encoder.layers.0.feedforward.branch"), ["encoder.layers.0.feedforward.branch is the first"]),
    "embedding": (nan_from("encoder.embedding.tokens"), ["encoder.embedding.tokens is the first"]),
    "logits": (nan_from("decoder.head"), ["logits is the first that is not finite"]),
    "gradient": (
        nan_gradient_at("encoder.layers.0.attention.branch"),
        ["the gradient of encoder.layers.0.attention.out.bias is the first"],
    ),
}


@pytest.mark.parametrize("settings", [{}, {"precision": "bf16"}, {"accumulate": 2}], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_what_is_not_finite_stops_the_run_at_that_step_and_names_the_layer(way, settings, tmp_path):
    break_it, names = WAYS[way]
    run = tmp_path / "run"
    weights = {}

    def now(model):
        break_it(model)
        weights.update({name: p.clone() for name, p in model.named_parameters()})

    report = broken_at(4, now)
    with pytest.raises(ValueError, match=r"^step 5 \(batch 1 of epoch 2\)") as error:
        train(config(run, **settings), report)
    for words in [*names, "weights were not changed", str(run)]:
        assert words in str(error.value)
    for name, p in report.model.named_parameters():
        assert torch.equal(p, weights[name]), name
    assert len(metrics(run)) == 4
    assert (run / "latest").resolve().name == "step-00000003"
    assert all(p.isfinite().all() for p in heedful.load(run / "latest").parameters())


def test_of_two_parts_of_a_batch_the_first_may_be_the_one(tmp_path):
    report = broken_at(4, nan_where_first("encoder.embedding.tokens"))
    with pytest.raises(ValueError, match=r"step 5 .*encoder\.embedding\.tokens is the first"):
        train(config(tmp_path / "run", accumulate=2), report)


@pytest.mark.parametrize("rate", [1e30, 3e38])
def test_a_rate_that_is_far_too_high(rate, tmp_path):
    """Either the weights overflow, or what is computed with them."""
    settings = config(tmp_path / "run", rate=rate, schedule="constant", warmup=0, clip=0.0)
    with pytest.raises(ValueError, match=r"step 2 .*(not finite).*Try a lower rate"):
        train(settings, Quiet())
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


def test_gradients_that_are_finite_one_by_one_and_not_together(tmp_path):
    def break_it(model):
        model.get_parameter("decoder.head.bias").register_hook(lambda gradient: gradient * 0 + 1e30)

    with pytest.raises(ValueError, match=r"step 5 .*norm of the gradients inf.*every value of this process is finite"):
        train(config(tmp_path / "run", clip=0.0), broken_at(4, break_it))


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    run = tmp_path / "run"
    with pytest.raises(ValueError, match=r"step 5: the weights of decoder\.head\.bias are not finite"):
        train(config(run), broken_at(5, inf_in("decoder.head.bias")))
    assert (run / "latest").resolve().name == "step-00000003"
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000003"]


def test_a_measurement_that_is_not_finite_stops_the_run(tmp_path):
    """The weights overflow in the very update after which they are measured."""
    settings = config(tmp_path / "run", rate=3e38, schedule="constant", warmup=0, clip=0.0, evaluate_every=1)
    with pytest.raises(ValueError, match="the loss on what was held out is nan"):
        train(settings, Quiet())
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


# What is learned.


def test_sixteen_dates_are_learned_by_heart_in_300_steps(tmp_path):
    outcome = train(
        config(
            tmp_path / "run",
            task="dates-de",
            examples=16,
            batch=4096,
            model={"width": 32, "depth": 1, "heads": 4, "inner": 128, "dropout": 0.0},
            steps=300,
            rate=5e-3,
            smoothing=0.0,
            evaluate_every=300,
            save_every=300,
        ),
        Quiet(),
    )
    pairs = task("dates-de").training(16, 1)
    assert translate(outcome.model, [pair.source for pair in pairs], beams=1) == [pair.target for pair in pairs]


def documents(folder):
    """16 short texts that differ in their first words."""
    texts = [f"{a}{a}: {'cat' if n % 2 else 'dog'} {n} {a}." for n, a in enumerate("abcdefghijklmnop")]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return texts


def test_sixteen_documents_are_learned_by_heart_in_300_steps(tmp_path):
    texts = documents(tmp_path)
    outcome = train(
        config(
            tmp_path / "run",
            text=str(tmp_path / "texts.jsonl"),
            valid_text=str(tmp_path / "texts.jsonl"),
            batch=4096,
            model={**WRITER, "width": 32, "dropout": 0.0},
            steps=150,
            rate=1e-2,
            smoothing=0.0,
            longest=32,
            evaluate_every=150,
            save_every=150,
        ),
        Quiet(),
    )
    begun = [text[:3] for text in texts]
    said = generate(outcome.model, begun, temperature=0, length=30)
    assert [a + b for a, b in zip(begun, said, strict=True)] == texts


def test_the_golden_run(tmp_path):
    """100 steps whose losses were written down."""
    golden = json.loads(GOLDEN.read_text())
    if not torch.__version__.startswith(golden["torch"]):
        pytest.skip(f"the losses are those of PyTorch {golden['torch']}")
    run = train(config(tmp_path / "run", **golden["settings"]), Quiet()).folder
    assert losses(run) == pytest.approx(golden["losses"], abs=1e-4)


def test_the_same_seed_the_same_weights(tmp_path):
    def weights(name, **settings):
        train(config(tmp_path / name, **settings), Quiet())
        return hashlib.sha256((tmp_path / name / "latest" / "model.safetensors").read_bytes()).hexdigest()

    one = weights("one")
    assert one == weights("two", seed=1)
    assert one != weights("three", seed=2)


def test_what_is_done_beside_the_training_changes_nothing_of_it(tmp_path):
    """Measuring, translating, saving, and how often."""
    train(config(tmp_path / "one"), Quiet())
    train(config(tmp_path / "two", evaluate_every=1, save_every=1, translate=0, keep=1), Quiet())
    one, two = left(tmp_path / "one")[0], left(tmp_path / "two")[0]
    assert one == two


# When it ends, and what stays.


def test_patience_stops_after_so_many_measurements_without_a_better_one(tmp_path, monkeypatch):
    figures = iter([3.0, 2.0, 2.5, 2.5, *[1.0] * 5])
    monkeypatch.setattr(loop, "measure", lambda *given: Measured(next(figures)))
    outcome = train(config(tmp_path / "run", steps=50, evaluate_every=2, save_every=1000, patience=2), Quiet())
    assert outcome.state.step == 8
    assert (outcome.state.best_step, outcome.state.worse) == (4, 2)
    assert (tmp_path / "run" / "latest").resolve().name == "step-00000008"
    assert (tmp_path / "run" / "best").resolve().name == "step-00000004"
    # Asked to go on, it has nothing more to do; with more patience it has.
    assert train(config(tmp_path / "run", steps=50, patience=2, resume="auto"), Quiet()).state.step == 8
    more = train(
        config(tmp_path / "run", steps=50, evaluate_every=2, save_every=1000, patience=4, resume="auto"), Quiet()
    )
    assert (more.state.step, more.state.best_step) == (18, 10)


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_latest_checkpoints_stay_and_the_best(keep, tmp_path, monkeypatch):
    figures = iter([3.0, 1.0, *[2.0] * 10])
    monkeypatch.setattr(loop, "measure", lambda *given: Measured(next(figures)))
    run = train(config(tmp_path / "run", evaluate_every=1, save_every=1, keep=keep), Quiet()).folder
    assert Run(run).steps() == [*range(12, 12 - keep, -1), 2]
    assert (run / "best").resolve().name == "step-00000002"
    assert heedful.load(run).state_dict().keys() == heedful.load(run / "best").state_dict().keys()


def test_a_line_a_step(tmp_path):
    run = train(config(tmp_path / "run", evaluate_every=5, schedule="constant", warmup=4), Quiet()).folder
    lines = metrics(run, timed=True)
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert all({"step", "loss", "lr", "grad_norm", "tokens_per_s"} <= set(line) for line in lines)
    assert [line["lr"] for line in lines[:5]] == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01])
    measured = {"valid_loss", "perplexity", "bleu", "chrf", "exact_match"}
    assert [line["step"] for line in lines if measured <= set(line)] == [5, 10, 12]
    assert not any(measured & set(line) for line in lines if line["step"] not in (5, 10, 12))
    assert all(math.isfinite(value) for line in lines for value in line.values())


def test_a_finished_run_that_gets_more_steps_goes_on(tmp_path):
    train(config(tmp_path / "run", steps=3), Quiet())
    outcome = train(config(tmp_path / "run", steps=6, resume="auto"), Quiet())
    assert outcome.state.step == 6
    assert [line["step"] for line in metrics(outcome.folder)] == [1, 2, 3, 4, 5, 6]


def test_tensorboard_shows_what_the_lines_say(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config(run, tensorboard=True), Quiet({8: interrupt}))
    # Steps 6, 7 and 8 are taken back.
    train(config(run, tensorboard=True, resume="auto"), Quiet())
    shown = EventAccumulator(str(run / "tensorboard"))
    shown.Reload()
    lines = metrics(run, timed=True)
    assert set(shown.Tags()["scalars"]) == {name for line in lines for name in line} - {"step"}
    for name in shown.Tags()["scalars"]:
        events = {event.step: event.value for event in shown.Scalars(name)}
        assert len(events) == len(shown.Scalars(name)), "no step stands twice"
        told = {line["step"]: line[name] for line in lines if name in line}
        assert events == pytest.approx(told, rel=1e-6), name


def test_what_a_run_saves_is_whole(tmp_path):
    run = train(config(tmp_path / "run"), Quiet()).folder
    for step in Run(run).steps():
        folder = Run(run).checkpoint(step)
        listed = disk.manifest(folder)
        assert {"model.safetensors", "optimizer.safetensors", "trainer_state.json", "tokenizer.json"} <= set(listed)
        disk.check(folder, listed)


def test_the_trained_model_is_ready_to_be_used(tmp_path):
    outcome = train(config(tmp_path / "run"), Quiet())
    assert not outcome.model.training
    assert isinstance(outcome.model, nn.Module)
    assert outcome.model.recipe == heedful.load(outcome.folder / "latest").recipe
