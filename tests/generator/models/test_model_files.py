"""Models have equal digests if, and as far as can be told at bounded cost only if, they have the same files."""

import os
import shutil

import psutil
import pytest
from model_folders import make_weights

from generator.model_files import digest_of_model

LARGE = {
    name: size
    for layer in range(40)
    for name, size in ((f"norm{layer}", 1152), (f"attention{layer}", 6 << 20), (f"mlp{layer}", (9 << 20) + 18))
}
"""More than is read as a whole: 630 MB."""
SMALL = {"embedding": 400_000, "scale": 2, "empty": 0}


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text('{"layers": 40}')
    return made


def overwrite(file, at: int, content: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(content)


@pytest.mark.parametrize("name", ["norm0", "attention17", "norm39", "mlp39"])
def test_another_tensor_of_a_large_model_is_noticed(folder, name):
    begins = make_weights(folder / "model.safetensors", LARGE)
    before = digest_of_model(folder)
    overwrite(folder / "model.safetensors", begins[name], bytes([1]) * LARGE[name])
    assert digest_of_model(folder) != before


def test_the_beginning_the_middle_and_the_end_of_every_tensor_are_read(folder):
    """In a model of many tensors, too, of which each gets few samples."""
    begins = make_weights(folder / "model.safetensors", {f"expert{number}": 60_000 for number in range(10_000)})
    before = digest_of_model(folder)
    for place in (0, 29_999, 59_999):
        overwrite(folder / "model.safetensors", begins["expert8765"] + place, b"\1")
        assert digest_of_model(folder) != before
        overwrite(folder / "model.safetensors", begins["expert8765"] + place, b"\0")


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("at", [0.02, 0.97])
def test_a_new_part_of_a_large_file_is_noticed(folder, file, at):
    make_weights(folder / file, LARGE)
    before = digest_of_model(folder)
    overwrite(folder / file, int((folder / file).stat().st_size * at), bytes([1]) * (100 << 10))
    assert digest_of_model(folder) != before


def test_any_byte_of_a_small_model_is_noticed(folder):
    begins = make_weights(folder / "model.safetensors", SMALL)
    before = digest_of_model(folder)
    for name in ("embedding", "scale"):
        for at in (0, SMALL[name] // 3, SMALL[name] - 1):
            overwrite(folder / "model.safetensors", begins[name] + at, b"\1")
            assert digest_of_model(folder) != before
            overwrite(folder / "model.safetensors", begins[name] + at, b"\0")
    assert digest_of_model(folder) == before


@pytest.mark.parametrize("tensors", [LARGE, SMALL])
def test_another_name_of_a_tensor_is_noticed(folder, tensors):
    make_weights(folder / "model.safetensors", tensors)
    before = digest_of_model(folder)
    first, *others = tensors
    renamed = {first[::-1]: tensors[first], **{name: tensors[name] for name in others}}
    make_weights(folder / "model.safetensors", renamed)
    assert digest_of_model(folder) != before


@pytest.mark.parametrize("tensors", [LARGE, {f"expert{number}": 60_000 for number in range(10_000)}])
def test_at_most_256_mib_and_the_header_are_read(folder, tensors):
    begins = make_weights(folder / "model.safetensors", tensors)
    before = psutil.Process().io_counters().read_chars
    digest_of_model(folder)
    # The header is read once to find the tensors, and once for the digest.
    most = (256 << 20) + 2 * min(begins.values()) + (1 << 20)
    assert psutil.Process().io_counters().read_chars - before < most


@pytest.mark.parametrize("file", ["config.json", "tokenizer.model", "merges.txt", "modeling_own.py"])
def test_texts_enter_in_full(folder, file):
    (folder / file).write_bytes(b"\0" * 100_000)
    before = digest_of_model(folder)
    overwrite(folder / file, 77_777, b"\1")
    assert digest_of_model(folder) != before


def test_copies_are_equal_wherever_and_whenever_they_were_made(folder, tmp_path):
    make_weights(folder / "model.safetensors", SMALL)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    os.utime(copy / "model.safetensors", (1, 1))
    (copy / "README.md").write_text("another text")
    (copy / "original.bin").mkdir()
    assert digest_of_model(copy) == digest_of_model(folder)


def test_the_names_of_the_files_and_their_borders_matter(folder):
    (folder / "a.bin").write_bytes(b"12")
    (folder / "b.bin").write_bytes(b"34")
    before = digest_of_model(folder)
    (folder / "a.bin").write_bytes(b"123")
    (folder / "b.bin").write_bytes(b"4")
    moved = digest_of_model(folder)
    (folder / "b.bin").rename(folder / "c.bin")
    assert len({before, moved, digest_of_model(folder)}) == 3


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\2\0\0",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n",
        b"\2\0\0\0\0\0\0\0{}",
        b"\4\0\0\0\0\0\0\0null" + bytes(90),
        b'\x0a\0\0\0\0\0\0\0{"t":null}' + bytes(90),
        b'\x1b\0\0\0\0\0\0\0{"t":{"data_offsets":[4,2]}}' + bytes(90),
        b'\x1d\0\0\0\0\0\0\0{"t":{"data_offsets":[0,999]}}' + bytes(90),
        b'\x1d\0\0\0\0\0\0\0{"t":{"data_offsets":[-99,9]}}' + bytes(90),
    ],
)
def test_a_file_that_is_not_what_its_name_says_enters_as_it_is(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    before = digest_of_model(folder)
    (folder / "model.safetensors").write_bytes(content[:-1] + b"~" if content else b"~")
    assert digest_of_model(folder) != before
