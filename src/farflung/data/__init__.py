"""Training data.

text
    Byte-level text as a data set.
Pad
    Brings items of different lengths to one, as `Job(collate=)`.
sampling
    The order in which a job visits its items, and how items become a batch.
"""

from farflung.data.padding import Pad
from farflung.data.sampling import Collate, SampleOrder, collate, spread_indices
from farflung.data.text import TextDataset, reading_from, text

__all__ = [
    "Collate",
    "Pad",
    "SampleOrder",
    "TextDataset",
    "collate",
    "reading_from",
    "spread_indices",
    "text",
]
