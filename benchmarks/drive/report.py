"""Writes the results of the drive as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.drive import growth
from benchmarks.drive.goals import HAND_OFF_MS, PARALLEL_PEER, SCALING, SHORT, UNKNOWN
from benchmarks.drive.ratios import RATIO, THEM, US, named
from benchmarks.report import markdown
from wrkfs.bench.figures import format_figure, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from benchmarks.drive.ratios import Works

Rows = list[tuple[str, ...]]


def lines(found: dict[str, Any]) -> list[str]:
    """Return the lines of the report."""
    text = _introduction(found)
    text += [f"Missing: {name} ({why})." for name, why in found["missing"].items()]
    text += ["", *markdown(rows(found["works"], found["peers"]), left=2)]
    text += ["", _verdict(found["works"]), "", "![ratios](drive.svg)"]
    if "parallel" in found:
        text += _parallel(found["parallel"], [p for p in (US, THEM) if p in found["peers"]])
    text += ["", "## Ping-pong: one mount creates a file, the other calls stat", ""]
    text += [f"Goal: create and stat together take at most {HAND_OFF_MS:g} ms; no stale answers."]
    text += ["", *markdown(_ping_pong_rows(found["ping_pong"]))]
    text += _failures(found["works"])
    if "growth" in found:
        text += ["", *growth.lines(found["growth"])]
    return text


def rows(works: Works, peers: Sequence[str]) -> Rows:
    """Return the table of one client: the peers, both ratios with their goals, and the verdict."""
    limits = {
        name: {"unit": ""}
        | {key: figures[f"limit_{key}"] for key in RATIO if f"limit_{key}" in figures}
        for name, figures in works.items()
    }
    heads = (
        ("work", "unit", *peers, "/ juicefs", "from - to", "goal"),
        ("/ passthrough", "from - to", "goal"),
    )
    plain = table(works, peers, ratio=True)[1:]
    beside = [row[2:] for row in table(limits, [], ratio=True)[1:]]
    verdicts = [str(figures["verdict"]) for figures in works.values()]
    body = [
        (*_filled(row, len(heads[0])), *_filled(other, len(heads[1])), verdict)
        for row, other, verdict in zip(plain, beside, verdicts, strict=True)
    ]
    return [(*heads[0], *heads[1], "goals"), *body]


def _filled(row: Sequence[str], length: int) -> tuple[str, ...]:
    """Return the row with a column of goals, which a table without goals lacks."""
    return (*row, *["-"] * (length - len(row)))


def _introduction(found: dict[str, Any]) -> list[str]:
    about, size, juicefs = found["machine"], found["size"], found.get("juicefs")
    text = [
        "# Drive",
        "",
        f"Medians of {found['repeat']} interleaved repetitions on the same PostgreSQL and object "
        "server. `/ juicefs` and `/ passthrough`: our rate relative to theirs. The passthrough is "
        "libfuse's C example on the local disk. "
        f"{size['files']} files, trees of {size['tree']} files ({size['clone']} to clone), "
        f"{size['mib']} MiB; real works: a project of {size['project']} files, "
        f"{size['packages']} packages, {size['wheels']} wheels, {size['transactions']} "
        "transactions. `-`: not measured.",
        "",
    ]
    if juicefs is not None:
        text += [f"JuiceFS {juicefs['version']}, {juicefs['source']}. {juicefs['note']}".strip()]
        text += [""]
    text += [
        f"{about['cpus']} x {about['cpu']}, {about['memory']}, {about['system']}, kernel "
        f"{about['kernel']}; load before {about['load_before']}; commit {found['commit'][:12]}, "
        f"{found['date']}.",
        "",
    ]
    return text


def _verdict(works: Works) -> str:
    verdicts = {text: named(works, text) for text in (SHORT, UNKNOWN)}
    text = ["No work is short of a goal."]
    if verdicts[SHORT]:
        text = [f"Short of a goal: {', '.join(verdicts[SHORT])}."]
    if verdicts[UNKNOWN]:
        text += [f"Without a verdict: {', '.join(verdicts[UNKNOWN])}."]
    return " ".join(text)


def _parallel(found: dict[str, Any], peers: Sequence[str]) -> list[str]:
    works: Works = found["works"]
    body = table(works, peers, ratio=True)
    added = [("/ one client", "goal", "goals")]
    added += [
        (
            format_figure(figures["scaling"]),
            f"{figures['scaling_goal']:g}",
            str(figures["verdict"]),
        )
        for figures in works.values()
    ]
    both = [(*row, *more) for row, more in zip(body, added, strict=True)]
    return [
        "",
        f"## {found['clients']} clients that share the same work",
        "",
        f"Medians of {found['repeat']} repetitions. Goals: at least {PARALLEL_PEER:g} of the rate "
        f"of JuiceFS, and {SCALING:g} times our rate with one client.",
        "",
        *markdown(both, left=2),
        "",
        _verdict(works),
    ]


def _ping_pong_rows(found: Mapping[str, Mapping[str, Any]]) -> Rows:
    keys = ("create_p50_ms", "stat_p50_ms", "hand_off_p50_ms", "hand_off_p95_ms", "stale", "rounds")
    body = [
        (
            name,
            *(format_figure(figures.get(key, "fails")) for key in keys),
            str(figures.get("verdict", "-")),
        )
        for name, figures in found.items()
    ]
    return [("mounts", *keys, "goal"), *body]


def _failures(works: Works) -> Iterable[str]:
    found = [
        f"- {work} on {peer}: {text}"
        for work, figures in works.items()
        for peer, text in figures.get("errors", {}).items()
    ]
    return ["", "## Failures", "", *found] if found else []
