"""Reads metrics in the text format of Prometheus, with the parser of its own library."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Mapping


class Scrape:
    """The metrics of one moment."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.types: dict[str, str] = {}
        self.helps: dict[str, str] = {}
        self._samples: list[tuple[str, Mapping[str, str], float]] = []
        for family in text_string_to_metric_families(text):
            # The parser removes `_total` from the name of a counter.
            name = f"{family.name}_total" if family.type == "counter" else family.name
            self.types[name], self.helps[name] = family.type, family.documentation
            self._samples += [(one.name, one.labels, one.value) for one in family.samples]

    @classmethod
    def of(cls, address: str) -> Scrape:
        """Scrape `HOST:PORT`."""
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            return cls(answer.read().decode())

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of all samples of a name that have these labels."""
        return sum(
            value
            for sample, present, value in self._samples
            if sample == name and labels.items() <= present.items()
        )

    def labels(self, name: str, label: str) -> set[str]:
        """Return the values of a label."""
        return {labels[label] for sample, labels, _ in self._samples if sample == name}

    def sample_names(self) -> set[str]:
        """Return the names of all samples, and of histograms without samples."""
        names = {name for name, _, _ in self._samples} | self.types.keys()
        histograms = {name for name, kind in self.types.items() if kind == "histogram"}
        return names | {f"{n}_{end}" for n in histograms for end in ("bucket", "sum", "count")}
