"""`note` and `listen`: paths, selection, answers."""

import threading

import pytest
import torch
from torch import nn

from heedful import Growing, listen, models, note
from heedful.trace import current, paths

IDS = torch.arange(6)[None]


def gpt(**more: object) -> nn.Module:
    return models.gpt(vocab=11, width=8, depth=3, heads=2, context=16, **more).eval()  # type: ignore[arg-type]


def test_note_returns_what_it_is_given_when_nobody_listens() -> None:
    x = torch.ones(2)
    assert note("x", x) is x
    assert current() is None


def test_paths_see_through_wrappers() -> None:
    with listen(gpt()) as trace:
        pass
    with listen(model := gpt()) as trace:
        model(IDS)
    heard = [path for path in trace if path.startswith("layers.1.")]
    assert heard == [
        *(f"layers.1.attention.{n}" for n in ("q", "k", "v", "scores", "weights", "heads", "out", "branch", "sum")),
        *(f"layers.1.feedforward.{n}" for n in ("inner", "out", "branch", "sum")),
    ]
    assert list(trace)[:3] == ["embedding.tokens", "embedding.position", "embedding.sum"]
    assert list(trace)[-2:] == ["norm", "logits"]


def test_paths_of_modules_are_those_of_the_trace() -> None:
    names = [path for path, _ in paths(gpt())]
    assert "layers.0.attention.query" in names
    assert "layers.0.attention_norm" in names
    assert not any("branch" in name for name in names)


def test_one_layer_alone_has_short_paths() -> None:
    model = gpt()
    layer = dict(paths(model))["layers.2.attention"]
    with listen(layer) as trace:
        layer(torch.randn(1, 4, 8))
    assert "weights" in trace
    with listen(model) as trace:
        layer(torch.randn(1, 4, 8))
    assert "layers.2.attention.weights" in trace


def test_layers_heads_and_names_are_selected() -> None:
    model = gpt()
    with listen(model) as every:
        model(IDS)
    with listen(model, only=["weights"], layers=[1], heads=[1]) as trace:
        model(IDS)
    assert list(trace) == ["layers.1.attention.weights"]
    assert trace["layers.1.attention.weights"].shape == (1, 1, 6, 6)
    assert torch.equal(trace["layers.1.attention.weights"][:, 0], every["layers.1.attention.weights"][:, 1])
    with listen(model, only=["layers.*.*.sum", "logits"]) as trace:
        model(IDS)
    assert len(list(trace)) == 7


def test_what_was_not_heard_is_said_with_what_was() -> None:
    with listen(model := gpt(), only=["logits"]) as trace:
        model(IDS)
    with pytest.raises(KeyError, match=r"nothing was heard at .*heard: logits"):
        trace["weights"]


def test_every_call_is_kept_and_the_last_is_shown() -> None:
    model = gpt()
    with listen(model, only=["logits"]) as trace, torch.no_grad():
        cache = Growing()
        model(IDS, cache=cache)
        model(IDS[:, :2], cache=cache)
    assert [y.shape[1] for y in trace.all("logits")] == [6, 2]
    assert trace["logits"].shape[1] == 2


def test_a_shared_block_is_heard_in_each_of_its_places() -> None:
    model = gpt()
    model.layers[1] = model.layers[2] = model.layers[0]  # type: ignore[operator, index]
    with listen(model, only=["attention.sum"]) as trace:
        model(IDS)
    assert list(trace) == [f"layers.{n}.attention.sum" for n in range(3)]


def test_an_answer_takes_the_place_of_what_was_heard() -> None:
    model = gpt()
    with listen(model, answer={"layers.0.attention.branch": torch.zeros_like}) as trace:
        model(IDS)
    assert torch.equal(trace["layers.0.attention.sum"], trace["embedding.sum"])
    with (
        pytest.raises(ValueError, match=r'answer at "logits" is torch.float32 \(1, 6\)'),
        listen(model, answer={"logits": lambda y: y[..., 0]}),
    ):
        model(IDS)


