"""The tables read public folders strictly: every tensor and every setting is known, or refused by name."""

import json

import pytest
import safetensors.torch
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
)

import heedful
from heedful.convert import FAMILIES, Family
from heedful.convert.table import Row, setting
from tests.models.parity import build, named, quietly_saved, same_logits

SMALL = {
    "gpt2": (
        GPT2LMHeadModel,
        GPT2Config(
            vocab_size=17, n_embd=10, n_layer=2, n_head=2, n_positions=12, bos_token_id=0, eos_token_id=0,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        ),
    ),
    "llama": (
        LlamaForCausalLM,
        LlamaConfig(
            vocab_size=17, hidden_size=12, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            intermediate_size=9, max_position_embeddings=32,
        ),
    ),
    "marian": (
        MarianMTModel,
        MarianConfig(
            vocab_size=17, d_model=12, encoder_layers=2, decoder_layers=1, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=9, decoder_ffn_dim=9, pad_token_id=0, eos_token_id=1,
            decoder_start_token_id=0, forced_eos_token_id=None, dropout=0.0, max_position_embeddings=16,
        ),
    ),
}  # fmt: skip
EVERY = pytest.mark.parametrize("family", SMALL)


def saved(family, folder, **how):
    """A model of theirs, and its folder."""
    theirs = build(*SMALL[family])
    return theirs, quietly_saved(theirs, folder, **how)


def rewrite_weights(folder, change):
    """Let `change` alter the dict of tensors in place."""
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    change(tensors)
    safetensors.torch.save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors")


def rewrite_config(folder, gone=(), **changes):
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({name: config[name] for name in config if name not in gone}))


def logits(family, model, ours=True):
    ids, others = torch.arange(10).view(2, 5) + 2, torch.arange(8).view(2, 4) + 2
    if family == "marian":
        return model(ids, others) if ours else model(input_ids=ids, decoder_input_ids=others).logits
    return model(ids) if ours else model(ids).logits


def agree(family, theirs, folder):
    real = torch.ones(2, 4 if family == "marian" else 5, dtype=torch.bool)
    same_logits(logits(family, heedful.load(folder)), logits(family, theirs, ours=False), real)


def refused(folder, *words):
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  each caller says which words
        heedful.load(folder)
    for word in words:
        assert word in str(refusal.value), refusal.value


# Tensors.


@EVERY
def test_every_tensor_and_every_parameter_meets_its_own(family, tmp_path):
    theirs, folder = saved(family, tmp_path)
    agree(family, theirs, folder)
    ours = heedful.load(folder)
    assert sum(p.numel() for p in ours.parameters()) == sum(
        t.numel() for t in safetensors.torch.load_file(folder / "model.safetensors").values()
    )


@EVERY
def test_a_tensor_that_is_missing_is_listed(family, tmp_path):
    _, folder = saved(family, tmp_path)
    whole = safetensors.torch.load_file(folder / "model.safetensors")
    for gone in whole:
        others = {name: tensor for name, tensor in whole.items() if name != gone}
        safetensors.torch.save_file(others, folder / "model.safetensors")
        # A table that is shared has several names; any of them would do.
        refused(folder, "the weights do not fit the model", "missing", "embed_tokens" if "shared" in gone else gone)


@EVERY
def test_a_tensor_too_many_is_listed(family, tmp_path):
    _, folder = saved(family, tmp_path)
    rewrite_weights(folder, lambda tensors: tensors.update({"model.rotary.table": torch.zeros(3)}))
    refused(folder, "unexpected  model.rotary.table")


def test_a_layer_too_many_is_listed(tmp_path):
    _, folder = saved("gpt2", tmp_path)
    rewrite_config(folder, n_layer=1)
    refused(folder, "unexpected  transformer.h.1.attn.c_attn.weight", "and 2 more")
    rewrite_config(folder, n_layer=3)
    refused(folder, "missing     transformer.h.2.attn.c_attn.weight", "and 2 more")


