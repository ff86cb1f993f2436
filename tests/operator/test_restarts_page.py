"""The page about restarts: each field of both kinds stands once, under the class that the revision goes by."""

import re

import pytest

from umbra_operator.api.base import EditClass, Model
from umbra_operator.api.edits import leaves
from umbra_operator.api.v1alpha1 import K3DeploymentSpec, K3ProfileSpec
from umbra_operator.codegen.restarts import restarts_page

TITLES = {
    "Nothing restarts": EditClass.OPERATOR,
    "The running engine follows": EditClass.LIVE,
    "The engine restarts in its pod": EditClass.ENGINE,
    "The pod is replaced": EditClass.POD,
}


@pytest.mark.parametrize(("kind", "model"), [("K3Deployment", K3DeploymentSpec), ("K3Profile", K3ProfileSpec)])
def test_every_field_stands_once_under_its_class(kind: str, model: type[Model]) -> None:
    found: list[tuple[str, EditClass | None]] = []
    for section in restarts_page().split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        for part in re.split(r"\n(?=K3)", body):
            if part.startswith(kind):
                found += [(path, TITLES[title]) for path in re.findall(r"^- `spec\.([^`]+)`", part, re.M)]
    assert sorted(found) == sorted(leaves(model))


def test_the_links_to_the_classes_lead_somewhere() -> None:
    page = restarts_page()
    anchors = {title.lower().replace(" ", "-") for title in re.findall(r"^## (.+)$", page, re.M)}
    assert set(re.findall(r"\(#([^)]+)\)", page)) == anchors
