"""Addresses of peers: ``host:port``, with a numeric IPv6 host in brackets."""


def joined(host: str, port: int) -> str:
    """The address of a port on a host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_and_port(address: str) -> tuple[str, int]:
    """The host and port of an address. Raises ValueError if it has none."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
