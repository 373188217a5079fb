"""Ranges of ids: no two installations of a host share one, and nobody else has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from boxd.backends.host.id_ranges import BLOCKS, COUNT, PER_BLOCK, IdRange, IdRanges
from boxd.backends.host.names import HostNames
from boxd.errors import Unavailable
from boxd.sandbox.id_claims import FIRST, IdClaims

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SPAN = PER_BLOCK * COUNT


@pytest.fixture
def installation(tmp_path: Path) -> Callable[[str], IdRanges]:
    """Return a function that opens the ranges of an installation, as its service does."""

    def open_ranges(instance: str) -> IdRanges:
        names = HostNames(instance, tmp_path / instance)
        running = tmp_path / "run"
        (running / f"boxd-{instance}").mkdir(parents=True, exist_ok=True)
        claims = IdClaims(instance, tmp_path / "claims", (tmp_path / "subuid",), running)
        ranges = IdRanges(names, claims)
        ranges.setup()
        return ranges

    return open_ranges


def test_a_range_is_a_line_of_the_kernels_maps() -> None:
    ids = IdRange(FIRST)
    assert ids.mapping == f"0 {FIRST} 65536\n"
    assert ids.oci == [{"containerID": 0, "hostID": FIRST, "size": 65536}]


def test_no_two_slots_share_ids(installation: Callable[[str], IdRanges]) -> None:
    ranges = installation("000000")
    firsts = {ranges.of(slot).first for slot in range(2 * PER_BLOCK)}
    assert len(firsts) == 2 * PER_BLOCK
    assert all(first % COUNT == 0 and FIRST <= first < 2**31 for first in firsts)


def test_installations_begin_at_different_blocks(
    installation: Callable[[str], IdRanges], tmp_path: Path
) -> None:
    one = installation("000001").of(0)
    (tmp_path / "claims/1").unlink()  # as if it were in another container
    assert installation("000002").of(0) != one


def test_no_two_installations_share_ids(installation: Callable[[str], IdRanges]) -> None:
    one, other = installation("000000"), installation("00000f")
    firsts = [ranges.of(slot).first for slot in (0, PER_BLOCK) for ranges in (one, other)]
    assert len({first // SPAN for first in firsts}) == 4


def test_an_installation_keeps_its_ranges(installation: Callable[[str], IdRanges]) -> None:
    before = installation("000000").of(5)
    installation("00000f").of(5)
    assert installation("000000").of(5) == before


def test_a_block_that_another_installation_took_is_replaced(
    installation: Callable[[str], IdRanges], tmp_path: Path
) -> None:
    before = installation("000000").of(5)
    for claim in (tmp_path / "claims").iterdir():  # a reboot clears them
        claim.unlink()
    assert installation("00000f").of(5) == before
    after = installation("000000").of(5)
    assert after != before
    assert installation("000000").of(5) == after


def test_the_ranges_of_an_installation_that_is_gone_are_free(
    installation: Callable[[str], IdRanges], tmp_path: Path
) -> None:
    before = installation("000000").of(0)
    (tmp_path / "run/boxd-000000").rmdir()
    assert installation("00000f").of(0) == before


def test_released_ranges_are_free(installation: Callable[[str], IdRanges]) -> None:
    one = installation("000000")
    before = one.of(0)
    one.release()
    assert installation("00000f").of(0) == before


def test_ids_of_other_programs_are_left_out(
    installation: Callable[[str], IdRanges], tmp_path: Path
) -> None:
    lines = ["alice:100000:65536", f"podman:{FIRST + 7}:10", "broken", f"x:{FIRST + SPAN}:-1", ""]
    (tmp_path / "subuid").write_text("\n".join(lines))
    assert installation("000000").of(0).first == FIRST + SPAN


def test_a_host_without_free_ids_is_told(
    installation: Callable[[str], IdRanges], tmp_path: Path
) -> None:
    ranges = installation("000000")
    for block in range(BLOCKS):
        ranges.of(block * PER_BLOCK)
    with pytest.raises(Unavailable, match="no user ids are left for boxes"):
        ranges.of(BLOCKS * PER_BLOCK)
    (tmp_path / "subuid").write_text(f"all:{FIRST}:{2**31}\n")
    with pytest.raises(Unavailable, match="/etc/subuid"):
        installation("00000f").of(0)
