"""Marian equals `transformers`' Marian; the paper's own variant equals PyTorch's layers, stacked by hand."""

import math
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import MarianConfig, MarianMTModel

import heedful
from heedful.convert import FAMILIES
from heedful.convert.table import Family, Row
from heedful.models import transformer
from tests.models.parity import (
    DTYPES,
    build,
    generated,
    greedy,
    leaves,
    losses,
    named,
    padding,
    same_gradients,
    same_logits,
    through_folder,
    under_our_names,
)

MARIANS = {
    "odd-head-width": {"d_model": 20, "heads": 4, "inner": 33, "encoder_layers": 2, "decoder_layers": 2},
    "odd-width": {"d_model": 21, "heads": 3, "inner": 14, "encoder_layers": 2, "decoder_layers": 1},
    "deeper-encoder": {"d_model": 12, "heads": 2, "inner": 50, "encoder_layers": 4, "decoder_layers": 1},
    "deeper-decoder": {"d_model": 18, "heads": 1, "inner": 9, "encoder_layers": 1, "decoder_layers": 3},
    "two-vocabularies": {
        "d_model": 24,
        "heads": 6,
        "inner": 40,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": 23,
    },
    "nothing-tied": {
        "d_model": 16,
        "heads": 2,
        "inner": 21,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "tie_word_embeddings": False,
        "activation_function": "relu",
    },
    "two-vocabularies-nothing-tied": {
        "d_model": 30,
        "heads": 5,
        "inner": 31,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": 61,
        "tie_word_embeddings": False,
        "activation_function": "gelu",
    },
    "not-scaled": {
        "d_model": 28,
        "heads": 7,
        "inner": 28,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "scale_embedding": False,
        "activation_function": "silu",
    },
}


def marian_config(vocab, heads, inner, **settings):
    return MarianConfig(
        vocab_size=vocab,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=inner,
        decoder_ffn_dim=inner,
        dropout=0.0,
        max_position_embeddings=128,
        pad_token_id=0,
        eos_token_id=0,
        bos_token_id=0,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
        **{"scale_embedding": True, "activation_function": "swish", **settings},
    )


def drawn_marian(seed):
    """A configuration at random."""
    pick = random.Random(seed).choice
    heads, shared = pick([1, 2, 3, 5]), pick([True, False])
    return {
        "heads": heads,
        "d_model": heads * pick([1, 3, 5, 7, 8]) + heads,
        "inner": pick([5, 31, 64]),
        "encoder_layers": pick([1, 2, 3]),
        "decoder_layers": pick([1, 2, 3]),
        "activation_function": pick(["swish", "gelu", "relu", "gelu_new"]),
        "scale_embedding": pick([True, False]),
        "tie_word_embeddings": pick([True, False]),
        "share_encoder_decoder_embeddings": shared,
    } | ({} if shared else {"decoder_vocab_size": pick([19, 53])})


def compare_marian(settings, seed, source_side, dtype, folder):
    torch.manual_seed(seed)
    vocab, target_vocab = 29 + 2 * seed, settings.get("decoder_vocab_size", 29 + 2 * seed)
    theirs = build(MarianMTModel, marian_config(vocab, **settings), "eager" if seed % 2 else "sdpa", dtype)
    ours = through_folder(theirs, folder, dtype)
    rows, m, n = 4, 6 + seed, 12 - seed
    source, source_valid = torch.randint(1, vocab, (rows, m)), padding(rows, m, source_side, m - 2)
    target, target_valid = torch.randint(1, target_vocab, (rows, n)), padding(rows, n, "right", n - 2)
    # Theirs counts slots from the left, whatever is padding: with padding there, ours is told the same.
    at = torch.arange(m) if source_side == "left" else None

    logits = ours(source, target, source_valid=source_valid, target_valid=target_valid, source_at=at)
    expected = theirs(
        input_ids=source,
        attention_mask=source_valid.long(),
        decoder_input_ids=target,
        decoder_attention_mask=target_valid.long(),
        use_cache=False,
    ).logits
    same_logits(logits, expected, target_valid)
    kind = "weighted" if source_side == "right" else "cross-entropy"
    for loss in losses(logits, expected, target_valid, target_vocab, kind):
        loss.backward()
    same_gradients(FAMILIES["marian"], ours, leaves(theirs))


@DTYPES
@pytest.mark.parametrize("source_side", ["right", "left"])
@pytest.mark.parametrize("name", MARIANS)
def test_marians_logits_and_gradients_equal_transformers(name, source_side, dtype, tmp_path):
    compare_marian(MARIANS[name], list(MARIANS).index(name), source_side, dtype, tmp_path)


