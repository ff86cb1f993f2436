"""Who reaches the pods, in the words of a Kubernetes NetworkPolicy."""

from typing import Annotated, ClassVar

from pydantic import Field

from umbra_operator.api.base import ATOMIC, Cel, EditClass, Labels, Model, checked, edit

_IS_CIDR = checked(Cel("isCIDR(self)", "cidr must be a range such as 10.0.0.0/8"))


class LabelSelector(Model):
    """Objects by their labels; empty selects all."""

    match_labels: Labels = {}
    """Labels that an object must have, all of them."""


class IpBlock(Model):
    """A range of addresses."""

    cidr: Annotated[str, Field(max_length=43, json_schema_extra=_IS_CIDR)]
    """The range, such as 10.0.0.0/8."""
    except_: Annotated[
        list[Annotated[str, Field(max_length=43)]], Field(alias="except", max_length=16, json_schema_extra=dict(ATOMIC))
    ] = []
    """Ranges inside it that do not count."""


class NetworkPeer(Model):
    """Who may connect, in the words of a Kubernetes NetworkPolicy."""

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "has(self.ipBlock) != (has(self.podSelector) || has(self.namespaceSelector))",
            "set either ipBlock, or podSelector and namespaceSelector or one of them",
        ),
    )
    pod_selector: LabelSelector | None = None
    """Pods with these labels: in the selected namespaces, or else in this one."""
    namespace_selector: LabelSelector | None = None
    """Namespaces with these labels."""
    ip_block: IpBlock | None = None
    """Addresses, for clients outside the cluster."""


class Network(Model):
    """Who reaches the pods: what the NetworkPolicy of this deployment allows."""

    from_: Annotated[
        list[NetworkPeer] | None,
        Field(alias="from", max_length=32, json_schema_extra=edit(EditClass.OPERATOR, **ATOMIC)),
    ] = None
    """Who may send requests to the engines. Unset: everyone; an empty list: no one."""
    metrics_from: Annotated[
        list[NetworkPeer], Field(max_length=32, json_schema_extra=edit(EditClass.OPERATOR, **ATOMIC))
    ] = []
    """Who may read the agents' metrics besides the operator's namespace. The engines' own are on the serving port."""
