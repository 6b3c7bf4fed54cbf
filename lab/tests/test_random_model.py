"""The model with random weights that several ranks can share."""

from safetensors.torch import load_file
from tiny_models import llama, make_config_folder
from torch import equal
from transformers import AutoConfig, AutoTokenizer

from ragtree_lab.families.shapes import RANKS, SHARED
from ragtree_lab.measuring.random_model import make_random_model


def test_ranks_can_share_its_heads_and_it_is_the_same_each_time(tmp_path):
    source = make_config_folder(tmp_path / "source", llama())
    one, other = (make_random_model(tmp_path / name, source, SHARED) for name in ("one", "other"))
    config = AutoConfig.from_pretrained(one)
    assert config.num_attention_heads % RANKS == config.num_key_value_heads % RANKS == 0
    assert AutoTokenizer.from_pretrained(one).get_vocab() == AutoTokenizer.from_pretrained(source).get_vocab()
    weights, again = (load_file(folder / "model.safetensors") for folder in (one, other))
    assert weights.keys() == again.keys()
    assert all(equal(weights[name], again[name]) for name in weights)
