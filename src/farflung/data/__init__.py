"""Training data.

text
    Byte-level text as a data set.
Pad
    Brings items of different lengths to one, as `Job(collate=)`.
Pack, PackStream
    Rows with several short sequences each, which a model keeps apart, such as by `block_mask`.
Chats
    Conversations as tokens, whose answers are learned.
Pairs
    Makes batches of a prompt and two answers, for `farflung.objectives.DPO`, as `Job(collate=)`.
sampling
    The order in which a job visits its items, and how items become a batch.
"""

from farflung.data.chats import Chats
from farflung.data.packing import Pack, PackStream, block_mask
from farflung.data.padding import Pad
from farflung.data.pairs import Pairs
from farflung.data.sampling import Collate, SampleOrder, collate, spread_indices
from farflung.data.text import TextDataset, reading_from, text

__all__ = [
    "Chats",
    "Collate",
    "Pack",
    "PackStream",
    "Pad",
    "Pairs",
    "SampleOrder",
    "TextDataset",
    "block_mask",
    "collate",
    "reading_from",
    "spread_indices",
    "text",
]
