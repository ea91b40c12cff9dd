"""The part of the differential fuzz that always runs."""

import differential
import programs
import pytest

BATCHES = [list(range(0, 15)), list(range(1000, 1015))]


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: f"from{batch[0]}")
def test_host_and_gpu_agree(arch, opt, batch):
    failures = differential.check(arch, opt, batch)
    assert not failures, "\n".join(failures)


def test_programs_are_reproducible():
    assert programs.Program(7).source() == programs.Program(7).source() != programs.Program(8).source()


def test_the_host_computes_something():
    """Outputs that never change would hide everything."""
    results = differential.host_results(BATCHES[0])
    for out in results.values():
        assert len({bytes(row) for row in out}) > differential.programs.ITEMS // 2
