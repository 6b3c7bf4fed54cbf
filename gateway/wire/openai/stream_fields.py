"""The fields of an OpenAI request that control its stream."""

from pydantic import BaseModel


class StreamOptions(BaseModel):
    """Options of a stream."""

    include_usage: bool = False


class StreamFields(BaseModel):
    """Whether the answer is streamed, and whether the stream ends with its usage."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of the usage."""
        return self.stream_options is not None and self.stream_options.include_usage
