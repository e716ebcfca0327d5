"""Frozen dataclasses that cost little to define.

The standard decorator writes and compiles six functions for every class; eighty messages of that make a fifth of a
second, a fifth of the time until the window is painted. Here the classes share functions that read the fields from the
instance. Everything else is the standard library's: fields, `replace`, `asdict`, patterns, the error on assignment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    import dataclasses
    from dataclasses import MISSING, FrozenInstanceError
    from reprlib import recursive_repr

    def dataclass(*, frozen, eq=True):
        """The standard decorator for `frozen=True`; with `eq=False` instances are equal to themselves only."""
        assert frozen

        def define(cls):
            cls = dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
            fields = dataclasses.fields(cls)
            assert all(field.init and field.compare and field.repr and not field.kw_only for field in fields)
            cls.__init__ = _initialiser(cls, fields)
            cls.__repr__ = _repr
            cls.__setattr__ = _set
            cls.__delattr__ = _delete
            if eq:
                cls.__eq__ = _equal
                cls.__hash__ = _hash
            return cls

        return define

    def _initialiser(cls, fields):
        names = tuple(field.name for field in fields)
        known, count, name_of = frozenset(names), len(names), cls.__qualname__
        defaults = {field.name: field.default for field in fields if field.default is not MISSING}
        factories = {field.name: field.default_factory for field in fields if field.default_factory is not MISSING}
        has_post = hasattr(cls, "__post_init__")

        def __init__(self, *args, **kwargs):
            values = self.__dict__
            if args:
                values.update(zip(names, args, strict=False))
            if kwargs:
                if not known.issuperset(kwargs) or (args and not kwargs.keys().isdisjoint(values)):
                    raise TypeError(f"{name_of}({', '.join(names)}) does not take {sorted(kwargs)} here")
                values.update(kwargs)
            if len(args) > count:
                raise TypeError(f"{name_of}({', '.join(names)}) does not take {len(args)} values")
            if len(values) != count:
                _complete(values)
            if has_post:
                self.__post_init__()

        def _complete(values):
            for name in names:
                if name not in values:
                    if name in defaults:
                        values[name] = defaults[name]
                    elif name in factories:
                        values[name] = factories[name]()
                    else:
                        raise TypeError(f"{name_of}() misses the value of '{name}'")

        __init__.__qualname__ = f"{name_of}.__init__"
        return __init__

    def _equal(self, other):
        return self.__dict__ == other.__dict__ if other.__class__ is self.__class__ else NotImplemented

    def _hash(self):
        return hash(tuple([self.__dict__[name] for name in self.__dataclass_fields__]))

    @recursive_repr()
    def _repr(self):
        inside = ", ".join(f"{name}={self.__dict__[name]!r}" for name in self.__dataclass_fields__)
        return f"{self.__class__.__qualname__}({inside})"

    def _set(self, name, value):
        raise FrozenInstanceError(f"cannot assign to field '{name}'")

    def _delete(self, name):
        raise FrozenInstanceError(f"cannot delete field '{name}'")