def test_a_name_that_is_nearly_right_is_shown_beside_the_right_one(tmp_path):
    _, folder = saved("llama", tmp_path)
    rewrite_weights(
        folder,
        lambda t: t.update({"model.layers.1.mlp.gatte_proj.weight": t.pop("model.layers.1.mlp.gate_proj.weight")}),
    )
    refused(
        folder,
        "missing     model.layers.1.mlp.gate_proj.weight   (nearest: model.layers.1.mlp.gatte_proj.weight)",
        "unexpected  model.layers.1.mlp.gatte_proj.weight   (nearest: model.layers.1.mlp.gate_proj.weight)",
    )


@pytest.mark.parametrize(
    ("family", "name", "shape", "listed"),
    [
        ("gpt2", "transformer.h.0.mlp.c_fc.weight", (10, 41), "feedforward.up.weight is (40, 10) here, (41, 10) there"),
        (
            "gpt2",
            "transformer.h.0.attn.c_attn.weight",
            (10, 31),
            "attention.query.weight is (10, 10) here, (11, 10) there",
        ),
        ("gpt2", "transformer.h.1.attn.c_attn.bias", (), "attention.query.bias is (10,) here"),
        ("llama", "model.layers.1.self_attn.k_proj.weight", (12, 12), "key.weight is (6, 12) here, (12, 12) there"),
        ("llama", "model.norm.weight", (12, 1), "norm.weight is (12,) here, (12, 1) there"),
        ("marian", "final_logits_bias", (1, 16), "decoder.head.bias is (17,) here, (1, 16) there"),
        ("marian", "model.encoder.layers.1.fc1.bias", (12,), "feedforward.up.bias is (9,) here, (12,) there"),
    ],
)
def test_a_tensor_of_another_shape_is_listed(family, name, shape, listed, tmp_path):
    _, folder = saved(family, tmp_path)
    rewrite_weights(folder, lambda tensors: tensors.update({name: torch.zeros(shape)}))
    refused(folder, "mis-shaped  " + name, listed)


@EVERY
def test_shards_with_an_index_are_read(family, tmp_path):
    theirs, folder = saved(family, tmp_path, max_shard_size="2KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    assert not (folder / "model.safetensors").exists()
    agree(family, theirs, folder)


@pytest.mark.parametrize("listed", ["../x.safetensors", "gone.safetensors", "..", "", 7, None])
def test_an_index_that_names_what_is_no_file_in_the_folder_is_refused(listed, tmp_path):
    _, folder = saved("gpt2", tmp_path / "theirs", max_shard_size="2KB")
    safetensors.torch.save_file({"transformer.wte.weight": torch.zeros(17, 10)}, tmp_path / "x.safetensors")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["transformer.wte.weight"] = listed
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "index")


def test_names_may_come_without_their_prefix_and_with_old_buffers(tmp_path):
    """As in the first GPT-2 folders: no "transformer.", and each layer's causal mask among the weights."""
    theirs, folder = saved("gpt2", tmp_path)

    def age(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        for n in range(2):
            tensors[f"h.{n}.attn.bias"] = torch.ones(1, 1, 12, 12).tril()
            tensors[f"h.{n}.attn.masked_bias"] = torch.tensor(-1e4)

    rewrite_weights(folder, age)
    agree("gpt2", theirs, folder)
    rewrite_weights(folder, lambda tensors: tensors.pop("h.1.ln_2.bias"))
    refused(folder, "missing     transformer.h.1.ln_2.bias")


def test_a_folder_of_their_model_without_a_head_is_read(tmp_path):
    """Its head is its table."""
    theirs, _ = saved("gpt2", tmp_path / "whole")
    bare = GPT2Model(theirs.config)
    bare.load_state_dict(theirs.transformer.state_dict())
    agree("gpt2", theirs, quietly_saved(bare, tmp_path / "bare"))


def test_a_head_that_is_saved_beside_its_tied_table_is_passed_over(tmp_path):
    for family, head, table in (
        ("gpt2", "lm_head.weight", "transformer.wte.weight"),
        ("marian", "lm_head.weight", "model.shared.weight"),
    ):
        theirs, folder = saved(family, tmp_path / family)
        rewrite_weights(folder, lambda tensors, h=head, t=table: tensors.update({h: tensors[t].clone()}))
        agree(family, theirs, folder)


def test_marians_positions_and_copies_of_its_table_are_passed_over(tmp_path):
    """Files hold embed_positions; they are computed anew."""
    theirs, folder = saved("marian", tmp_path)

    def age(tensors):
        for side in ("encoder", "decoder"):
            tensors[f"model.{side}.embed_positions.weight"] = torch.full((16, 12), 7.0)
            tensors[f"model.{side}.embed_tokens.weight"] = tensors["model.shared.weight"].clone()

    rewrite_weights(folder, age)
    agree("marian", theirs, folder)
    rewrite_weights(folder, lambda tensors: tensors.pop("model.shared.weight"))
    agree("marian", theirs, folder)


def test_rotary_frequencies_in_a_file_are_passed_over(tmp_path):
    theirs, folder = saved("llama", tmp_path)
    rewrite_weights(
        folder, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(3)})
    )
    agree("llama", theirs, folder)


