"""What every API model shares: field names, bounds, CEL rules and the class of an edit.

A model is the only source of its CRD schema (``codegen/crd.py``), its reference page (``codegen/reference.py``) and its
parser. Field docstrings become the descriptions that ``kubectl explain`` prints.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

GROUP = "umbra.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"


@dataclass(frozen=True)
class Cel:
    """A validation rule that the API server runs.

    ``optional_old_self`` makes ``oldSelf`` an optional value, so that a rule standing on a wide object can accept an
    old object whose relevant fields did not change: it can then still be scaled, fixed and deleted.
    """

    rule: str
    message: str
    optional_old_self: bool = False

    def to_schema(self) -> dict[str, Any]:
        """The entry of ``x-kubernetes-validations``."""
        entry: dict[str, Any] = {"rule": self.rule, "message": self.message}
        if self.optional_old_self:
            entry["optionalOldSelf"] = True
        return entry


def checked(*rules: Cel) -> dict[str, Any]:
    """Schema keys of a field, or of a whole model, that the API server checks by ``rules``."""
    return {"x-kubernetes-validations": [rule.to_schema() for rule in rules]}


class EditClass(StrEnum):
    """What an edit of a field costs, from nothing to the whole cache."""

    OPERATOR = "operator"
    """Only the operator reads it: no pod changes."""
    LIVE = "live"
    """The running engine follows it: nothing restarts."""
    ENGINE = "engine"
    """The engine process restarts inside its pod; the store keeps every page."""
    POD = "pod"
    """The pod is replaced and its store starts empty."""


EDIT_CLASS = "x-umbra-edit-class"
"""Key in a field's JSON schema that carries its ``EditClass``: left out of CRDs, printed on the reference page."""


def edit(edit_class: EditClass, **schema: Any) -> Callable[[dict[str, Any]], None]:
    """Schema extra for a field: the class of an edit, plus extra schema keys such as list types."""

    def extend(target: dict[str, Any]) -> None:
        target.update(schema)
        target[EDIT_CLASS] = edit_class.value

    return extend


ENGINE = edit(EditClass.ENGINE)
LIVE = edit(EditClass.LIVE)
POD = edit(EditClass.POD)
OPERATOR = edit(EditClass.OPERATOR)


def list_map(*keys: str) -> dict[str, Any]:
    """Schema keys of a list that server-side apply merges by ``keys``."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


ATOMIC: Mapping[str, Any] = {"x-kubernetes-list-type": "atomic"}
"""Schema keys of a list that one writer owns as a whole."""


class Model(BaseModel):
    """Base of every API model: frozen, camelCase on the wire, ignoring fields that a newer API added."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )
    rules: ClassVar[tuple[Cel, ...]] = ()

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core_schema))
        if cls.rules:
            schema.update(checked(*cls.rules))
        return schema

    def dump(self) -> dict[str, Any]:
        """The object as it stands on the wire, without unset optional fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


_QUANTITY_UNITS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}

Bytes = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,14}(k|M|G|T|Ki|Mi|Gi|Ti)?$", max_length=17)]
"""A size in bytes as a Kubernetes quantity without fractions, such as ``1160Gi``."""

Name = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
"""A DNS-1123 label."""

Labels = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=32)]
"""Labels by name."""

RelativePath = Annotated[
    str,
    Field(
        max_length=512,
        json_schema_extra=checked(
            Cel(
                "!self.startsWith('/') && !self.split('/').exists(part, part == '..')",
                "path must be relative and must not contain '..'",
            )
        ),
    ),
]
"""A path below a root that somebody else chose."""


def quantity_bytes(quantity: str) -> int:
    """Bytes in a quantity that matches ``Bytes``.

    Raises ValueError when the unit is unknown.
    """
    digits = quantity.rstrip("kKMGTi")
    unit = quantity[len(digits) :]
    if unit not in _QUANTITY_UNITS or not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"{quantity!r} is not a size; write a whole number with one of k, M, G, T, Ki, Mi, Gi, Ti")
    return int(digits) * _QUANTITY_UNITS[unit]
