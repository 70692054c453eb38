"""Training data.

text
    Byte-level text as a data set.
sampling
    The order in which a job visits its items, and how items become a batch.
"""

from farflung.data.sampling import Collate, SampleOrder, collate, spread_indices
from farflung.data.text import TextDataset, reading_from, text

__all__ = ["Collate", "SampleOrder", "TextDataset", "collate", "reading_from", "spread_indices", "text"]
