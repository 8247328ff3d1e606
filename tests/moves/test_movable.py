"""Which storages may be off the device."""

from __future__ import annotations

from builders import ProblemBuilder
from remat_compiler.ir.graph import Phase, StorageKind
from remat_passes.transfers.gaps import movable_storages


def test_what_takes_nothing_of_the_device_and_random_states_do_not_move() -> None:
    """Seeds of attention are made on the host: transfers would move memory that a GPU does not hold."""
    b = ProblemBuilder()
    x, seed, output = b.run(
        Phase.FORWARD,
        (),
        [(8, StorageKind.ACTIVATION), (0, StorageKind.ACTIVATION), (8, StorageKind.OUTPUT)],
        replay_bytes=16,
    )
    state = next(op.replay for op in b.ops)
    b.backward([x, seed], 8)
    movable = movable_storages(b.problem().graph)
    assert movable[x]
    assert not any(movable[one] for one in (seed, output, state))
