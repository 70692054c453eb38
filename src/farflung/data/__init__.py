"""Training data: byte-level text, the order in which a job visits its items, and batches made of items."""

from farflung.data.sampling import Collate, SampleOrder, collate, spread_indices
from farflung.data.text import TextDataset, reading_from, text

__all__ = ["Collate", "SampleOrder", "TextDataset", "collate", "reading_from", "spread_indices", "text"]
