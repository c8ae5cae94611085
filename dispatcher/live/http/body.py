"""The body of a message while it comes."""


class Body:
    """Parts in one piece; no copy if there is only one."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data: bytes | bytearray = b""

    def __len__(self) -> int:
        return len(self._data)

    def add(self, part: bytes) -> None:
        """Append a part."""
        if not self._data:
            self._data = part
            return
        # Not a list of parts: tiny ones would take many times the bytes that are counted.
        if isinstance(self._data, bytes):
            self._data = bytearray(self._data)
        self._data += part

    def take(self) -> bytes:
        """Return what came, and begin anew."""
        data, self._data = self._data, b""
        return bytes(data)
