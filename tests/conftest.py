"""Fixtures shared by all tests. Each area adds a file in `tests/harness/` and names it here.

======================  ========  =================================================================
fixture                 scope     gives
======================  ========  =================================================================
`pg`                    session   superuser's DSN of a real private PostgreSQL cluster (per worker)
`pg_database`           function  superuser's DSN of a fresh database in it
======================  ========  =================================================================
"""

pytest_plugins: list[str] = ["tests.harness.pg"]
