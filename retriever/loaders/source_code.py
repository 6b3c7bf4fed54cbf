"""The loader of source code and configuration files."""

from retriever.loaders.base import LoadedText, decode_whole

SOURCE_CODE = "text/x-source"
"""The media type of source code in any language."""

SUFFIXES = (
    *(".py", ".pyi", ".js", ".mjs", ".cjs", ".jsx", ".ts", ".tsx", ".java", ".kt", ".scala", ".groovy", ".go", ".rs"),
    *(".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".cs", ".swift", ".dart", ".rb", ".php", ".pl", ".lua", ".r", ".jl"),
    *(".ex", ".exs", ".hs", ".clj", ".sh", ".bash", ".ps1", ".sql", ".proto", ".tf", ".yaml", ".yml", ".toml", ".ini"),
)
"""The suffixes of files with this media type."""


def load_source_code(content: bytes) -> LoadedText:
    """Return the text unchanged, without a title. The chunker knows how definitions begin."""
    return LoadedText(None, decode_whole(content))