def test_patching_one_run_with_another_moves_the_first_to_the_second() -> None:
    model = gpt()
    other = (IDS + 3) % 11
    with torch.no_grad(), listen(model) as theirs:
        y = model(other)
    sums = {f"layers.{n}.feedforward.sum": theirs[f"layers.{n}.feedforward.sum"] for n in range(3)}
    with torch.no_grad(), listen(model, answer={path: lambda x, s=s: s for path, s in sums.items()}):
        assert torch.equal(model(IDS), y)


def test_nothing_is_left_behind() -> None:
    model = gpt()
    with pytest.raises(RuntimeError), listen(model):
        raise RuntimeError
    assert current() is None
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_an_error_inside_a_forward_does_not_confuse_later_paths() -> None:
    model = gpt()
    with listen(model, only=["logits"]) as trace:
        with pytest.raises(ValueError, match="outside"):
            model(IDS + 100)
        model(IDS)
    assert list(trace) == ["logits"]


def test_another_thread_is_not_heard() -> None:
    model = gpt()
    with listen(model) as trace:
        thread = threading.Thread(target=lambda: model(IDS))
        thread.start()
        thread.join()
    assert not list(trace)


def test_an_answer_to_scores_is_used() -> None:
    """Scores that nobody stands out in are shared out evenly, under the mask."""
    model = gpt()
    with listen(model, answer={"layers.0.attention.scores": torch.zeros_like}) as trace:
        changed = model(IDS)
    even = torch.ones(6, 6).tril() / torch.arange(1, 7)[:, None]
    torch.testing.assert_close(trace["layers.0.attention.weights"][0, 0], even)
    assert not torch.equal(changed, model(IDS))


def test_an_answer_to_nothing_is_a_mistake() -> None:
    model = gpt()
    with (
        pytest.raises(ValueError, match=r'nothing was called "layers.0.atention.heads".*heard: embedding'),
        listen(model, answer={"layers.0.atention.heads": torch.zeros_like}),
    ):
        model(IDS)


def test_an_answer_in_place_is_refused() -> None:
    model = gpt()
    with (
        pytest.raises(ValueError, match=r'"layers.0.attention.weights" changed what it heard in place'),
        listen(model, answer={"layers.0.attention.weights": lambda w: w.zero_()}),
    ):
        model(IDS)


def test_who_listens_to_one_part_hears_no_other() -> None:
    model = models.transformer(11, 8, 1, 2, 16).eval()
    alone = model(IDS, IDS)
    with listen(model.encoder, answer={"layers.0.feedforward.inner": torch.zeros_like}) as trace:
        model(IDS, IDS)
    assert len(trace.all("layers.0.feedforward.inner")) == 1
    assert not any("cross" in path for path in trace)
    with listen(gpt()) as trace:
        assert torch.equal(model(IDS, IDS), alone)
    assert not list(trace)


def test_an_encoder_decoder_is_heard_by_the_paths_of_its_parts() -> None:
    model = models.transformer(11, 8, 1, 2, 16).eval()
    with listen(model) as trace:
        model(IDS, IDS)
    assert "encoder.layers.0.attention.weights" in trace
    assert "decoder.layers.0.cross.weights" in trace
    assert "decoder.logits" in trace


def test_one_listens_at_a_time() -> None:
    model = gpt()
    with (
        listen(model),
        pytest.raises(ValueError, match="somebody listens already"),
        listen(model),
    ):
        pass


def test_a_star_stands_for_one_name_and_two_for_any_number() -> None:
    model = gpt()
    with listen(model, only="layers.*.attention.weights") as trace:
        model(IDS)
    assert len(list(trace)) == 3
    with listen(model, only=["layers.1.**"]) as trace:
        model(IDS)
    assert len(list(trace)) == 13
    assert all(path.startswith("layers.1.") for path in trace)


def test_heard_in_half_precision_is_finite_where_the_kernel_is() -> None:
    """A product of 64 columns overflows float16 long before it is scaled."""
    from heedful import Attention

    layer = Attention(64, 1, query=nn.Identity(), key=nn.Identity(), value=nn.Identity(), out=nn.Identity())
    x = torch.full((1, 4, 64), 35.4, dtype=torch.float16)
    with listen(layer) as trace:
        y = layer(x)
    assert trace["scores"].max() > 9_900
    assert y.isfinite().all()
    assert trace["weights"].isfinite().all()
