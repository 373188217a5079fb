"""How far a build is."""

from __future__ import annotations

from boxd.images.progress import Progress, ProgressReader

LINES = """I: running apt-get update...
Get:1 http://x bookworm InRelease
I: downloading packages with apt...
I: extracting archives...
I: installing essential packages...
Setting up a
I: installing remaining packages inside the chroot...
Setting up before-the-count
0 upgraded, 2 newly installed, 0 to remove
Get:1 a
Get:2 b
Unpacking a
Unpacking b
Setting up a
Setting up b
Setting up c (again)
I: cleaning package lists and apt cache...
""".splitlines()


def test_it_only_rises() -> None:
    reader = ProgressReader()
    states = [state for state in map(reader.feed, LINES) if state is not None]
    percents = [state.percent for state in states]
    assert percents == sorted(percents)
    assert states[0] == Progress(2.0, "reading package lists")
    assert states[-1].percent == 92.0
    assert str(states[-1]) == " 92 % cleaning up"
    assert len({p for p in percents if 45 < p < 92}) == 5


def test_what_says_nothing_changes_nothing() -> None:
    reader = ProgressReader()
    assert reader.feed("I: automatically chosen mode: root") is None
    assert reader.feed("") is None
