"""Parameters are counted exactly, on the meta device: nothing is stored, and a shared tensor counts once."""

import pytest
import torch

from heedful import models


def count(build, **arguments):
    with torch.device("meta"):
        model = build(**arguments)
    return model, sum(parameter.numel() for parameter in model.parameters())


BIG = {"width": 1024, "heads": 16, "inner": 4096, "dropout": 0.3}


@pytest.mark.parametrize(
    ("build", "arguments", "parameters"),
    [
        (models.transformer, {"vocab": 37000}, 63_082_496),
        (models.transformer, {"vocab": 37000, **BIG}, 214_245_376),
        (models.gpt, {}, 124_439_808),
        (models.llama, {}, 6_738_415_616),
    ],
    ids=["transformer-base", "transformer-big", "gpt", "llama"],
)
def test_a_model_as_published_has_as_many_parameters(build, arguments, parameters):
    assert count(build, **arguments)[1] == parameters


def test_a_layer_of_the_base_transformer_has_as_many_parameters():
    model, _ = count(models.transformer, vocab=37000)
    for layers, parameters in ((model.encoder.layers, 3_152_384), (model.decoder.layers, 4_204_032)):
        assert len(layers) == 6
        assert [sum(p.numel() for p in layer.parameters()) for layer in layers] == [parameters] * 6


def test_untying_the_head_costs_one_table():
    tied, untied = (count(models.gpt, tied=tied)[1] for tied in (True, False))
    assert untied - tied == 50257 * 768


def test_a_source_vocabulary_of_its_own_costs_one_table():
    shared, apart = (count(models.transformer, vocab=500, source_vocab=n)[1] for n in (None, 300))
    assert apart - shared == 300 * 512


def test_a_grouped_head_saves_keys_and_values():
    """LLaMA 2's 70B has 8 key and value heads for 64."""
    full, grouped = (
        count(models.llama, width=64, heads=8, kv_heads=n, inner=100, depth=1, vocab=10)[1] for n in (8, 2)
    )
    assert full - grouped == 2 * 64 * (8 - 2) * 8
