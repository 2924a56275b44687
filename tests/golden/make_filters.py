"""The true Hankel channels, in 300-digit arithmetic: `python tests/golden/make_filters.py`.

Independent of es_ssm. Z_ij = 2 / ((i+j)^3 - (i+j)) is exact in rationals; subspace iteration from a random
start, orthogonalised and projected (Rayleigh-Ritz) in the same arithmetic, finds its leading eigenpairs.
Neighbouring eigenvalues differ so much (1e-97 at the 64th for L = 64) that two iterations suffice.

Every pair kept is checked twice: |Z v - sigma v| / sigma is below 1e-25, and v changes sign exactly k times.
Z is strictly totally positive, so only its k-th eigenvector (from 0) does that: none is missing or swapped.

Numbers are Python integers in fixed point, value = integer / 2^BITS, in numpy object arrays: several times
quicker than mpf. mpmath solves the small eigenproblem.
"""

import random
import sys
import time
from math import isqrt
from pathlib import Path

import mpmath
import numpy as np
from safetensors.numpy import save_file

LENGTHS = (32, 60, 64, 100, 256, 512)
KEPT = 64  # the most that es_ssm offers
COLUMNS = 96  # of the subspace: the 96th eigenvalue is below 1e-16 of the 64th at every length
ITERATIONS = 2
DIGITS = 300
LARGEST_RESIDUAL = 1e-25
BITS = int(DIGITS * 3.3219281)
ONE = 1 << BITS

Block = np.ndarray  # of Python integers; vectors are rows


def hankel_matrix(length: int) -> Block:
    entries = [2 * ONE // (q**3 - q) for q in range(2, 2 * length + 1)]
    return np.array([entries[i : i + length] for i in range(length)], dtype=object)


def times(a: Block, b: Block) -> Block:
    return (a @ b) >> BITS


def orthonormal(block: Block) -> Block:
    """Gram-Schmidt, each row twice: the first pass cancels up to a hundred digits, the second mends that."""
    rows: list[Block] = []
    for row in block:
        for _ in range(2):
            for done in rows:
                row = row - (done * ((done @ row) >> BITS) >> BITS)
            row = row * ONE // isqrt(int(row @ row))
        rows.append(row)
    return np.array(rows, dtype=object)


def eigenpairs(length: int, kept: int = KEPT, columns: int = COLUMNS) -> tuple[Block, Block]:
    """The `kept` leading eigenvectors (rows, unit norm, first entry positive) and eigenvalues of Z."""
    z = hankel_matrix(length)
    columns = min(columns, length)
    bits = random.Random(length)
    block = np.array(
        [[bits.randrange(-ONE, ONE) for _ in range(length)] for _ in range(columns)], dtype=object
    )
    for _ in range(ITERATIONS if columns < length else 0):
        block = times(orthonormal(block), z)
    basis = orthonormal(block)

    projected = times(times(basis, z), basis.T)
    small = mpmath.matrix([[mpmath.mpf(int(entry)) / ONE for entry in row] for row in projected])
    values, vectors = mpmath.eigsy(small)  # ascending
    order = range(columns - 1, columns - 1 - min(kept, length), -1)
    values = np.array([int(values[m] * ONE) for m in order], dtype=object)
    rotation = np.array([[int(vectors[i, m] * ONE) for i in range(columns)] for m in order], dtype=object)
    filters = times(rotation, basis)
    return filters * np.where(filters[:, :1] < 0, -1, 1), values


def worst_residual(filters: Block, values: Block) -> float:
    """The largest |Z v - sigma v| / sigma."""
    miss = times(filters, hankel_matrix(filters.shape[1])) - (filters * values[:, None] >> BITS)
    return max(isqrt(int(row @ row)) / int(value) for row, value in zip(miss, values, strict=True))


def sign_changes(filters: Block) -> list[int]:
    return [int(np.sum((row[1:] > 0) != (row[:-1] > 0))) for row in filters]


def main() -> None:
    mpmath.mp.dps = DIGITS
    arrays = {}
    for length in LENGTHS:
        start = time.time()
        filters, values = eigenpairs(length)
        residual = worst_residual(filters, values)
        if residual > LARGEST_RESIDUAL:
            sys.exit(f"L={length}: residual {residual:.1e} is above {LARGEST_RESIDUAL:g}")
        if sign_changes(filters) != list(range(len(filters))):
            sys.exit(f"L={length}: a channel is missing or out of order")
        arrays[f"filters_{length}"] = (filters / ONE).astype(np.float64)  # int / int rounds correctly
        arrays[f"eigenvalues_{length}"] = (values / ONE).astype(np.float64)
        print(
            f"L={length}: {len(filters)} pairs, eigenvalues {values[0] / ONE:.3g} .. {values[-1] / ONE:.3g}, "
            f"worst residual {residual:.1e}, {time.time() - start:.0f} s",
            flush=True,
        )
    metadata = {
        "mpmath": mpmath.__version__,
        "digits": str(DIGITS),
        "command": "python tests/golden/make_filters.py",
    }
    save_file(arrays, Path(__file__).with_name("filters.safetensors"), metadata=metadata)


if __name__ == "__main__":
    main()
