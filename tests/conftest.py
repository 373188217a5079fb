"""Fixtures shared by all tests.

Each area adds a module to a folder of `tests/harness/` and names it here.

======================  ========  =================================================================
fixture                 scope     gives
======================  ========  =================================================================
`box_host`              function  a runc backend with boxes of the `debian` image
`containers_rootfs`     session   root of the `containers` image, kept between runs
`cluster`               module    a PostgreSQL server that tests may kill
`daemon`                module    a real `boxd serve` with a state directory of its own
`docker_daemon`         module    a real `boxd serve` with its boxes in `dockerd`
`docker_host`           function  a docker backend with boxes of busybox
`dockerd`               session   a Docker engine of the tests' own
`image_rootfs`          session   root of the `debian` image, kept between runs
`local_box`             function  a guest agent as a local process with its tunnel up
`mortal`                module    a real `boxd serve` that dies at the step that it is told
`mount`                 function  factory of mount processes of `volume`
`pg`                    session   superuser's DSN of a real private PostgreSQL cluster (per worker)
`pg_database`           function  superuser's DSN of a fresh database in it
`objectserver`          session   real object server process; `.volume()` makes prefix credentials
`object_volume`         function  `StoreConfig` of a fresh prefix of it
`meta`, `other`         function  two sessions on one empty volume; runs on memory and PostgreSQL
`meta_volume`           function  that volume: more sessions, quota, fencing
`pg_volume`             function  an empty volume's metadata in PostgreSQL
`figures`               function  rounds of a test of the reliability catalogue: CI or long figure
`http_drive`            function  blocking client of `volume` over the real HTTP API
`front_door`            function  open front door before boxes that are plain local processes
`site`                  function  served HTTP API and preview hosts behind a real TLS proxy
`previews`              function  as `web`, with hosts for the ports of boxes
`sleepy`                function  a runc backend that suspends boxes of the `debian` image
`verdict`               session   what CRIU can on this machine; fails where there is none
`volume`                function  a fresh volume on real PostgreSQL and object server
`web`                   function  served HTTP API before local processes, stores in memory
`web_without_drives`    function  the same where drives are not enabled
======================  ========  =================================================================
"""

import pytest
from hypothesis import settings

# A failed assertion of the harness shows its values, as one of a test does.
pytest.register_assert_rewrite("tests.harness")

# The same examples everywhere and no deadline: the speed of a machine proves nothing.
settings.load_profile("ci")

pytest_plugins: list[str] = [
    # Who is imported by others comes before them.
    "tests.plugins.no_leaks",
    "tests.harness.nursery",
    "tests.harness.agents.agent",
    "tests.harness.boxes.backend",
    "tests.harness.service.daemon",
    "tests.harness.boxes.dockerd",
    "tests.harness.mounts.drive",
    "tests.harness.servers.cluster",
    "tests.harness.ssh.frontdoor",
    "tests.harness.http.web",
    "tests.harness.http.httpdrive",
    "tests.harness.servers.objectserver",
    "tests.harness.volumes.metastore",
    "tests.harness.service.mortal_daemon",
    "tests.harness.servers.pg",
    "tests.harness.http.site",
    "tests.harness.boxes.suspending",
    "tests.harness.boxes.program_image",
    "tests.plugins.failed_tests",
    "tests.plugins.figures",
    "tests.plugins.strict_logs",
]
