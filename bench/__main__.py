"""Run one benchmark by name: `make bench CASE=name`, or `python bench name` if its extra is
installed.

It imports nothing outside of the standard library, because the Makefile asks it which extra to
install before there is an environment.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

BENCH = Path(__file__).resolve().parent
PYTEST = ("-m", "pytest", "--benchmark-only", "--benchmark-columns=median,iqr,rounds", "-s")
SUITE = ("test_suite", "test_engine")


class Case(NamedTuple):
    """A benchmark: one line of help, the extra of pyproject.toml that it needs, and arguments
    of Python for each step.
    """

    help: str
    extra: str
    steps: tuple[tuple[str, ...], ...]


def _marked(which: str, *names: str) -> tuple[str, ...]:
    """Return the arguments that run the cases of files of this folder that are marked `which`."""
    return (*PYTEST, "-m", which, *(str(BENCH / f"{name}.py") for name in names))


def _suite(which: str, file: str) -> tuple[str, ...]:
    """Return the arguments that run the cases of the suite marked `which`, and keep their
    rounds in `file`.
    """
    return (*_marked(which, *SUITE), f"--benchmark-json={BENCH / 'results' / file}")


def _script(name: str) -> tuple[str, ...]:
    """Return the arguments that run a script of this folder."""
    return (str(BENCH / f"{name}.py"),)


CASES = {
    "suite": Case(
        "kernels and solvers beside the limits of the machine, LAPACK and numpy: 10 minutes",
        "test",
        (_suite("not full", "suite.json"),),
    ),
    "full": Case("the large cases of the suite", "test", (_suite("full", "suite_full.json"),)),
    "tiles": Case(
        "loops over tiles beside LAPACK, BLAS, numpy and the copy of memory: 7 minutes",
        "test",
        (_marked("not full", "test_tiles"),),
    ),
    "tiles_full": Case("tiles of up to 30,000 rows", "test", (_marked("full", "test_tiles"),)),
    "scaling": Case(
        "time and memory against the number of rows, per solver: 7 minutes",
        "test",
        (_script("scaling"),),
    ),
    "cores": Case(
        "what 4, 8 and 16 cores would gain, replayed from one core: 6 minutes",
        "test",
        (_script("cores"),),
    ),
    "default": Case(
        "the default model beside its candidates, the paper's and boosting: 45 minutes",
        "peers",
        (_script("default"),),
    ),
    "search": Case(
        "complete fits beside those before the tile engine, and SGPR: 45 minutes",
        "peers",
        (_script("search"),),
    ),
    "rates": Case(
        "the speed of one core, from which times are predicted: a minute",
        "test",
        (_script("rates"),),
    ),
    "peers": Case(
        "one table beside seven other packages: half an hour", "peers", (("-m", "peers"),)
    ),
    "neighbors_files": Case(
        "neighbours among ten million rows of a memory map: 15 minutes",
        "test",
        (_script("neighbors_files"),),
    ),
    "large": Case(
        "tens of thousands of rows beside GPyTorch: an hour", "peers", (_script("large"),)
    ),
    "text": Case("bags of words, up to 50,000 documents: 10 minutes", "test", (_script("text"),)),
    "inducing": Case(
        "inducing points beside SGPR, a million rows, Dask: half an hour",
        "peers",
        (_script("inducing"),),
    ),
    "neighbors": Case(
        "neighbours beside exact, inducing points, MuyGPyS and GPyTorch's SVGP: an hour",
        "peers",
        (_script("neighbors"),),
    ),
    "varying": Case(
        "varying coefficients beside GPBoost and mgwr, pictures of the guides: 20 minutes",
        "peers",
        (_script("varying"), _script("spatial")),
    ),
    "weights": Case(
        "weights with priors of their own beside shared ones, with known truth: 10 minutes",
        "test",
        (_script("weights"),),
    ),
    "doors": Case(
        "saved models, reports, expected times, the command line on a million rows: 10 minutes",
        "test",
        (_script("doors"),),
    ),
}


def listing() -> str:
    """Return the names of all cases with their help, one per line."""
    return "\n".join(f"  {name:<10} {case.help}" for name, case in CASES.items())


def run(case: Case, more: list[str]) -> int:
    """Run the steps of a case one after the other, and return the exit status of the first
    that fails, or 0.
    """
    path = os.pathsep.join([str(BENCH), *filter(None, [os.environ.get("PYTHONPATH")])])
    for step in case.steps:
        status = subprocess.run(
            [sys.executable, *step, *more], env=os.environ | {"PYTHONPATH": path}
        ).returncode
        if status:
            return status
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python bench",
        description="Run one benchmark.",
        epilog=f"cases:\n{listing()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("case", nargs="?", default="suite", help="name of the benchmark")
    parser.add_argument("--extra", action="store_true", help="print the extra that the case needs")
    asked, more = parser.parse_known_args(arguments)
    if asked.case not in CASES:
        print(f"There is no benchmark {asked.case!r}. There are:\n{listing()}", file=sys.stderr)
        return 2
    case = CASES[asked.case]
    if asked.extra:
        print(case.extra)
        return 0
    if more and len(case.steps) > 1:
        scripts = " or ".join(Path(step[0]).name for step in case.steps)
        print(f"{asked.case!r} has several scripts. Pass the names to {scripts}.", file=sys.stderr)
        return 2
    return run(case, more)


if __name__ == "__main__":
    sys.exit(main())
