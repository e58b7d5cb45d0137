"""Strings in, strings out."""

import random

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

import heedful
from heedful.decode import Stepper, beam, collected, drawn, generate, never, sample, stream, top_k, translate
from tests.laws.catalog import spread

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def words(closing=False):
    """A word, an id; <s> 0, </s> 1, <pad> 2."""
    vocab = {word: n for n, word in enumerate(["<s>", "</s>", "<pad>", "?", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "</s>", "<pad>"])
    tokenizer.encode_special_tokens = True
    if closing:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    return tokenizer


def letters():
    """Bytes: half characters come."""
    vocab = {byte: n for n, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def translator(**special):
    torch.manual_seed(1)
    model = spread(heedful.models.transformer(14, 16, 1, 2, 24)).eval()
    model.tokenizer, model.generation = words(), {"start": 2, "end": 1, "pad": 2, **special}
    return model


def gpt(tokenizer=None, **special):
    torch.manual_seed(2)
    tokenizer = tokenizer or words()
    model = spread(heedful.models.gpt(tokenizer.get_vocab_size(), 16, 1, 2, 64)).eval()
    model.tokenizer, model.generation = tokenizer, {"begin": 0, "end": 1, "pad": 2, **special}
    return model


def sentences(seed, count):
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) for _ in range(count)]


# --- translate


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("batch", [1, 30, 10_000])
def test_each_text_is_translated_as_alone_in_the_order_given(beams, batch):
    model, texts = translator(), sentences(0, 17)
    expected = []
    for text in texts:
        source = [*model.tokenizer.encode(text).ids, 1]
        stepper = Stepper(model, [[2]], sources=[source], room=3 * len(source) + 50)
        if beams == 1:
            (ids,) = collected(sample(stepper, end=[1], rules=[never([2])]))
        else:
            ids = beam(stepper, beams=beams, end=[1], never=[2])[0][0].ids
        expected.append(model.tokenizer.decode(ids))
    assert translate(model, texts, beams=beams, batch=batch) == expected
    assert len(set(expected)) > 5, "else this would not see the order"


def test_batches_hold_what_they_may_and_texts_of_like_length():
    model, shapes = translator(), []
    model.encoder.register_forward_pre_hook(lambda part, given: shapes.append(tuple(given[0].shape)))
    translate(model, sentences(3, 40), beams=1, length=1, batch=30)
    assert all(rows * longest <= 30 for rows, longest in shapes)
    assert sum(rows for rows, _ in shapes) == 40
    assert [longest for _, longest in shapes] == sorted((longest for _, longest in shapes), reverse=True)
    assert len(shapes) < 14, "and not one by one"


def test_an_empty_text_has_an_empty_translation():
    model = translator()
    assert translate(model, []) == []
    assert translate(model, ["", " \n"]) == ["", ""]
    assert translate(model, ["", "one two", ""]) == ["", *translate(model, ["one two"]), ""]


def test_a_source_ends_once():
    """Whether the tokenizer closes its texts or not."""
    seen = []
    for closing in (True, False):
        model = translator()
        model.tokenizer = words(closing)
        model.encoder.embedding.register_forward_pre_hook(lambda part, given: seen.append(given[0].tolist()))
        translate(model, ["one two"], length=1)
    assert seen == [[[0, 4, 5, 1]], [[4, 5, 1]]]


@pytest.mark.parametrize("beams", [1, 2])
def test_padding_and_start_are_never_said(beams):
    """The model would like to say nothing else."""
    model = translator(pad=4, start=5)
    head = torch.nn.Linear(16, 14)
    torch.nn.init.zeros_(head.weight)
    head.bias = torch.nn.Parameter(torch.tensor([0.0, 0, 0, 0, 9, 8, 7, *[0] * 7]))
    model.decoder.head = head
    assert translate(model, ["one"], beams=beams, length=3) == ["three three three"]


def test_the_length_is_the_most_there_is():
    model = translator(end=[13])
    for beams in (1, 2):
        for length in (1, 5):
            said = translate(model, ["one two three"], beams=beams, length=length)
            assert len(said[0].split()) <= length


# --- generate


def test_each_text_is_continued_as_alone_in_the_order_given():
    model, texts = gpt(), sentences(1, 9)
    expected = []
    for n, text in enumerate(texts):
        stepper = Stepper(model, [model.tokenizer.encode(text).ids], room=20)
        (ids,) = collected(sample(stepper, end=[1], rules=[never([2]), top_k(6)], choose=drawn(3, [n])))
        expected.append(" ".join(["", *(model.tokenizer.id_to_token(i) for i in ids if i > 2)]))
    for batch in (1, 60, 10_000):
        assert generate(model, texts, length=20, top_k=6, seed=3, batch=batch) == expected
    assert generate(model, texts, length=20, top_k=6, seed=4) != expected
    assert len(set(expected)) > 4


