"""A fixed order of the constraint rows of a world, for --deterministic.

Threads of contacts and limits allocate rows concurrently, so their order differs from run to run, and sums over them
differ in the last digits. mujoco_warp 4.0 has an empty function for sorting them; `sort_rows` replaces it. Rows are
sorted by kind, then by joint, or by pair of geoms, contact of the pair and edge of the friction cone.
"""

from typing import Any

import warp as wp
from mujoco_warp._src.types import ConstraintType

CONTACT = wp.constant(int(ConstraintType.CONTACT_FRICTIONLESS))  # and all kinds after it
wp.set_module_options({"enable_backward": False})


@wp.kernel
def order_rows(
    count: wp.array[int],
    kind: wp.array2d[int],
    of: wp.array2d[int],
    geoms: wp.array[wp.vec2i],
    of_pair: wp.array[int],
    first_row: wp.array2d[int],
    # out
    keys: wp.array2d[wp.int64],
    order: wp.array2d[int],
):
    """Thread (world): sort the rows of a world, by insertion. `order[world, after] = before`."""
    world = wp.tid()
    rows = wp.min(count[world], kind.shape[1])
    for row in range(rows):
        thing = of[world, row]
        key = wp.int64(kind[world, row])
        if kind[world, row] >= CONTACT:
            key = key * wp.int64(65536) + wp.int64(geoms[thing][0])
            key = key * wp.int64(65536) + wp.int64(geoms[thing][1])
            key = key * wp.int64(256) + wp.int64(of_pair[thing])
            key = key * wp.int64(256) + wp.int64(row - first_row[thing, 0])
        else:
            key = key * wp.int64(65536) * wp.int64(65536) * wp.int64(65536) + wp.int64(thing)
        place = row
        while place > 0 and keys[world, wp.max(place - 1, 0)] > key:
            keys[world, place] = keys[world, place - 1]
            order[world, place] = order[world, place - 1]
            place -= 1
        keys[world, place] = key
        order[world, place] = row


@wp.kernel
def take(count: wp.array[int], order: wp.array2d[int], before: wp.array2d[Any], after: wp.array2d[Any]):
    world, row = wp.tid()
    if row < count[world]:
        after[world, row] = before[world, order[world, row]]


@wp.kernel
def take_vectors(count: wp.array[int], order: wp.array2d[int], before: wp.array3d[float], after: wp.array3d[float]):
    world, row, i = wp.tid()
    if row < count[world]:
        after[world, row, i] = before[world, order[world, row], i]


@wp.kernel
def update_addresses(
    count: wp.array[int],
    kind: wp.array2d[int],
    of: wp.array2d[int],
    order: wp.array2d[int],
    before: wp.array2d[int],
    after: wp.array2d[int],
):
    """Thread (world, row): update the row addresses of contacts. `kind` and `of` are already sorted."""
    world, row = wp.tid()
    if row < count[world] and kind[world, row] >= CONTACT:
        contact = of[world, row]
        after[contact, order[world, row] - before[contact, 0]] = row


def sort_rows(m: Any, d: Any) -> None:
    """Replacement of mujoco_warp's `_sort_constraints`."""
    assert not m.is_sparse
    efc, shape = d.efc, (d.nworld, d.njmax)
    keys, order = wp.zeros(shape, dtype=wp.int64), wp.zeros(shape, dtype=int)
    addresses = wp.clone(d.contact.efc_address)
    contacts = [d.contact.geom, d.contact.geomcollisionid, addresses]
    wp.launch(order_rows, d.nworld, [d.nefc, efc.type, efc.id, *contacts], outputs=[keys, order])
    for values in (efc.type, efc.id, efc.pos, efc.margin, efc.D, efc.vel, efc.aref, efc.frictionloss, efc.Jqvel):
        wp.launch(take, shape, [d.nefc, order, wp.clone(values)], outputs=[values])
    wp.launch(take_vectors, (*shape, m.nv), [d.nefc, order, wp.clone(efc.J)], outputs=[efc.J])
    wp.launch(update_addresses, shape, [d.nefc, efc.type, efc.id, order, addresses], outputs=[d.contact.efc_address])
