"""A user's model in the format GGUF."""

import re
from pathlib import Path

import psutil

from generator.model_files import digest_of_model
from protocol.errors import ConfigError

SUFFIX = ".gguf"
_MAGIC = b"GGUF"
_CONVERSION_BYTES = 5
"""Of memory, for each parameter: measured on SmolLM2-135M, 4.6."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


class GgufFile:
    """A GGUF file anywhere on this machine. It is told from others by its content, not by its path.

    Raises ConfigError if it cannot be read, does not begin as GGUF files do, or has another suffix.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                if file.read(len(_MAGIC)) != _MAGIC:
                    raise ConfigError(
                        f"{path} is not a GGUF file: it does not begin with GGUF", param="generator.model"
                    )
            if path.suffix != SUFFIX:
                # The digest would take it for a text that is no part of a model.
                raise ConfigError(f"name the GGUF file {path} so that it ends in {SUFFIX}", param="generator.model")
            self._digest = digest_of_model(path)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}", param="generator.model") from error

    @property
    def name(self) -> str:
        """What logs call it."""
        return str(self._path)

    @property
    def folder_name(self) -> str:
        """Name of the converted folder. A file with another content, or another name, has another one."""
        return f"{_NOT_IN_NAMES.sub('-', self._path.stem).strip('.')}-{self._digest[:12]}"

    def locate(self) -> Path:
        """The file."""
        return self._path


def gguf_in(place: Path) -> Path | None:
    """The GGUF file that a path names: itself, or the only one of a folder that is no model folder. None: neither.

    Raises ConfigError if such a folder has several.
    """
    if place.is_file():
        return place
    if not place.is_dir() or (place / "config.json").exists():
        return None
    files = sorted(place.glob(f"*{SUFFIX}"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ConfigError(f"{place} has several GGUF files, name one of them: {names}", param="generator.model")
    return files[0] if files else None


def require_convertible(path: Path) -> None:
    """Raise ConfigError if a GGUF file is one part of a model, or the machine has too little memory to convert it.

    Otherwise, weights that are in other parts would be random, and the kernel would kill the process.
    """
    from gguf import GGUFReader

    reader = GGUFReader(path)
    parts = reader.get_field("split.count")
    if parts is not None and int(parts.contents()) > 1:
        raise ConfigError(f"{path} is one of {parts.contents()} parts: merge them first", param="generator.model")
    parameters = sum(int(tensor.n_elements) for tensor in reader.tensors)
    needed, available = parameters * _CONVERSION_BYTES, psutil.virtual_memory().available
    if needed > available:
        raise ConfigError(
            f"converting {path} takes about {needed / 2**30:.1f} GiB of memory, and {available / 2**30:.1f} GiB are "
            "available: use a model folder, which is not converted",
            param="generator.model",
        )
