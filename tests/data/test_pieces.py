"""Sentencepiece's own models, trained here: the tokenizer has the ids and the text of the original library."""

import functools
import io
import itertools
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from heedful.data import pieces, text
from heedful.data.pieces import from_sentencepiece
from heedful.tasks import words

LANGUAGES = ("en", "de", "fr", "zh")
NUMBERS = [words(random.Random(n).randrange(10**9), LANGUAGES[n % 4]) for n in range(800)]
MARKUP = ["<s> </s> <unk> <pad> <0x41> <ctrl> x<s>y </s></s> <0xFF>", "u n k p a d c t r l"] * 20
USER = ["<sep>", "thousand", "x▁y", "ｆｗ", "\n\n"]

# Single characters and strings that a normalizer, a segmenter or a decoder may trip over.
HOSTILE = [
    *"abefinort  <>/susnkp0x4ABC1▁\t\r\n\0\x01é¨～〜①ﬁßİﷺ七亿",
    *["e\u0301", "\u0301", "\u0323", "\u0302", "\u0344", "\u0308", "e\u0323\u0302", "\u0651", "\u064e", "ا"],
    *["ｶﾞ", "ﾞ", "한", "\u1112", "\u1161", "\u11ab", "가", "\u11a8", "ο", "\u0313", "\u0345", "\u212b", "I\u0307"],
    *[
        "ก",
        "\u0e33",
        "क",
        "\u093c",
        "\u0f71",
        "\u0f72",
        "\u200d",
        "👨‍👩‍👧",
        "🏽",
        "\ufeff",
        "\ufffd",
        "\u3000",
        "\u2028",
    ],
    *["\U00016d67", "\U00016d63", "\U0001611e", "thousand", "<sep>", "ｆｗ", "\n\n", "＜sep＞", " five", "neun", "   "],
    *["<s>", "</s>", "<unk>", "<pad>", "<ctrl>", "<0x41>", "<0xFF>"],
]
unicode = st.characters(exclude_categories=["Cs"])
mixed = st.lists(st.one_of(st.sampled_from(HOSTILE), unicode), max_size=12).map("".join)
ours = settings(max_examples=60, deadline=None, derandomize=True, database=None)


