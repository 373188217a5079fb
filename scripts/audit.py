"""Looks up the locked Python packages in the database of known vulnerabilities.

pip-audit also succeeds if the database does not know a package. So the first look-up is of a
release with known vulnerabilities: without them in the answer, the database is out of reach, and
the audit is skipped. Status 1: a locked package has a known vulnerability, or the database gave no
answer for a whole lock.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LOCKS = ("build", "dev")
"""dev.txt contains everything in run.txt."""
CONTROL = "jinja2==3.1.2"
"""A release with known vulnerabilities."""
_ROOT = Path(__file__).parents[1]


def main() -> int:
    """Print what is known about the locked packages; return the exit status."""
    with tempfile.TemporaryDirectory() as work:
        control = Path(work, "control.txt")
        control.write_text(CONTROL + "\n")
        if not any(one.get("vulns") for one in _answers(control, "--no-deps")):
            print(
                "audit: SKIPPED: the database of vulnerabilities cannot be reached, so no package"
                " was checked. Run `make audit` on a machine that reaches it.",
                file=sys.stderr,
            )
            return 0
    return max(_audit(_ROOT / f"scripts/lock/{name}.txt") for name in LOCKS)


def _audit(lock: Path) -> int:
    answers = _answers(lock, "--require-hashes")
    unknown = sorted(one["name"] for one in answers if "skip_reason" in one)
    vulnerable = [one for one in answers if one.get("vulns")]
    for one in vulnerable:
        ids = ", ".join(vulnerability["id"] for vulnerability in one["vulns"])
        print(f"audit: {lock.name}: {one['name']} {one['version']}: {ids}")
    if unknown or not answers:
        # A package that the database does not know is no reason to fail; a lock without answers is.
        print(f"audit: {lock.name}: NOT CHECKED: {', '.join(unknown) or 'all'}", file=sys.stderr)
    print(f"audit: {lock.name}: {len(answers) - len(unknown)} packages checked")
    return 1 if vulnerable or not answers else 0


def _answers(requirements: Path, option: str) -> list[dict[str, Any]]:
    """Return what the database answers for each package; nothing if it does not answer."""
    options = ("--disable-pip", option, "--progress-spinner", "off", "--timeout", "20")
    done = subprocess.run(
        [sys.executable, "-m", "pip_audit", *options, "-f", "json", "-r", str(requirements)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    try:
        answers: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return []
    return answers


if __name__ == "__main__":
    sys.exit(main())
