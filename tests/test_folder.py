"""A model's folder: what is written comes back bit for bit, damage is named, and nothing is ever half-written."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn

import heedful
from heedful import disk
from heedful import folder as folders
from heedful.models import RECIPES, gpt
from tests.models.parity import named
from tests.models.test_recipe import TINY, logits, tiny

EVERY = pytest.mark.parametrize("name", RECIPES)


def small(**more):
    torch.manual_seed(1)
    return gpt(**TINY["gpt"], **more)


def same(ours, theirs):
    """Bit-equal tensors under equal names, of equal dtypes."""
    ours, theirs = named(ours), named(theirs)
    assert list(ours) == list(theirs)
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype
        assert torch.equal(tensor, theirs[name]), name


@pytest.fixture
def folder(tmp_path):
    heedful.save(small(), tmp_path / "model")
    return tmp_path / "model"


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_what_is_saved_comes_back_bit_for_bit(name, dtype, tmp_path):
    model = tiny(name).to(dtype)
    heedful.save(model, tmp_path / "model")
    again = heedful.load(tmp_path / "model")
    assert again.recipe == model.recipe
    same(model, again)
    assert not again.training
    assert torch.equal(logits(model.eval()), logits(again))
    assert list(model.state_dict()) == list(again.state_dict())


@EVERY
@pytest.mark.parametrize("tied", [True, False])
def test_ties_are_kept(name, tied, tmp_path):
    heedful.save(tiny(name, tied=tied), tmp_path / "model")
    again = heedful.load(tmp_path / "model")
    decoder = again.decoder if isinstance(again, heedful.EncoderDecoder) else again
    assert (decoder.head.weight is decoder.embedding.tokens.weight) == tied
    if decoder is not again:
        assert again.encoder.embedding.tokens.weight is decoder.embedding.tokens.weight
    assert all(p.requires_grad and p.is_leaf for p in again.parameters())
    assert len(list(again.parameters())) == len(list(tiny(name, tied=tied).parameters()))


def test_a_dtype_that_is_asked_for_is_given(folder):
    model = heedful.load(folder, dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert torch.equal(model.norm.weight, small().norm.weight.bfloat16())
    assert model.head.weight is model.embedding.tokens.weight


def test_one_dtype_beside_another_comes_back(tmp_path):
    model = small().bfloat16()
    model.norm.float()
    heedful.save(model, tmp_path / "model")
    same(model, heedful.load(tmp_path / "model"))


def test_a_model_that_is_loaded_can_be_trained_and_saved_again(folder, tmp_path):
    model = heedful.load(folder).train()
    logits(model).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    heedful.save(model, tmp_path / "again")
    same(model, heedful.load(tmp_path / "again"))
    same(small(), heedful.load(folder))


def test_a_model_that_is_loaded_needs_its_folder_no_more(folder):
    """Weights that stay mapped to a file change when it is written to, and end the process when it is cut."""
    model = heedful.load(folder)
    before = logits(model)
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-600, os.SEEK_END)
        file.write(bytes(600))
    assert torch.equal(logits(model), before)
    shutil.rmtree(folder)
    assert torch.equal(logits(model), before)


def test_the_folder_opens_with_plain_safetensors_and_json(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["format"] == 1
    assert config["recipe"] == "gpt"
    assert config["arguments"] == small().recipe[1]
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    model = named(small())
    assert tensors.keys() == model.keys()  # a tied head is there once, under its first path
    assert all(torch.equal(tensors[name], tensor) for name, tensor in model.items())
    manifest = json.loads((folder / "manifest.json").read_text())
    assert sorted(manifest["files"]) == ["README.md", "config.json", "model.safetensors"]
    card = (folder / "README.md").read_text()
    assert f"{sum(p.numel() for p in small().parameters()):,} parameters" in card


def test_special_ids_come_back(tmp_path):
    model = small()
    model.generation = {"begin": 1, "end": [2, 3], "pad": 0}
    heedful.save(model, tmp_path / "model")
    assert json.loads((tmp_path / "model" / "generation.json").read_text()) == model.generation
    assert heedful.load(tmp_path / "model").generation == model.generation


def test_a_folder_may_be_named_by_a_string_relative_or_in_folders_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    heedful.save(small(), "one")
    heedful.save(small(), os.path.join("a", "b", "two"))
    (tmp_path / "empty").mkdir()
    heedful.save(small(), tmp_path / "empty")
    for name in ("one", "a/b/two", "empty/"):
        same(small(), heedful.load(name))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "empty", "one"]


def test_an_older_model_is_overwritten_whole(tmp_path, monkeypatch):
    """Nothing of the older one stays: neither its shards nor its special ids."""
    older = tiny("llama")
    older.generation = {"end": 3}
    with monkeypatch.context() as patch:
        patch.setattr(folders, "SHARD", 500)
        heedful.save(older, tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors.index.json").exists()
    heedful.save(small(), tmp_path / "model")
    again = heedful.load(tmp_path / "model")
    same(small(), again)
    assert again.generation == {}
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "README.md",
        "config.json",
        "manifest.json",
        "model.safetensors",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    "files",
    [
        {"thesis.tex": "years of work"},
        {"manifest.json": '{"name": "a web page"}', "index.html": "<html>"},
        {"manifest.json": "not even JSON"},
        {"config.json": "{}"},
    ],
    ids=["text", "a-web-page", "another-manifest", "config-alone"],
)
def test_a_folder_that_is_no_models_is_not_overwritten(files, tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for name, text in files.items():
        (theirs / name).write_text(text)
    with pytest.raises(ValueError, match=r"theirs .*not a model's folder: choose another, or remove it"):
        heedful.save(small(), theirs)
    assert {path.name: path.read_text() for path in theirs.iterdir()} == files
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_a_models_folder_with_something_of_yours_in_it_is_not_overwritten(folder):
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"notes\.txt"):
        heedful.save(small(), folder)
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_file_is_not_overwritten(tmp_path):
    (tmp_path / "model").write_text("a file")
    with pytest.raises(ValueError, match=r"model exists and is not a model's folder"):
        heedful.save(small(), tmp_path / "model")
    assert (tmp_path / "model").read_text() == "a file"


# Damage.


def refused(folder, *words):
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  each caller says which words
        heedful.load(folder)
    for word in words:
        assert word in str(refusal.value), refusal.value


@pytest.fixture
def whole(tmp_path, monkeypatch):
    """A folder with every kind of file."""
    model = small()
    model.generation, model.tokenizer = {"end": 3}, bpe()
    with monkeypatch.context() as patch:
        patch.setattr(folders, "SHARD", 2000)
        heedful.save(model, tmp_path / "model")
    return tmp_path / "model"


FILES = [
    "README.md",
    "config.json",
    "generation.json",
    "manifest.json",
    "model-00001-of-00003.safetensors",
    "model-00003-of-00003.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
]


def test_the_folder_below_has_every_kind_of_file(whole):
    present = sorted(path.name for path in whole.iterdir())
    assert sorted([*FILES, "model-00002-of-00003.safetensors"]) == present
    same(small(), heedful.load(whole))


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_gone_is_named(name, whole):
    (whole / name).unlink()
    refused(whole, name)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_a_file_that_is_cut_short_is_named(name, share, whole):
    """Down to the last two bytes: of some files the last one is a line's end, and carries nothing."""
    raw = (whole / name).read_bytes()
    (whole / name).write_bytes(raw[: min(int(share * len(raw)), len(raw) - 2)])
    refused(whole, name)


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_one_bit_flipped_is_named(name, whole):
    raw = (whole / name).read_bytes()
    step = max(1, len(raw) // 40)
    for place in range(0, len(raw), step):
        flipped = bytearray(raw)
        flipped[place] ^= 1 << place // step % 8
        (whole / name).write_bytes(bytes(flipped))
        # A wrong digest accuses the file beside it: then the manifest is named as the one who says so.
        refused(whole, "manifest" if name == "manifest.json" else name)


@pytest.mark.parametrize("name", ["config.json", "manifest.json"])
def test_no_single_bit_of_the_small_files_can_flip_unseen(name, folder):
    raw = (folder / name).read_bytes()
    for place in range(len(raw)):
        flipped = bytearray(raw)
        flipped[place] ^= 1 << place % 8
        (folder / name).write_bytes(bytes(flipped))
        try:
            heedful.load(folder)
        except ValueError:
            continue
        pytest.fail(
            f"bit {place % 8} of byte {place} flipped unseen: {bytes(flipped)[max(0, place - 20) : place + 20]}"
        )


def test_a_file_that_is_a_folder_is_refused(whole):
    for name in FILES:
        raw = (whole / name).read_bytes()
        (whole / name).unlink()
        (whole / name).mkdir()
        refused(whole, name)
        (whole / name).rmdir()
        (whole / name).write_bytes(raw)


def resealed(folder):
    """A manifest that fits what is there now: as of someone who changed the files on purpose."""
    manifest = json.loads((folder / "manifest.json").read_text())
    names = [path.name for path in folder.iterdir() if path.is_file() and path.name != "manifest.json"]
    manifest["files"] = {name: disk.sha256(folder / name) for name in names}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def rewritten(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ("../x.safetensors", ["'../x.safetensors'", "not a file in it"]),
        ("/etc/passwd", ["'/etc/passwd'", "not a file in it"]),
        ("sub/x.safetensors", ["'sub/x.safetensors'", "not a file in it"]),
        ("gone.safetensors", ["'gone.safetensors'", "not a file in it"]),
        ("..", ["'..'"]),
        ("", ["''"]),
        (".", ["'.'"]),
        ("sub", ["'sub'"]),
        (7, ["model.safetensors.index.json"]),
        (None, ["model.safetensors.index.json"]),
        (["model.safetensors"], ["model.safetensors.index.json"]),
    ],
)
def test_an_index_names_files_in_its_own_folder_and_no_others(listed, words, whole, tmp_path):
    shutil.copy(whole / "model-00001-of-00003.safetensors", tmp_path / "x.safetensors")
    (whole / "sub").mkdir()
    shutil.copy(tmp_path / "x.safetensors", whole / "sub")
    index = whole / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    rewritten(index, weight_map=weight_map | {next(iter(weight_map)): listed})
    resealed(whole)
    refused(whole, *words)


