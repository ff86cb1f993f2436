"""Which part of a spec each class of edit covers: what revision hashes and the reference page are made from."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_args

from pydantic.fields import FieldInfo

from umbra_operator.api.base import EDIT_CLASS, EditClass, Model


def leaves(
    model: type[Model], inherited: EditClass | None = None, prefix: str = ""
) -> Iterator[tuple[str, EditClass | None]]:
    """Every leaf of a model as (dotted path on the wire, class of an edit); a leaf inherits from the field above it."""
    for alias, own, nested in _fields(model):
        path, edit_class = f"{prefix}{alias}", own or inherited
        if nested is None:
            yield path, edit_class
        else:
            yield from leaves(nested, edit_class, f"{path}.")


def covered(instance: Model, classes: frozenset[EditClass]) -> dict[str, Any]:
    """The values of ``instance`` whose edit class is in ``classes``, without defaults.

    Defaults are left out, so that a field or a default that a newer operator brings changes no hash.
    """
    wire = instance.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude_none=True)
    return _filter(type(instance), wire, classes, None)


def _filter(
    model: type[Model], wire: Mapping[str, Any], classes: frozenset[EditClass], inherited: EditClass | None
) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for alias, own, nested in _fields(model):
        if alias not in wire:
            continue
        edit_class = own or inherited
        if nested is not None:
            if inner := _filter(nested, wire[alias], classes, edit_class):
                kept[alias] = inner
        elif edit_class in classes:
            kept[alias] = wire[alias]
    return kept


@cache
def _fields(model: type[Model]) -> tuple[tuple[str, EditClass | None, type[Model] | None], ...]:
    """Name on the wire, own class and nested model of each field. Looking into annotations costs more than the rest."""
    return tuple(
        (field.alias or name, _own_class(field), nested_model(field)) for name, field in model.model_fields.items()
    )


def nested_model(field: FieldInfo) -> type[Model] | None:
    """The model that a field holds directly, looking through "or None"; None for scalars, lists and maps."""
    for candidate in (field.annotation, *get_args(field.annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Model) and _holds_one(field):
            return candidate
    return None


def _holds_one(field: FieldInfo) -> bool:
    origin = getattr(field.annotation, "__origin__", None)
    return origin not in (list, dict)


def _own_class(field: FieldInfo) -> EditClass | None:
    extra = field.json_schema_extra
    schema: dict[str, Any] = {}
    if callable(extra):
        extra(schema)
    elif extra:
        schema.update(extra)
    value = schema.get(EDIT_CLASS)
    return EditClass(value) if value else None
