"""A call as a method: with its name, its words of help and its arguments, for `help()`, editors and notebooks.

What is shown is found out when somebody looks: most programs never do, and `inspect` is not loaded for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from rota.client.exchange import Call

if TYPE_CHECKING:
    from inspect import Signature

P = ParamSpec("P")
T = TypeVar("T")


class Described(Generic[P, T]):
    """What both clients' methods share: all but how the call is done."""

    answers = "{}"  # how the value comes

    def __init__(self, describe: Callable[P, Call[T]]) -> None:
        self.describe = describe
        self.__doc__ = describe.__doc__
        self.__name__ = describe.__name__

    def __set_name__(self, owner: type, name: str) -> None:
        self.__qualname__ = f"{owner.__qualname__}.{name}"

    def alone(self) -> Callable[..., Any]:
        """As it stands in the class: a plain function, shown as its callers write it, which is how mocks read it."""

        do: Any = self  # both clients' can be called

        def act(*args: Any, **named: Any) -> Any:
            return do(*args, **named)

        act.__name__, act.__qualname__, act.__doc__ = self.__name__, self.__qualname__, self.__doc__
        shown = self.__signature__
        act.__signature__ = shown.replace(parameters=list(shown.parameters.values())[1:])  # type: ignore[attr-defined]
        return act

    @property
    def __signature__(self) -> Signature:
        from inspect import Parameter, signature

        found = signature(self.describe)
        value = str(found.return_annotation).removeprefix("Call[").removesuffix("]")
        client = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
        return found.replace(
            parameters=[client, *found.parameters.values()], return_annotation=self.answers.format(value)
        )