@pytest.mark.parametrize("weight_map", [None, [], "model.safetensors", 3, {}])
def test_an_index_without_its_map_is_refused(weight_map, whole):
    rewritten(whole / "model.safetensors.index.json", weight_map=weight_map)
    resealed(whole)
    refused(whole)


@pytest.mark.parametrize("listed", ["../x.safetensors", "/etc/passwd", "..", "", "sub"])
def test_a_manifest_names_files_in_its_own_folder_and_no_others(listed, folder, tmp_path):
    shutil.copy(folder / "model.safetensors", tmp_path / "x.safetensors")
    (folder / "sub").mkdir()
    files = json.loads((folder / "manifest.json").read_text())["files"]
    rewritten(folder / "manifest.json", files=files | {listed: disk.sha256(tmp_path / "x.safetensors")})
    refused(folder, "manifest", repr(listed))


@pytest.mark.parametrize("files", [None, [], {}, "config.json", {"config.json": None}, {"README.md": 1}])
def test_a_manifest_that_lists_nothing_of_use_is_refused(files, folder):
    rewritten(folder / "manifest.json", files=files)
    refused(folder, "manifest")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"format": 2}, ["its format is 2, this heedful reads 1"]),
        ({"recipe": "gtp"}, ['no recipe "gtp" here', 'did you mean "gpt"?']),
        ({"recipe": None}, ["no recipe"]),
        ({"arguments": {"width": 12}}, ["weights do not fit"]),
        ({"arguments": {"colour": "red"}}, ["config.json does not fit its recipe", "colour"]),
        ({"arguments": []}, ["config.json"]),
        ({"arguments": None}, ["config.json"]),
        ({"arguments": {"width": "wide"}}, ["config.json"]),
        ({"arguments": {"width": -4, "heads": 2}}, ["config.json"]),
        ({"arguments": {"width": 6, "heads": 4}}, ["heads=4 does not divide width=6"]),
    ],
)
def test_a_config_that_cannot_be_built_is_refused(config, words, folder):
    rewritten(folder / "config.json", **config)
    resealed(folder)
    refused(folder, *words)


