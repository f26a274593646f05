"""The verifier that a row's data source asks for."""

from functools import cached_property
from typing import Any

from msgspec import Struct

from asyncrl.errors import ConfigError, VerifierError
from asyncrl.reward.catalog import resolve
from asyncrl.reward.routing import ROUTES, no_route, route
from asyncrl.reward.verifier import Verifier, VerifierInput


class Auto(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """What `routing.ROUTES` has for the row, with its default options."""

    def __post_init__(self) -> None:
        """Import now what would be slow with the first row."""
        self._verifiers  # noqa: B018

    def __call__(self, sample: VerifierInput, /) -> Any:
        """
        What that verifier says.

        Raises:
            VerifierError: There is none for this data source, or it needs a library that is not here.
        """
        function = route(sample.data_source)
        if function is None:
            raise VerifierError(no_route(sample.data_source))
        found = self._verifiers[function]
        if isinstance(found, ConfigError):
            raise VerifierError(str(found))
        return found(sample)

    @cached_property
    def _verifiers(self) -> dict[str, Verifier | ConfigError]:
        """One that cannot be had matters only to a dataset that asks for it."""
        return {function: _resolved(function) for function in sorted(set(ROUTES.values()))}


def _resolved(function: str) -> Verifier | ConfigError:
    try:
        return resolve(function)
    except ConfigError as error:
        return error
