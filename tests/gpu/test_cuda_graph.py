"""A decoder's step on a fixed cache, captured once as a CUDA graph, replayed for every token."""

import pytest
import torch
from torch import Tensor

from heedful import Fixed, models
from heedful.model import Decoder
from tests.laws.catalog import spread

pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device, and there is none", allow_module_level=True)

STEPS = 64


def _prompt(vocab: int) -> tuple[Tensor, Tensor]:
    """Three prompts of different lengths, padded on the left."""
    ids = torch.randint(0, vocab, (3, 7))
    valid = torch.arange(7) >= torch.tensor([[0], [3], [5]])
    return ids, valid


def _plain(model: Decoder, ids: Tensor, valid: Tensor) -> Tensor:
    """No cache at all: every step reads everything."""
    for _ in range(STEPS):
        word = model(ids, valid=valid)[:, -1:].argmax(-1)
        ids, valid = torch.cat([ids, word], 1), torch.cat([valid, torch.ones_like(word, dtype=torch.bool)], 1)
    return ids[:, -STEPS:]


def _one_graph(model: Decoder, ids: Tensor, valid: Tensor) -> Tensor:
    cache = Fixed(ids.shape[1] + STEPS)
    word = model(ids, valid=valid, cache=cache)[:, -1:].argmax(-1).clone()
    said = [word.clone()]

    def step() -> None:
        word.copy_(model(word, cache=cache)[:, -1:].argmax(-1))

    # Kernels are chosen and memory is set aside outside of the capture, on a side stream, as CUDA asks.
    before = word.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    cache.crop(ids.shape[1])
    word.copy_(before)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(STEPS - 1):
        cache.reserve(1)
        graph.replay()
        said.append(word.clone())
    return torch.cat(said, 1)


@pytest.mark.parametrize("name", ["gpt", "llama"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_graph_says_what_the_plain_loop_says(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    vocab = 97
    model = models.gpt(vocab, 64, 3, 4, 128) if name == "gpt" else models.llama(vocab, 64, 3, 4, 2, 128)
    # Weights spread wide: no two words are nearly as good as each other.
    model = spread(model).to(dtype).eval()
    with torch.no_grad():
        ids, valid = _prompt(vocab)
        graphed, plain = _one_graph(model, ids, valid), _plain(model, ids, valid)
    if dtype == torch.float32:
        assert torch.equal(graphed, plain)
        return
    # In bfloat16 the two shapes of one sum may round apart; from there on the texts are two texts.
    with torch.no_grad():
        whole = torch.cat([ids, graphed], 1)
        real = torch.cat([valid, torch.ones_like(graphed, dtype=torch.bool)], 1)
        logits = model(whole, valid=real)[:, ids.shape[1] - 1 : -1].float()
    best = logits.max(-1).values
    chosen = logits.gather(-1, graphed[..., None])[..., 0]
    assert ((best - chosen) <= 0.05 * logits.abs().max()).all()
    assert (graphed == logits.argmax(-1)).float().mean() > 0.97


def test_a_full_cache_refuses_the_replay_before_it_writes() -> None:
    cache = Fixed(4)
    cache.reserve(4)
    with pytest.raises(ValueError, match="room for 4"):
        cache.reserve(1)