@pytest.fixture(scope="module", autouse=True)
def _maps_are_read_once() -> Iterator[None]:
    """All models here have the same few maps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "_rules", functools.cache(pieces._rules))
        read = functools.cache(lambda blob, apart: real(blob, pieces._rules(blob), apart))
        real = pieces._mapping
        patch.setattr(pieces, "_mapping", lambda blob, rules, apart: read(blob, apart))
        yield


def trained(folder: Path, texts: list[str] = NUMBERS, **given: object) -> Path:
    """A model of few pieces; further settings as sentencepiece has them."""
    made = io.BytesIO()
    arguments = {"vocab_size": 500, "hard_vocab_limit": False, "minloglevel": 5} | given
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_writer=made, **arguments)
    path = folder / "trained.model"
    path.write_bytes(made.getvalue())
    return path


def both(path: Path) -> tuple[sentencepiece.SentencePieceProcessor, Tokenizer]:
    return sentencepiece.SentencePieceProcessor(model_file=str(path)), from_sentencepiece(path)


def compare(theirs: sentencepiece.SentencePieceProcessor, tokenizer: Tokenizer, string: str) -> bool:
    """Whether the ids are the same; if not, both segmentations are equally likely. The text is the same anyway."""
    expected, ids = theirs.encode(string), tokenizer.encode(string).ids
    assert tokenizer.decode(expected) == theirs.decode(expected)
    if ids == expected:
        return True
    # Float32 has 7 digits, and no sum here exceeds 1,000.
    assert sum(map(theirs.get_score, ids)) == pytest.approx(sum(map(theirs.get_score, expected)), abs=1e-3)
    assert sorted(ids) == sorted(expected), f"{string!r}: {theirs.encode(string, out_type=str)}"
    return False


COMBINATIONS = list(
    itertools.product(["unigram", "bpe"], [False, True], [True, False], [True, False], ["nmt_nfkc", "identity"])
)


@pytest.mark.parametrize(("kind", "fallback", "prefix", "squeeze", "rule"), COMBINATIONS)
def test_ids_and_text_are_the_originals(kind, fallback, prefix, squeeze, rule, tmp_path):
    theirs, tokenizer = both(
        trained(
            tmp_path,
            model_type=kind,
            byte_fallback=fallback,
            add_dummy_prefix=prefix,
            remove_extra_whitespaces=squeeze,
            normalization_rule_name=rule,
            user_defined_symbols=USER,
            control_symbols=["<ctrl>"],
        )
    )
    # Said in the module: with byte fallback, stand-ins that are typed are bytes of another noncharacter.
    plain = dict.fromkeys(range(0xFDD0, 0xFDF0)) if fallback else {}
    rng = random.Random(0)
    drawn = ["".join(rng.choices(HOSTILE, k=rng.randrange(12))) for _ in range(200)]
    same = [compare(theirs, tokenizer, string) for string in ["", " ", "  ", *NUMBERS[::40], *drawn]]
    assert sum(same) >= 0.99 * len(same)

    @ours
    @given(mixed)
    def on_any_text(string):
        compare(theirs, tokenizer, string.translate(plain))

    on_any_text()
    assert [tokenizer.token_to_id(name) for name in ("<unk>", "<s>", "</s>", "<ctrl>")] == [0, 1, 2, 3]
    assert tokenizer.get_vocab_size() == theirs.vocab_size()


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("fallback", [False, True])
def test_no_text_makes_a_control_piece_even_where_all_its_characters_are_known(kind, fallback, tmp_path):
    settings_ = {
        "model_type": kind,
        "byte_fallback": fallback,
        "control_symbols": ["<ctrl>"],
        "character_coverage": 1.0,
    }
    theirs, tokenizer = both(trained(tmp_path, NUMBERS + MARKUP, **settings_))
    unspelled = {i for i in range(theirs.vocab_size()) if theirs.is_control(i)}
    names = ["<s>", "</s>", "<unk>", "<ctrl>", "<0x41>", "<0xFF>"]
    for before, name, after in itertools.product(["", "x", " ", "<", "七"], names, ["", "y", " ", "<s>", ">"]):
        assert compare(theirs, tokenizer, before + name + after)
        assert unspelled.isdisjoint(tokenizer.encode(before + name + after).ids)
    assert 0 not in tokenizer.encode("<unk>").ids, "all its characters are known"


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_any_ids_have_the_originals_text(kind, tmp_path):
    theirs, tokenizer = both(trained(tmp_path, model_type=kind, user_defined_symbols=USER, unk_surface=" ?? "))
    rng = random.Random(0)
    for _ in range(500):
        ids = rng.choices(range(theirs.vocab_size()), k=rng.randrange(8))
        assert tokenizer.decode(ids) == theirs.decode(ids)


def test_bytes_that_are_no_text(tmp_path):
    theirs, tokenizer = both(trained(tmp_path, byte_fallback=True))
    byte = {n: theirs.piece_to_id(f"<0x{n:02X}>") for n in range(256)}
    space, whole, broken = [byte[0x20]], [byte[n] for n in "é▁".encode()], [byte[0xC3]]
    for ids in (whole, space + whole, broken, broken * 3):
        assert tokenizer.decode(ids) == theirs.decode(ids)
    # Said in the module.
    assert (theirs.decode(broken + whole), tokenizer.decode(broken + whole)) == ("\ufffdé▁", "\ufffd" * 6)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_pieces_of_other_names_and_places(kind, tmp_path):
    layout = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "eos_piece": "[END]", "unk_piece": "[??]"}
    theirs, tokenizer = both(trained(tmp_path, model_type=kind, **layout))
    assert [tokenizer.id_to_token(i) for i in range(3)] == ["<pad>", "[END]", "[??]"]
    for string in ("<pad> five [END] [??]", "é five é", "neunhundert"):
        assert compare(theirs, tokenizer, string)
        assert {0, 1}.isdisjoint(tokenizer.encode(string).ids)
    ready = text.loaded(tmp_path / "trained.model")
    size = theirs.vocab_size()
    assert text.special_ids(ready) == {"pad": 0, "start": size, "end": size + 1}


@pytest.mark.parametrize("rule", ["nfkc", "nfkc_cf", "nmt_nfkc_cf"])
def test_further_maps(rule, tmp_path):
    theirs, tokenizer = both(trained(tmp_path, byte_fallback=True, normalization_rule_name=rule))
    rng = random.Random(0)
    for _ in range(300):
        capitals = ["I", "\u0307", "Ω", "\u0345", "О", "\u0308", "Ι"]
        assert compare(theirs, tokenizer, "".join(rng.choices(HOSTILE + capitals, k=rng.randrange(12))))


def test_marks_in_the_order_of_the_text(tmp_path):
    """Where NFC alone would sort them, and a lookup by grapheme would lose them."""
    theirs, tokenizer = both(trained(tmp_path, byte_fallback=True, normalization_rule_name="nmt_nfkc"))
    for string in [
        "Vie\u0323\u0302t",
        "\u0651\u064e",
        "\u064e\u0651",
        "a\u0302\u0323",
        "①\u0301",
        "ﬁ\u0301",
        "e\x01\u0301",
    ]:
        assert compare(theirs, tokenizer, string)
    assert tokenizer.decode(tokenizer.encode("Vie\u0323\u0302t").ids) == "Việt"
    assert tokenizer.decode(tokenizer.encode("①\u0301").ids) == "1\u0301"


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_spaces_at_the_ends(kind, tmp_path):
    """Also those that are typed as ▁, and those of a piece that users defined."""
    around = ["", " ", "▁", "▁▁", "▁ ▁"]
    for rule in ("nmt_nfkc", "identity"):
        theirs, tokenizer = both(
            trained(tmp_path, model_type=kind, normalization_rule_name=rule, user_defined_symbols=["x▁", "▁y"])
        )
        for before, string, after in itertools.product(around, ["a", "x▁", "▁y", "ax▁ ▁ya"], around):
            assert compare(theirs, tokenizer, before + string + after)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_pieces_in_any_order(kind, tmp_path):
    """A piece's place is its id; how good it is, its score alone says."""
    path = trained(tmp_path, model_type=kind, user_defined_symbols=USER)
    messages = _pieces_of(path.read_bytes())
    rest = path.read_bytes()[sum(map(len, messages)) :]
    random.Random(0).shuffle(messages)
    path.write_bytes(b"".join(messages) + rest)
    theirs, tokenizer = both(path)
    assert [theirs.id_to_piece(i) for i in range(3)] != ["<unk>", "<s>", "</s>"]
    for string in [*NUMBERS[::10], "<s> x▁y é"]:
        assert compare(theirs, tokenizer, string)


