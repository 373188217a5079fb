"""The catalogs as data."""

from __future__ import annotations

import pytest

from boxd.errors import UnknownImage
from boxd.images import recipes
from boxd.model.catalog import Flavor

CATALOG = """
suite = "bookworm"
default = "a"
[images.a]
description = "first"
packages = ["p2", "p1"]
programs = ["x"]
[images.b]
description = "second"
base = "a"
packages = ["p3", "p1"]
programs = ["y"]
"""


def test_an_image_has_what_its_bases_have() -> None:
    found = recipes.parse_recipes(CATALOG)
    assert found.default == "a"
    assert list(found.by_name) == ["a", "b"]
    second = found.get("b")
    assert second.packages == ("p1", "p2", "p3")
    assert second.programs == ("x", "y")
    assert second.suite == "bookworm"


def test_the_digest_follows_the_content() -> None:
    one = recipes.parse_recipes(CATALOG).get("a")
    same = recipes.parse_recipes(CATALOG.replace("first", "other words")).get("a")
    other = recipes.parse_recipes(CATALOG.replace('"p2"', '"p4"')).get("a")
    assert one.digest == same.digest != other.digest


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (('base = "a"', 'base = "c"'), "which is not there"),
        (('base = "a"', 'base = "b"'), "in a circle"),
        (('default = "a"', 'default = "z"'), "'z' is not in the catalog"),
    ],
)
def test_broken_catalogs(change: tuple[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        recipes.parse_recipes(CATALOG.replace(*change))


def test_an_unknown_image_names_the_known() -> None:
    with pytest.raises(UnknownImage, match="no image 'nope'; the catalog has a, b"):
        recipes.parse_recipes(CATALOG).get("nope")


def test_flavors() -> None:
    text = 'default = "s"\n[flavors.s]\ndescription = "small"\ncpus = 0.5\nmem_mb = 256\n'
    found = recipes.parse_flavors(text)
    assert found.by_name == {"s": Flavor("s", "small", 0.5, 256)}
    with pytest.raises(ValueError, match="'x' is not in the catalog"):
        recipes.parse_flavors(text.replace('default = "s"', 'default = "x"'))


def test_the_shipped_catalogs() -> None:
    images = recipes.load_recipes()
    assert images.default == "debian"
    assert {"debian", "python", "node", "dev"} == set(images.by_name)
    assert {"git", "rsync", "python3", "curl", "ca-certificates"} <= set(images.get("dev").packages)
    flavors = recipes.load_flavors()
    assert flavors.by_name[flavors.default].mem_mb >= 512
    assert not set(images.by_name) & set(flavors.by_name)  # both stand after a colon in a spec
