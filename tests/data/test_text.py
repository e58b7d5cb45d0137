"""Tokenizers trained here and loaded: texts come back, no text makes a special id, a damaged file is refused."""

import itertools
import json
import random
import subprocess
import sys

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from heedful.data import text
from heedful.data.text import KINDS, SPECIAL, encoded, loaded, special_ids, trained
from heedful.tasks import words

LANGUAGES = ("en", "de", "fr", "zh")
NUMBERS = [words(random.Random(n).randrange(10**9), LANGUAGES[n % 4]) for n in range(500)]
MARKUP = [f"{before}<s>{after}</s><pad> struck </s>" for before in ("", "a", " ") for after in ("b", " ", "\n")] * 30
BYTES = ["bpe", "unigram", "bytes"]
ours = settings(max_examples=100, deadline=None, derandomize=True, database=None)
unicode = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.fixture(scope="module")
def made() -> dict[str, Tokenizer]:
    """One of each kind, from a corpus that has the names of the special entries in it as well."""
    return {kind: trained(NUMBERS + MARKUP, kind, 600) for kind in KINDS}


def random_text(rng: random.Random) -> str:
    """Characters of one plane or of all, runs of spaces, and what looks like a special entry."""
    pool = rng.choice(
        [range(0x20, 0x7F), range(0x250), range(0xD800), range(0xE000, 0x110000), range(0x1F300, 0x1FAFF)]
    )
    drawn = [chr(rng.choice(pool)) for _ in range(rng.randrange(20))]
    drawn += rng.choices([" ", "  ", "\n", "\t", "\0", "Ġ", "▁", "\u0301", "\u200d", *SPECIAL], k=rng.randrange(4))
    rng.shuffle(drawn)
    return "".join(drawn)


def comes_back(tokenizer: Tokenizer, count: int, seed: int) -> None:
    rng = random.Random(seed)
    drawn = [random_text(rng) for _ in range(count)]
    ids = list(encoded(tokenizer, drawn))
    assert all(min(one, default=3) >= 0 and max(one, default=0) < tokenizer.get_vocab_size() for one in ids)
    assert not any({0, 1, 2} & {*one} for one in ids)
    for string, back in zip(drawn, tokenizer.decode_batch(ids), strict=True):
        assert back == string


# What is trained here.


@pytest.mark.parametrize("kind", BYTES)
def test_every_text_comes_back(kind, made):
    comes_back(made[kind], 10_000, seed=0)


@pytest.mark.parametrize("kind", BYTES)
def test_any_text_comes_back(kind, made):
    @ours
    @given(unicode)
    def on_any_text(string):
        ids = made[kind].encode(string).ids
        assert made[kind].decode(ids) == string
        assert {0, 1, 2}.isdisjoint(ids)

    on_any_text()


def test_bytes_are_the_bytes_of_utf_8(made):
    """A space goes before every text, for words inside of it have one too."""
    by_byte = {made["bytes"].encode(chr(n)).ids[-1]: n for n in range(128)}
    assert len(by_byte) == 128
    assert [by_byte[i] for i in made["bytes"].encode("one two").ids] == list(b" one two")
    assert len(made["bytes"].encode("七€").ids) == 1 + len("七€".encode())


@pytest.mark.parametrize(("kind", "share"), [("bpe", 1 / 3), ("unigram", 2 / 3)])
def test_pieces_are_fewer_than_bytes(kind, share, made):
    strings = NUMBERS[:100]
    counts = [sum(len(ids) for ids in encoded(made[name], strings)) for name in (kind, "bytes")]
    assert counts[0] < counts[1] * share


@pytest.mark.parametrize("kind", KINDS)
def test_the_special_entries_come_first(kind, made):
    assert special_ids(made[kind]) == {"pad": 0, "start": 1, "end": 2}
    assert [made[kind].id_to_token(i) for i in range(3)] == SPECIAL
    assert made[kind].decode([1, *made[kind].encode("one").ids, 2, 0, 0]) == "one"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SPECIAL)
def test_no_text_makes_a_special_id(kind, name, made):
    around = ["", "a", " ", "one", "\n", "<", ">", "七", "\x7f", *SPECIAL]
    strings = [before + name + after for before, after in itertools.product(around, around)]
    for ids in [*encoded(made[kind], strings), *(made[kind].encode(string).ids for string in strings)]:
        assert {0, 1, 2}.isdisjoint(ids)


