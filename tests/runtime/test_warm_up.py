"""A worker that stands by gets ready for a program before it has one."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import captured, placed

SCRIPT = """
import sys
from farflung.opdag import wire
from farflung.runtime.torch_backend.backend import TorchBackend
backend, segment = TorchBackend(), wire.load_segment(sys.stdin.buffer.read(), 2)
backend.warm_up()
before = set(sys.modules)
backend.verify(segment, 2)
print(len({name for name in sys.modules if name not in before}))
"""


def test_after_warming_up_a_program_is_verified_without_importing_packages() -> None:
    program = placed(captured(case("gpt-dropout"), 2)[1], [], ["worker-0"], 1, 2).programs[0]
    done = subprocess.run([sys.executable, "-c", SCRIPT], input=program, capture_output=True, check=True)
    assert int(done.stdout) < 10, done.stdout