@pytest.mark.parametrize("text", ["", "[]", "3", '"gpt"', "null", "{", '{"format": 1', "\x00", b"\xff\xfe{"])
def test_a_config_that_is_no_object_is_refused(text, folder):
    (folder / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    resealed(folder)
    refused(folder, "config.json")


def test_weights_that_do_not_fit_are_listed_with_the_nearest_names(folder):
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors["layers.0.attention.qwery.weight"] = tensors.pop("layers.0.attention.query.weight")
    tensors["norm.weight"] = torch.zeros(7)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    resealed(folder)
    refused(
        folder,
        "missing     layers.0.attention.query.weight   (nearest: layers.0.attention.qwery.weight)",
        "unexpected  layers.0.attention.qwery.weight   (nearest: layers.0.attention.query.weight)",
        "mis-shaped  norm.weight is (6,) here, (7,) there",
    )


def test_a_folder_that_is_none_is_refused(tmp_path):
    (tmp_path / "file").write_text("text")
    (tmp_path / "empty").mkdir()
    for name in ("nowhere", "file"):
        refused(tmp_path / name, name, "is not a folder")
    refused(tmp_path / "empty", "empty has no config.json")


# Tokenizers.


def bpe():
    """A tiny one, with special tokens, that puts <begin> and <end> around a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>", "<begin>", "<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the cat sat on the mat", "the dog ate the cat <tag>"] * 9, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<begin> $A <end>", special_tokens=[("<begin>", 1), ("<end>", 2)]
    )
    return tokenizer


def test_the_tokenizer_comes_back_and_opens_plainly(tmp_path):
    model = small()
    model.tokenizer = bpe()
    heedful.save(model, tmp_path / "model")
    ours, plain = (
        heedful.load(tmp_path / "model").tokenizer,
        Tokenizer.from_file(str(tmp_path / "model/tokenizer.json")),
    )
    text = "the cat sat on the dog, naïvely 猫"
    assert ours.encode(text).ids == plain.encode(text).ids == bpe().encode(text).ids
    assert ours.decode(ours.encode(text).ids) == text
    assert heedful.load(tmp_path / "model").tokenizer.get_vocab() == bpe().get_vocab()


def test_a_model_without_a_tokenizer_has_none(folder):
    assert not (folder / "tokenizer.json").exists()
    assert heedful.load(folder).tokenizer is None


@pytest.mark.parametrize("text", ["<end>", "the <end> cat<pad>", "<begin><begin>", " <end> ", "<end", "<<end>>"])
def test_what_a_user_types_never_becomes_a_special_token(text, tmp_path):
    """Only the template's own: one <begin>, one <end>. Plainly opened, it would."""
    model = small()
    model.tokenizer = bpe()
    heedful.save(model, tmp_path / "model")
    heedful.save(heedful.load(tmp_path / "model"), tmp_path / "again")
    for name in ("model", "again"):
        tokenizer = heedful.load(tmp_path / name).tokenizer
        for encoded in (tokenizer.encode(text), *tokenizer.encode_batch([text, "the cat", text])):
            assert encoded.ids[0] == 1
            assert encoded.ids[-1] == 2
            assert not set(encoded.ids[1:-1]) & {0, 1, 2}
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text
    assert {0, 1, 2} & set(bpe().encode("<end>", add_special_tokens=False).ids)


def test_a_file_that_is_no_tokenizer_is_refused_by_name(folder):
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    resealed(folder)
    refused(folder, "tokenizer.json is not a tokenizer")


# Shards.


@pytest.mark.parametrize("shard", [1, 300, 2000])
def test_large_weights_are_written_in_shards_with_an_index(shard, tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "SHARD", shard)
    model = small()
    heedful.save(model, tmp_path / "model")
    same(model, heedful.load(tmp_path / "model"))
    assert not (tmp_path / "model" / "model.safetensors").exists()
    index = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(4 * p.numel() for p in model.parameters())
    assert list(index["weight_map"]) == list(named(model))
    files = sorted(set(index["weight_map"].values()))
    assert files == [f"model-{n + 1:05d}-of-{len(files):05d}.safetensors" for n in range(len(files))]
    for file in files:
        tensors = safetensors.torch.load_file(tmp_path / "model" / file)
        assert sorted(tensors) == sorted(name for name, place in index["weight_map"].items() if place == file)
        assert len(tensors) == 1 or sum(t.nbytes for t in tensors.values()) <= shard


# What cannot be saved.


def test_a_model_without_a_recipe_is_not_saved(tmp_path):
    part = heedful.Decoder(heedful.Embedding(nn.Embedding(5, 4)), [])
    with pytest.raises(ValueError, match=r"not built by a recipe.*mark your function with @heedful\.recipe"):
        heedful.save(part, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_model_that_was_changed_is_not_saved(folder):
    model = small()
    heedful.select(model, "layers.*.feedforward").replace(lambda old: torch.nn.Identity())
    with pytest.raises(ValueError, match=r'"layers\.0\.feedforward.* is not what gpt builds.*write a recipe'):
        heedful.save(model, folder)
    same(small(), heedful.load(folder))


def test_a_model_that_was_frozen_is_saved(tmp_path):
    """Freezing changes no tensor and no structure."""
    model = small()
    heedful.select(model, "layers.0").freeze()
    heedful.save(model, tmp_path / "model")
    same(model, heedful.load(tmp_path / "model"))


def test_a_model_without_storage_is_not_saved(tmp_path):
    with torch.device("meta"):
        model = small()
    with pytest.raises(ValueError, match="meta"):
        heedful.save(model, tmp_path / "model")
    assert not list(tmp_path.iterdir())


# Failures in the middle.


class DiskFullError(OSError):
    pass


def failing(real, after):
    """`real`, which fails after so many calls."""
    calls = iter(range(1000))

    def called(*args, **kwargs):
        if next(calls) >= after:
            raise DiskFullError
        return real(*args, **kwargs)

    return called


STEPS = [
    ("heedful.folder.save_file", 0),
    ("heedful.folder.save_file", 1),
    ("heedful.disk.sha256", 0),
    ("heedful.disk.sha256", 3),
    ("heedful.disk.os.fsync", 0),
    ("heedful.disk.os.fsync", 2),
    ("heedful.disk.os.replace", 0),
    ("heedful.disk.os.replace", 1),
    ("heedful.folder.Path.write_text", 0),
    ("heedful.folder.Path.write_text", 2),
]


def target(where):
    """The function at a dotted place."""
    _, module, *name = where.split(".")
    owner = sys.modules[f"heedful.{module}"]
    for part in name[:-1]:
        owner = getattr(owner, part)
    return owner, name[-1], getattr(owner, name[-1])


@pytest.mark.parametrize(("where", "after"), STEPS)
def test_a_failure_in_the_middle_leaves_the_earlier_folder_as_it_was_and_nothing_beside_it(
    where, after, folder, monkeypatch
):
    earlier = {path.name: path.read_bytes() for path in folder.iterdir()}
    owner, name, real = target(where)
    with monkeypatch.context() as patch:
        patch.setattr(folders, "SHARD", 2000)
        patch.setattr(owner, name, failing(real, after))
        if where.endswith("os.replace") and after == 1:  # one fails, and those that mend it do not
            patch.setattr(owner, name, failing_once(real, after))
        with pytest.raises(DiskFullError):
            heedful.save(tiny("llama"), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == earlier
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    same(small(), heedful.load(folder))


def failing_once(real, at):
    calls = iter(range(1000))

    def called(*args, **kwargs):
        if next(calls) == at:
            raise DiskFullError
        return real(*args, **kwargs)

    return called


@pytest.mark.parametrize(("where", "after"), [step for step in STEPS if step != ("heedful.disk.os.replace", 1)])
def test_a_failure_in_the_middle_of_a_first_save_leaves_nothing(where, after, tmp_path, monkeypatch):
    owner, name, real = target(where)
    with monkeypatch.context() as patch:
        patch.setattr(folders, "SHARD", 2000)
        patch.setattr(owner, name, failing(real, after))
        with pytest.raises(DiskFullError):
            heedful.save(tiny("llama"), tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_the_failures_above_do_happen_in_the_middle(tmp_path, monkeypatch):
    """Each step that is made to fail is reached by a save that is well."""
    monkeypatch.setattr(folders, "SHARD", 2000)
    heedful.save(small(), tmp_path / "model")
    counts = {}
    for where in dict(STEPS):
        owner, name, real = target(where)

        def counted(*args, where=where, real=real, **kwargs):
            counts[where] = counts.get(where, 0) + 1
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)
    heedful.save(tiny("llama"), tmp_path / "model")
    for where, after in STEPS:
        assert counts[where] > after, where


def test_loading_needs_no_transformers(folder, tmp_path):
    """Neither for heedful's own folder nor for Hugging Face's."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from tests.models.parity import quietly_saved

    config = GPT2Config(vocab_size=11, n_embd=6, n_layer=1, n_head=2, n_positions=8, bos_token_id=0, eos_token_id=0)
    theirs = quietly_saved(GPT2LMHeadModel(config), tmp_path / "theirs")
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import heedful\n"
        "for folder in sys.argv[1:]: print(heedful.load(folder).recipe[0])\n"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(folder), str(theirs)],
        capture_output=True,
        text=True,
        cwd=Path(heedful.__file__).parents[1],
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["gpt", "gpt"]
