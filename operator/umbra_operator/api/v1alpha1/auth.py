"""Who is served."""

from typing import Annotated

from pydantic import Field

from umbra_operator.api.base import POD, Model


class SecretKeyRef(Model):
    """One entry of a Secret in the same namespace."""

    name: Annotated[str, Field(min_length=1, max_length=253, json_schema_extra=POD)]
    """Name of the Secret. Pods wait for it."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$", json_schema_extra=POD)]
    """Entry whose value is the key, without line breaks or blanks around it."""


class Auth(Model):
    """Who is served."""

    api_key_secret_ref: Annotated[SecretKeyRef | None, Field(json_schema_extra=POD)] = None
    """A key that every request for work must carry as a bearer token; another value of it is taken within minutes,
    without a restart. /metrics, /health and the list of models stay open. Unset: whoever reaches the Service is
    served."""