def test_characters(made):
    known = {c for string in NUMBERS + MARKUP for c in string}
    tokenizer = made["characters"]
    assert tokenizer.get_vocab_size() == len(known) + 4
    names = [tokenizer.id_to_token(i) for i in tokenizer.encode("ein  hé\n七?").ids]
    assert names == [c if c in known else "<unk>" for c in "ein  hé\n七?"]
    for string in NUMBERS[:50]:
        assert tokenizer.decode(tokenizer.encode(string).ids) == string


def test_rare_characters_are_unknown():
    tokenizer = trained(["aaabbbcc", "d"], "characters", 4 + 3)
    assert {name for name in tokenizer.get_vocab() if len(name) == 1} == {"a", "b", "c"}
    assert tokenizer.encode("abcd").tokens == ["a", "b", "c", "<unk>"]


def test_words():
    tokenizer = trained(["the cat sat, the cat ran", "the end."], "words", 4 + 4)
    assert tokenizer.encode("the cat, the dog.").tokens[:4] == ["the", "cat", ",", "the"]
    assert tokenizer.encode("dog").tokens == ["<unk>"]
    assert tokenizer.get_vocab_size() == 8


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [259, 270, 300])
def test_no_more_entries_than_asked_for(kind, size):
    assert trained(NUMBERS[:100], kind, size).get_vocab_size() <= size


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_large_corpus_fills_the_vocabulary(kind, made):
    assert made[kind].get_vocab_size() == 600


@pytest.mark.parametrize("kind", KINDS)
def test_trained_twice_it_is_the_same_file(kind, made):
    assert trained(NUMBERS + MARKUP, kind, 600).to_str() == made[kind].to_str()


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_file_does_not_depend_on_the_process(kind):
    script = (
        "import sys; from heedful.data.text import trained; from heedful.tasks import words; "
        "texts = [words(n * 7919 % 10**9, 'de') for n in range(300)]; "
        f"sys.stdout.buffer.write(trained(texts, '{kind}', 400).to_str().encode())"
    )
    files = [
        subprocess.run([sys.executable, "-c", script], env={"PYTHONHASHSEED": n}, capture_output=True, check=True)
        for n in "12"
    ]
    assert files[0].stdout == files[1].stdout != b""


def test_bytes_that_are_not_in_the_corpus_are_all_alike():
    tokenizer = trained(NUMBERS[:100], "unigram", 400)
    scores = dict(json.loads(tokenizer.to_str())["model"]["vocab"])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    mapped = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    seen = {c for string in NUMBERS[:100] for c in mapped.pre_tokenize_str(string)[0][0]} | {"Ġ"}
    unseen = {scores[c] for c in alphabet if c not in seen}
    assert unseen == {min(score for name, score in scores.items() if name not in SPECIAL)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("corpus", [[], [""], ["", " ", "\n"]])
def test_an_empty_corpus(kind, corpus):
    tokenizer = trained(corpus, kind, 300)
    assert special_ids(tokenizer) == {"pad": 0, "start": 1, "end": 2}
    ids = tokenizer.encode("one").ids
    assert {0, 1, 2}.isdisjoint(ids)
    if kind in BYTES:
        assert tokenizer.decode(ids) == "one"
    else:
        assert {tokenizer.id_to_token(i) for i in ids} == {"<unk>"}


# What is refused.


def test_an_unknown_kind():
    with pytest.raises(ValueError, match=r'no tokenizer kind "bep"; there are bpe, unigram, .*; did you mean "bpe"\?'):
        trained(["a"], "bep")
    with pytest.raises(ValueError, match=r'no tokenizer kind "zzz"; there are bpe.*words$'):
        trained(["a"], "zzz")


@pytest.mark.parametrize(("kind", "size", "least"), [("bpe", 258, 259), ("unigram", 0, 259), ("characters", 4, None)])
def test_too_small(kind, size, least):
    with pytest.raises(
        ValueError, match=f"vocabulary={size}: .*" + (f"give {least} or more" if least else "give more")
    ):
        trained(["a"], kind, size)


# Many texts at once.


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7])
def test_texts_are_encoded_in_their_order(count, made):
    strings = NUMBERS[:count]
    found = list(encoded(made["bpe"], iter(strings), together=3))
    assert found == [made["bpe"].encode(string).ids for string in strings]


# What is loaded.


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_it_is_the_same(kind, made, tmp_path):
    path = tmp_path / "tokenizer.json"
    made[kind].save(str(path))
    again = loaded(path)
    assert again.to_str() == made[kind].to_str()
    strings = [*NUMBERS[:50], *MARKUP[:9], "<s> </s>"]
    assert list(encoded(again, strings)) == list(encoded(made[kind], strings))
    # The library alone opens it; that it then finds special entries in a text is its own default.
    plain = Tokenizer.from_file(str(path))
    assert plain.encode("one").ids == again.encode("one").ids


