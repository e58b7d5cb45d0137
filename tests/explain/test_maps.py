"""Where a translator looks, as numbers and as a picture."""

import pytest
import torch
from rich.cells import cell_len

import heedful
from heedful.data.text import special_ids, trained
from heedful.explain.maps import drawn
from heedful.explain.translation import looked
from heedful.models import gpt, marian


def test_shares_become_shades_and_percents():
    picture = drawn(torch.tensor([[0.004, 0.996], [0.25, 0.75]]), ["ein", "zwei"], ["one", "und so"])
    assert picture.splitlines() == [
        "      one    und so",
        "ein          ██100",
        "zwei  ▒▒ 25  ██ 75",
    ]


def test_wide_characters_keep_their_columns():
    lines = drawn(torch.eye(2), ["一", "亿零"], ["一百", "b"]).splitlines()
    assert cell_len(lines[1].split("█")[0]) == 4 + 2 + 0
    assert cell_len(lines[2].split("█")[0]) == 4 + 2 + 5 + 2


def test_labels_must_fit():
    with pytest.raises(ValueError, match=r"weights are \(2, 2\), the labels 1 and 2"):
        drawn(torch.eye(2), ["a"], ["a", "b"])


def test_the_weights_are_the_models_own():
    tokenizer = trained(["one two three", "eins zwei drei"], "words", 50)
    model = marian(tokenizer.get_vocab_size(), 16, 2, 2, 24).eval()
    model.tokenizer, model.generation = tokenizer, dict(special_ids(tokenizer))
    weights, said, read = looked(model, "one three", "eins")
    assert (said, read) == (["eins", "</s>"], ["one", "three", "</s>"])
    ids = [tokenizer.token_to_id(word) for word in ("one", "three", "</s>", "<s>", "eins")]
    with torch.no_grad(), heedful.listen(model) as trace:
        model(torch.tensor([ids[:3]]), torch.tensor([ids[3:]]))
    assert torch.equal(weights, trace["decoder.layers.1.cross.weights"][0].mean(0))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2))


def test_only_a_translator_has_a_source_to_look_at():
    with pytest.raises(ValueError, match="has no cross-attention"):
        looked(gpt(10, 8, 1, 2, 8), "a", "b")
