"""The HTTP API does what its own document says: schemathesis asks it, with all of its checks.

What it is told beforehand, and why:

- good data may be refused for what there is: 412, 413, 416 and 502 are no refusal of the data
- ports take every method, so that none is unsupported; only that of an app is asked for
- names, specs, images and egress lists in bodies have grammars of their own: 400 is no refusal of
  the routes that take them; their own tests know what each of them refuses
- terminals and MCP are asked without a WebSocket and without a session, and refuse whatever they
  are asked; so what they take and refuse is left to their own tests
- `missing_required_header`, `use_after_free` and `ensure_resource_availability` find nothing to do:
  no header but a key's is required, and boxes are made by specs, not by a POST that names them
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.authorisation.house import estate

if TYPE_CHECKING:
    from tests.plugins.figures import Figures

SETTINGS = """
base-url = "http://{address}"
headers = {{ Authorization = "Bearer {key}" }}
hooks = "tests.harness.http.schemathesis_hooks"
color = false
suppress-health-check = ["filter_too_much"]
warnings = false

[generation]
max-examples = {examples}
database = "none"

[checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", 401, 403, 404, 409, 412, 413, 416, 429, 502]

[[operations]]
include-path = "/v1/boxes/{{box}}/proxy/{{port}}/{{path}}"
parameters = {{ port = "{port}", box = "web" }}
[operations.checks]
unsupported_method.enabled = false

[[operations]]
include-path = "/v1/boxes/{{box}}/term"
[operations.checks]
positive_data_acceptance.enabled = false
negative_data_rejection.enabled = false

[[operations]]
include-operation-id = [
    "createBox", "setProfile", "buildProfile", "createAsk", "answerAsk", "execBatch",
    "renderCanvas", "setSecret", "setAgent", "forkBox", "forkSnapshot", "createSnapshot",
    "createWorkspace",
]
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", 400, 401, 403, 404, 409, 412, 413, 416, 429, 502]

[[operations]]
include-path = "/v1/mcp"
[operations.checks]
positive_data_acceptance.enabled = false
"""
ROOT = Path(__file__).parents[3]
NO_SHELL = "nobody"
"""An account whose shell refuses: what is made up here must not be run."""


@pytest.mark.timeout(900)
@pytest.mark.figure("AP-1")
async def test_what_is_served_is_what_is_described(tmp_path: Path, figures: Figures) -> None:
    config = tmp_path / "schemathesis.toml"
    for number in figures(ci=1, long=40):
        await _ask_everything(config, seed=number + 1)


async def _ask_everything(config: Path, *, seed: int) -> None:
    """Fifty examples of each operation, and the boundaries of each; equal seeds make equal ones."""
    async with estate(NO_SHELL) as owned:
        house = await owned.house()
        key = house.alice.keys["account"]
        address, port = house.http, house.app
        config.write_text(SETTINGS.format(address=address, key=key, port=port, examples=50))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"),
            *("--config-file", str(config), "run", f"http://{address}/v1/openapi.json"),
            *("--phases", "examples,coverage,fuzzing", "--seed", str(seed)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=config.parent,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        )
        said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
