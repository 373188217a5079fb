"""Compilers, make and pip at work on the drive."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from tests.mount.programs.programs import run

WHEELS = ("/usr/share/python-wheels", "/usr/lib/python3.11/ensurepip/_bundled")
"""Where Debian and others keep the wheels that come with Python."""
MODULES = 12
MAKEFILE = f"""\
OBJECTS := $(foreach n,$(shell seq {MODULES}),m$(n).o)
program: main.o libm.a
\t$(CC) -o $@ main.o libm.a
libm.a: $(OBJECTS)
\tar rcs $@ $^
%.o: %.c m.h
\t$(CC) -O1 -c -o $@ $<
clean:
\trm -f *.o *.a program
"""


@pytest.fixture
def project(mounted_twice: tuple[Path, Path]) -> Path:
    """The sources of a C program that adds up what its modules say."""
    made = mounted_twice[0] / "project"
    made.mkdir()
    numbers = range(1, MODULES + 1)
    (made / "Makefile").write_text(MAKEFILE)
    (made / "m.h").write_text("".join(f"int m{n}(void);\n" for n in numbers))
    for number in numbers:
        (made / f"m{number}.c").write_text(
            f'#include "m.h"\nint m{number}(void) {{ return {number}; }}\n'
        )
    calls = " + ".join(f"m{n}()" for n in numbers)
    main = f'#include <stdio.h>\n#include "m.h"\nint main(void) {{ printf("%d\\n", {calls}); }}\n'
    (made / "main.c").write_text(main)
    return made


@pytest.mark.timeout(120)
def test_make(project: Path) -> None:
    run("make", "-s", "-j4", cwd=project)
    assert run(project / "program") == f"{sum(range(MODULES + 1))}\n"
    assert "is up to date" in run("make", cwd=project)
    source = project / "m1.c"
    source.write_text(source.read_text().replace("return 1;", "return 1000;"))
    built = run("make", "-j4", cwd=project)
    assert built.count(" -c ") == 1, "only what depends on it is built again"
    assert run(project / "program") == f"{sum(range(MODULES + 1)) + 999}\n"
    run("strip", project / "program")
    run("make", "clean", cwd=project)
    assert {path.suffix for path in project.iterdir()} == {"", ".c", ".h"}


@pytest.mark.timeout(120)
def test_pip(mounted_twice: tuple[Path, Path]) -> None:
    """pip itself runs from the local disk, to save time; it installs into a venv on the drive."""
    venv = mounted_twice[0] / "venv"
    wheel = next(path for place in WHEELS for path in Path(place).glob("setuptools-*.whl"))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python")
    run("/usr/bin/python3.11", "-m", "venv", "--without-pip", venv)
    run(*pip, venv / "bin/python", "install", "-q", "--no-index", "--no-compile", wheel)
    installed = venv / "lib/python3.11/site-packages"
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("RECORD")]
        assert len(names) > 100
        for name in names:
            assert (installed / name).read_bytes() == archive.read(name)
    for path in mounted_twice:
        code = "import setuptools; print(setuptools.__version__)"
        assert run(path / "venv/bin/python", "-c", code) in f"{wheel.name.split('-')[1]}\n"
    run(*pip, venv / "bin/python", "uninstall", "-q", "-y", "setuptools")
    assert not (installed / "setuptools").exists()
