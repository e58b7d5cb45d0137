"""What the parity tests share: random models of `transformers`, read through a folder, and compared with ours.

Theirs are shaken before they are saved: biases are not zero and norms are not one, so that every tensor tells.
"""

import contextlib
import io

import pytest
import torch
import torch.nn.functional as F
import transformers

import heedful
from heedful.convert.table import Family
from heedful.folder import tensors_by_name

LOGITS = 2e-6  # of the largest logit
GRADIENTS = 1e-5  # of the largest in the same tensor,
FLOOR = 1e-3  # or of this share of the largest in the model, where that is more
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
MARGIN = 1e-4  # between the best two logits, of the largest: no argmax is a near-tie

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def build(model_class, config, attention="sdpa", dtype=torch.float32, least=0.05, most=0.2):
    """A model of theirs with each of its tensors shaken by N(0, spread²), the spread drawn from `least` to `most`."""
    theirs = model_class._from_config(config, attn_implementation=attention).eval().to(dtype)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.requires_grad:  # Marian's sinusoids do not, and stay
                parameter += (least + (most - least) * torch.rand(())) * torch.randn_like(parameter)
        if hasattr(theirs, "final_logits_bias"):  # Marian's is a buffer; it counts as a parameter here
            theirs.final_logits_bias.normal_(std=0.3).requires_grad_(True)
    return theirs


def quietly_saved(theirs, folder, **how):
    """save_pretrained, which would write to the terminal."""
    with contextlib.redirect_stderr(io.StringIO()):
        theirs.save_pretrained(folder, **how)
    return folder


def through_folder(theirs, folder, dtype=torch.float32):
    return heedful.load(quietly_saved(theirs, folder), dtype=dtype)


def padding(rows, length, side, most):
    """bool (rows, length): each row has 0 to `most` slots of padding on its left or right, one row none."""
    pads = torch.randint(0, most + 1, (rows, 1))
    pads[int(torch.randint(rows, ()))] = 0
    slots = torch.arange(length)[None]
    return slots >= pads if side == "left" else slots < length - pads


def position_ids(valid):
    """Positions as `transformers` makes them of a mask."""
    return (valid.long().cumsum(-1) - 1).clamp(min=0)


def losses(ours, theirs, real, vocab, kind):
    """One scalar each of two tensors of logits: a random weighting of real ones, or their cross-entropy."""
    weights, targets = torch.randn(int(real.sum()), vocab), torch.randint(vocab, (int(real.sum()),))
    if kind == "weighted":
        return (ours[real] * weights).sum(), (theirs[real] * weights).sum()
    return F.cross_entropy(ours[real], targets), F.cross_entropy(theirs[real], targets)


def same_logits(ours, theirs, real):
    assert ours.shape == theirs.shape
    ours, theirs = ours[real].detach(), theirs[real].detach()
    worst = (ours - theirs).abs().max() / theirs.abs().max()
    assert worst <= LOGITS
    return float(worst)


def named(model):
    """Our parameters by the first path of each: the names that the tables use."""
    return {name: module._parameters[leaf] for name, ((module, leaf), *_) in tensors_by_name(model).items()}


def under_our_names(family: Family, tensors, ours):
    """Their tensors, read through the family's own table."""
    shapes = {name: tuple(parameter.shape) for name, parameter in named(ours).items()}
    return family.read({name: lambda tensor=tensor: tensor for name, tensor in tensors.items()}, shapes)


def same_gradients(family, ours, their_tensors):
    """Compare the gradients that both have; `their_tensors` are leaves by their names.

    A bias of keys adds one number to all scores of a query, which softmax does not see: its gradient is zero,
    and in float32 it is rounding, larger than the bar. There it is measured by the biases of queries and values,
    which lie in one tensor with it in GPT-2's files and in PyTorch's layers; in float64 by the bar itself.
    """
    gradients = {
        name: torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for name, tensor in their_tensors.items()
    }
    expected = under_our_names(family, gradients, ours)
    largest = max(gradient.abs().max() for gradient in expected.values())
    worst = 0.0
    for name, parameter in named(ours).items():
        beside = [name]
        if name.endswith(".key.bias") and parameter.dtype == torch.float32:
            beside += [name.replace(".key.", ".query."), name.replace(".key.", ".value.")]
        scale = max(FLOOR * largest, *(expected[other].abs().max() for other in beside))
        share = float((parameter.grad - expected[name]).abs().max() / scale)
        assert share <= GRADIENTS, f"{name}: {share:.2e}"
        worst = max(worst, share)
    return worst


def leaves(theirs):
    """Their tensors by name as they are saved, with their gradients; a tied one under each of its names."""
    return dict(theirs.state_dict(keep_vars=True))


def compare_decoders(family, theirs, vocab, length, side, dtype, folder):
    """A decoder of theirs and ours from its folder, on padded rows: logits and gradients of the real tokens."""
    ours = through_folder(theirs, folder, dtype)
    ids, valid = torch.randint(1, vocab, (4, length)), padding(4, length, side, length - 2)
    at = position_ids(valid) if side == "left" else None

    logits = ours(ids, valid=valid)
    expected = theirs(input_ids=ids, attention_mask=valid.long(), position_ids=at, use_cache=False).logits
    same_logits(logits, expected, valid)
    for loss in losses(logits, expected, valid, vocab, "weighted" if side == "right" else "cross-entropy"):
        loss.backward()
    same_gradients(family, ours, leaves(theirs))


@torch.no_grad()
def greedy(look, begun, steps=64):
    """The best next token, `steps` times. look(all ids so far, the newest of them) -> logits."""
    ids, newest, margin = begun, begun, float("inf")
    for _ in range(steps):
        logits = look(ids, newest)[:, -1]
        best, second = logits.topk(2).values.unbind(-1)
        margin = min(margin, float(((best - second) / logits.abs().amax(-1)).min()))
        newest = logits.argmax(-1, keepdim=True)
        ids = torch.cat([ids, newest], 1)
    assert margin > MARGIN, f"a near-tie ({margin:.1e}) decides nothing: choose another seed"
    chosen = ids[:, begun.shape[1] :]
    assert all(len(row.unique()) > 4 for row in chosen), "a model that repeats itself shows nothing: choose a seed"
    return chosen


def generated(theirs, ids, valid, steps=64, **settings):
    """Their own greedy decoding of a batch, prompts (or starts) included; nothing can stop it early."""
    theirs.generation_config = transformers.GenerationConfig(
        do_sample=False, num_beams=1, max_new_tokens=steps, eos_token_id=None, pad_token_id=0, **settings
    )
    return theirs.generate(ids, attention_mask=valid.long())


def compare_greedy_decoders(theirs, cache, folder):
    """Left-padded prompts continued by 64 tokens: with this cache, without one, and by their own `generate`."""
    ours = through_folder(theirs, folder)
    prompt, valid = torch.randint(1, 41, (3, 9)), padding(3, 9, "left", 6)

    def everything(ids, newest):
        told = torch.cat([valid, torch.ones(3, ids.shape[1] - 9, dtype=torch.bool)], 1)
        return ours(ids, valid=told)

    def the_newest(ids, newest):
        return ours(newest, valid=valid if newest is prompt else None, cache=cache)

    anew, kept = greedy(everything, prompt), greedy(the_newest, prompt)
    made = generated(theirs, prompt, valid)
    assert torch.equal(kept, anew)
    assert torch.equal(kept, made[:, 9:])
