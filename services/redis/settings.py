"""Settings of Redis."""

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator
from redis.asyncio import ConnectionPool


class RedisSettings(BaseModel):
    """Which Redis to use."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: SecretStr | None = Field(
        None,
        description="redis://, rediss:// or unix:// URL, with user and password if the server needs them. Without it, "
        "each process has its own state, in memory or on disk.",
    )
    prefix: str = Field(
        "ragtree", min_length=1, pattern=r"^[\w:.-]+$", description="Prefix of all keys; use one per deployment."
    )

    @field_validator("url")
    @classmethod
    def _usable(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            try:
                pool = ConnectionPool.from_url(url.get_secret_value())
                pool.connection_class(**pool.connection_kwargs)
            except (ValueError, TypeError) as error:
                # Do not chain the cause: it may quote the password.
                kind = type(error).__name__
                raise ValueError(f"not a valid redis://, rediss:// or unix:// URL ({kind})") from None
        return url
