"""Every fault of the matrix, with its stated outcome."""

import pytest

from tests.system.faults.fault_runner import drive
from tests.system.faults.matrix import MATRIX


@pytest.mark.parametrize("fault", MATRIX, ids=lambda fault: fault.name.replace(" ", "-"))
async def test_a_fault_has_its_stated_outcome_and_ends(fault, tmp_path):
    await drive(fault, tmp_path)