def foreign(kind: str) -> Tokenizer:
    """Tokenizers as others write them: special entries among the words, padding and truncation on."""
    names = ["<unk>", "<s>", "</s>", "a", "b", "<", ">", "s", "/", " ", "▁"]
    if kind == "unigram":
        tokenizer = Tokenizer(models.Unigram([(name, 0.0 if len(name) > 1 else -2.0) for name in names], 0, False))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    elif kind == "words":
        tokenizer = Tokenizer(models.WordLevel({name: n for n, name in enumerate(names)}, "<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        merges = [("<", "s"), ("<s", ">"), ("<", "/"), ("</", "s"), ("</s", ">")]
        vocabulary = {name: n for n, name in enumerate([*names, "<s", "</", "</s"])}
        tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.enable_padding(length=20, pad_token="</s>", pad_id=2)
    tokenizer.enable_truncation(2)
    return tokenizer


@pytest.mark.parametrize("kind", ["unigram", "words", "bpe"])
@pytest.mark.parametrize("named", ["as words", "as entries", "as special"])
def test_a_foreign_tokenizer(kind, named, tmp_path):
    theirs = foreign(kind)
    if named == "as entries":
        theirs.add_tokens(["<s>", "</s>"])
    if named == "as special":
        theirs.add_special_tokens(["<s>", "</s>"])
    path = tmp_path / "tokenizer.json"
    theirs.save(str(path))
    tokenizer = loaded(path)
    size = theirs.get_vocab_size()
    assert special_ids(tokenizer) == {"pad": size, "start": 1, "end": 2}
    assert (tokenizer.padding, tokenizer.truncation) == (None, None)
    around = ["", "a", " ", "<", ">", "<s>", "</s>", "é"]
    for before, name, after in itertools.product(around, [*SPECIAL, "<S>"], around):
        assert {size, 1, 2}.isdisjoint(tokenizer.encode(before + name + after).ids)
    # Words without such a name in them are read as before.
    theirs.no_padding()
    theirs.no_truncation()
    for string in ("a b", "<a>", "s/ /s", "aéb >"):
        assert tokenizer.encode(string).ids == theirs.encode(string).ids
    # And once more.
    tokenizer.save(str(path))
    assert loaded(path).to_str() == tokenizer.to_str()


def test_what_others_add_around_a_text_stays_out_of_a_corpus(tmp_path):
    theirs = foreign("words")
    theirs.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    theirs.save(str(tmp_path / "tokenizer.json"))
    tokenizer = loaded(tmp_path / "tokenizer.json")
    assert list(encoded(tokenizer, ["a b", ""])) == [[3, 4], []]
    assert tokenizer.encode("a b").ids == [1, 3, 4, 2]


def test_a_tokenizer_to_which_every_text_is_special(tmp_path):
    theirs = Tokenizer(models.WordLevel({"</s>": 0, "a": 1}, "</s>"))
    theirs.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer: .*becomes that entry"):
        loaded(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("name", ["bep", "none.json", "none.model", "."])
def test_a_file_that_is_none(name, tmp_path):
    with pytest.raises(ValueError, match=r"is not a file; a tokenizer is a .*, or one of bpe, unigram"):
        loaded(tmp_path / name)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"null", b"\xff\xfe", b'{"model": {"type": "BPE"}}', b"[" * 9999]
)
def test_other_files(content, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer: "):
        loaded(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_refused_or_a_tokenizer(kind, made, tmp_path):
    whole, rng = trained(NUMBERS[:20], kind, 270).to_str().encode(), random.Random(0)
    path = tmp_path / "tokenizer.json"
    refused = 0
    for n in range(300):
        data = bytearray(whole)
        if n % 3 == 0:
            del data[rng.randrange(len(data)) :]
        else:
            data[rng.randrange(len(data))] = rng.choice([*b'0123456789"[]{},:-', rng.randrange(256)])
        path.write_bytes(data)
        try:
            tokenizer = loaded(path)
        except ValueError:
            refused += 1
        else:
            assert isinstance(tokenizer, tokenizers.Tokenizer)
            assert len({*special_ids(tokenizer).values()}) == 3
    assert refused >= 150, "every one that is cut, and most of the others"


def test_sentencepieces_own(tmp_path):
    path = tmp_path / "other.model"
    path.write_bytes(b"no protobuf")
    with pytest.raises(ValueError, match=r"other\.model cannot be read as a sentencepiece model"):
        loaded(path)


def test_the_names_are_those_that_models_keep():
    assert (text.PAD, text.START, text.END) == ("<pad>", "<s>", "</s>")