@EVERY
def test_the_files_dtype_is_kept_and_ties_are_made(family, tmp_path):
    folder = quietly_saved(build(*SMALL[family]).to(torch.bfloat16), tmp_path)
    ours = heedful.load(folder)
    assert {p.dtype for p in ours.parameters()} == {torch.bfloat16}
    decoder = ours.decoder if family == "marian" else ours
    assert (decoder.head.weight is decoder.embedding.tokens.weight) == (family != "llama")
    assert {p.dtype for p in heedful.load(folder, dtype=torch.float32).parameters()} == {torch.float32}


@EVERY
def test_what_is_read_of_theirs_is_written_as_ours(family, tmp_path):
    _, folder = saved(family, tmp_path / "theirs")
    ours = heedful.load(folder)
    heedful.save(ours, tmp_path / "ours")
    again = heedful.load(tmp_path / "ours")
    assert again.recipe == ours.recipe
    assert again.generation == ours.generation
    for name, tensor in named(ours).items():
        assert torch.equal(tensor, named(again)[name])


def test_parts_of_one_tensor_are_split_in_order_and_turned():
    """A table of one row, on tensors that say where they were."""
    family = Family(
        recipe="any",
        arguments={},
        rows=(Row("h.{n}.qkv", "layers.{n}.q", "layers.{n}.k", transposed=True), Row("b", "bias", whole=True)),
    )
    theirs = {
        "h.0.qkv.weight": torch.arange(8).view(2, 4),
        "h.0.qkv.bias": torch.arange(4),
        "b": torch.arange(3).view(1, 3),
    }
    shapes = {f"layers.0.{n}.{leaf}": (2, 2) if leaf == "weight" else (2,) for n in "qk" for leaf in ("weight", "bias")}
    read = family.read({name: lambda t=t: t for name, t in theirs.items()}, shapes | {"bias": (3,)})
    assert read.keys() == shapes.keys() | {"bias"}
    assert read["layers.0.q.weight"].tolist() == [[0, 4], [1, 5]]
    assert read["layers.0.k.weight"].tolist() == [[2, 6], [3, 7]]
    assert read["layers.0.k.bias"].tolist() == [2, 3]
    assert read["bias"].tolist() == [0, 1, 2]
    assert all(tensor.is_contiguous() for tensor in read.values())


def test_a_tensor_is_read_once_and_only_if_it_is_used():
    family = Family(recipe="any", arguments={}, rows=(Row("a", "x", "y"),), surplus=("mask*",))
    counts = {"a.weight": 0, "mask.0": 0}

    def reader(name):
        def read():
            counts[name] += 1
            return torch.zeros(4, 2)

        return read

    family.read({name: reader(name) for name in counts}, {"x.weight": (2, 2), "y.weight": (2, 2)})
    assert counts == {"a.weight": 1, "mask.0": 0}


# Settings.


