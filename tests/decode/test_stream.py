"""Pieces of text as ids come: together the whole, never half a character, up to a stop string."""

import functools
import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from heedful.decode import Pieces, Stops
from heedful.decode.stream import LONGEST

WORDS = "the cat sat on a mat it was not so very old and did n't say much of what one may think"
WORDS = WORDS.split(" ")


def anything(rng, longest=30):
    """Unicode at random: ASCII, accents, CJK, emoji with joiners, astral planes, controls, and U+FFFD itself."""
    kinds = ((0x20, 0x7F), (0xA0, 0x250), (0x4E00, 0x4F00), (0x1F300, 0x1F650), (0x10000, 0x10400), (0, 0x20))
    text = []
    for _ in range(rng.randint(0, longest)):
        low, high = rng.choice(kinds)
        text.append(rng.choice([chr(rng.randrange(low, high)), "\u200d", "\u0301", "\ufffd", "e", " "]))
    return "".join(text)


@functools.cache
def byte_level(merges=60):
    """Bytes, and a few merges of them, some across characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + 1 + merges,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<end>"],
        show_progress=False,
    )
    rng = random.Random(0)
    tokenizer.train_from_iterator([anything(rng) for _ in range(300)], trainer)
    return tokenizer


@functools.cache
def byte_fallback():
    """As LLaMA's: ▁ for spaces, characters, and bytes for those that are not known; the first space is stripped."""
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz.,", "é"]
    vocab = {"<unk>": 0, **{f"<0x{byte:02X}>": 1 + byte for byte in range(256)}}
    vocab |= {letter: 257 + n for n, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def word_vocabulary(pieces):
    return {piece: n for n, piece in enumerate(["[UNK]", *pieces])}


@functools.cache
def word_pieces():
    """As BERT's: ## goes on with a word; spaces before some signs are taken out again."""
    letters = [*"abcdefghijklmnopqrstuvwxyz.,'!?"]
    tokenizer = Tokenizer(
        models.WordPiece(word_vocabulary([*WORDS, *letters, *(f"##{x}" for x in letters)]), unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    return tokenizer


@functools.cache
def suffixes():
    """As the first BPE's: </w> ends a word."""
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=80, special_tokens=["[UNK]"], end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    return tokenizer


@functools.cache
def unigram():
    """As sentencepiece's: ▁ begins a word."""
    tokenizer = Tokenizer(
        models.Unigram([("<unk>", 0.0), ("▁", -2.0), *((x, -3.0) for x in "abcdefghijklmnotuvwy'")], unk_id=0)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


KINDS = {
    "byte level": byte_level,
    "byte fallback": byte_fallback,
    "word pieces": word_pieces,
    "suffixes": suffixes,
    "unigram": unigram,
}


def said(tokenizer, ids, before=()):
    pieces = Pieces(tokenizer, before)
    return [*(pieces.add(i) for i in ids), pieces.rest()]


def whole(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("part", range(4))
def test_a_thousand_random_strings_through_bytes(part):
    tokenizer, half = byte_level(), 0
    for case in range(250):
        text = anything(random.Random(1000 * part + case))
        ids = tokenizer.encode(text).ids
        pieces = said(tokenizer, ids)
        assert "".join(pieces) == text
        # Each piece is whole characters of the text: U+FFFD comes only where the text has it.
        assert sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")
        half += sum(whole(tokenizer, [i]) != piece for i, piece in zip(ids, pieces[:-1], strict=True))
    assert half > 1000, "ids that are half a character come often here"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_pieces_are_the_decoding_of_the_whole(kind, seed):
    tokenizer, rng = KINDS[kind](), random.Random(seed)
    for _ in range(20):
        words = rng.choices(
            [*WORDS, "été", "naïve", "日本", "🙂👍🏽", "x.", "don't", "(...)", "I ' m"], k=rng.randint(0, 60)
        )
        ids = tokenizer.encode(" ".join(words)).ids
        assert "".join(said(tokenizer, ids)) == whole(tokenizer, ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_what_stands_before_is_not_said_and_is_not_forgotten(kind, seed):
    """A first word after a prompt keeps its space."""
    tokenizer, rng = KINDS[kind](), random.Random(seed)
    for _ in range(20):
        before = tokenizer.encode(" ".join(rng.choices(WORDS, k=rng.randint(1, 40)))).ids
        ids = tokenizer.encode(" ".join(rng.choices(WORDS, k=20))).ids
        told = whole(tokenizer, before)
        both = whole(tokenizer, [*before, *ids])
        if both.startswith(told):  # else a decoder joins the two, and nobody can take back the first
            assert "".join(said(tokenizer, ids, before)) == both[len(told) :]


@pytest.mark.parametrize("seed", range(20))
def test_bytes_that_are_no_text_are_decoded_as_the_whole(seed):
    """Ids at random, as an untrained model says them."""
    tokenizer, rng = byte_level(), random.Random(seed)
    ids = [rng.randrange(tokenizer.get_vocab_size()) for _ in range(200)]
    assert "".join(said(tokenizer, ids)) == whole(tokenizer, ids)
    stuck = [tokenizer.token_to_id(pre_tokenizers.ByteLevel.alphabet()[0])] * 5 + [rng.choice(ids)] * 100
    assert "".join(said(tokenizer, stuck)) == whole(tokenizer, stuck)


@pytest.mark.parametrize("seed", range(5))
def test_a_long_run_of_bytes_is_cut_between_characters(seed):
    """A decoder with byte fallback reads a run whole: begun in half a character, all of it would be unknown."""
    text = "".join(random.Random(seed).choices("日本🙂👍ß\u0301", k=100))
    pieces = said(byte_fallback(), byte_fallback().encode("a " + text).ids)
    assert "".join(pieces) == "a " + text
    assert max(map(len, pieces)) == 1


def test_special_ids_are_no_text():
    tokenizer = byte_level()
    ids = [*tokenizer.encode("ab").ids, tokenizer.token_to_id("<end>"), *tokenizer.encode("c").ids]
    assert said(tokenizer, ids) == ["a", "b", "", "c", ""]


def test_a_character_is_said_when_its_last_byte_has_come():
    tokenizer = Tokenizer(
        models.BPE(vocab={x: n for n, x in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    ids = tokenizer.encode("a🙂é").ids
    assert said(tokenizer, ids) == ["a", "", "", "", "🙂", "", "é", ""]
    assert said(tokenizer, ids[:3]) == ["a", "", "", "\ufffd"], "what never came whole is said at the end"


class Counting:
    def __init__(self, tokenizer):
        self.tokenizer, self.decoded = tokenizer, []

    def decode(self, ids, skip_special_tokens):
        self.decoded.append(len(ids))
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_costs_no_more_per_id(kind):
    tokenizer = Counting(KINDS[kind]())
    ids = tokenizer.tokenizer.encode(" ".join(random.Random(0).choices(WORDS, k=3000))).ids
    pieces = Pieces(tokenizer)
    for i in ids:
        pieces.add(i)
    assert max(tokenizer.decoded) <= LONGEST
    assert sum(tokenizer.decoded) < 40 * len(ids)


@pytest.mark.parametrize("byte", ["<0xFF>", "<0xE2>"])
def test_bytes_without_end_cost_no_more_per_id(byte):
    """A model that says the same half of a character for ever."""
    tokenizer = Counting(byte_fallback())
    pieces = Pieces(tokenizer, tokenizer.tokenizer.encode("a cat €").ids)
    text = [pieces.add(tokenizer.tokenizer.token_to_id(byte)) for _ in range(1000)]
    assert max(tokenizer.decoded) <= LONGEST
    assert len("".join(text)) > 500
    assert "".join(text).strip("\ufffd") == ""


# --- stop strings


def stopped_by_hand(text, stops):
    """Letter by letter: the text before the first stop string that is complete."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))]
    return text


@pytest.mark.parametrize("part", range(10))
def test_stop_strings_on_random_cases(part):
    """A thousand in all, over few letters, so that stops overlap and begin in vain."""
    stopped = 0
    for case in range(100):
        rng = random.Random(100 * part + case)
        text = "".join(rng.choices("aab", k=rng.randint(0, 25)))
        stops = ["".join(rng.choices("ab", k=rng.randint(1, 5))) for _ in range(rng.randint(0, 3))]
        cuts = sorted(rng.randint(0, len(text)) for _ in range(rng.randint(0, 12)))
        stop, got = Stops(stops), ""
        expected = stopped_by_hand(text, stops)
        for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            got += stop.add(text[begin:end])
            assert expected.startswith(got), "nothing is said too much"
            # What is held back may yet become a stop.
            assert stop.stopped or any(s.startswith(text[len(got) : end]) for s in [*stops, ""])
        got += stop.rest()
        assert got == expected
        assert stop.stopped == any(s in text for s in stops)
        stopped += stop.stopped
    assert 30 < stopped < 90


def test_a_stop_that_begins_and_does_not_come_is_said_after_all():
    stop = Stops(["\n\nQ:"])
    assert [stop.add(piece) for piece in ("a\n", "\n", "Q", "!", "\n\nQ", ":b")] == ["a", "", "", "\n\nQ!", "", ""]
    assert stop.stopped
    assert stop.add("c") + stop.rest() == ""


def test_stops_are_a_list_of_strings():
    with pytest.raises(TypeError, match=r"stop is one string, 'END'; give a list: \['END'\]"):
        Stops("END")
    with pytest.raises(ValueError, match="in every text"):
        Stops(["a", ""])
