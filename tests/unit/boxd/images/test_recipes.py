"""The catalogs as data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from boxd.errors import Unavailable
from boxd.images import recipes
from boxd.model.catalog import Flavor

if TYPE_CHECKING:
    from pathlib import Path

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
    second = found.by_name["b"]
    assert second.packages == ("p1", "p2", "p3")
    assert second.programs == ("x", "y")
    assert second.suite == "bookworm"


def test_the_digest_follows_the_content() -> None:
    one = recipes.parse_recipes(CATALOG).by_name["a"]
    same = recipes.parse_recipes(CATALOG.replace("first", "other words")).by_name["a"]
    other = recipes.parse_recipes(CATALOG.replace('"p2"', '"p4"')).by_name["a"]
    assert one.digest == same.digest != other.digest


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (('base = "a"', 'base = "c"'), "which does not exist"),
        (('base = "a"', 'base = "b"'), "form a circle"),
        (('default = "a"', 'default = "z"'), "'z' is not in the catalog"),
    ],
)
def test_broken_catalogs(change: tuple[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        recipes.parse_recipes(CATALOG.replace(*change))


FLAVORS = """
default = "s"
[flavors.s]
description = "small"
cpus = 0.5
mem_mb = 256
disk_mb = 1024
pids = 100
"""


def test_flavors() -> None:
    found = recipes.parse_flavors(FLAVORS)
    assert found.by_name == {"s": Flavor("s", "small", 0.5, 256, 1024, 100)}
    with pytest.raises(ValueError, match="'x' is not in the catalog"):
        recipes.parse_flavors(FLAVORS.replace('default = "s"', 'default = "x"'))


def test_the_operators_entries_stand_over_the_shipped() -> None:
    own = '[images.b]\ndescription = "mine"\npackages = ["p9"]\nprograms = []\n'
    found = recipes.parse_recipes(CATALOG, own)
    assert (found.default, list(found.by_name)) == ("a", ["a", "b"])
    assert found.by_name["b"].packages == ("p9",)
    assert found.by_name["a"] == recipes.parse_recipes(CATALOG).by_name["a"]
    assert recipes.parse_recipes(CATALOG, 'default = "b"').default == "b"
    larger = FLAVORS.replace("256", "512").replace('default = "s"', "")
    assert recipes.parse_flavors(FLAVORS, larger).by_name["s"].mem_mb == 512


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("[images", "Expected"),
        ("colour = 1", "unknown key 'colour'; known: images, default, suite"),
        ("images = 1", "'images' must be a table"),
        ("images.x = 1", "image 'x' must be a table"),
        ("[images.x]\ndescription = 'x'\npackages = []", "image 'x': 'programs' is missing"),
        ("[images.Upper]", "must be in lower case"),
        ("[images.cli]", "reserved"),
        ("[images.'a/b']", "not valid"),
        ("[images.x]\ndescription='x'\npackages=[]\nprograms=[]\nsize=1", "unknown key 'size'"),
        ("[images.x]\ndescription='x'\npackages='p'\nprograms=[]", "'packages' must be a list"),
        ("[images.x]\ndescription='x'\npackages=['a b']\nprograms=[]", "packages: 'a b' is not"),
        ("[images.x]\ndescription='x'\npackages=[]\nprograms=['$(id)']", "programs: '.*' is not"),
        ("[images.x]\ndescription=1\npackages=[]\nprograms=[]", "'description' must be one line"),
        ("[images.x]\ndescription='x'\nbase=['a']\npackages=[]\nprograms=[]", "base: .* is not"),
        ("[images.x]\ndescription='x'\nbase='z'\npackages=[]\nprograms=[]", "base 'z', which does"),
        ("suite = 'a b'", "suite: 'a b' is not"),
        ("default = []", "is not in the catalog"),
    ],
)
def test_what_is_wrong_in_the_operators_images(own: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        recipes.parse_recipes(CATALOG, own)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("cpus", "0", "'cpus' must be a number of at least 0.01, not 0"),
        ("cpus", "'one'", "not 'one'"),
        ("cpus", "nan", "not nan"),
        ("mem_mb", "32", "'mem_mb' must be an integer of at least 64, not 32"),
        ("mem_mb", "1e3", "an integer"),
        ("disk_mb", "-1", "at least 0, not -1"),
        ("disk_mb", "true", "not True"),
        ("pids", "3", "at least 16, not 3"),
        ("pids", "99999999999", "not 99999999999"),
        ("runtime", "'a b'", "runtime: .*a b.* is not a valid name"),
        ("runtime", "7", "is not a valid name"),
        ("containers", "1", "'containers' must be true or false"),
        ("tiers", "'large'", "'tiers' must be a list of names"),
    ],
)
def test_what_is_wrong_in_the_operators_flavors(key: str, value: str, said: str) -> None:
    numbers = {"cpus": "1", "mem_mb": "512", "disk_mb": "0", "pids": "100"} | {key: value}
    lines = "\n".join(f"{name} = {number}" for name, number in numbers.items())
    with pytest.raises(ValueError, match=said):
        recipes.parse_flavors(FLAVORS, f"[flavors.mine]\ndescription = 'x'\n{lines}")


def test_kinds_of_boxes_and_who_may_have_them() -> None:
    kind = 'runtime = "runsc"\ncontainers = true\ntiers = ["large"]\n'
    flavor = recipes.parse_flavors(FLAVORS + kind).by_name["s"]
    assert (flavor.runtime, flavor.containers, flavor.tiers) == ("runsc", True, ("large",))
    assert flavor.to_json().keys() == {
        *("name", "description", "cpus", "mem_mb", "disk_mb", "pids", "runtime", "containers")
    }
    shipped = recipes.load_flavors().by_name.values()
    assert not [one.name for one in shipped if one.runtime or one.containers]


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    own = tmp_path / "flavors.toml"
    assert recipes.load_flavors(own) == recipes.load_flavors()
    own.write_text("flavors = 1")
    with pytest.raises(
        Unavailable, match=r"flavors\.toml cannot be used: 'flavors' must be a table"
    ):
        recipes.load_flavors(own)
    own.write_bytes(b"\xff")
    with pytest.raises(Unavailable, match=r"flavors\.toml cannot be used: .*decode"):
        recipes.load_flavors(own)
    own.unlink()
    own.mkdir()
    with pytest.raises(Unavailable, match="Is a directory"):
        recipes.load_flavors(own)


def test_the_shipped_catalogs() -> None:
    images = recipes.load_recipes()
    assert images.default == "debian"
    assert {"debian", "python", "node", "dev", "containers"} == set(images.by_name)
    assert {"git", "rsync", "python3", "curl", "ca-certificates"} <= set(
        images.by_name["dev"].packages
    )
    flavors = recipes.load_flavors()
    assert flavors.by_name[flavors.default].mem_mb >= 512
    assert all(flavor.disk_mb > 0 for flavor in flavors.by_name.values())
    sizes = [(f.cpus, f.mem_mb, f.disk_mb, f.pids) for f in flavors.by_name.values()]
    assert sizes == sorted(sizes)
    assert not set(images.by_name) & set(flavors.by_name)  # both stand after a colon in a spec
