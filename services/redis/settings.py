"""Redis' part of the configuration."""

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator
from redis.asyncio import ConnectionPool


class RedisSettings(BaseModel):
    """Which Redis is used, and how patiently. Times are seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: SecretStr | None = Field(
        None,
        description="redis://, rediss:// or unix://, with user and password where the server asks for them. Without "
        "one each process keeps its own, in memory or on disk.",
    )
    prefix: str = Field(
        "ragtree", min_length=1, pattern=r"^[\w:.-]+$", description="What all keys begin with; one for each deployment."
    )
    timeout_s: float = Field(0.25, gt=0, description="How long a request may wait for Redis before it goes on without.")
    record_s: float = Field(86_400.0, gt=0, description="How long uploads and their jobs are remembered there.")

    @field_validator("url")
    @classmethod
    def _usable(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            try:
                pool = ConnectionPool.from_url(url.get_secret_value())
                pool.connection_class(**pool.connection_kwargs)
            except (ValueError, TypeError) as error:
                # Not the cause: it may quote the password.
                kind = type(error).__name__
                raise ValueError(f"this is no redis://, rediss:// or unix:// URL that can be used ({kind})") from None
        return url