@DTYPES
@pytest.mark.parametrize("seed", range(8))
def test_drawn_marians_equal_transformers(seed, dtype, tmp_path):
    compare_marian(drawn_marian(seed), seed, "left" if seed % 4 < 2 else "right", dtype, tmp_path)


CACHES = pytest.mark.parametrize("cache", [heedful.Growing, lambda: heedful.Fixed(70)], ids=["growing", "fixed"])


def decoded(ours, source, valid, begun, cache):
    """Greedily, without a cache and with one."""

    def everything(ids, newest):
        return ours(source, ids, source_valid=valid)

    def the_newest(ids, newest):
        if newest is begun:
            return ours(source, newest, source_valid=valid, cache=cache)
        return ours(None, newest, cache=cache)

    return greedy(everything, begun), greedy(the_newest, begun)


@CACHES
def test_marians_greedy_decoding_with_a_cache_is_that_without_and_that_of_transformers(cache, tmp_path):
    torch.manual_seed(1)
    settings = {"d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "tie_word_embeddings": False}
    theirs = build(MarianMTModel, marian_config(41, 3, 40, **settings), least=0.1)
    ours = through_folder(theirs, tmp_path)
    source, valid = torch.randint(1, 41, (3, 9)), padding(3, 9, "right", 6)
    begun = torch.ones(3, 1, dtype=torch.long)

    anew, kept = decoded(ours, source, valid, begun, cache())
    made = generated(theirs, source, valid, decoder_start_token_id=1)
    assert torch.equal(kept, anew)
    assert torch.equal(kept, made[:, 1:])


# The paper's variant. There is no published module for the whole, so it is written out over PyTorch's layers.

PAPERS = {
    "tied": {"width": 20, "depth": 2, "heads": 4, "inner": 33},
    "odd-width": {"width": 21, "depth": 2, "heads": 3, "inner": 11},
    "one-head": {"width": 14, "depth": 1, "heads": 1, "inner": 50},
    "deeper-decoder": {"width": 18, "depth": 1, "heads": 2, "inner": 19, "decoder_depth": 3},
    "deeper-encoder": {"width": 24, "depth": 4, "heads": 6, "inner": 24, "decoder_depth": 1},
    "two-vocabularies": {"width": 30, "depth": 2, "heads": 5, "inner": 31, "source_vocab": 41},
    "not-tied": {"width": 12, "depth": 2, "heads": 12, "inner": 48, "tied": False},
    "two-vocabularies-not-tied": {"width": 28, "depth": 2, "heads": 4, "inner": 9, "source_vocab": 17, "tied": False},
}


class Written(nn.Module):
    """The 2017 model over nn.TransformerEncoderLayer and nn.TransformerDecoderLayer."""

    def __init__(self, vocab, width, depth, heads, inner, decoder_depth=None, source_vocab=None, tied=True):
        super().__init__()
        how = {"dim_feedforward": inner, "dropout": 0.0, "activation": "relu", "batch_first": True}
        self.target_words = nn.Embedding(vocab, width)
        self.source_words = self.target_words if source_vocab is None else nn.Embedding(source_vocab, width)
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(width, heads, **how) for _ in range(depth))
        self.decoder = nn.ModuleList(
            nn.TransformerDecoderLayer(width, heads, **how) for _ in range(decoder_depth or depth)
        )
        self.head = nn.Linear(width, vocab, bias=False)
        if tied:
            self.head.weight = self.target_words.weight

    @staticmethod
    def embed(words, ids, valid):
        width = words.embedding_dim
        sinusoids = torch.zeros(*ids.shape, width, dtype=words.weight.dtype)
        for row in range(ids.shape[0]):
            first = int(valid[row].long().argmax())
            for slot in range(ids.shape[1]):
                for column in range(width):
                    angle = max(slot - first, 0) / 10000 ** (2 * (column // 2) / width)
                    sinusoids[row, slot, column] = math.cos(angle) if column % 2 else math.sin(angle)
        return words(ids) * math.sqrt(width) + sinusoids

    def forward(self, source, target, source_valid, target_valid):
        later = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        memory, x = self.embed(self.source_words, source, source_valid), None
        for layer in self.encoder:
            memory = layer(memory, src_key_padding_mask=~source_valid)
        x = self.embed(self.target_words, target, target_valid)
        for layer in self.decoder:
            x = layer(
                x,
                memory,
                tgt_mask=later,
                tgt_key_padding_mask=~target_valid,
                memory_key_padding_mask=~source_valid,
            )
        return self.head(x)


def _layer(side, cross):
    """Their layer's tensors and ours: PyTorch keeps q, k and v in one, and numbers its norms."""
    branches = [("self_attn", "attention", "norm1")] + ([("multihead_attn", "cross", "norm2")] if cross else [])
    for theirs, ours, norm in branches:
        at = f"{side}.layers.{{n}}.{ours}"
        yield Row(f"{side}.{{n}}.{theirs}.in_proj", f"{at}.query", f"{at}.key", f"{at}.value")
        yield Row(f"{side}.{{n}}.{theirs}.out_proj", f"{at}.out")
        yield Row(f"{side}.{{n}}.{norm}", f"{at}_norm")
    yield Row(f"{side}.{{n}}.linear1", f"{side}.layers.{{n}}.feedforward.up")
    yield Row(f"{side}.{{n}}.linear2", f"{side}.layers.{{n}}.feedforward.down")
    yield Row(f"{side}.{{n}}.norm{3 if cross else 2}", f"{side}.layers.{{n}}.feedforward_norm")


WRITTEN = Family(
    recipe="transformer",
    arguments={},
    rows=(
        Row("source_words", "encoder.embedding.tokens"),
        Row("target_words", "decoder.embedding.tokens"),
        *_layer("encoder", cross=False),
        *_layer("decoder", cross=True),
        Row("head", "decoder.head"),
    ),
    surplus=("head.weight", "target_words.weight"),
)


def written_names(model):
    return {name.replace("in_proj_", "in_proj."): t for name, t in model.state_dict(keep_vars=True).items()}


@torch.no_grad()
def written_and_ours(vocab, **settings):
    """Both with the same weights, every one of them shaken."""
    theirs = Written(vocab, **settings)
    for parameter in theirs.parameters():
        parameter += (0.05 + 0.15 * torch.rand(())) * torch.randn_like(parameter)
    ours = transformer(vocab, dropout=0.0, **settings)
    for name, tensor in under_our_names(WRITTEN, written_names(theirs), ours).items():
        named(ours)[name].copy_(tensor)
    return theirs, ours


@DTYPES
@pytest.mark.parametrize("source_side", ["right", "left"])
@pytest.mark.parametrize("name", PAPERS)
def test_the_papers_logits_and_gradients_equal_pytorchs_layers(name, source_side, dtype):
    """Padding left of a target leaves PyTorch's queries without any key, and so with NaN: targets are padded right."""
    seed = list(PAPERS).index(name)
    torch.manual_seed(seed)
    vocab, rows, m, n = 23 + 2 * seed, 4, 5 + seed, 12 - seed
    theirs, ours = (model.to(dtype) for model in written_and_ours(vocab, **PAPERS[name]))
    source = torch.randint(PAPERS[name].get("source_vocab", vocab), (rows, m))
    target, target_valid = torch.randint(vocab, (rows, n)), padding(rows, n, "right", n - 2)
    source_valid = padding(rows, m, source_side, m - 2)

    logits = ours(source, target, source_valid=source_valid, target_valid=target_valid)
    expected = theirs(source, target, source_valid, target_valid)
    same_logits(logits, expected, target_valid)
    kind = "weighted" if source_side == "right" else "cross-entropy"
    for loss in losses(logits, expected, target_valid, vocab, kind):
        loss.backward()
    same_gradients(WRITTEN, ours, written_names(theirs))


@CACHES
def test_the_papers_greedy_decoding_with_a_cache_is_that_without_and_that_of_pytorchs_layers(cache):
    torch.manual_seed(3)
    theirs, ours = written_and_ours(41, width=24, depth=2, heads=3, inner=40, tied=False)
    source, valid = torch.randint(41, (3, 9)), padding(3, 9, "left", 6)
    begun = torch.ones(3, 1, dtype=torch.long)
    anew, kept = decoded(ours, source, valid, begun, cache())
    assert torch.equal(kept, anew)
    # Their logits for the whole text at once choose each of its tokens.
    told = torch.cat([begun, kept[:, :-1]], 1)
    with torch.no_grad():
        logits = theirs(source, told, valid, torch.ones_like(told, dtype=torch.bool))
    assert torch.equal(logits.argmax(-1), kept)


def test_the_head_alone_has_no_bias_and_nothing_follows_the_last_norm():
    model = transformer(vocab=11, width=6, depth=1, heads=2, inner=5)
    linears = {path: part for path, part in heedful.trace.paths(model) if isinstance(part, nn.Linear)}
    assert [path for path, part in linears.items() if part.bias is None] == ["decoder.head"]
    assert model.encoder.norm is None
    assert model.decoder.norm is None
    x = torch.randint(11, (2, 4))
    with heedful.listen(model) as trace:
        logits = model(x, x)
    last = trace["decoder.layers.0.feedforward.sum"]
    assert torch.equal(logits, model.decoder.head(F.layer_norm(last, (6,))))
