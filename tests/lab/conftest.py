"""Labs need root and TUN devices: where those are missing, their tests are skipped with the reason."""

import pytest

from farflung.errors import LabError
from farflung.lab.machine import check_machine


@pytest.fixture
def lab_machine() -> None:
    try:
        check_machine(needs_nft=True)
    except LabError as error:
        pytest.skip(str(error))
