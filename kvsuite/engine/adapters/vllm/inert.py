"""Names that may be mentioned and not used: what the import filter gives for modules it leaves out.

An inert name can stand in an annotation, in a union, as a base class or as a default; calling it is an error
that says which name of which module was taken for real. So nothing that is left out can answer in silence.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kvsuite.errors import EngineError


class InertType(type):
    """Class of inert names."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = inert(f"{cls.__module__}.{cls.__qualname__}", name)
        setattr(cls, name, found)
        return found

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        """Return an instance of a class derived from an inert one; an inert name itself is never called."""
        if "_inert" in cls.__dict__:
            raise EngineError(
                f"{cls.__module__}.{cls.__qualname__} was called, and stands for a module that the import "
                "filter leaves out: let the filter through to that module, or use the full loader"
            )
        return super().__call__(*arguments, **options)


def inert(module: str, name: str) -> InertType:
    """Return a name of ``module`` that can be mentioned, subclassed and subscripted, but not called."""
    body = {
        "__module__": module,
        "__class_getitem__": classmethod(lambda cls, _: cls),
        "__init_subclass__": classmethod(lambda cls, **_: None),
        "_inert": True,
    }
    return InertType(name, (), body)


class InertModule(ModuleType):
    """A module in which every name is there, and inert."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = inert(self.__name__, name)
        setattr(self, name, found)
        return found
