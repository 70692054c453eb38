"""The codec of what sums of gradients send from site to site, with error feedback.

Feedback is at both places where something is lost: a head adds to its group's sum what its earlier messages
left out, and the owner to the sum of all what its earlier answers left out (as DoubleSqueeze does; Tang et
al., arXiv 1905.05957, algorithm 1). So what has been decoded so far, plus the residuals of all heads and of
the owner, is what has been added so far.
"""

from __future__ import annotations

from typing import Any

from farflung.codec import Context
from farflung.codec.catalogue import sum_recipe
from farflung.opdag.form import Form
from farflung.plans.codec_pair import DENSE
from farflung.runtime.carrier import ArrayCoder, Carrier
from farflung.runtime.link_book import AnyParcel
from farflung.runtime.parcel import Parcel


class SumCoders:
    """One worker's coders of sums in one attempt; not safe for concurrent calls.

    This changes numbers: each replica trains on the sum as decoded, the owner too, so all of them have the
    same bits, which are not those of the exact sum. Codecs whose decoding depends on the machine are refused.

    Residuals are no part of the state that is copied or saved. A member that loads its state begins without
    any; one that keeps its runners keeps them. They would make each copy of AdamW's state a third larger, and
    each checkpoint by as much again for each replica, of which it has one; what is lost is what one message
    left out. And no replica depends on another one's residuals: equal bits come from equal payloads. So a run
    that goes on from stored state, or with a newcomer, differs a little from one that was not disturbed.
    """

    def __init__(self, codec: str, seed: int, carrier: Carrier) -> None:
        self._recipe = None if codec == DENSE else sum_recipe(codec)
        self._seed = seed
        self._carrier = carrier
        self._coders: dict[tuple[int, int], ArrayCoder] = {}
        self._owned: tuple[tuple[int, int, int], bytes] | None = None

    def encode(self, parcel: Parcel[Any], form: Form, step: int) -> tuple[bytes, bool]:
        """The payload of what a head or the owner sends in `step`, and whether it is new and not finite.

        The owner's parcels of one sum come one after the other and have the same payload.
        """
        place = (parcel.unit, parcel.source, parcel.value)
        if not parcel.gradient and self._owned is not None and self._owned[0] == place:
            return self._owned[1], False
        self._owned = None
        array = self._carrier.array(parcel.payload, form)
        encoded = self._coder(parcel, form).encode(array, self._context(parcel, step))
        payload = encoded.joined()
        if not parcel.gradient:
            self._owned = place, payload
        return payload, encoded.exact == "not finite"

    def decode(self, parcel: Parcel[Any], data: memoryview, array: Any, form: Form, step: int) -> None:
        """Fill `array` with what arrived; CodecError if it is damaged."""
        self._coder(parcel, form).decode(data, array, self._context(parcel, step))

    def commit(self) -> None:
        """The step is applied: what its messages left out is added to the next ones."""
        self._owned = None
        for coder in self._coders.values():
            coder.on_host.commit()

    def discard(self) -> None:
        """The step runs again: its messages have left nothing out."""
        self._owned = None
        for coder in self._coders.values():
            coder.on_host.discard()

    def _coder(self, parcel: AnyParcel, form: Form) -> ArrayCoder:
        assert self._recipe is not None
        place = (parcel.source, parcel.value)
        if place not in self._coders:
            self._coders[place] = self._carrier.coder(self._recipe, form.width)
        return self._coders[place]

    def _context(self, parcel: AnyParcel, step: int) -> Context:
        """The place of a message is its sender: all who read the owner's sum read it alike."""
        return Context.at(self._seed, step, 0, parcel.value, gradient=parcel.gradient, target=parcel.source)
