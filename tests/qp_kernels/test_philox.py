"""Philox against published vectors and against Triton's own `tl.rand`, run by its interpreter."""

import os
import subprocess
import sys

import pytest
import torch
from oracle import TOLERANCE

from qp_kernels import backend
from qp_kernels.qrita.philox import philox_4x32, uniform

ALL = 0xFFFFFFFF
# Known answers of the Random123 distribution for philox4x32 with 10 rounds: counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ALL,) * 4, (ALL, ALL), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]

TRITON_RAND = """
import sys
import torch
import triton
import triton.language as tl


@triton.jit
def rand(seeds_ptr, out_ptr, count, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    seeds = tl.load(seeds_ptr + place, mask=place < count, other=0)
    tl.store(out_ptr + place, tl.rand(seeds, place * 0), mask=place < count)


seeds = torch.tensor([int(word) for word in sys.stdin.read().split()])
out = torch.empty(len(seeds))
rand[(1,)](seeds, out, len(seeds), BLOCK=512)
print(*out.view(torch.int32).tolist())
"""


@pytest.mark.parametrize(("counter", "key", "want"), KNOWN)
def test_known_answers(counter, key, want):
    words = philox_4x32([torch.tensor([c, c]) for c in counter], [torch.tensor([k, k]) for k in key])
    assert [word.tolist() for word in words] == [[w, w] for w in want]


@pytest.mark.skipif(not backend.has_triton(), reason="triton has wheels for Linux only")
def test_bits_of_triton(tmp_path):
    seeds = [0, 1, -1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63 - 1, -(2**63), -(2**32), -(2**31)]
    seeds += torch.randint(-(2**63), 2**63 - 1, (150,), generator=torch.Generator().manual_seed(0)).tolist()
    seeds += list(range(100, 180))
    script = tmp_path / "rand.py"
    script.write_text(TRITON_RAND, "utf-8")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, str(script)],
        input=" ".join(map(str, seeds)),
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert uniform(torch.tensor(seeds)).view(torch.int32).tolist() == [int(word) for word in done.stdout.split()]


def test_range_and_mean():
    values = uniform(torch.arange(-50_000, 50_000))
    assert values.dtype == torch.float32 and values.min() >= 0 and values.max() < 1
    assert abs(float(values.double().mean()) - 0.5) < 0.005
    assert float((values < 0.25).double().mean()) == pytest.approx(0.25, abs=0.01)
    assert (2**31 - 1) * torch.tensor(4.6566127342e-10) < 1 - TOLERANCE * 1e-2
