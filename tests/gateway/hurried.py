"""Settings of a gateway whose pace a test has shortened."""

from typing import ClassVar

from gateway.settings import GatewaySettings, Pace


def hurried(**options: object) -> GatewaySettings:
    """Settings with these options, some of which may be times of its pace."""
    times = {name: options.pop(name) for name in Pace._fields if name in options}

    class Hurried(GatewaySettings):
        pace: ClassVar[Pace] = Pace(**times)

    return Hurried(**options) if times else GatewaySettings(**options)
