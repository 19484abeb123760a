"""Imports part of a package for real and leaves the rest out, so that its cache runs without its kernels.

A `Sandbox` stands in ``sys.meta_path``. Of the guarded package, modules on the allow-list are the real files;
package shells keep their path and skip their ``__init__``; everything else is inert. Third-party packages of
the list are inert only where they are not installed, and gone again when the imports are done: nobody else
shall take them for the real ones.

Inert names may be mentioned, subclassed, called and used as decorators while modules are imported. Once the
sandbox is sealed, whoever calls one or asks whether it is true gets an `EngineError` that names it: nothing
that was left out can answer in silence while the engine runs.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from kvsuite.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Rules:
    """What of ``package`` is imported for real.

    ``real`` names modules, each with everything below it, but for those of ``left_out``. ``shells`` are
    packages whose ``__init__`` is not run; a name asked of a shell is looked up in the module that ``shells``
    gives for it, if any. ``answers`` gives names of inert modules a value of their own: settings the engine
    would be told.
    """

    package: str
    real: tuple[str, ...]
    shells: Mapping[str, str | None]
    left_out: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    """Third-party packages that are inert where they are not installed."""
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def is_real(self, name: str) -> bool:
        """Return whether module ``name`` is imported from its file."""
        return _below(name, self.real) and not _below(name, self.left_out)


def _below(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


class Sandbox(MetaPathFinder):
    """Finds modules by ``rules``; ``left_out`` lists the inert ones that were asked for."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.left_out: list[str] = []
        self.sealed = False
        self._looking = False

    @contextlib.contextmanager
    def importing(self) -> Iterator[None]:
        """Stand in front of the other finders; inert names may be called inside, and never afterwards."""
        sys.meta_path.insert(0, self)
        self.sealed = False
        try:
            yield
        finally:
            self.sealed = True
            for name in self.left_out:
                if name.partition(".")[0] != self.rules.package:
                    sys.modules.pop(name, None)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module is imported; ``None`` leaves it to the finders behind."""
        del path, target
        top = fullname.partition(".")[0]
        if self._looking or (top != self.rules.package and top not in self.rules.optional):
            return None
        if top != self.rules.package:
            return None if self.sealed or self._installed(top) else self._inert(fullname)
        if fullname in self.rules.shells:
            return ModuleSpec(
                fullname, _Shell(self._folder(fullname), self.rules.shells[fullname]), is_package=True
            )
        return None if self.rules.is_real(fullname) else self._inert(fullname)

    def _inert(self, name: str) -> ModuleSpec:
        self.left_out.append(name)
        return ModuleSpec(name, _InertLoader(self, self.rules.answers.get(name, {})), is_package=True)

    def _installed(self, name: str) -> bool:
        there = sys.modules.get(name)
        return self._elsewhere(name) is not None if there is None else not isinstance(there, InertModule)

    def _folder(self, name: str) -> str:
        found = self._elsewhere(self.rules.package)
        if found is None or not found.submodule_search_locations:
            raise EngineError(
                f"{self.rules.package} is not installed here: install it, or ask for NAME@VERSION"
            )
        return "/".join([found.submodule_search_locations[0], *name.split(".")[1:]])

    def _elsewhere(self, name: str) -> ModuleSpec | None:
        self._looking = True
        try:
            for finder in sys.meta_path:
                spec = None if finder is self else finder.find_spec(name, None, None)
                if spec is not None:
                    return spec
        finally:
            self._looking = False
        return None


class Inert:
    """A value that may be mentioned; see the module for when it may be called."""

    def __init__(self, sandbox: Sandbox, name: str) -> None:
        self._sandbox = sandbox
        self._name = name

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Return what it decorates, or another inert value."""
        self._may_answer("called")
        if len(arguments) == 1 and callable(arguments[0]) and not options:
            return arguments[0]
        return Inert(self._sandbox, f"{self._name}()")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert(self._sandbox, f"{self._name}.{name}")

    def __getitem__(self, index: Any) -> Any:
        return Inert(self._sandbox, f"{self._name}[{index!r}]")

    def __bool__(self) -> bool:
        self._may_answer("asked whether it is true")
        return False

    def __iter__(self) -> NoReturn:
        raise TypeError(f"{self._name} is inert and holds nothing")

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return ()

    def __or__(self, other: Any) -> Any:
        return other

    __ror__ = __or__

    def _may_answer(self, how: str) -> None:
        if self._sandbox.sealed:
            raise EngineError(
                f"{self._name} was {how}, and the import sandbox leaves its module out: a stand-in must not "
                f"answer for {self._sandbox.rules.package}. Use a version that the adapter supports, or let "
                "the sandbox through to that module"
            )


class InertModule(ModuleType):
    """A module in which every name is there; names in capitals and small letters are classes."""

    def __init__(self, name: str, sandbox: Sandbox, answers: Mapping[str, Any]) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self._sandbox = sandbox
        vars(self).update(answers)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = _value(self._sandbox, self.__name__, name)
        setattr(self, name, found)
        return found


class _InertLoader(Loader):
    def __init__(self, sandbox: Sandbox, answers: Mapping[str, Any]) -> None:
        self._sandbox = sandbox
        self._answers = answers

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return InertModule(spec.name, self._sandbox, self._answers)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


class _Shell(Loader):
    def __init__(self, folder: str, names_from: str | None) -> None:
        self._folder = folder
        self._names_from = names_from

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        module.__path__ = [self._folder]
        return module

    def exec_module(self, module: ModuleType) -> None:
        if self._names_from is not None:
            vars(module)["__getattr__"] = _names_from(self._names_from)


def _names_from(source: str) -> Callable[[str], Any]:
    def look_up(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(source), name)

    return look_up


def _value(sandbox: Sandbox, module: str, name: str) -> Any:
    if not name[:1].isupper() or name.isupper():
        return Inert(sandbox, f"{module}.{name}")
    refuse = Inert(sandbox, f"{module}.{name}")

    def opened(self: Any, *arguments: Any, **options: Any) -> None:
        del self, arguments, options
        refuse._may_answer("opened")

    body = {
        "__module__": module,
        "__init__": opened,
        "__class_getitem__": classmethod(lambda cls, _: cls),
        "__init_subclass__": classmethod(lambda cls, **_: None),
    }
    return type(name, (), body)
