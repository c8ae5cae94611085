"""Numbers in sentences for people."""


def counted(count: float, noun: str) -> str:
    """Return a whole number with its noun: `1 request`, `2 requests`."""
    return f"{count:.0f} {noun}{'' if round(count) == 1 else 's'}"