def _pieces_of(data: bytes) -> list[bytes]:
    """The pieces stand first in a file: a field's number and kind (0x0A), its length, so many bytes."""
    found = []
    while data[:1] == b"\x0a":
        assert data[1] < 128
        found.append(data[: 2 + data[1]])
        data = data[2 + data[1] :]
    return found


def test_a_map_of_ones_own(tmp_path):
    rules = tmp_path / "rules.tsv"
    lines = {"ä": "ae", "ß": "ss", "ch": "x", "schwarz": "y", "Q": "", "o\u0301": "ó", "O": "o"}
    rules.write_text("".join(f"{_hex(key)}\t{_hex(value)}\n" for key, value in lines.items()), encoding="utf-8")
    theirs, tokenizer = both(trained(tmp_path, normalization_rule_tsv=str(rules)))
    rng = random.Random(0)
    assert tokenizer.normalizer.normalize_str("ä schwarz ich Q") == theirs.normalize("ä schwarz ich Q") == "▁ae▁y▁ix"
    for _ in range(300):
        assert compare(
            theirs,
            tokenizer,
            "".join(rng.choices([*"ächswarzQß oOe", "schwarz", "a\u0308", "o\u0301", "O\u0301"], k=9)),
        )


def _hex(string: str) -> str:
    return " ".join(f"{ord(c):X}" for c in string)