def test_a_model_type_that_is_not_known_is_refused_by_name(tmp_path):
    _, folder = saved("gpt2", tmp_path)
    rewrite_config(folder, model_type="bloom")
    refused(folder, "model_type='bloom' is not read here; these are: " + ", ".join(FAMILIES))
    rewrite_config(folder, gone=["model_type"])
    refused(folder, "model_type=None is not read here")


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention=True; only False is known here"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights=False; only True is known here"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True; only False"),
        ("gpt2", {"activation_function": "tanh"}, "activation_function='tanh' is not known here; known: relu, gelu"),
        ("gpt2", {"n_head": 3}, "heads=3 does not divide width=10"),
        ("gpt2", {"resid_pdrop": 1.5}, "a chance is from 0 to below 1"),
        ("llama", {"hidden_act": "mish"}, "hidden_act='mish' is not known here"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_type='yarn' is not known here"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type='dynamic' is not known"),
        ("llama", {"rope_parameters": {"rope_type": "linear"}}, "factor"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor"),
        ("llama", {"num_key_value_heads": 3}, "kv_heads=3 does not divide heads=2"),
        ("marian", {"encoder_layerdrop": 0.1}, "encoder_layerdrop=0.1; only 0.0 is known here"),
        ("marian", {"decoder_layerdrop": 0.1}, "decoder_layerdrop=0.1; only 0.0 is known here"),
        ("marian", {"normalize_before": True}, "normalize_before=True; only False is known here"),
        ("marian", {"add_final_layer_norm": True}, "add_final_layer_norm=True; only False is known here"),
        ("marian", {"decoder_attention_heads": 3}, "encoder_attention_heads=2 and decoder_attention_heads=3"),
        ("marian", {"encoder_ffn_dim": 8}, "encoder_ffn_dim=8 and decoder_ffn_dim=9; they must be equal here"),
        ("marian", {"activation_function": "quick_gelu"}, "activation_function='quick_gelu' is not known here"),
    ],
)
def test_a_setting_that_is_not_known_is_refused_by_name(family, changes, words, tmp_path):
    _, folder = saved(family, tmp_path)
    rewrite_config(folder, **changes)
    refused(folder, words)


@pytest.mark.parametrize(
    ("family", "name"),
    [("gpt2", "n_embd"), ("gpt2", "n_head"), ("llama", "hidden_size"), ("marian", "vocab_size"), ("marian", "d_model")],
)
@pytest.mark.parametrize("value", [None, "many", [8], -8, 2.5])
def test_a_setting_of_a_wrong_kind_is_a_value_error(family, name, value, tmp_path):
    _, folder = saved(family, tmp_path)
    rewrite_config(folder, **{name: value})
    refused(folder)


@pytest.mark.parametrize(
    ("family", "gone"),
    [("gpt2", "n_embd"), ("llama", "hidden_size"), ("marian", "vocab_size"), ("marian", "d_model")],
)
def test_a_setting_that_is_gone_is_a_value_error(family, gone, tmp_path):
    """Its default is another size than the file's, or there is none."""
    _, folder = saved(family, tmp_path)
    rewrite_config(folder, gone=[gone])
    refused(folder)


def test_settings_that_are_left_out_have_their_defaults(tmp_path):
    """Folders of older versions leave out what was then not a choice."""
    for family, gone in (
        (
            "gpt2",
            ["activation_function", "layer_norm_epsilon", "n_inner", "tie_word_embeddings", "add_cross_attention"],
        ),
        ("llama", ["attention_bias", "mlp_bias", "head_dim", "rms_norm_eps", "hidden_act", "tie_word_embeddings"]),
        (
            "marian",
            ["share_encoder_decoder_embeddings", "tie_word_embeddings", "scale_embedding", "decoder_vocab_size"],
        ),
    ):
        theirs, folder = saved(family, tmp_path / family)
        before = heedful.load(folder).recipe[1]
        rewrite_config(folder, gone=gone)
        agree(family, theirs, folder)
        changed = {key for key, value in heedful.load(folder).recipe[1].items() if value != before[key]}
        assert changed <= {"head_width"}


STRETCHED = {"rope_type": "linear", "factor": 3.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 40,
}


