"""What decoding is compared with: `transformers`, one full forward after another, and every text there is."""

import itertools
import math
import random

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MarianConfig, MarianMTModel

from heedful.model import EncoderDecoder
from tests.models.parity import build

VOCAB, END, START, PAD = 13, 2, 1, 0

KINDS = ("marian", "gpt2", "llama")


def published(kind, seed):
    """A random model of theirs, its weights spread so wide that no two words are nearly as good as each other."""
    torch.manual_seed(seed)
    ids = {"bos_token_id": None, "eos_token_id": END, "pad_token_id": PAD}
    if kind == "gpt2":
        config = GPT2Config(vocab_size=VOCAB, n_positions=48, n_embd=24, n_head=3, n_layer=2, **ids)
        return build(GPT2LMHeadModel, config, least=0.1, most=0.35)
    if kind == "llama":
        config = LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=24,
            intermediate_size=31,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            **ids,
        )
        return build(LlamaForCausalLM, config, least=0.1, most=0.35)
    config = MarianConfig(
        vocab_size=VOCAB,
        d_model=24,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=31,
        decoder_ffn_dim=31,
        dropout=0.0,
        scale_embedding=True,
        tie_word_embeddings=False,
        max_position_embeddings=64,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
        **ids,
    )
    return build(MarianMTModel, config, least=0.1, most=0.3)


def texts(rng, rows, longest, vocab=VOCAB):
    """Lists of ids of different lengths; none is special."""
    return [[rng.randint(3, vocab - 1) for _ in range(rng.randint(1, longest))] for _ in range(rows)]


def drawn_batch(kind, seed):
    """(prompts, sources): what a stepper of such a model reads."""
    read = texts(random.Random(seed), 3, 9)
    if kind != "marian":
        return read, None
    return [[START]] * 3, [[*text, END] for text in read]


def their_beams(theirs, prompts, sources, *, beams, penalty, room, end):
    """[(ids, score), ...] for each row, by their `generate`; of one beam there is no score."""
    told = prompts if sources is None else sources
    longest = max(len(text) for text in told)
    pads = [[PAD] * (longest - len(text)) for text in told]
    left = sources is None
    ids = torch.tensor([[*pad, *text] if left else [*text, *pad] for pad, text in zip(pads, told, strict=True)])
    real = torch.tensor(
        [
            [0] * len(pad) + [1] * len(text) if left else [1] * len(text) + [0] * len(pad)
            for pad, text in zip(pads, told, strict=True)
        ]
    )
    begun = longest if left else 1
    theirs.generation_config = transformers.GenerationConfig(
        do_sample=False,
        num_beams=beams,
        num_return_sequences=beams,
        max_new_tokens=room,
        length_penalty=penalty,
        early_stopping="never" if beams > 1 else False,
        eos_token_id=end,
        pad_token_id=PAD,
        decoder_start_token_id=START,
        return_dict_in_generate=True,
        output_scores=True,
    )
    made = theirs.generate(ids, attention_mask=real)
    scores = [None] * len(made.sequences) if beams == 1 else made.sequences_scores.tolist()
    found = [(cut(row[begun:], end), score) for row, score in zip(made.sequences.tolist(), scores, strict=True)]
    return [found[n : n + beams] for n in range(0, len(found), beams)]


def cut(ids, ends):
    """Up to the first end, which stays."""
    return next((ids[: n + 1] for n, i in enumerate(ids) if i in ends), ids)


@torch.no_grad()
def forced(model, prompt, source, ids):
    """(len(ids), vocab) log-probabilities of what comes at each of `ids`: one forward of one text, without a cache."""
    told = torch.tensor([[*prompt, *ids]])
    logits = model(torch.tensor([source]), told) if isinstance(model, EncoderDecoder) else model(told)
    return logits[0, len(prompt) - 1 : -1].double().log_softmax(-1)


def recomputed(model, prompt, source, ids, penalty):
    """A hypothesis' score, from one forward."""
    steps = forced(model, prompt, source, ids)
    return sum(float(steps[n, i]) for n, i in enumerate(ids)) / len(ids) ** penalty


@torch.no_grad()
def greedy_alone(model, prompt, source, room, ends):
    """Greedy without a cache, a batch or padding: ids, and the logits of each step."""
    ids, said = list(prompt), []
    logits = []
    for _ in range(room):
        told = torch.tensor([ids])
        y = model(torch.tensor([source]), told) if isinstance(model, EncoderDecoder) else model(told)
        logits.append(y[0, -1].float())
        said.append(int(y[0, -1].argmax()))
        ids.append(said[-1])
        if said[-1] in ends:
            break
    return said, torch.stack(logits)


def every_text(model, prompt, source, vocab, room, end):
    """{ids: Σ log p} of each text that ends within `room` tokens, or fills it: all there are, none by search."""
    found = {}
    for ids in itertools.product(range(vocab), repeat=room):
        found.setdefault(tuple(cut(list(ids), [end])), 0.0)
    told = list(found)
    for ids in told:
        steps = forced(model, prompt, source, list(ids))
        found[ids] = sum(float(steps[n, i]) for n, i in enumerate(ids))
    assert math.isclose(sum(math.exp(total) for total in found.values()), 1, abs_tol=1e-4), "they share all probability"
    return found


class Scripted:
    """A stepper without a model: after ids come the logits that `script` says."""

    def __init__(self, script, room):
        self.script, self.room = script, list(room)
        self.rows, self.texts = len(self.room), [(n, ()) for n in range(len(self.room))]
        self.steps = 0
        self.logits = self._logits()

    def _logits(self):
        return torch.stack([self.script(row, ids) for row, ids in self.texts])

    def step(self, tokens):
        self.steps += 1
        self.texts = [(row, (*ids, t)) for (row, ids), t in zip(self.texts, tokens.tolist(), strict=True)]
        self.logits = self._logits()
        return self.logits

    def select(self, rows):
        self.texts = [self.texts[n] for n in rows.tolist()]
        self.rows = len(self.texts)
