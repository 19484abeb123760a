"""Names that may be mentioned and do not answer: what the import sandbox gives for modules it leaves out.

An inert name can stand in an annotation, in a union, as a base class, as a default or as a decorator. Whoever
calls one, opens a class derived from one, or asks whether one is true, gets an `EngineError` that names it.
`Seal` says from when on: at once, or from the end of the imports. So nothing that is left out can answer in
silence while the engine runs.
"""

from __future__ import annotations

from abc import ABCMeta
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from kvsuite.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(slots=True)
class Seal:
    """Whether the inert names of one package refuse to answer yet."""

    package: str
    closed: bool

    def check(self, name: str, how: str) -> None:
        """Let ``name`` answer, or refuse.

        **Raises:** `EngineError` once the seal is closed.
        """
        if self.closed:
            raise EngineError(
                f"{name} was {how}, and the import sandbox leaves its module out: a stand-in must not answer "
                f"for {self.package}. Use a version that the adapter supports, or let the sandbox through to "
                "that module"
            )


class Inert:
    """A value that may be mentioned."""

    def __init__(self, seal: Seal, name: str) -> None:
        self._seal = seal
        self._name = name

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Return what it decorates, or another inert value."""
        self._seal.check(self._name, "called")
        if len(arguments) == 1 and callable(arguments[0]) and not options:
            return arguments[0]
        return Inert(self._seal, f"{self._name}()")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return inert(self._seal, self._name, name)

    def __getitem__(self, index: Any) -> Any:
        return Inert(self._seal, f"{self._name}[{index!r}]")

    def __bool__(self) -> bool:
        self._seal.check(self._name, "asked whether it is true")
        return False

    def __iter__(self) -> NoReturn:
        raise TypeError(f"{self._name} is inert and holds nothing")

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return ()

    def __or__(self, other: Any) -> Any:
        return other

    __ror__ = __or__


class InertType(ABCMeta):
    """Class of inert classes; a subclass of `ABCMeta`, so that real classes may derive from both."""

    _seal: Seal

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") or "_inert" not in vars(cls):
            raise AttributeError(name)
        found = inert(cls._seal, f"{cls.__module__}.{cls.__qualname__}", name)
        setattr(cls, name, found)
        return found

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        """Return an instance of a class derived from an inert one; an inert class itself may refuse."""
        if "_inert" in vars(cls):
            cls._seal.check(f"{cls.__module__}.{cls.__qualname__}", "called")
        return super().__call__(*arguments, **options)


def inert(seal: Seal, module: str, name: str) -> Any:
    """Return a name of ``module``: a class where it is written like one, as ``Request`` is, else a value."""
    if not name[:1].isupper() or name.isupper():
        return Inert(seal, f"{module}.{name}")

    def opened(self: Any, *arguments: Any, **options: Any) -> None:
        del self, arguments, options
        seal.check(f"{module}.{name}", "opened")

    body = {
        "__module__": module,
        "__init__": opened,
        "__class_getitem__": classmethod(lambda cls, _: cls),
        "__init_subclass__": classmethod(lambda cls, **_: None),
        "_inert": True,
        "_seal": seal,
    }
    return InertType(name, (), body)


class InertModule(ModuleType):
    """A module in which every name is there: one of ``answers``, what ``look_up`` finds, or an inert one."""

    def __init__(
        self,
        name: str,
        seal: Seal,
        answers: Mapping[str, Any] | None = None,
        look_up: Callable[[str], Any] | None = None,
    ) -> None:
        super().__init__(name)
        self._seal = seal
        self._look_up = look_up
        vars(self).update(answers or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = None if self._look_up is None else self._look_up(name)
        if found is None:
            found = inert(self._seal, self.__name__, name)
            setattr(self, name, found)
        return found