@pytest.mark.parametrize("rope", [{"rope_type": "default"}, STRETCHED, LLAMA3], ids=["default", "linear", "llama3"])
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_rotary_settings_of_older_folders_are_read(rope, key, tmp_path):
    """rope_theta stood by itself, the rest in rope_scaling (null where there was none), and rope_type was type."""
    model, config = SMALL["llama"]
    config = LlamaConfig(**{**config.to_dict(), "rope_parameters": {**rope, "rope_theta": 77.0}})
    theirs = build(model, config)
    folder = quietly_saved(theirs, tmp_path)
    agree("llama", theirs, folder)
    new = heedful.load(folder).recipe
    assert new[1]["base"] == 77.0
    assert (new[1]["stretch"] or {}).get("factor") == rope.get("factor")
    old = {key if name == "rope_type" else name: value for name, value in rope.items()}
    scaling = None if rope["rope_type"] == "default" else old
    rewrite_config(folder, gone=["rope_parameters"], rope_theta=77.0, rope_scaling=scaling)
    assert heedful.load(folder).recipe == new
    agree("llama", theirs, folder)


def test_dropout_comes_from_their_settings_place_by_place(tmp_path):
    _, folder = saved("gpt2", tmp_path)
    rewrite_config(folder, resid_pdrop=0.2, attn_pdrop=0.3, embd_pdrop=0.4)
    ours = heedful.load(folder)
    assert ours.layers[0].attention.branch.dropout == 0.3
    assert ours.layers[0].attention.dropout.p == ours.layers[0].feedforward.dropout.p == 0.2
    assert ours.embedding.dropout.p == 0.4
    _, folder = saved("marian", tmp_path / "marian")
    rewrite_config(folder, dropout=0.2, attention_dropout=0.3, activation_dropout=0.4)
    ours = heedful.load(folder)
    assert ours.encoder.layers[0].attention.branch.dropout == ours.decoder.layers[0].cross.branch.dropout == 0.3
    assert ours.encoder.layers[0].feedforward.branch.dropout.p == 0.4
    assert ours.decoder.layers[0].cross.dropout.p == ours.encoder.embedding.dropout.p == 0.2


@EVERY
def test_special_ids_come_from_their_settings(family, tmp_path):
    _, folder = saved(family, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    generation = heedful.load(folder).generation
    assert generation.get("end") == config["eos_token_id"]
    assert generation.get("start") == config.get("decoder_start_token_id")
    assert generation.get("pad") == config.get("pad_token_id")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    assert heedful.load(folder).generation["end"] == [3, 4]


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe\x00", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_a_file_of_theirs_that_is_damaged_is_named(name, content, tmp_path):
    _, folder = saved("gpt2", tmp_path)
    (folder / name).write_bytes(content)
    refused(folder, "the weights do not fit" if name == "model.safetensors" and len(content) == 16 else name)


def test_weights_of_theirs_that_are_cut_short_are_named(tmp_path):
    _, folder = saved("llama", tmp_path)
    raw = (folder / "model.safetensors").read_bytes()
    for length in (4, 100, len(raw) // 2, len(raw) - 1):
        (folder / "model.safetensors").write_bytes(raw[:length])
        refused(folder, "model.safetensors is damaged")


def test_a_folder_without_weights_says_what_is_missing(tmp_path):
    _, folder = saved("llama", tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(folder, "has no model.safetensors")


def test_a_setting_translates_and_refuses():
    read = setting("act", "a", {"a": "b"})
    assert read({}) == read({"act": "a"}) == "b"
    assert setting("n", 3)({}) == 3
    assert setting("n")({}) is None
    with pytest.raises(ValueError, match=r"config.json: act='c' is not known here; known: a"):
        read({"act": "c"})


@EVERY
def test_every_argument_of_a_table_is_one_of_its_recipes_and_every_recipe_is_filled(family):
    import inspect

    from heedful.models import RECIPES

    arguments = inspect.signature(RECIPES[FAMILIES[family].recipe]).parameters
    assert set(FAMILIES[family].arguments) <= set(arguments)
    # What has no default must come from their settings.
    needed = {name for name, p in arguments.items() if p.default is p.empty}
    assert needed <= set(FAMILIES[family].arguments)
