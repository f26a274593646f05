"""Verifier chosen by each row's data source."""

from functools import cached_property
from typing import Any

from msgspec import Struct

from asyncrl.errors import ConfigError, VerifierError
from asyncrl.reward.catalogue import resolve
from asyncrl.reward.routing import ROUTES, no_route, route
from asyncrl.reward.verifier import Verifier, VerifierInput


class Auto(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """Applies the verifier that `routing.ROUTES` has for the row, with its default options."""

    def __post_init__(self) -> None:
        """Import the verifiers now: with the first row it would take too long."""
        self._verifiers  # noqa: B018

    def __call__(self, inputs: VerifierInput, /) -> Any:
        """Apply it; raises `VerifierError` if there is none for this data source, or its library is not installed."""
        function = route(inputs.data_source)
        if function is None:
            raise VerifierError(no_route(inputs.data_source))
        verifier = self._verifiers[function]
        if isinstance(verifier, ConfigError):
            raise VerifierError(str(verifier))
        return verifier(inputs)

    @cached_property
    def _verifiers(self) -> dict[str, Verifier | ConfigError]:
        """Verifiers, or the errors of loading them, which matter only to rows that need them."""
        return {function: _resolved(function) for function in sorted(set(ROUTES.values()))}


def _resolved(function: str) -> Verifier | ConfigError:
    try:
        return resolve(function)
    except ConfigError as error:
        return error