def test_without_temperature_the_likeliest_is_said():
    model, texts = gpt(), sentences(2, 4)
    said = generate(model, texts, length=20, temperature=0)
    assert said == generate(model, texts, length=20, temperature=0, seed=9)
    assert said == generate(model, texts, length=20, top_k=1, seed=5)
    assert said == generate(model, texts, length=20, temperature=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_a_stream_is_what_generate_says(seed):
    model = gpt(letters(), end=[7, 9])
    text = random.Random(seed).choice(["ab", "é", "日本", "🙂", ""])
    stop = ["q", "zz"] if seed % 2 else []
    how = {"length": 50, "temperature": 0.8 + 0.1 * seed, "stop": stop, "seed": seed}
    pieces = list(stream(model, text, **how))
    assert all(pieces)
    (said,) = generate(model, [text], **how)
    assert "".join(pieces) == said
    assert not any(string in said for string in stop)


def test_a_stop_string_ends_its_text_alone():
    """Without it the text goes on; with it nothing is stepped further than it takes."""
    model = gpt()
    whole = generate(model, ["one two", "three"], length=30, seed=1)
    word = whole[0].split()[4]
    first = whole[0].index(word)
    seen = []
    model.register_forward_hook(lambda m, given, y: seen.append(len(y)))
    said = generate(model, ["one two"], length=30, seed=1, stop=[word])
    assert said == [whole[0][:first]]
    assert len(seen) <= 5
    assert generate(model, ["one two", "three"], length=30, seed=1, stop=[word])[1] == whole[1].split(word)[0]


def test_what_was_held_back_for_a_stop_is_said_when_none_comes():
    model = gpt(letters(), end=None)
    (whole,) = generate(model, ["ab"], length=30, seed=3)
    stop = [whole[-2:] + "never"]
    assert generate(model, ["ab"], length=30, seed=3, stop=stop) == [whole]
    assert "".join(stream(model, "ab", length=30, seed=3, stop=stop)) == whole


def test_a_prompt_is_not_closed_before_it_goes_on():
    """Its tokenizer would append an end, from where there is nothing more to say."""
    model, seen = gpt(words(closing=True)), []
    model.register_forward_pre_hook(lambda m, given: seen.append(given[0].tolist()))
    generate(model, ["one two", ""], length=1)
    assert [row[-1] for row in seen[0]] == [5, 0]


def test_an_empty_prompt_begins_where_texts_begin():
    model = gpt()
    assert generate(model, [], length=3) == []
    assert len(generate(model, [""], length=5)) == 1
    del model.generation["begin"]
    with pytest.raises(ValueError, match='the text is empty, and the model has no "begin" id'):
        generate(model, [""], length=5)


def test_text_that_looks_special_is_text():
    model, seen = gpt(), []
    model.register_forward_pre_hook(lambda m, given: seen.append(given[0].tolist()))
    generate(model, ["one </s>"], length=1)
    assert seen == [[[4, 3, 3, 3]]]


def test_a_stream_says_what_is_wrong_before_its_first_piece():
    with pytest.raises(ValueError, match="top_k=0"):
        stream(gpt(), "one", top_k=0)


def test_a_stream_that_is_left_changes_nothing():
    model = gpt(end=None)
    pieces = stream(model, "one", length=30)
    next(pieces)
    pieces.close()
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()
    next(stream(model, "one", length=30))
    assert torch.is_grad_enabled()


# --- what they refuse


def test_models_of_another_kind():
    with pytest.raises(ValueError, match="translate is for what translates; this is a Decoder: use generate"):
        translate(gpt(), ["one"])
    with pytest.raises(
        ValueError, match="generate is for what continues texts; this is an EncoderDecoder: use translate"
    ):
        generate(translator(), ["one"])
    with pytest.raises(ValueError, match="this is a Linear: it does not write texts"):
        stream(torch.nn.Linear(2, 2), "one")


def test_no_tokenizer_and_no_special_ids():
    model = translator()
    model.generation = {"pad": 2}
    with pytest.raises(ValueError, match=r"special ids are \{'pad': 2\}; translating needs start and end"):
        translate(model, ["one"])
    model.generation = {"start": "two", "end": 1}
    with pytest.raises(ValueError, match=r'model.generation\["start"\] is \'two\'; it is an id'):
        translate(model, ["one"])
    model.tokenizer = None
    with pytest.raises(ValueError, match="no tokenizer"):
        translate(model, ["one"])


def test_texts_are_a_list_of_strings():
    with pytest.raises(TypeError, match=r"texts is one string; give a list of them: \['one two'\]"):
        translate(translator(), "one two")
    with pytest.raises(TypeError, match="text 1 is a int, 5; it must be a string"):
        generate(gpt(), ["one", 5])


@pytest.mark.parametrize(("how", "message"), [({"length": 0}, "length=0"), ({"batch": 0}, "batch=0")])
def test_counts_are_at_least_1(how, message):
    with pytest.raises(ValueError, match=message):
        generate(gpt(), ["one"], **how)
    with pytest.raises(ValueError, match=message):
        translate(translator(), ["one"], **how)


def test_a_tokenizer_that_cuts_texts_is_refused():
    model = gpt()
    model.tokenizer.enable_truncation(2)
    with pytest.raises(ValueError, match="cuts a text to 2 tokens"):
        generate(model, ["one two three"])


def test_a_tokenizer_that_pads_by_itself_is_understood():
    model = gpt()
    expected = generate(model, ["one two"], length=5)
    model.tokenizer.enable_padding(length=9, pad_id=2, pad_token="<pad>")
    assert generate(model, ["one two"], length=5) == expected


def test_a_prompt_longer_than_the_table_is_refused():
    with pytest.raises(ValueError, match="a prompt has 70 tokens, the model's learned positions end after 64"):
        generate(gpt(), [" ".join(["one"] * 70)], length=5)
    model = gpt(end=None, pad=0)
    assert generate(model, [" ".join(["one"] * 62)], length=50)[0].count(" ") == 3
