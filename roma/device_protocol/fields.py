"""Type-checked access to the fields of a header."""

from typing import Any, Final

from roma.domain.errors import WireError

LARGEST: Final = 1e12
"""Largest magnitude of a number: thirty thousand years in seconds."""


class Fields:
    """A JSON object; every look-up raises WireError if the field has another type."""

    def __init__(self, value: object, name: str = "header") -> None:
        if not isinstance(value, dict):
            raise WireError(f"{name}: must be an object")
        self._value: dict[str, Any] = value

    def value(self, name: str) -> object:
        """Return a field's value, null as None."""
        if name not in self._value:
            raise WireError(f"{name}: is missing")
        return self._value[name]

    def text(self, name: str) -> str:
        """Return a string."""
        value = self.value(name)
        if not isinstance(value, str):
            raise WireError(f"{name} = {value!r:.40}: must be a string")
        return value

    def whole(self, name: str, least: int = 0) -> int:
        """Return an integer of at least `least`."""
        value = self.value(name)
        if type(value) is not int or value < least:
            raise WireError(f"{name} = {value!r:.40}: must be an integer ≥ {least}")
        return value

    def number(self, name: str) -> float:
        """Return a finite number."""
        value = self.value(name)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not abs(value) <= LARGEST
        ):
            raise WireError(f"{name} = {value!r:.40}: must be a number within ± {LARGEST:g}")
        return float(value)

    def flag(self, name: str) -> bool:
        """Return a boolean; a missing field means false."""
        found = self._value.get(name, False)
        if not isinstance(found, bool):
            raise WireError(f"{name} = {found!r:.40}: must be true or false")
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings."""
        value = self.value(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise WireError(f"{name}: must be a list of strings")
        return tuple(value)

    def table(self, name: str) -> dict[str, "Fields"]:
        """Return an object of objects."""
        value = Fields(self.value(name), name)._value
        return {key: Fields(item, f"{name}.{key}") for key, item in value.items()}

    def by_batch(self, name: str) -> dict[int, float]:
        """Return an object of numbers by batch size."""
        numbers = Fields(self.value(name), name)
        if not all(key.isascii() and key.isdigit() and len(key) < 10 for key in numbers._value):
            raise WireError(f"{name}: must have batch sizes as keys")
        return {int(key): numbers.number(key) for key in numbers._value}
