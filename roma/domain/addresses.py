"""Network addresses as text."""


def authority(host: str, port: int | str) -> str:
    """Return host and port as in a URL (RFC 3986 §3.2), an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
