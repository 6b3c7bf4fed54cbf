"""A path parameter whose value may be any text."""

from starlette.convertors import Convertor, register_url_convertor


class _AnyText(Convertor[str]):
    """Starlette's own ``path`` ends at a line break.

    A document id with one would then match no route, and its refusal would be a 404 in place of a 422.
    """

    regex = r"(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("any_text", _AnyText())


def any_text(name: str) -> str:
    """The place of this parameter in a route's path. Its value may have slashes and line breaks."""
    return f"{{{name}:any_text}}"