def test_a_map_that_cannot_be_told_is_refused(tmp_path):
    rules = tmp_path / "rules.tsv"
    # "ch" becomes "k", which the rule for "k" alone would change again.
    rules.write_text(f"{_hex('ch')}\t{_hex('k')}\n{_hex('k')}\t{_hex('c')}\n", encoding="utf-8")
    path = trained(tmp_path, normalization_rule_tsv=str(rules))
    with pytest.raises(ValueError, match=r"trained\.model .*cannot be read here, such as 'ch' -> 'k'"):
        from_sentencepiece(path)


def test_saved_and_loaded_it_is_the_same(tmp_path):
    ready = text.loaded(trained(tmp_path, byte_fallback=True, user_defined_symbols=USER))
    ready.save(str(tmp_path / "tokenizer.json"))
    again = text.loaded(tmp_path / "tokenizer.json")
    assert again.to_str() == ready.to_str()
    rng = random.Random(0)
    for _ in range(200):
        string = "".join(rng.choices(HOSTILE, k=8))
        assert again.encode(string).ids == ready.encode(string).ids


def test_the_file_does_not_depend_on_the_process(tmp_path):
    path = trained(tmp_path, normalization_rule_name="nmt_nfkc", user_defined_symbols=USER)
    script = "import sys, pathlib; from heedful.data.pieces import from_sentencepiece as read; " + (
        "sys.stdout.buffer.write(read(pathlib.Path(sys.argv[1])).to_str().encode())"
    )
    files = [
        subprocess.run([sys.executable, "-c", script, path], env={"PYTHONHASHSEED": n}, capture_output=True, check=True)
        for n in "12"
    ]
    assert files[0].stdout == files[1].stdout != b""


# What is refused.


@pytest.mark.parametrize("kind", ["char", "word"])
def test_models_of_other_kinds(kind, tmp_path):
    path = trained(tmp_path, model_type=kind, use_all_vocab=True)
    with pytest.raises(ValueError, match=r"trained\.model cannot be read .* of words or characters; unigram and bpe"):
        from_sentencepiece(path)


def test_spaces_after_words(tmp_path):
    path = trained(tmp_path, treat_whitespace_as_suffix=True)
    with pytest.raises(ValueError, match="does not write a space as ▁ before a word"):
        from_sentencepiece(path)


@pytest.mark.parametrize("content", [b"", b"\x00", b"once upon a time\n", bytes(range(256)), b"\xff" * 99])
def test_other_files(content, tmp_path):
    path = tmp_path / "other.model"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"other\.model cannot be read as a sentencepiece model: "):
        from_sentencepiece(path)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_damaged_file_is_refused_or_read(kind, tmp_path):
    rules = tmp_path / "rules.tsv"
    rules.write_text(f"{_hex('ä')}\t{_hex('ae')}\n{_hex('e' + chr(0x301))}\t{_hex('é')}\n", encoding="utf-8")
    path = trained(tmp_path, model_type=kind, vocab_size=80, normalization_rule_tsv=str(rules))
    whole, rng = path.read_bytes(), random.Random(0)
    refused = []
    for n in range(600):
        data = bytearray(whole)
        if n % 3 == 0:
            del data[rng.randrange(len(data)) :]
        else:
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        try:
            tokenizer = from_sentencepiece(path)
        except ValueError as error:
            refused.append(str(error))
        else:
            assert isinstance(tokenizer.decode(tokenizer.encode("fünf ä e\u0301 <s> million").ids), str)
    assert all(str(path) in error for error in refused)
    # Nearly every one that is cut; the damage of a byte is often one of a name or a score.
    assert len(refused) >= 180
