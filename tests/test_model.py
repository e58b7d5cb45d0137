"""The shells: plan, embed, fold, norm, head."""

import torch
from torch import nn

from heedful import Decoder, Embedding, Encoder, EncoderDecoder, listen, models
from heedful.attention import Attention
from heedful.block import Block, FeedForward, LayerNorm, post
from heedful.context import Context

IDS = torch.arange(6)[None]


def encoder(head: nn.Module | None = None) -> Encoder:
    block = Block(attention=post(Attention(8, 2), LayerNorm(8)), feedforward=post(FeedForward(8, 16), LayerNorm(8)))
    return Encoder(Embedding(nn.Embedding(11, 8)), [block], head=head).eval()


def test_without_a_head_hidden_states_come_out() -> None:
    assert encoder()(IDS).shape == (1, 6, 8)
    assert encoder(nn.Linear(8, 3))(IDS).shape == (1, 6, 3)


def test_plan_takes_what_the_model_takes_and_the_model_takes_the_plan() -> None:
    model = models.gpt(11, 8, 2, 2, 16).eval()
    valid = torch.tensor([[False, True, True, True, True, False]])
    context = model.plan(IDS, valid=valid)
    assert isinstance(context, Context)
    assert torch.equal(model(IDS, context=context), model(IDS, valid=valid))
    translator = models.transformer(11, 8, 2, 2, 16).eval()
    both = translator.plan(IDS, IDS[:, :4], source_valid=valid)
    assert torch.equal(translator(IDS, IDS[:, :4], context=both), translator(IDS, IDS[:, :4], source_valid=valid))


def test_a_pattern_is_lowered_once_for_all_layers() -> None:
    deep = models.gpt(11, 8, 5, 2, 16)
    assert len(deep.plan(IDS).plans) == 1
    both = models.transformer(11, 8, 5, 2, 16).plan(IDS, IDS)
    assert both.source is not None
    assert len(both.source.plans) == 1
    assert len(both.target.plans) == 2


def test_no_tensor_of_n_by_n_is_made_where_causal_is_known_by_name() -> None:
    context = models.gpt(11, 8, 2, 2, 4096).plan(torch.zeros(2, 4096, dtype=torch.long))
    (plan,) = context.plans.values()
    assert plan.is_causal
    assert plan.fused is None


def test_shells_say_which_side_they_are() -> None:
    assert isinstance(models.gpt(11, 8, 1, 2, 16), Decoder)
    translator = models.transformer(11, 8, 1, 2, 16)
    assert isinstance(translator, EncoderDecoder)
    assert isinstance(translator.encoder, Encoder)
    assert isinstance(translator.decoder, Decoder)


def test_facts_of_ones_own_reach_the_masks() -> None:
    """A table named by a mask of a layer comes from the batch, by that name."""
    from heedful.mask import same

    block = Block(attention=post(Attention(8, 2, mask=same("speaker")), LayerNorm(8)))
    model = Encoder(Embedding(nn.Embedding(11, 8)), [block]).eval()
    speaker = torch.tensor([[0, 0, 1, 1, 0, 1]])
    with listen(model, only=["weights"]) as trace:
        model(IDS, tables={"speaker": speaker})
    seen = trace["layers.0.attention.weights"][0, 0] > 0
    assert torch.equal(seen, speaker[0][:, None] == speaker[0][None])


def test_lengths_of_zero_and_one_and_a_batch_of_none() -> None:
    for name, build in models.RECIPES.items():
        model = build(vocab=11, width=8, depth=1, heads=2).eval()
        for shape in ((1, 1), (2, 0), (0, 3)):
            ids = torch.zeros(shape, dtype=torch.long)
            y = model(ids, ids) if isinstance(model, EncoderDecoder) else model(ids)
            assert y.shape == (*shape, 11), name
            assert y.isfinite().all()
        given = torch.zeros(2, 3, dtype=torch.bool)
        ids = torch.zeros(2, 3, dtype=torch.long)
        nobody = (
            model(ids, ids, source_valid=given, target_valid=given)
            if isinstance(model, EncoderDecoder)
            else model(ids, valid=given)
        )
        assert nobody.isfinite().all()
