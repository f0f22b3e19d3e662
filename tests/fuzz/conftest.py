"""The fuzz tests run only by `python -m pytest tests/fuzz -m fuzz`."""

import pytest

from fuzz.outcome import SEED, TOTAL, ended, run

# An allocation that no memory_limit stopped becomes a MemoryError, and so a finding.
ADDRESS_SPACE_BYTES = 16 * 2**30


def pytest_collection_modifyitems(config, items):
    if "fuzz" in config.getoption("markexpr"):
        return
    kept = [item for item in items if item.get_closest_marker("fuzz") is None]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def pytest_terminal_summary(terminalreporter):
    if not run:
        return
    counts = ", ".join(f"{name} {count}" for name, count in sorted(run.items()))
    terminalreporter.write_line(f"fuzz: {sum(run.values())} cases of {TOTAL} asked for ({counts})")
    terminalreporter.write_line(
        f"fuzz: {ended['answered']} calls answered, {ended['refused']} refused"
    )
    terminalreporter.write_line(f"fuzz: GPX_SCALE_FUZZ_SEED={SEED} repeats them")


@pytest.fixture(autouse=True)
def bounded_memory():
    import resource  # Windows does not have it.

    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)
